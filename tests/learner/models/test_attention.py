"""The transformer: each step against a loop over what it may see, and acting against unrolls."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from headrace.learner.config import ModelConfig
from headrace.learner.models.attention import Transformer
from headrace.learner.models.build import build
from headrace.learner.spaces import Leaf, Spaces, discrete

T, B, INPUTS, UNITS = 11, 3, 5, 32
NUMBERS = Spaces((Leaf("obs", "float32", (INPUTS,)),), discrete(4))


def core_of(context: int, layers: int = 2, *, bias: float = 0.0) -> Transformer:
    rng = torch.Generator().manual_seed(0)
    core = Transformer(INPUTS, UNITS, rng, layers=layers, context=context, bias=bias)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weights in core.named_parameters():  # an error would show in them
            if weights.dim() == 1 or "places" in name:
                weights.add_(0.3 * torch.randn(weights.shape))
    return core


def shown(steps: int = T, seed: int = 2) -> Tensor:
    return torch.randn(steps, B, INPUTS, generator=torch.Generator().manual_seed(seed))


def begun() -> Tensor:
    begins = torch.zeros(T, B, dtype=torch.bool)
    begins[4, 0] = begins[5, 0] = begins[0, 1] = begins[T - 1, 1] = True
    return begins


def after(core: Transformer, x: Tensor, memory: Tensor, begins: Tensor | None = None) -> Tensor:
    """Returns the memory after those rows, as a sampler has it: it empties the memory itself."""
    for t, row in enumerate(x):
        if begins is not None:
            memory = torch.where(begins[t].unsqueeze(-1), 0.0, memory)
        _, memory = core.step(row, memory)
    return memory


def empty(core: Transformer) -> Tensor:
    return torch.zeros(B, core.size)


def by_hand(core: Any, episode: Tensor) -> Tensor:
    """Computes the outputs of one episode [T, inputs], step by step and head by head."""
    hidden = [core.enter(x) for x in episode]
    for layer in core.layers:
        below, hidden = hidden, []
        seen = [layer.before_looking(x) for x in below]
        keys_values = [layer.key_value(x).chunk(2) for x in seen]
        for t, x in enumerate(below):
            query, found = layer.query(seen[t]), []
            near = range(max(0, t - core.context), t + 1)
            width = UNITS // layer.heads
            for head in range(layer.heads):
                of = slice(head * width, (head + 1) * width)
                scores = torch.stack(
                    [query[of] @ (keys_values[j][0][of] + layer.places[t - j][of]) for j in near]
                )
                weights = (scores / math.sqrt(width)).softmax(0)
                values = torch.stack([keys_values[j][1][of] for j in near])
                found.append(weights @ values)
            x = gated(layer.after_looking, x, layer.found(torch.cat(found)).relu())
            worked = layer.narrow(layer.widen(layer.before_working(x)).relu()).relu()
            hidden.append(gated(layer.after_working, x, worked))
    out: Tensor = core.leave(torch.stack(hidden))
    return out


def gated(gate: Any, kept: Tensor, found: Tensor) -> Tensor:
    """A GRU's cell, with its update gate the other way round."""
    reset, opens, new = functional.linear(found, gate.found.weight, gate.found.bias).chunk(3)
    reset_kept, opens_kept = gate.kept(kept).chunk(2)
    opened = (opens + opens_kept).sigmoid()
    new = (new + gate.chosen((reset + reset_kept).sigmoid() * kept)).tanh()
    out: Tensor = (1 - opened) * kept + opened * new
    return out


@pytest.mark.parametrize("context", [1, 4, 20])
def test_each_step_looks_at_itself_and_at_so_many_before(context: int) -> None:
    core, x = core_of(context), shown()
    begins = begun()
    outputs = core(x, empty(core), begins)
    for column in range(B):
        starts = [0, *torch.nonzero(begins[:, column]).flatten().tolist(), T]
        for start, end in itertools.pairwise(starts):
            if end > start:
                expected = by_hand(core, x[start:end, column])
                torch.testing.assert_close(
                    outputs[start:end, column], expected, atol=1e-5, rtol=1e-5
                )


