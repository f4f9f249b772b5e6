"""Running statistics of images: numpy over all frames that count is the oracle."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.learner.config import ModelConfig
from headrace.learner.models.build import Model, build
from headrace.learner.models.encoders.nature import Nature, NatureStack
from headrace.learner.models.normalise import ImageNormaliser
from headrace.learner.spaces import Leaf, Spaces, discrete
from headrace.learner.weights import FlatWeights
from tests.learner.together import check_statistics

pytestmark = pytest.mark.usefixtures("one_thread")

STACKED = Leaf("screen", "uint8", (40, 36), stack=3)
COLOURED = Leaf("camera", "uint8", (36, 40, 3))
SPEED = Leaf("speed", "float32", (2,))
T, B = 11, 2
NATURE = ModelConfig(kind="nature", separate=False, normalise_images=True)


def observations(rng: np.random.Generator, *lead: int) -> dict[str, Tensor]:
    return {
        "screen": torch.from_numpy(rng.integers(60, 90, (*lead, *STACKED.seen), np.uint8)),
        "camera": torch.from_numpy(rng.integers(0, 256, (*lead, *COLOURED.seen), np.uint8)),
        "speed": torch.from_numpy(rng.normal(0, 1, (*lead, 2)).astype(np.float32)),
    }


def alone(sums: Tensor) -> Tensor:
    return sums


def counted(obs: dict[str, Tensor], live: Tensor) -> NDArray[Any]:
    """The newest frames of every eighth step, if that is live, pixel by pixel."""
    rows = [
        torch.cat([obs["screen"][t, b, -1].flatten(), obs["camera"][t, b].flatten()]).double()
        for t in (0, 8)
        for b in range(B)
        if live[t, b]
    ]
    return torch.stack(rows).numpy()


@pytest.mark.parametrize("ranks", [1, 3])
def test_updates_make_the_statistics_of_all_frames_that_count(ranks: int) -> None:
    rng = np.random.default_rng(0)

    def draw() -> tuple[dict[str, Tensor], Tensor, NDArray[Any]]:
        obs, live = observations(rng, T + 1, B), torch.from_numpy(rng.random((T, B)) < 0.7)
        live[0, 0] = True
        return obs, live, counted(obs, live)

    check_statistics([ImageNormaliser((STACKED, COLOURED)) for _ in range(ranks)], draw)


def test_images_are_normalised_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    normaliser = ImageNormaliser((STACKED, COLOURED))
    obs, live = observations(rng, T, B), torch.ones(T, B, dtype=torch.bool)
    normaliser.update(obs, live, alone)
    rows = {name: value.flatten(0, 1) for name, value in obs.items()}
    rows["screen"][0, 0, 0, 0] = 255  # far from all that was seen
    seen = normaliser(rows)
    assert seen["speed"] is rows["speed"]
    frames = counted(obs, live)
    at = 0
    for leaf in (STACKED, COLOURED):
        own = frames[:, at : (at := at + math.prod(leaf.shape))]
        mean, std = own.mean(0).round().reshape(leaf.shape), np.sqrt(own.var(0).mean())
        expected = ((rows[leaf.name].double().numpy() - mean) / std).clip(-10, 10)
        assert seen[leaf.name].dtype == torch.float32
        np.testing.assert_allclose(seen[leaf.name].numpy(), expected, atol=1e-5)
    assert seen["screen"].max() == 10


def test_differences_of_bytes_are_exact_in_16_bits() -> None:
    normaliser = ImageNormaliser((STACKED,))
    normaliser.mean.fill_(200.4)
    normaliser.var.fill_(64.0**2)
    rows = {"screen": torch.arange(256, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 40, 36)}
    with torch.autocast("cpu", torch.bfloat16):
        seen = normaliser(rows)["screen"]
    assert seen.dtype == torch.bfloat16
    expected = (torch.arange(256) - 200) / 64
    assert torch.equal(seen[:, 0, 0, 0].float(), expected)


def test_what_never_moves_is_not_blown_up() -> None:
    normaliser = ImageNormaliser((STACKED,))
    rows = {"screen": torch.full((T, B, *STACKED.seen), 87, dtype=torch.uint8)}
    normaliser.update(rows, torch.ones(T, B), alone)
    rows["screen"][0, 0, 0, 0, 0] = 89
    seen = normaliser({"screen": rows["screen"].flatten(0, 1)})["screen"]
    assert seen[0, 0, 0, 0] == 2.0 and seen[1:].abs().max() == 0.0


def model_of(config: ModelConfig, *leaves: Leaf) -> Model:
    return build(config, Spaces(leaves, discrete(3)), seed=0)


@pytest.mark.parametrize("kind", ["nature", "resnet"])
def test_before_anything_was_seen_a_network_is_as_without_it(kind: str) -> None:
    config = ModelConfig(kind=kind, separate=False)
    plain = model_of(config, STACKED, COLOURED, SPEED)
    normalised = model_of(
        ModelConfig(kind=kind, separate=False, normalise_images=True), STACKED, COLOURED, SPEED
    )
    obs = observations(np.random.default_rng(0), 5)
    with torch.no_grad():
        expected, found = plain(obs), normalised(obs)
    torch.testing.assert_close(found.params, expected.params, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.value, expected.value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["nature", "resnet"])
def test_a_constant_behind_everything_changes_nothing(kind: str) -> None:
    """A background that all frames have is taken away, and so is what it does to the layers."""
    config = ModelConfig(kind=kind, separate=False, normalise_images=True)
    rng = np.random.default_rng(0)
    dark = observations(rng, T, B)
    bright = {**dark, "screen": dark["screen"] + 100}
    outputs = []
    for obs in (dark, bright):
        model = model_of(config, STACKED)
        assert model.images is not None
        model.images.update(obs, torch.ones(T, B), alone)
        with torch.no_grad():
            outputs.append(model({"screen": obs["screen"]}))
    torch.testing.assert_close(outputs[0].params, outputs[1].params)
    torch.testing.assert_close(outputs[0].value, outputs[1].value)


@pytest.mark.parametrize("relu", [True, False])
def test_kernels_go_on_from_a_plain_first_layer(relu: bool) -> None:
    """They multiply bytes; torch multiplies what is normalised, and lays it out as they do."""
    model = model_of(NATURE, STACKED)
    assert isinstance(model.encoder, Nature)
    (stack,) = model.encoder.stacks
    assert isinstance(stack, NatureStack)
    rows = model.seen({"screen": observations(np.random.default_rng(0), 3)["screen"]})
    with torch.no_grad():
        plain = stack.first(stack.conv1, stack.pixels(rows))
        found = stack.fused(stack.conv1, rows, relu=relu)
    expected = plain.relu() if relu else plain
    assert found.is_contiguous() and (expected < 0).any() != relu
    assert torch.equal(found, expected.permute(0, 2, 3, 1))


def test_statistics_travel_with_the_weights() -> None:
    model, other = (model_of(NATURE, STACKED) for _ in range(2))
    obs = observations(np.random.default_rng(0), T, B)
    assert model.images is not None
    model.images.update(obs, torch.ones(T, B), alone)
    FlatWeights(other).load(FlatWeights(model).dump())
    with torch.no_grad():
        rows = {"screen": obs["screen"]}
        assert torch.equal(other(rows).params, model(rows).params)


@pytest.mark.parametrize(
    ("config", "leaf"),
    [
        (ModelConfig(kind="grid", normalise_images=True), Leaf("board", "uint8", (8, 8))),
        (ModelConfig(kind="mlp", normalise_images=True), Leaf("board", "uint8", (8, 8))),
        (ModelConfig(kind="auto", normalise_images=True), Leaf("board", "uint8", (8, 8))),
        (ModelConfig(kind="auto", normalise_images=True), SPEED),
        (ModelConfig(kind="nature"), STACKED),
    ],
)
def test_boards_and_numbers_have_none(config: ModelConfig, leaf: Leaf) -> None:
    assert model_of(config, leaf).images is None


def test_numbers_beside_images_have_statistics_of_their_own() -> None:
    config = ModelConfig(kind="auto", normalise_obs=True, normalise_images=True)
    model = model_of(config, STACKED, SPEED)
    assert model.normaliser is not None and model.normaliser.leaves == (SPEED,)
    assert model.images is not None and model.images.leaves == (STACKED,)
