"""The residual network: written out from the paper's figure, for images of any size."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from headrace.learner.config import ModelConfig
from headrace.learner.models import precision
from headrace.learner.models.build import Model, build
from headrace.learner.models.encoders.resnet import ResNet
from headrace.learner.spaces import Leaf, Spaces, discrete

RESNET = ModelConfig(kind="resnet", separate=False)
ATARI = Leaf("obs", "uint8", (84, 84), stack=4)


def resnet(*leaves: Leaf, config: ModelConfig = RESNET) -> Model:
    return build(config, Spaces(leaves, discrete(6)), seed=0)


def images(*shape: int) -> Tensor:
    rng = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=rng)


def by_hand(model: Model, prefix: str, x: Tensor) -> Tensor:
    """IMPALA's figure 3, from the names of the weights."""
    state = model.state_dict()

    def conv(name: str, y: Tensor) -> Tensor:
        name = f"{prefix}.{name}"
        return functional.conv2d(y, state[f"{name}.weight"], state[f"{name}.bias"], padding=1)

    for section in range(3):
        x = functional.max_pool2d(conv(f"sections.{section}.conv", x), 3, 2, 1)
        for block in range(2):
            at = f"sections.{section}.blocks.{block}"
            x = x + conv(f"{at}.conv2", conv(f"{at}.conv1", x.relu()).relu())
    return x.relu().permute(0, 2, 3, 1).flatten(1)


def test_it_is_the_paper_s_network() -> None:
    model = resnet(ATARI)
    obs = images(3, 4, 84, 84)
    assert isinstance(model.encoder, ResNet)
    rows = by_hand(model, "encoder.stacks.0", obs.float() / 255)
    assert rows.shape == (3, 32 * 11 * 11)
    hidden = model.encoder.full(rows).relu()
    output = model({"obs": obs})
    torch.testing.assert_close(output.params, model.policy_head(hidden))
    torch.testing.assert_close(output.value, model.value_head(hidden).squeeze(-1))
    convolutions = [p for name, p in model.named_parameters() if "conv" in name and p.dim() == 4]
    channels = [4, 16, 16, 16, 16, 16, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32]
    assert [tuple(p.shape) for p in convolutions] == [(b, a, 3, 3) for a, b in pairwise(channels)]
    assert model.encoder.units == 256


@pytest.mark.parametrize(
    "leaf",
    [
        Leaf("obs", "uint8", (10, 10)),
        Leaf("obs", "uint8", (1, 1)),
        Leaf("obs", "uint8", (7, 3, 2)),
        Leaf("obs", "uint8", (3, 15, 8), stack=2),
    ],
)
@pytest.mark.parametrize("lead", [(), (2, 3)])
def test_any_size(leaf: Leaf, lead: tuple[int, ...]) -> None:
    output = resnet(leaf)({"obs": images(*lead, *leaf.seen)})
    assert output.params.shape == (*lead, 6) and output.value.shape == lead


def test_signals_keep_their_size() -> None:
    """A value that starts in the tens must first be unlearned."""
    for size in (84, 10):
        model = resnet(Leaf("obs", "uint8", (size, size), stack=4))
        hidden = model.encoder({"obs": images(16, 4, size, size)})
        assert 0.1 < hidden.square().mean().sqrt().item() < 3


def test_images_and_numbers_are_joined() -> None:
    leaves = (
        Leaf("a", "uint8", (10, 12)),
        Leaf("x", "float32", (2,)),
        Leaf("b", "uint8", (9, 9, 3)),
    )
    model = resnet(*leaves)
    obs = {"a": images(4, 10, 12), "x": torch.randn(4, 2), "b": images(4, 9, 9, 3)}
    assert isinstance(model.encoder, ResNet)
    rows = torch.cat(
        [
            by_hand(model, "encoder.stacks.0", obs["a"].unsqueeze(1).float() / 255),
            by_hand(model, "encoder.stacks.1", obs["b"].movedim(-1, 1).float() / 255),
            obs["x"],
        ],
        dim=1,
    )
    expected = model.policy_head(model.encoder.full(rows).relu())
    torch.testing.assert_close(model(obs).params, expected)


def test_a_value_network_of_its_own() -> None:
    model = resnet(Leaf("obs", "uint8", (10, 10)), config=ModelConfig(kind="resnet", separate=True))
    model({"obs": images(2, 10, 10)}).value.sum().backward()
    touched = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None}
    assert touched == {"value_encoder", "value_head"}


def test_bfloat16_changes_the_outputs_by_rounding_only() -> None:
    model = resnet(ATARI)
    assert model.convolutional
    model.policy_head.weight.data.mul_(100)
    obs = {"obs": images(8, 4, 84, 84)}
    exact = model(obs)
    with precision.autocast("cpu", "bfloat16", model):
        rounded = model(obs)
    assert rounded.params.dtype == rounded.value.dtype == torch.float32
    gap = (rounded.params - exact.params).abs().max() / exact.params.abs().max()
    assert 0 < gap < 0.02


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(ValueError, match=r'model\.kind = "resnet" needs an image'):
        resnet(Leaf("obs", "float32", (84, 84)))
