"""Two ranks with half the batch each are one rank with all of it: the same parameters in the end.

The real train loop, loss, clipping, Ranks and checkpoint run in processes of their own, over gloo;
only the feed is made up, so that all of them see the same unrolls. This file is also what they run.
"""

import ctypes
import itertools
import json
import os
import re
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from headrace.broker.peers.objections import Objection
from headrace.broker.protocol.messages import Deliver
from headrace.learner import train as train_loop
from headrace.learner.batches.batch import Batch
from headrace.learner.checkpoints import checkpoint
from headrace.learner.checkpoints.config import CheckpointConfig
from headrace.learner.config import AlgorithmConfig, ModelConfig
from headrace.learner.history import columns
from headrace.learner.learner_config import LearnerConfig
from headrace.learner.metrics import LearnerMetrics
from headrace.learner.models.build import build
from headrace.learner.progress import Progress
from headrace.learner.ranks import Ranks
from headrace.learner.sharding.parts import whole
from headrace.learner.spaces import DEAD, TERMINATED, TRUNCATED, Leaf, Spaces, discrete
from headrace.learner.step.choice import device_decides
from headrace.learner.train_parts import Goal, TrainParts, to_end
from headrace.learner.weights import Body
from tests.learner.forked_ranks import ends, live, start

pytestmark = pytest.mark.processes

SPACES = Spaces((Leaf("obs", "<f4", (4,)),), discrete(3))
MODEL = ModelConfig(hidden=(16, 16), normalise_obs=True, normalise_returns=True)
# 101 MB of weights, so that gradients and what Adam keeps make it 403.
WIDE = ModelConfig(hidden=(2048,) * 4)
# All but the last need no dice: a rank alone throws others than two together.
ALGORITHMS = {
    "impala": AlgorithmConfig(name="impala", normalise_advantages=True),
    "appo": AlgorithmConfig(
        name="appo",
        normalise_advantages="running",
        kl_coef=0.1,
        kl_target=0.01,
        buffer_batches=3,
        uses=2,
        target_rate=0.5,
    ),
    "ppo": AlgorithmConfig(
        name="ppo", normalise_advantages=True, epochs=2, minibatches=1, kl_stop=0.5, value_clip=0.2
    ),
    "impala running": AlgorithmConfig(name="impala", normalise_advantages="running"),
    "appo once": AlgorithmConfig(
        name="appo", normalise_advantages=False, kl_coef=0.1, kl_target=7e-6, target_interval=2
    ),
    # More parts than one of the ranks has live steps.
    "thin": AlgorithmConfig(name="ppo", normalise_advantages=True, epochs=1, minibatches=50),
}
# Each rank has a copy of the network, or a part of it.
SHARD = {"SHARD": "1"}
HOW = [pytest.param({}, id="copies"), pytest.param(SHARD, id="sharded")]
DEVICE = {"DEVICE": "1"}  # the device decides on a step, and the host looks later
T, G, B, STEPS = 8, 4, 4, 20
POISONED = 3  # unroll: the last of its rank's, so that it comes again in its own place
LR = 3e-3

# The two runs add the same numbers in another order, which changes a gradient by about 1e-7 x the
# size of what is added, here 0.1 after clipping: d = 1e-8. Adam divides by sqrt(v) + eps, so the
# most that d does to a parameter is LR x d / eps = 3e-3 x 1e-8 / 1e-5 = 3e-6 a step, where the
# gradient itself is below eps, and far less elsewhere. 20 such steps, all of one sign: 6e-5; half
# of that is allowed. Measured: 6e-8, one unit in the last place. What the test is to find (a mean
# of the ranks' means, advantages normalised by rank) makes 1.6e-2 and more of it.
TOLERANCE = 3e-5


