"""Memory of the host for what a step gives: read without a copy, and used again after that."""

import pytest
import torch

from headrace.learner.step.landing import Landing
from tests.learner.step.test_device_steps import DEVICES


def landed(landing: Landing, value: int, device: str) -> None:
    landing.take(
        torch.tensor([float(value)], dtype=torch.float64, device=device),
        torch.full((64,), value, dtype=torch.uint8, device=device),
    )
    assert landing.figures().tolist() == [value]


@pytest.mark.parametrize("device", DEVICES)
def test_weights_stay_as_long_as_somebody_reads_a_part_of_them(device: str) -> None:
    landing = Landing(1, 64, torch.device(device))
    parts = []
    for value in range(5):
        landed(landing, value, device)
        parts.append(landing.weights()[8:16])
    assert [bytes(part) for part in parts] == [bytes([value] * 8) for value in range(5)]


@pytest.mark.parametrize("device", DEVICES)
def test_memory_is_used_again_when_nobody_reads_it_any_more(device: str) -> None:
    landing = Landing(1, 64, torch.device(device))
    places = set()
    for value in range(9):
        landed(landing, value, device)
        weights = landing.weights()
        places.add(torch.frombuffer(weights, dtype=torch.uint8).data_ptr())
        del weights
    assert len(places) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_weights_that_nobody_asks_for_take_no_more_memory(device: str) -> None:
    landing = Landing(1, 64, torch.device(device))
    for value in range(9):
        landed(landing, value, device)
    assert not landing._spare and bytes(landing.weights()) == bytes([8] * 64)
