"""Recurrent cores: torch's own are the oracle, and acting step by step is training unrolled."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from headrace.learner.config import ModelConfig
from headrace.learner.models import precision
from headrace.learner.models.build import Model, build
from headrace.learner.models.cores import CORES, Recurrent
from headrace.learner.spaces import Leaf, Spaces, discrete, previous_leaves

T, B, UNITS = 9, 4, 6
NUMBERS = Spaces((Leaf("obs", "float32", (3,)),), discrete(5))
IMAGE = Spaces((Leaf("obs", "uint8", (10, 10)), Leaf("speed", "float32", ())), discrete(5))


def torch_s(core: Recurrent, kind: str, inputs: int) -> nn.LSTM | nn.GRU:
    theirs = nn.LSTM(inputs, UNITS) if kind == "lstm" else nn.GRU(inputs, UNITS)
    state = {
        "weight_ih_l0": core.inputs.weight,
        "bias_ih_l0": core.inputs.bias,
        "weight_hh_l0": core.recurrent.weight,
        "bias_hh_l0": core.recurrent.bias,
    }
    theirs.load_state_dict({name: value.detach() for name, value in state.items()})
    return theirs


def core_of(kind: str, inputs: int = 7) -> Recurrent:
    core = CORES[kind](inputs, UNITS, torch.Generator().manual_seed(0), bias=0.0)
    torch.manual_seed(1)
    for bias in (core.inputs.bias, core.recurrent.bias):
        nn.init.normal_(bias)
    return core


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_it_is_torch_s(kind: str) -> None:
    core = core_of(kind)
    theirs = torch_s(core, kind, 7)
    x, memory = torch.randn(T, B, 7), torch.randn(B, core.size)
    h, c = memory[:, :UNITS].unsqueeze(0), memory[:, UNITS:].unsqueeze(0)
    outputs = core(x, memory)
    expected, last = theirs(x, (h.contiguous(), c.contiguous()) if kind == "lstm" else h)
    torch.testing.assert_close(outputs, expected, atol=1e-6, rtol=1e-5)
    after = memory
    for t in range(T):
        output, after = core.step(x[t], after)
        torch.testing.assert_close(output, expected[t], atol=1e-6, rtol=1e-5)
    together = torch.cat(last, -1) if isinstance(last, tuple) else last
    torch.testing.assert_close(after, together.squeeze(0), atol=1e-6, rtol=1e-5)
    outputs.square().sum().backward()
    expected.square().sum().backward()
    for mine, other in zip(core.parameters(), theirs.parameters(), strict=True):
        assert mine.grad is not None and other.grad is not None
    assert core.recurrent.weight.grad is not None and theirs.weight_hh_l0.grad is not None
    torch.testing.assert_close(
        core.recurrent.weight.grad, theirs.weight_hh_l0.grad, atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_an_episode_knows_nothing_of_the_one_before(kind: str) -> None:
    core = core_of(kind)
    theirs = torch_s(core, kind, 7)
    x, memory = torch.randn(T, B, 7), torch.randn(B, core.size)
    begins = torch.zeros(T, B, dtype=torch.bool)
    begins[4, 1] = begins[0, 2] = True
    outputs = core(x, memory, begins)
    torch.testing.assert_close(outputs[4:, 1], theirs(x[4:, 1])[0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(outputs[:, 2], theirs(x[:, 2])[0], atol=1e-6, rtol=1e-5)
    untouched = core(x, memory)
    torch.testing.assert_close(outputs[:4, 1], untouched[:4, 1], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(outputs[:, 0], untouched[:, 0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("begun", [0.0, 0.05, 0.3, 1.0])
@pytest.mark.parametrize(("steps", "columns"), [(1, 1), (1, 5), (64, 1), (33, 7)])
def test_an_lstm_of_a_cpu_is_the_plain_one(steps: int, columns: int, begun: float) -> None:
    """All rows, and all gradients: whatever the stretches are that it is cut into."""
    core = core_of("lstm")
    torch.manual_seed(2)
    x = torch.randn(steps, columns, 7, requires_grad=True)
    memory = torch.randn(columns, core.size, requires_grad=True)
    begins = torch.rand(steps, columns) < begun
    weights = torch.randn(steps, columns, UNITS)
    wanted = [x, memory, *core.parameters()]
    found = []
    for rows in (core.rows, partial(Recurrent.rows, core)):
        outputs = rows(x, memory, begins)
        gradients = torch.autograd.grad((outputs * weights).sum(), wanted, allow_unused=True)
        found.append((outputs, *(g for g in gradients if g is not None)))
    if begun == 1.0:
        assert not found[0][2].any(), "the memory"
    for own, plain in zip(*found, strict=True):
        torch.testing.assert_close(own, plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_weights_begin_orthogonal(kind: str) -> None:
    core = CORES[kind](7, UNITS, torch.Generator().manual_seed(0), bias=0.0)
    for layer in (core.inputs, core.recurrent):
        columns = layer.weight.T @ layer.weight
        torch.testing.assert_close(columns, torch.eye(len(columns)), atol=1e-5, rtol=0)
        assert not layer.bias.any()


def gradients_of_a_cue(kind: str, bias: float, ago: tuple[int, ...]) -> list[float]:
    """By how many steps ago it was shown, as parts of that at its own step."""
    core = CORES[kind](64, 128, torch.Generator().manual_seed(0), bias=bias)
    dice = torch.Generator().manual_seed(1)
    x = torch.randn(max(ago) + 1, 16, 64, generator=dice).requires_grad_()
    outputs = core(x.tanh(), torch.zeros(16, core.size))
    one = torch.randn(128, generator=dice)
    found = []
    for steps in (0, *ago):
        (gradient,) = torch.autograd.grad((outputs[steps] @ one).sum(), x, retain_graph=True)
        found.append(float(gradient[0].norm()))
    return [later / found[0] for later in found[1:]]


@pytest.mark.parametrize(
    ("kind", "least"), [("lstm", (0.3, 0.2, 0.1)), ("gru", (0.2, 0.04, 0.003))]
)
def test_a_cue_of_long_ago_can_be_learned_from(kind: str, least: tuple[float, ...]) -> None:
    """With the default; with an open gate and no bias it could not, with more it explodes."""
    kept = gradients_of_a_cue(kind, ModelConfig().core_bias, (10, 25, 50))
    assert all(low < found < 1 for low, found in zip(least, kept, strict=True)), kept
    assert kept == sorted(kept, reverse=True)
    assert all(found < 0.01 for found in gradients_of_a_cue(kind, 0.0, (10, 25, 50)))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_the_bias_is_that_of_the_gate_that_keeps(kind: str) -> None:
    """Closed to all that is new, a memory stays as it is."""
    core = CORES[kind](7, UNITS, torch.Generator().manual_seed(0), bias=50.0)
    if kind == "lstm":
        with torch.no_grad():
            core.inputs.bias[:UNITS] = -50.0  # the gate of its inputs
    memory = after = torch.rand(B, core.size)
    for x in torch.randn(T, B, 7):
        _, after = core.step(x, after)
    torch.testing.assert_close(after[:, -UNITS:], memory[:, -UNITS:])


def observations(spaces: Spaces, *, previous: bool) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(2)
    leaves = (*spaces.observation, *(previous_leaves(spaces) if previous else ()))
    obs = {}
    for leaf in leaves:
        shape = (T, B, *leaf.seen)
        if leaf.categories:
            obs[leaf.name] = torch.randint(-1, leaf.categories[0], shape, generator=rng)
        elif leaf.image:
            obs[leaf.name] = torch.randint(0, 256, shape, dtype=torch.uint8, generator=rng)
        else:
            obs[leaf.name] = torch.randn(shape, generator=rng)
    return obs


def model_of(spaces: Spaces, **settings: Any) -> Model:
    """Heads that have opinions, so that an error would show."""
    model = build(ModelConfig(core_units=UNITS, **settings), spaces, seed=0)
    with torch.no_grad():
        model.policy_head.weight.mul_(100)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("previous", [False, True])
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize(("kind", "spaces"), [("mlp", NUMBERS), ("resnet", IMAGE)])
def test_steps_are_the_unroll(
    kind: str, spaces: Spaces, core: str, separate: bool, previous: bool
) -> None:
    model = model_of(spaces, kind=kind, core=core, separate=separate, previous=previous)
    obs = observations(spaces, previous=previous)
    begins = torch.rand(T, B, generator=torch.Generator().manual_seed(3)) < 0.3
    begins[0] = False
    assert begins[1:].any() and not begins[1:].all()
    memory = torch.randn(B, model.memory, generator=torch.Generator().manual_seed(4))
    unrolled = model(obs, memory, begins)
    assert unrolled.params.shape == (T, B, 5) and unrolled.value.shape == (T, B)

    carried, params, values = memory, [], []
    for t in range(T):
        carried = torch.where(begins[t].unsqueeze(-1), 0.0, carried)
        row = {name: value[t] for name, value in obs.items()}
        alone = model({name: value[None] for name, value in row.items()}, carried)
        row_params, after = model.policy(row, carried)
        assert after is not None
        torch.testing.assert_close(alone.params[0], row_params, atol=1e-5, rtol=1e-5)
        params.append(row_params)
        values.append(alone.value[0])
        carried = after
    torch.testing.assert_close(torch.stack(params), unrolled.params, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.stack(values), unrolled.value, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(model(obs, None, begins).params[0], unrolled.params[0])


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize(
    ("core", "each"),
    [("none", 0), ("gru", UNITS), ("lstm", 2 * UNITS), ("transformer", 3 * 5 * UNITS + 1)],
)
def test_the_memory_has_the_size_that_the_config_says(core: Any, each: int, separate: bool) -> None:
    config = ModelConfig(
        core=core, core_units=UNITS, core_layers=3, core_context=5, separate=separate
    )
    model = build(config, NUMBERS, seed=0)
    assert model.memory == config.memory == each * (1 + separate)


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_separate_memories_share_nothing(core: str) -> None:
    model = model_of(NUMBERS, core=core, separate=True)
    memory = torch.randn(B, model.memory, requires_grad=True)
    output = model(observations(NUMBERS, previous=False), memory)
    half = model.memory // 2
    for out, mine in ((output.params, slice(0, half)), (output.value, slice(half, None))):
        (gradient,) = torch.autograd.grad(out.sum(), memory, retain_graph=True)
        touched = gradient.abs().sum(0) > 0
        assert touched[mine].all() and touched.sum() == half


def test_nothing_remembered_is_zeros() -> None:
    model = model_of(NUMBERS, core="lstm", separate=True)
    obs = observations(NUMBERS, previous=False)
    zeros = torch.zeros(B, model.memory)
    assert torch.equal(model(obs).params, model(obs, zeros).params)
    row = {"obs": obs["obs"][0]}
    assert torch.equal(model.policy(row)[0], model.policy(row, zeros)[0])


@pytest.mark.parametrize("core", ["lstm", "gru", "transformer"])
def test_autocast_leaves_the_core_in_float32(core: str) -> None:
    model = model_of(NUMBERS, core=core, separate=False)
    obs = observations(NUMBERS, previous=False)
    exact = model(obs)
    with precision.autocast("cpu", "bfloat16", model):
        rounded = model(obs)
        _, after = model.policy({"obs": obs["obs"][0]})
    assert after is not None
    assert rounded.params.dtype == rounded.value.dtype == after.dtype == torch.float32
    assert 0 < (rounded.params - exact.params).abs().max() < 0.05