def unroll(step: int, number: int, batch: Batch) -> None:
    """Unroll `number` of step `step`, wherever it is made; the later ones are mostly dead."""
    rng = np.random.default_rng(1000 * step + number)
    flags = rng.choice([0, 0, 0, TERMINATED, TRUNCATED], (T, G)).astype(np.uint8)
    flags[rng.random((T, G)) < (0.05, 0.1, 0.5, 0.95)[number % B]] = DEAD
    arrays: list[NDArray[Any]] = [
        rng.normal(size=(T + 1, G, 4)).astype(np.float32),
        rng.integers(0, 3, (T, G)),
        np.log(rng.uniform(0.1, 0.9, (T, G))).astype(np.float32),
        # Another scale each: ranks that normalise by themselves would stand out.
        (rng.normal(size=(T, G)) * 10.0 ** (number % B - 1) + number).astype(np.float32),
        flags,
    ]
    digest = xxhash.xxh3_64()
    for array in arrays:
        digest.update(array.tobytes())
    live = flags.size - int(np.count_nonzero(flags & DEAD))
    message = Deliver(
        tag=2 * B * step + number,
        attempt=1,
        actor="a",
        inc=1,
        stream=number,
        seq=step,
        floor=0,
        version_min=max(0, step - number),
        version_max=step,
        steps=live,
        digest=digest.intdigest(),
        ended=1,
        episodes=((number % G, float(step), 5),),
    )
    assert batch.place(message, [array.tobytes() for array in arrays]) is None


class MadeUpFeed:
    """This rank's share of every step; ends after the last."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers
        self._batch = Batch(SPACES, length=T, envs=G, unrolls=len(numbers), pinned=False)
        self.began = self.step = 0
        self.end = int(os.environ.get("END", STEPS))
        self._out = False  # the batch is in the train loop
        self.steps: list[int] = []  # live ones, by step
        self.refused: list[list[int]] = []  # incarnation, stream, seq, blamed
        self._spoil_at = int(os.environ.get("SPOIL", "-1"))  # the step in which one is no number

    def next(self, timeout_s: float) -> Batch | None:
        assert timeout_s > 0 or self._out  # it does not wait while a step is under way
        if self.step == self.end or self._out:
            return None
        here = {stream for _, stream, _ in self._batch.keys}  # left over from a step that failed
        for number in self._numbers:
            if number not in here:
                unroll(self.step, number, self._batch)
        if self.step == self._spoil_at and POISONED in self._numbers:
            self._spoil_at = -1
            at = self._numbers.index(POISONED)
            rewards = self._batch.tensors["reward"][:, at * G : (at + 1) * G]
            # One number does: of a step that is dead, and so nothing to ppo.
            (rewards if "WHOLLY" in os.environ else rewards[0, :1]).fill_(float("nan"))
        self.steps.append(self._batch.steps)
        self._out = True
        return self._batch

    def trained(self, batch: Batch, *, version: int) -> None:
        assert batch is self._batch
        batch.clear()
        self._out = False
        self.step += 1
        assert version == self.step

    def reject(self, batch: Batch, places: Sequence[int], objection: Objection) -> None:
        self.refused += [[*batch.keys[at], objection.blame] for at in places]
        batch.drop(places)

    def refill(self, batch: Batch) -> None:
        assert batch is self._batch
        self._out = False
        self.steps.pop()  # they come again

    def publish(self, version: int, body: Body) -> None:
        assert version == self.step + 1 or version == self.began
        assert body

    def stats(self, stats: dict[str, float]) -> None:
        assert "version" in stats

    def windows(self) -> Any:
        return [(1, number, ((0, self.step),)) for number in self._numbers]


def limit_memory(more: int) -> None:
    """Lets this process take so many bytes more, and give back what it frees."""
    m_mmap_threshold = -3
    assert ctypes.CDLL(None).mallopt(m_mmap_threshold, 1 << 20)
    status = Path("/proc/self/status").read_text()
    most = 1024 * int(re.findall(r"VmData:\s+(\d+)", status)[0]) + more
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def run_rank(folder: Path, algorithm: str, numbers: Sequence[int]) -> None:
    """One rank's whole life."""
    torch.set_num_threads(1)
    ranks = Ranks(timeout_s=30.0, cuda=False)
    if ranks.world > 1:
        numbers = numbers[ranks.rank :: ranks.world]
    shape = MODEL
    if "LIMIT" in os.environ:
        shape = WIDE
        limit_memory(int(os.environ["LIMIT"]))
    model = build(shape, SPACES, seed=3)
    appo = ALGORITHMS[algorithm].name == "appo"
    target = build(shape, SPACES, seed=3) if appo else None
    feed = MadeUpFeed(numbers)
    if os.environ.get("DIES") and ranks.rank == 1:
        # In the middle of a pass, while the other one waits for its gradients, or its weights.
        dies = lambda *_: os._exit(9) if feed.step == 3 else None  # noqa: E731
        if os.environ["DIES"] == "forward":
            model.encoder.register_forward_pre_hook(dies)
        else:
            model.encoder.register_full_backward_hook(dies)
    if ranks.rank == 0:  # what is due for one is shown by all
        train_loop._SHOW_EVERY_S = -1.0
    progress = Progress()
    folder.mkdir(exist_ok=True)
    resume = checkpoint.load_latest(Path(os.environ["FROM"])) if "FROM" in os.environ else None
    if resume is not None:
        model.load_state_dict(resume.tensors["model"])
        progress.restore(resume.state["progress"])
        feed.began = feed.step = progress.version
        feed.end = feed.step + int(os.environ["MORE"])
    parts = TrainParts(
        algorithm=ALGORITHMS[algorithm],
        # So small that every step is clipped.
        config=LearnerConfig(
            lr=LR,
            grad_clip=0.1,
            shard="SHARD" in os.environ,
            graph="DEVICE" in os.environ,
            precision="bfloat16" if "BITS16" in os.environ else "float32",
        ),
        # Clocks differ: what one rank finds due, all must do together.
        saving=CheckpointConfig(every_s=0.05 if ranks.rank == 0 else 3600.0),
        goal=Goal(None, None, 1e6 if "LATE" in os.environ else None),
        ranks=ranks,
        feed=feed,
        model=model,
        target=target,
        gap=None,
        progress=progress,
        metrics=LearnerMetrics(CollectorRegistry()),
        device=torch.device("cpu"),
        folder=folder,
        spaces=SPACES,
        previous=False,
        identity={},
        resume=resume,
        stopping=lambda: feed.step == feed.end,
        plain=lambda: build(shape, SPACES, seed=0),
        seed=1,
        started=-2e6 if ranks.rank == 0 else time.monotonic(),
    )
    with ranks.exchanging():
        reason = to_end(train_loop.train(parts))
    facts = {
        "steps": feed.steps,
        "trained": progress.trained_steps,
        "episodes": progress.episodes,
        "mean": progress.mean_return(),
        "reason": reason,
        "by_device": device_decides(parts),
        "uses": progress.uses,
        "optimiser_steps": progress.learner_steps,
        "kl_coef": progress.kl_coef,
        "refused": feed.refused,
        "nonfinite": progress.nonfinite,
        "trained_unrolls": progress.trained_unrolls,
        "lags": sorted(progress.lags.items()),
    }
    (folder / f"rank{ranks.rank}.json").write_text(json.dumps(facts))
    np.savez(
        folder / f"rank{ranks.rank}.npz",
        allow_pickle=False,
        **{name: whole(tensor).numpy() for name, tensor in model.state_dict().items()},
    )
    ranks.close()


class Outcome:
    """What a group of ranks left."""

    def __init__(self, folder: Path, world: int) -> None:
        self.facts = [json.loads((folder / f"rank{r}.json").read_text()) for r in range(world)]
        self.weights = [dict(np.load(folder / f"rank{r}.npz")) for r in range(world)]
        saved = checkpoint.load_latest(folder / "checkpoints")
        assert saved is not None
        self.saved = saved
        text = (folder / "history.jsonl").read_text()
        self.history = [json.loads(line) for line in text.splitlines()]

    def distance(self, other: "Outcome") -> float:
        pairs = zip(self.weights[0].values(), other.weights[0].values(), strict=True)
        return max(float(np.abs(mine - theirs).max()) for mine, theirs in pairs)


def run(
    folder: Path, world: int, algorithm: str, numbers: Sequence[int] = range(B), **env: str
) -> Outcome:
    for status, said in ends(start(__file__, folder, world, algorithm, *map(str, numbers), **env)):
        assert status == 0, said
    return Outcome(folder, world)


@pytest.mark.parametrize("algorithm", ["impala", "appo", "ppo"])
@pytest.mark.parametrize("how", HOW)
def test_two_ranks_are_one(tmp_path: Path, algorithm: str, how: dict[str, str]) -> None:
    the_same(run(tmp_path / "alone", 1, algorithm), tmp_path, algorithm, how)


@pytest.mark.parametrize("algorithm", ["impala running", "appo once"])
def test_two_ranks_whose_devices_decide_are_one(tmp_path: Path, algorithm: str) -> None:
    the_same(run(tmp_path / "alone", 1, algorithm), tmp_path, algorithm, DEVICE)


