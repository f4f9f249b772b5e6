"""The convolutional network: what it takes for an image, and what fewer bits change."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from headrace.learner.config import ModelConfig
from headrace.learner.models import precision
from headrace.learner.models.build import Model, build
from headrace.learner.models.encoders.nature import Nature, NatureStack
from headrace.learner.spaces import Leaf, Spaces, discrete
from headrace.learner.weights import FlatWeights

pytestmark = pytest.mark.usefixtures("one_thread")

NATURE = ModelConfig(kind="nature", separate=False)
ATARI = Leaf("obs", "uint8", (84, 84), stack=4)


def nature(*leaves: Leaf, config: ModelConfig = NATURE) -> Model:
    return build(config, Spaces(leaves, discrete(6)), seed=0)


def stack_of(model: Model, at: int = 0) -> NatureStack:
    assert isinstance(model.encoder, Nature)
    stack = model.encoder.stacks[at]
    assert isinstance(stack, NatureStack)
    return stack


def full_of(model: Model) -> nn.Linear:
    assert isinstance(model.encoder, Nature)
    return model.encoder.full


def images(*shape: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=rng)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_shapes(lead: tuple[int, ...]) -> None:
    model = nature(ATARI)
    obs = {"obs": images(*lead, 4, 84, 84)}
    output = model(obs)
    assert output.params.shape == (*lead, 6) and output.params.dtype == torch.float32
    assert output.value.shape == lead and output.value.dtype == torch.float32
    rows = model.policy({"obs": obs["obs"].reshape(-1, 4, 84, 84)})[0]
    torch.testing.assert_close(rows.view(*lead, 6), output.params)
    assert full_of(model).in_features == 64 * 7 * 7


@pytest.mark.parametrize(
    ("leaf", "channels"),
    [
        (Leaf("obs", "uint8", (36, 40)), 1),
        (Leaf("obs", "uint8", (3, 36, 40)), 3),
        (Leaf("obs", "uint8", (36, 40, 3)), 3),
        (Leaf("obs", "uint8", (36, 40), stack=2), 2),
        (Leaf("obs", "uint8", (3, 36, 40), stack=2), 6),
        (Leaf("obs", "uint8", (36, 40, 3), stack=2), 6),
    ],
)
def test_channels_are_found(leaf: Leaf, channels: int) -> None:
    model = nature(leaf)
    assert stack_of(model).conv1.in_channels == channels
    pixels = stack_of(model).pixels({"obs": images(5, *leaf.seen)})
    assert pixels.shape == (5, channels, 36, 40)
    assert pixels.is_contiguous(memory_format=torch.channels_last)


def test_both_orders_of_axes_are_the_same_pixels() -> None:
    first = images(5, 2, 3, 36, 40)
    one = nature(Leaf("obs", "uint8", (3, 36, 40), stack=2))
    other = nature(Leaf("obs", "uint8", (36, 40, 3), stack=2))
    last = first.movedim(2, -1).contiguous()
    assert torch.equal(stack_of(one).pixels({"obs": first}), stack_of(other).pixels({"obs": last}))


def test_it_is_the_paper_s_network() -> None:
    model = nature(ATARI)
    obs = images(4, 4, 84, 84)
    x = obs.float() / 255
    stack = stack_of(model)
    for layer in (stack.conv1, stack.conv2, stack.conv3):
        x = functional.relu(functional.conv2d(x, layer.weight, layer.bias, layer.stride))
    hidden = functional.relu(full_of(model)(x.permute(0, 2, 3, 1).flatten(1)))
    output = model({"obs": obs})
    torch.testing.assert_close(output.params, model.policy_head(hidden))
    torch.testing.assert_close(output.value, model.value_head(hidden).squeeze(-1))
    assert [tuple(c.weight.shape) for c in (stack.conv1, stack.conv2, stack.conv3)] == [
        (32, 4, 8, 8),
        (64, 32, 4, 4),
        (64, 64, 3, 3),
    ]


def test_initial_layers() -> None:
    model = nature(ATARI)
    for layer in (stack_of(model).conv2, full_of(model)):
        rows = layer.weight.flatten(1)
        torch.testing.assert_close(rows @ rows.T, 2 * torch.eye(len(rows)), atol=1e-4, rtol=0)
    assert model.policy_head.weight.norm().item() == pytest.approx(0.01 * math.sqrt(6))
    assert model.value_head.weight.norm().item() == pytest.approx(1)
    assert all(not p.any() for name, p in model.named_parameters() if name.endswith("bias"))


def test_other_leaves_join_the_image() -> None:
    spaces = (
        Leaf("speed", "float64", (2,)),
        Leaf("camera", "uint8", (36, 36)),
        Leaf("gear", "int64", (), categories=(3,)),
    )
    model = nature(
        *spaces, config=ModelConfig(kind="nature", separate=False, obs_scale=(1, 2, 1, 1, 1))
    )
    obs = {
        "speed": torch.ones(4, 2, dtype=torch.float64),
        "camera": images(4, 36, 36),
        "gear": torch.zeros(4, dtype=torch.int64),
    }
    before = model(obs).params
    for changed in (
        {"speed": 2 * obs["speed"]},
        {"gear": obs["gear"] + 2},
        {"camera": 255 - obs["camera"]},
    ):
        assert not torch.allclose(model({**obs, **changed}).params, before)
    assert full_of(model).in_features == 64 + 5


def test_every_image_has_convolutions_of_its_own() -> None:
    leaves = (ATARI, Leaf("speed", "float32", (2,)), Leaf("map", "uint8", (3, 36, 40)))
    model = nature(*leaves)
    obs = {"obs": images(5, 4, 84, 84), "speed": torch.randn(5, 2), "map": images(5, 3, 36, 40)}
    parts = []
    for stack, leaf in zip((stack_of(model, 0), stack_of(model, 1)), leaves[::2], strict=True):
        x = obs[leaf.name].float() / 255
        for layer in (stack.conv1, stack.conv2, stack.conv3):
            x = functional.relu(functional.conv2d(x, layer.weight, layer.bias, layer.stride))
        parts.append(x.permute(0, 2, 3, 1).flatten(1))
    hidden = functional.relu(full_of(model)(torch.cat([*parts, obs["speed"]], dim=1)))
    torch.testing.assert_close(model(obs).params, model.policy_head(hidden))
    assert full_of(model).in_features == 64 * 7 * 7 + 64 + 2


def test_a_value_is_computed_for_the_learner_only() -> None:
    model = nature(ATARI)
    model.value_head = nn.Linear(1, 1)  # fits nothing: its product would raise
    obs = {"obs": images(2, 4, 84, 84)}
    assert model.policy(obs)[0].shape == (2, 6)
    with pytest.raises(RuntimeError):
        model(obs)


@pytest.mark.parametrize(
    ("leaves", "words"),
    [
        ((Leaf("obs", "float32", (84, 84)),), 'needs an image .*set model.kind = "mlp"'),
        ((Leaf("obs", "uint8", (128,)),), 'needs an image .*set model.kind = "mlp"'),
        ((Leaf("obs", "uint8", (35, 84)),), r"at least 36 x 36 pixels, obs has \[35, 84\]"),
        ((Leaf("obs", "uint8", (2, 3, 84, 84)),), "takes images of 2 or 3 axes"),
    ],
)
def test_what_is_no_image_is_refused_in_one_line(leaves: tuple[Leaf, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        nature(*leaves)
    assert "\n" not in str(caught.value)


def test_bfloat16_changes_the_outputs_by_rounding_only() -> None:
    """And the heads stay exact: a value in the hundreds keeps its digits."""
    model = nature(ATARI)
    model.policy_head.weight.data.mul_(100)
    model.value_head.bias.data.fill_(1000)
    obs = {"obs": images(16, 4, 84, 84)}
    exact = model(obs)
    with precision.autocast("cpu", "bfloat16", model):
        rounded = model(obs)
    assert rounded.params.dtype == rounded.value.dtype == torch.float32
    gap = (rounded.params.softmax(-1) - exact.params.softmax(-1)).abs().max()
    assert 0 < gap < 0.01
    torch.testing.assert_close(rounded.value, exact.value, atol=0.05, rtol=0)
    assert rounded.value.unique().numel() == 16


def test_bfloat16_trains_float32_weights_in_their_own_layout() -> None:
    """A checkpoint wants contiguous tensors; the gradients must point where the exact ones do."""
    model = nature(ATARI)
    obs = {"obs": images(2, 3, 4, 84, 84)}
    gradients = []
    for kind in ("float32", "bfloat16"):
        model.zero_grad()
        with precision.autocast("cpu", kind, model):
            output = model(obs)
        (output.value.sum() + output.params.square().sum()).backward()
        found = [p.grad for p in model.parameters()]
        assert all(g is not None and g.dtype == torch.float32 for g in found)
        assert all(g is not None and g.is_contiguous() for g in found)
        gradients.append(torch.cat([g.flatten() for g in found if g is not None]))
    assert torch.cosine_similarity(gradients[0], gradients[1], dim=0) > 0.999


def test_float32_is_left_alone() -> None:
    model = nature(ATARI)
    with precision.autocast("cpu", "float32", model):
        assert not torch.is_autocast_enabled("cpu")


def test_auto_takes_bfloat16_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    small = build(ModelConfig(), Spaces((Leaf("obs", "float32", (4,)),), discrete(2)), seed=0)
    model = nature(ATARI)
    for native, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(precision, "native_bf16", lambda native=native: native)
        assert precision.choose_dtype("auto", model, "cpu") == expected
        assert precision.choose_dtype("auto", small, "cpu") == torch.float32
        assert precision.choose_dtype("bfloat16", small, "cpu") == torch.bfloat16
        assert precision.choose_dtype("float32", model, "cpu") == torch.float32


@pytest.mark.parametrize(
    ("text", "native"),
    [
        ("flags\t\t: fpu avx512_bf16 amx_tile\n", True),
        ("model name : x\nFlags : amx_bf16\n", True),
        ("Features\t: fp asimd bf16 i8mm\n", True),
        ("flags\t\t: fpu avx512f avx512_vnni\nbugs : bf16\n", False),
        ("", False),
        ("flags", False),
    ],
)
def test_the_cpu_says_what_it_multiplies(text: str, native: bool, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert precision.multiplies_bf16(str(tmp_path / "cpuinfo")) is native


def test_without_cpuinfo_nothing_is_native(tmp_path: Path) -> None:
    assert precision.multiplies_bf16(str(tmp_path / "absent")) is False


def test_weights_travel() -> None:
    model, other = nature(ATARI), nature(ATARI)
    for p in model.parameters():
        nn.init.normal_(p)
    FlatWeights(other).load(FlatWeights(model).dump())
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )
