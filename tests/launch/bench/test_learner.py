"""The bench of a learner alone: what a row says, at the smallest size."""

import json
import logging
from typing import Any

import pytest
import torch

from headrace.launch.bench.learner import learner, population, ready_source
from headrace.learner.step import one_step


class NoCompiler:
    """Stands for a compiler that ends without one."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def ended(self) -> str:
        return "no compiler"

    def close(self) -> None: ...


@pytest.mark.slow
def test_a_row_for_each_size_and_the_steps_that_are_compiled(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    tiny = learner.NETWORKS["mlp"]._replace(on_cpu=(1,), on_gpu=(1,))
    monkeypatch.setattr(learner, "NETWORKS", {"mlp": tiny})
    monkeypatch.setattr(learner, "SECONDS", 0.05)
    monkeypatch.setattr(ready_source, "SECONDS", 0.05)
    monkeypatch.setattr(one_step, "CompileAhead", NoCompiler)
    with caplog.at_level(logging.WARNING):
        learner.bench([])
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    (row,) = told["rows"]
    assert (row["network"], row["samples"]) == ("mlp", 64)
    assert min(row["resident_per_s"], row["uploaded_per_s"], row["host_per_s"]) > 0
    assert told["one_piece"]["parts_us"] > 0 and told["one_piece"]["one_piece_us"] > 0
    if not torch.cuda.is_available():
        assert any("not compiled: no compiler" in line for line in caplog.messages)


@pytest.mark.slow
def test_a_row_for_each_size_of_a_population(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(population, "_COLUMNS", (2,))
    monkeypatch.setattr(population, "_POLICIES", 3)
    monkeypatch.setattr(population, "SECONDS", 0.05)
    monkeypatch.setattr(ready_source, "SECONDS", 0.05)
    population.bench()
    (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert min(row["population_per_s"], row["one_per_s"], row["loop_per_s"]) > 0
    assert 0 < row["sent_mb"] < row["state_mb"]
    # 3 policies of two networks, 4 x 64 and 64 x 64, and their heads; and two moments of each.
    assert row["state_mb"] == round(9 * 4 * (2 * (5 * 64 + 65 * 64) + 65 * 3) / 1e6, 1)