def the_same(alone: Outcome, folder: Path, algorithm: str, how: dict[str, str]) -> None:
    """Holds two ranks to what one has come to."""
    both = run(folder / "both", 2, algorithm, range(B), **how)

    # Both ranks hold the same weights to the last bit: they saw the same sums.
    for name, mine in both.weights[0].items():
        np.testing.assert_array_equal(mine, both.weights[1][name], err_msg=name)
    assert both.distance(alone) < TOLERANCE

    assert [facts["by_device"] for facts in both.facts] == [how == DEVICE] * 2
    # What makes it a test: they moved, and the ranks' shares were uneven.
    start = build(MODEL, SPACES, seed=3).state_dict()
    moved = max(float(np.abs(alone.weights[0][k] - v.numpy()).max()) for k, v in start.items())
    assert moved > 0.02
    first, second = (facts["steps"] for facts in both.facts)
    assert all(a != b for a, b in zip(first, second, strict=True))

    # appo: the ring has nothing of that age for the first two batches.
    expected = {"appo": 2 * STEPS - 2, "ppo": 2 * STEPS}.get(algorithm, STEPS)
    for facts in (*alone.facts, *both.facts):
        assert facts["optimiser_steps"] == expected
        assert (facts["kl_coef"] not in (None, 0.1)) == ("appo" in algorithm)
        assert facts["kl_coef"] == alone.facts[0]["kl_coef"]  # it moves by doubling and halving

    # So are the numbers that are shown: their means over the ranks, weighted by live steps.
    assert len(alone.history) == len(both.history) == STEPS + 1
    for one, other in zip(alone.history, both.history, strict=True):
        assert one.keys() == other.keys() >= {"version", "lag", "trained_steps"}
        for name in one.keys() - {"t", *columns.PACE}:  # what a clock says
            same = one[name] if one[name] is None else pytest.approx(one[name], 1e-3, 1e-4)
            assert other[name] == same, name
    assert {"policy_loss", "value_loss", "entropy", "kl", "rho_mean"} <= both.history[0].keys()

    # Counters are global on every rank, and the checkpoint holds both ranks' memories.
    for facts in both.facts:
        assert facts["trained"] == alone.facts[0]["trained"] == sum(first) + sum(second)
        assert facts["episodes"] == alone.facts[0]["episodes"] == STEPS * B
        assert facts["mean"] == alone.facts[0]["mean"]
        assert facts["trained_unrolls"] == alone.facts[0]["trained_unrolls"] == STEPS * B
        assert facts["lags"] == alone.facts[0]["lags"]
        assert facts["uses"] == alone.facts[0]["uses"]
    assert len(both.facts[0]["lags"]) == B
    assert sorted(stream for _, stream, _ in both.saved.state["windows"]) == [0, 1, 2, 3]
    for name, tensor in both.saved.tensors["model"].items():
        np.testing.assert_array_equal(tensor.numpy(), both.weights[0][name])


def test_sixteen_bits_are_gathered_where_the_copies_multiply_in_them(tmp_path: Path) -> None:
    copies = run(tmp_path / "copies", 2, "impala", range(B), BITS16="1")
    sharded = run(tmp_path / "sharded", 2, "impala", range(B), BITS16="1", SHARD="1")
    exact = run(tmp_path / "exact", 2, "impala", range(B), SHARD="1")
    assert sharded.distance(copies) < TOLERANCE
    assert sharded.distance(exact) > 3 * TOLERANCE  # they were


@pytest.mark.slow
def test_what_ranks_have_saved_together_goes_on_with_any_number_of_them(tmp_path: Path) -> None:
    eight = range(8)
    saved = run(tmp_path / "4", 4, "appo", eight, SHARD="1").saved
    alone = run(tmp_path / "alone", 1, "appo", eight, FROM=str(saved.path.parent), MORE="3")
    assert set(saved.tensors) == {"model", "target", "optimiser", "rng"}
    for world in (1, 2, 8):
        also = {"FROM": str(saved.path.parent), "SHARD": "1"}
        same = run(tmp_path / f"same-{world}", world, "appo", eight, MORE="0", **also).saved
        for group in ("model", "target", "optimiser"):
            assert same.tensors[group].keys() == saved.tensors[group].keys()
            for name, tensor in same.tensors[group].items():
                assert torch.equal(tensor, saved.tensors[group][name]), (world, group, name)
        more = run(tmp_path / f"more-{world}", world, "appo", eight, MORE="3", **also)
        assert more.distance(alone) < TOLERANCE
        assert more.saved.version == saved.version + 3