@pytest.mark.parametrize("context", [1, 3, 20])
@pytest.mark.parametrize("pieces", [(1,) * T, (4, 7), (10, 1), (1, 2, 8)])
def test_an_unroll_in_pieces_is_the_unroll(context: int, pieces: tuple[int, ...]) -> None:
    """With the memory of steps before it, which are more or fewer than it may look at."""
    core, x, begins = core_of(context), shown(), begun()
    memory = after(core, shown(6, seed=3), empty(core))
    memory[2] = 0.0  # has just begun
    whole = core(x, memory, begins)
    carried, outputs, at = memory, [], 0
    for steps in pieces:
        piece = slice(at, at + steps)
        outputs.append(core(x[piece], carried, begins[piece]))
        carried = after(core, x[piece], carried, begins[piece])
        at += steps
    torch.testing.assert_close(torch.cat(outputs), whole, atol=1e-5, rtol=1e-5)
    carried, outputs = memory, []
    for t in range(T):
        carried = torch.where(begins[t].unsqueeze(-1), 0.0, carried)
        output, carried = core.step(x[t], carried)
        outputs.append(output)
    torch.testing.assert_close(torch.stack(outputs), whole, atol=1e-5, rtol=1e-5)


def test_what_no_step_may_look_at_is_zeros() -> None:
    core = core_of(context=6)
    memory = after(core, shown(), empty(core), begun())
    held = memory[:, -1].tolist()
    assert held == [6.0, 1.0, 6.0]
    past = memory[:, :-1].view(B, 2, 6, UNITS)
    assert not past[1, :, :5].any() and past[1, :, 5].all()


@pytest.mark.parametrize("layers", [1, 2])
def test_it_can_learn_from_a_cue_as_far_as_its_layers_reach(layers: int) -> None:
    core, x = core_of(context=3, layers=layers), shown().requires_grad_()
    outputs = core(x, empty(core))
    (gradient,) = torch.autograd.grad(outputs[-1].square().sum(), x)
    touched = gradient.abs().sum((1, 2)) > 0
    reach = 3 * layers
    assert touched.tolist() == [False] * (T - 1 - reach) + [True] * (reach + 1)


def test_closed_gates_let_the_inputs_through() -> None:
    rng = torch.Generator().manual_seed(0)
    core = Transformer(INPUTS, UNITS, rng, layers=2, context=4, bias=50.0)
    x = shown()
    expected = core.leave(core.enter(x))
    torch.testing.assert_close(core(x, empty(core)), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("units", "heads"), [(1, 1), (16, 1), (24, 1), (64, 4), (96, 6), (512, 8)])
def test_its_heads_are_sixteen_wide_or_wider(units: int, heads: int) -> None:
    core = Transformer(
        INPUTS, units, torch.Generator().manual_seed(0), layers=1, context=2, bias=2.0
    )
    (layer,) = core.layers
    assert layer.heads == heads
    core(shown(), empty(core))


@pytest.mark.parametrize("separate", [False, True])
def test_a_sampler_acts_as_the_learner_unrolls(separate: bool) -> None:
    config = ModelConfig(
        hidden=(8,), core="transformer", core_units=16, core_context=4, separate=separate
    )
    model = build(config, NUMBERS, seed=0)
    obs, begins = {"obs": shown()}, begun()
    memory = torch.zeros(B, model.memory)
    unrolled = model(obs, memory, begins)
    for t in range(T):
        memory = torch.where(begins[t].unsqueeze(-1), 0.0, memory)
        params, after = model.policy({"obs": obs["obs"][t]}, memory)
        assert after is not None
        torch.testing.assert_close(params, unrolled.params[t], atol=1e-5, rtol=1e-5)
        memory = after
