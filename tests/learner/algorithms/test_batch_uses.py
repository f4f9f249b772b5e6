"""Which samples an algorithm makes of its batches."""

from collections import Counter
from typing import Any

import pytest
import torch

from headrace.learner.algorithms.batch_uses import Sample, uses_of, with_targets
from headrace.learner.algorithms.loss_inputs import LossBatch, Targets
from headrace.learner.config import AlgorithmConfig
from headrace.learner.spaces import DEAD

T, G, B = 4, 3, 2  # steps, columns of an unroll, unrolls of a batch


def batch(number: int, *, memory: bool = False, dead: bool = False) -> Sample:
    """Every step of every column holds a number of its own, in all its fields."""
    own = 1000 * number + torch.arange((T + 1) * G * B).view(T + 1, G * B)
    flags = torch.zeros(T, G * B, dtype=torch.uint8)
    if dead:
        flags[1, 2] = flags[3, 0] = DEAD
    recorded = own[:-1].float()
    return Sample(
        {"obs": own.unsqueeze(-1).float()},
        own[0].unsqueeze(-1).float() if memory else None,
        torch.zeros(T + 1, G * B, dtype=torch.bool) if memory else None,
        LossBatch(own[:-1], recorded, recorded, flags),
        B,
    )


def with_all_targets(sample: Sample) -> Sample:
    return with_targets(sample, Targets(*(sample.loss.reward + at for at in (0.1, 0.2, 0.3))))


def made_by(uses: Any, *numbers: int) -> list[list[int]]:
    """By fresh batch: the batches, or for replay the unrolls, that its samples hold."""
    return [[int(s.obs["obs"][0, 0, 0]) // 1000 for s in uses.samples(batch(n))] for n in numbers]


def test_once() -> None:
    for config in (AlgorithmConfig(name="impala"), AlgorithmConfig(name="appo")):
        fresh = batch(1)
        (sample,) = uses_of(config).samples(fresh)
        assert sample is fresh


@pytest.mark.parametrize(
    ("kept", "uses", "ages"), [(3, 2, [0, 2]), (8, 3, [0, 4, 7]), (2, 4, [0, 0, 1, 1])]
)
def test_ring_spreads_the_uses_of_a_batch(kept: int, uses: int, ages: list[int]) -> None:
    config = AlgorithmConfig(name="appo", buffer_batches=kept, uses=uses)
    found = made_by(uses_of(config), *range(1, 21))
    for number, samples in enumerate(found, start=1):
        assert samples == [number - age for age in ages if age < number]
    counts = Counter(number for samples in found for number in samples)
    assert {counts[number] for number in range(1, 22 - kept)} == {uses}


def test_ring_without_others_uses_the_batch_again() -> None:
    config = AlgorithmConfig(name="appo", buffer_batches=1, uses=3)
    assert made_by(uses_of(config), 1, 2) == [[1, 1, 1], [2, 2, 2]]


def test_ring_keeps_copies_and_nothing_that_was_refused() -> None:
    uses = uses_of(AlgorithmConfig(name="appo", buffer_batches=2, uses=2))
    bad = uses.samples(batch(9))
    next(bad)
    del bad  # its gradients were not finite
    fresh = batch(2)
    list(uses.samples(fresh))
    fresh.obs["obs"].zero_()  # the receiver writes the next batch there
    fresh.loss.reward.zero_()
    _, again = uses.samples(batch(3))
    assert again.obs["obs"][0, 0] == 2000 and again.loss.reward[1, 0] == 2006


def replayed(pick: Any, *, kept: int, share: float = 0.5) -> list[list[int]]:
    """By batch of 8: the first numbers of the unrolls beside the new ones."""
    config = AlgorithmConfig(
        name="impala", replay_share=share, replay_unrolls=kept, replay_pick=pick
    )
    uses = uses_of(config)
    found = []
    for number in range(1, 9):
        (sample,) = uses.samples(batch(number))
        columns = sample.obs["obs"][0, :, 0].long().tolist()
        assert columns[: G * B] == batch(number).obs["obs"][0, :, 0].long().tolist()
        assert sample.loss.flags.shape[1] == len(columns)
        assert torch.equal(sample.loss.action.float(), sample.obs["obs"][:-1, :, 0])
        assert sample.unrolls == len(columns) / G
        found.append(columns[G * B :: G])
    return found


def test_replay_uniform_takes_any_that_it_remembers() -> None:
    torch.manual_seed(1)
    found = replayed("uniform", kept=4)
    assert found[0] == [] and all(len(unrolls) == 2 for unrolls in found[1:])
    for number, unrolls in enumerate(found[1:], start=2):
        assert len(set(unrolls)) == 2
        # Four unrolls are the two batches before this one.
        assert all(number - 2 <= unroll // 1000 < number for unroll in unrolls)


def test_replay_recent_takes_the_newest_that_were_used_least() -> None:
    assert [sorted(unrolls) for unrolls in replayed("recent", kept=4)[1:4]] == [
        [1000, 1003],
        [2000, 2003],
        [3000, 3003],
    ]


def test_replay_share() -> None:
    found = replayed("uniform", kept=100, share=0.75)
    assert [len(unrolls) for unrolls in found] == [0, 2, 4, 6, 6, 6, 6, 6]


@pytest.mark.parametrize("share", [0.1, 0.3, 0.45, 0.75])
@pytest.mark.parametrize("unrolls", [1, 2, 5])
def test_replay_share_is_kept_over_many_batches_of_any_size(share: float, unrolls: int) -> None:
    """Also by a rank whose part of a batch is one unroll."""
    uses = uses_of(AlgorithmConfig(name="impala", replay_share=share, replay_unrolls=200))
    fresh = batch(1).columns(torch.arange(G).repeat(unrolls))._replace(unrolls=unrolls)
    old, new = 0.0, 0
    for number in range(400):
        (sample,) = uses.samples(fresh)
        assert sample is not fresh  # whether this rank picked some or not
        if number >= 100:  # memory can give what is asked for
            old += sample.unrolls - unrolls
            new += unrolls
            # At every moment to within the unroll that is due next.
            assert abs(old - new * share / (1 - share)) < 1 + 1e-6
    assert old / (old + new) == pytest.approx(share, abs=1 / new)


def test_what_memory_could_not_give_is_not_owed() -> None:
    uses = uses_of(AlgorithmConfig(name="impala", replay_share=0.9, replay_unrolls=1000))
    found = [sample for n in range(1, 30) for sample in uses.samples(batch(n))]
    assert [sample.unrolls for sample in found[:4]] == [2, 4, 6, 8]
    assert found[-1].unrolls == 20


@pytest.mark.parametrize("memory", [False, True])
def test_epochs_go_through_everything_in_shuffled_parts(memory: bool) -> None:
    torch.manual_seed(1)
    uses = uses_of(AlgorithmConfig(name="ppo", epochs=2, minibatches=3))
    fresh = batch(1, memory=memory, dead=True)
    samples = list(uses.samples(with_all_targets(fresh)))
    assert len(samples) == 6 and sum(sample.unrolls for sample in samples) == pytest.approx(2 * B)
    epochs = [torch.cat([s.loss.action.flatten() for s in samples[at : at + 3]]) for at in (0, 3)]
    everything = fresh.loss.action.flatten()
    if not memory:  # dead steps are in no part
        everything = fresh.loss.action[fresh.loss.flags == 0]
    for epoch in epochs:
        assert torch.equal(epoch.sort().values, everything.sort().values)
    assert not torch.equal(epochs[0], epochs[1])
    for sample in samples:
        loss = sample.loss
        assert torch.equal(sample.obs["obs"][..., 0], loss.action.float())
        assert loss.targets is not None
        assert torch.equal(loss.targets.vs, loss.reward + 0.1)
        assert torch.equal(loss.targets.values, loss.reward + 0.3)
        if memory:
            assert sample.memory is not None and sample.begins is not None
            assert torch.equal(sample.memory, sample.obs["obs"][0])
            assert sample.begins.shape == loss.flags.shape


@pytest.mark.parametrize("memory", [False, True])
def test_a_rank_with_too_few_steps_still_takes_every_step(memory: bool) -> None:
    """The others wait for it; and a network need not be able to read nothing."""
    uses = uses_of(AlgorithmConfig(name="ppo", epochs=1, minibatches=30))
    samples = list(uses.samples(with_all_targets(batch(1, memory=memory, dead=not memory))))
    assert len(samples) == 30
    live = [int((sample.loss.flags != DEAD).sum()) for sample in samples]
    assert sum(live) == T * G * B - 2 * (not memory)
    assert all(sample.loss.flags.numel() for sample in samples) and 0 in live
    assert all((count == 0) == (s.unrolls == 0) for count, s in zip(live, samples, strict=True))


def test_what_a_broken_step_was_made_of_is_forgotten() -> None:
    torch.manual_seed(1)
    replay = uses_of(
        AlgorithmConfig(name="impala", replay_share=0.5, replay_unrolls=2, replay_pick="uniform")
    )
    list(replay.samples(batch(1)))
    broken = replay.samples(batch(2))
    assert next(broken).loss.flags.shape[1] == 2 * G * B
    del broken
    (after,) = replay.samples(batch(3))
    assert after.loss.flags.shape[1] == G * B  # nothing was left to go beside it

    ring = uses_of(AlgorithmConfig(name="appo", buffer_batches=2, uses=2))
    list(ring.samples(batch(1)))
    broken = ring.samples(batch(2))
    next(broken)
    assert int(next(broken).obs["obs"][0, 0, 0]) == 1000
    del broken
    assert made_by(ring, 3) == [[3, 2]]
