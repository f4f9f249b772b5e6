"""Every kind of network that is spread over two ranks computes and learns what it does whole.

This file is also what the ranks run.
"""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from headrace.learner.algorithms import optimiser_step
from headrace.learner.config import ModelConfig
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.models.build import build
from headrace.learner.models.model import Model
from headrace.learner.ranks import Ranks
from headrace.learner.sharding.parts import is_spread, load, own_part, whole
from headrace.learner.sharding.sharded_weights import ShardedWeights
from headrace.learner.spaces import Action, Leaf, Part, Spaces, discrete
from headrace.learner.weights import FlatWeights
from tests.learner.forked_ranks import ends, live, start

pytestmark = pytest.mark.processes

NUMBERS, IMAGE = Leaf("obs", "<f4", (5,)), Leaf("obs", "|u1", (40, 40))
PUSH = Action((Part((), "float32", (2,), low=(-1.0, -1.0), high=(1.0, 1.0)),))
TWO_TRUNKS = ModelConfig(hidden=(8, 7), separate=True, normalise_obs=True, normalise_returns=True)
KINDS = {
    "no layers": (NUMBERS, discrete(3), ModelConfig(hidden=())),
    "two trunks": (NUMBERS, PUSH, TWO_TRUNKS),
    "gru": (NUMBERS, PUSH, ModelConfig(hidden=(8,), core="gru", core_units=6)),
    "lstm": (NUMBERS, PUSH, ModelConfig(hidden=(8,), core="lstm", core_units=6, separate=True)),
    "transformer": (
        NUMBERS,
        discrete(3),
        ModelConfig(hidden=(8,), core="transformer", core_units=16, core_layers=2, core_context=4),
    ),
    "nature": (IMAGE, discrete(3), ModelConfig(kind="nature")),
    "resnet": (IMAGE, discrete(3), ModelConfig(kind="resnet")),
}
T, COLUMNS, STEPS, WORLD = 3, 4, 3, 2
CONFIG = LearnerConfig(lr=1e-2, grad_clip=0.5, shard=True, precision="float32")


def loss(network: nn.Module, model: Model, obs: Tensor) -> Tensor:
    memory = torch.zeros(obs.shape[1], model.memory) if model.memory else None
    output = network({"obs": obs}, memory, None)
    found: Tensor = output.params.square().mean() + output.value.square().mean()
    return found


def compare(kind: str) -> None:
    """Trains as one rank: the spread network has half of the columns, its twin has all."""
    torch.set_num_threads(1)
    ranks = Ranks(timeout_s=60.0, cuda=False)
    leaf, action, config = KINDS[kind]
    model, twin = (build(config, Spaces((leaf,), action), seed=3) for _ in range(2))
    network = ranks.network_of(model, None, CONFIG, torch.device("cpu"))
    parts = [own_part(one) for one in model.parameters()]
    optimisers = [optimiser_step.make_optimiser(CONFIG, net, lr=1e-2) for net in (model, twin)]
    rng = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        obs = torch.randint(0, 255, (T, COLUMNS, *leaf.shape), generator=rng)
        obs = obs.to(torch.uint8) if leaf is IMAGE else obs / 255
        own = obs[:, ranks.rank :: WORLD]
        with torch.no_grad():
            loss(model, model, own)  # as ppo's targets: without a step that follows
        for net, columns, optimiser in zip((network, twin), (own, obs), optimisers, strict=True):
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(loss(net, model, columns))
            optimiser_step.clip_gradients(CONFIG, list(net.parameters()))
            optimiser.step()
    assert all(is_spread(one) for one in model.parameters())
    for part, one in zip(parts, model.parameters(), strict=True):
        assert torch.equal(part, own_part(one))  # it stays where it is
    held = sum(own_part(one).numel() for one in model.parameters())
    assert held <= 0.75 * sum(one.numel() for one in model.parameters())
    for (name, mine), theirs in zip(
        model.state_dict().items(), twin.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(whole(mine), theirs, rtol=1e-4, atol=1e-5, msg=name)
    dumped = ShardedWeights(model, first=ranks.rank == 0).dump()
    copy = build(config, Spaces((leaf,), action), seed=4)
    load(copy, model.state_dict())
    assert bytes(dumped) == (b"" if ranks.rank else bytes(FlatWeights(copy).dump()))
    ranks.close()


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_same_network(kind: str, tmp_path: Path) -> None:
    for status, said in ends(start(__file__, tmp_path / "rank", WORLD, kind)):
        assert status == 0, said


if __name__ == "__main__":
    live(lambda: compare(sys.argv[2]))