@pytest.mark.slow
def test_a_network_trains_that_one_rank_has_no_memory_for(tmp_path: Path) -> None:
    """Each rank may take 350 MB, where weights, gradients and Adam's two moments have 403."""
    limit = {"LIMIT": str(350_000_000), "END": "2"}
    ((status, said),) = ends(start(__file__, tmp_path / "alone", 1, "impala", "0", "1", **limit))
    assert status == 1 and "can't allocate memory" in said, said
    both = run(tmp_path / "sharded", 4, "impala", range(B), SHARD="1", **limit)
    assert both.saved.version == 2


def test_a_rank_with_few_steps_does_not_hold_up_the_other(tmp_path: Path) -> None:
    both = run(tmp_path, 2, "thin")
    for name, mine in both.weights[0].items():
        np.testing.assert_array_equal(mine, both.weights[1][name], err_msg=name)
    assert [facts["optimiser_steps"] for facts in both.facts] == [50 * STEPS] * 2
    assert min(both.facts[1]["steps"]) < 50


def test_control_another_share_of_the_batch_is_seen(tmp_path: Path) -> None:
    """The tolerance is far below what a wrong mean makes: leaving out one nearly dead unroll, some
    2 of 80 live steps, shows a hundredfold."""
    alone = run(tmp_path / "alone", 1, "impala")
    less = run(tmp_path / "less", 1, "impala", [0, 1, 2])
    assert less.distance(alone) > 20 * TOLERANCE


@pytest.mark.parametrize(
    ("algorithm", "how"),
    [*itertools.product(("impala", "ppo"), ({}, SHARD)), ("impala running", DEVICE)],
)
def test_a_bad_unroll_of_one_rank_costs_no_other_and_changes_nothing(
    tmp_path: Path, algorithm: str, how: dict[str, str]
) -> None:
    """The ranks decide alike: one rejects it and fills its batch up, the other keeps its own."""
    spoils = {"SPOIL": "7", **({"WHOLLY": "1"} if algorithm == "ppo" else {})}
    spoilt = run(tmp_path / "spoilt", 2, algorithm, range(B), **spoils, **how)
    clean = run(tmp_path / "clean", 2, algorithm, range(B), **how)
    assert [facts["refused"] for facts in spoilt.facts] == [[], [[1, POISONED, 7, True]]]
    assert [facts["nonfinite"] for facts in spoilt.facts] == [1, 1]
    # ppo throws its dice once more, and adds up in another order.
    assert spoilt.distance(clean) <= (1e-6 if algorithm == "ppo" else 0.0)
    for one, other in zip(spoilt.facts, clean.facts, strict=True):
        assert one["trained"] == other["trained"]
        assert one["trained_unrolls"] == other["trained_unrolls"] == STEPS * B


def test_time_is_up_for_all_when_it_is_for_one(tmp_path: Path) -> None:
    for status, said in ends(start(__file__, tmp_path, 2, "impala", "0", "1", LATE="1")):
        assert status == 0, said
    assert [facts["reason"] for facts in Outcome(tmp_path, 2).facts] == ["seconds", "seconds"]


@pytest.mark.parametrize(
    ("where", "algorithm", "how"),
    [
        *((where, "ppo", how) for where in ("forward", "backward") for how in ({}, SHARD)),
        ("backward", "impala", {}),
        ("backward", "impala running", DEVICE),
    ],
)
def test_a_rank_that_dies_in_a_pass_ends_the_other_with_a_clear_line(
    tmp_path: Path, where: str, algorithm: str, how: dict[str, str]
) -> None:
    words = (algorithm, "0", "1")
    (survivor, said), (victim, _) = ends(start(__file__, tmp_path, 2, *words, DIES=where, **how))
    assert victim == 9
    assert survivor == 1
    assert "RanksError: rank 0: a collective failed, another rank is gone or stuck" in said


if __name__ == "__main__":
    folder, algorithm, *numbers = sys.argv[1:]
    live(lambda: run_rank(Path(folder), algorithm, [int(word) for word in numbers]))
