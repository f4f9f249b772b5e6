"""A league that begins with what its run's folder keeps."""

import logging
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from headrace.actors.league.league import League
from headrace.broker.weights.blobs import Blob
from headrace.launch.roles.sampler import take_up
from headrace.learner.weights import FlatWeights, WeightsError


class Taken:
    """A league that keeps whatever it is given, or refuses."""

    def __init__(self, refuses: str = "") -> None:
        self.blobs: list[Blob] = []
        self.refuses = refuses

    def took(self, blob: Blob) -> None:
        if self.refuses:
            raise WeightsError(self.refuses)
        self.blobs.append(blob)


def versions(folder: Path, most: int) -> list[int]:
    taken = Taken()
    take_up(cast(League, taken), folder, most)
    return [blob.announce.version for blob in taken.blobs]


@pytest.fixture
def kept(leave_run: Any, tmp_path: Path) -> Path:
    for seed, (version, inside) in enumerate(
        [(40, "checkpoints"), (60, "checkpoints"), (20, "best"), (30, "best")]
    ):
        leave_run(tmp_path, version=version, inside=inside, seed=seed)
    return tmp_path


def test_all_that_is_kept_or_so_many_spread_over_it_the_oldest_first(kept: Path) -> None:
    assert versions(kept, 8) == [20, 30, 40, 60]
    assert versions(kept, 3) == [20, 30, 60]
    assert versions(kept, 0) == []


def test_it_is_the_weights_of_that_version(leave_run: Any, tmp_path: Path) -> None:
    model = leave_run(tmp_path, version=40, seed=9)
    taken = Taken()
    take_up(cast(League, taken), tmp_path, 1)
    (blob,) = taken.blobs
    assert np.array_equal(
        np.frombuffer(blob.body, np.uint8), np.frombuffer(FlatWeights(model).dump(), np.uint8)
    )


def test_what_is_no_runs_folder_has_none(kept: Path, tmp_path: Path) -> None:
    assert versions(tmp_path / "nowhere", 8) == []
    (kept / "run.toml").unlink()
    assert versions(kept, 8) == []


def test_a_damaged_checkpoint_is_left_out(kept: Path) -> None:
    for path in (kept / "best" / f"{30:012d}").iterdir():
        path.write_bytes(b"nonsense")
    assert versions(kept, 8) == [20, 40, 60]


def test_weights_of_another_network_are_told_once(
    kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        take_up(cast(League, Taken("other layers")), kept, 8)
    (told,) = [record.getMessage() for record in caplog.records]
    assert told == f"the league does not meet what {kept} keeps: other layers"
