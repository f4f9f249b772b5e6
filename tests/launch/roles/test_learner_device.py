"""The device of a learner rank, on machines with GPUs and drivers that are made up."""

import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headrace.launch.config.run_file import ConfigError
from headrace.launch.roles import learner_device

OLD = (
    "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040).\n"
    "Please update your GPU driver"
)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the names of this machine's GPUs; a test adds some."""
    names: list[str] = []
    cuda: dict[str, Any] = {
        "is_available": lambda: bool(names),
        "device_count": lambda: len(names),
        "set_device": lambda _: None,
        "get_device_name": lambda device: names[device.index],
        "get_device_properties": lambda device: SimpleNamespace(uuid=f"GPU-{device.index}"),
    }
    for name, stand_in in cuda.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return names


def ranks(rank: int, others: list[str] | None = None) -> Any:
    gather = lambda own: [own, *(name.encode() for name in others or [])]  # noqa: E731
    return SimpleNamespace(rank=rank, local_rank=rank, gather=gather)


def test_a_gpu_is_taken_where_there_is_one(gpus: list[str]) -> None:
    assert learner_device.found("auto") == learner_device.found("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"= .cuda., but torch finds no GPU here; use"):
        learner_device.found("cuda")
    gpus.append("H200")
    assert learner_device.found("auto") == learner_device.found("cuda") == torch.device("cuda")
    assert learner_device.found("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="it is auto, cpu or cuda"):
        learner_device.found("gpu")


def test_what_torch_says_of_the_driver_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def old_driver() -> bool:
        warnings.warn(OLD, stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", old_driver)
    told = f"({' '.join(OLD.split())})"
    with pytest.raises(ConfigError) as caught:
        learner_device.found("cuda")
    assert f"torch finds no GPU here {told}; use" in str(caught.value)
    assert learner_device.found("auto") == torch.device("cpu")
    assert caplog.messages == [f"the learner is on a CPU, torch finds no GPU {told}"]


def test_each_rank_has_its_own(gpus: list[str], caplog: pytest.LogCaptureFixture) -> None:
    gpus += ["H200", "H200"]
    device = torch.device("cuda")
    own = [learner_device.of_rank(device, ranks(rank, ["H200"])) for rank in range(2)]
    assert own == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert not caplog.messages
    with pytest.raises(ConfigError, match=r"no GPU for rank 2: .* 2 here; .*--nproc-per-node 2$"):
        learner_device.of_rank(device, ranks(2))
    assert learner_device.of_rank(torch.device("cpu"), ranks(2)) == torch.device("cpu")


def test_unlike_ones_are_named_once(gpus: list[str], caplog: pytest.LogCaptureFixture) -> None:
    gpus += ["L40S", "H200"]
    for rank, other in enumerate(["H200", "L40S"]):
        learner_device.of_rank(torch.device("cuda"), ranks(rank, [other]))
    (line,) = caplog.messages
    assert line.startswith("the ranks have different GPUs (H200, L40S): ")


def test_a_share_is_taken_and_held_to(
    gpus: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpus += ["H200"]
    held: list[tuple[float, torch.device]] = []
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda *words: held.append(words)
    )
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    own = torch.device("cuda", 0)
    with learner_device.share_taken(own, 0.25):
        assert held == [(0.25, own)]
        (counted,) = tmp_path.iterdir()
        assert counted.name.startswith("headrace-gpu-GPU-0-")
    with learner_device.share_taken(own, 0.0):
        assert len(held) == 1
