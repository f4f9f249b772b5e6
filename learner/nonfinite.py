"""Steps with non-finite gradients (NaN, inf): the search for the unrolls that are to blame.

They alone are rejected; the others stay in their batch, which is filled up again.

    the weights are not finite       training has diverged: the run ends
    some unrolls break the step      they are rejected, with blame if at most half
    no unroll breaks it alone        the batch is rejected without blame

It costs nothing until a step fails. Then it is a bisection: halves are tried, and halves of those
that fail.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgpack
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from headrace.broker.errors import DivergedError
from headrace.broker.peers.inbox import Key
from headrace.broker.peers.objections import Objection
from headrace.learner.algorithms import optimiser_state
from headrace.learner.algorithms.batch_uses import Sample
from headrace.learner.algorithms.diagnosis import Figures, diagnosis
from headrace.learner.algorithms.losses import scaled_rewards
from headrace.learner.batches.batch import Batch
from headrace.learner.models.model import Model
from headrace.learner.models.population.population import Population
from headrace.learner.sharding.parts import load, own_part
from headrace.learner.spaces import DEAD
from headrace.learner.train_parts import TrainParts
from headrace.learner.weights import is_finite

log = logging.getLogger(__name__)

LossOf = Callable[[Sample], Tensor]
# What some unrolls add to a batch's loss, without other ranks.
LossAlone = Callable[[TrainParts, Sample], Tensor]

# After this many skipped steps in a row without one more sound unroll found, training is over.
_MOST_IN_A_ROW = 20
# Samples that are kept in files for a person to look at; steps in a row that are worth a line.
_MOST_KEPT = 3
# Statistics of the last finite step that may tell why.
_LAST = ("entropy", "kl")


class BrokenStep(NamedTuple):
    """Holds a step that is not finite."""

    sample: Sample
    stats: Mapping[str, Tensor]  # of its loss


class Verdict(NamedTuple):
    """Tells what was rejected for one step that was not finite."""

    places: list[int]  # in this rank's batch: rejected, and out of it
    anywhere: bool  # some rank has rejected some


class NonFiniteSearch:
    """Finds, on each rank, the unrolls that make a step non-finite. All ranks ask at the same steps
    and decide alike."""

    def __init__(self, p: TrainParts) -> None:
        self._p = p
        self._in_a_row = 0  # skipped steps without a new sound unroll
        self._last: Mapping[str, Tensor] = {}  # the statistics of the last finite step
        # Unrolls with which a step is finite, since the last finite one.
        self._sound: set[Key] = set()
        self._folder = p.folder / "nonfinite"
        # What this rank holds of the weights.
        self._own = [own_part(one) for one in p.model.parameters() if one.requires_grad]

    def reset(self, stats: Mapping[str, Tensor]) -> None:
        """Resets the search: a batch was used, and all was finite. `stats`: of its last loss."""
        self._last = stats
        self._in_a_row = 0
        self._sound.clear()

    def reject_culprits(
        self, batch: Batch, fresh: Sample, broken: BrokenStep, loss: LossAlone, *, used: bool
    ) -> Verdict:
        """Rejects the unrolls with which no step is finite. `used`: an earlier step on this batch
        was finite."""
        p = self._p
        p.metrics.nonfinite.labels("gradient").inc()
        p.progress.nonfinite += 1
        self._keep(broken.sample)
        if not self._all_finite(self._own):
            raise self._ruined()
        by_targets = p.algorithm.name == "ppo"
        unrolls = batch.unrolls
        found: list[int] = []
        if by_targets or not used:  # else: an older batch, now forgotten
            found = self._search(fresh if by_targets else broken.sample, loss)
        places = [at for at in found if at < unrolls]  # those beyond came from replay: forgotten
        sound = {key for at, key in enumerate(batch.keys) if at not in places}
        guilty, remembered, news, total = self._everywhere(
            len(places), len(found) - len(places), len(sound - self._sound), unrolls
        )
        if guilty:
            self._sound |= sound
            self._in_a_row += not (news or used)
            self._reject(batch, places, blame=2 * guilty <= total)
        else:
            self._in_a_row += 1
            self._log("non-finite gradients: step skipped, sample kept in %s", self._folder)
            if not (used or remembered):
                places = list(range(unrolls))
                p.feed.reject(batch, places, Objection("step", "non-finite gradients", blame=False))
        if self._in_a_row >= _MOST_IN_A_ROW:
            what = f"{self._in_a_row} steps in a row had non-finite gradients, see {self._folder}"
            raise self._diverged(what, self._figures(broken))
        return Verdict(places, guilty > 0)

    def _search(self, sample: Sample, loss: LossAlone) -> list[int]:
        """Tries unrolls, each rank its own: where the network is spread, on copies of all of it."""
        p = self._on_the_host() if self._p.spread else self._p
        trained = [one for one in p.model.parameters() if one.requires_grad]
        return search(sample.on(p.device), functools.partial(loss, p), trained)

    def _on_the_host(self) -> TrainParts:
        """Returns the parts with whole networks in the host's memory, which need no other rank."""

        def copied(model: Model) -> Model:
            assert self._p.plain is not None
            copy = self._p.plain()
            load(copy, model.state_dict())
            return copy

        model, target = copied(self._p.model), self._p.target
        target = None if target is None else copied(target)
        return replace(self._p, model=model, target=target, device=torch.device("cpu"))

    def _reject(self, batch: Batch, places: list[int], *, blame: bool) -> None:
        """Rejects these unrolls; where most of a batch is bad, training has gone wrong and no
        sampler is blamed."""
        if not places:
            return
        samplers = sorted({batch.messages[at].actor for at in places})
        self._log(
            "non-finite gradients: step skipped, %d of %d unrolls rejected, of %s, kept in %s",
            len(places),
            batch.unrolls,
            ", ".join(samplers[:8]),
            self._folder,
        )
        words = "no optimiser step is finite with it"
        self._p.feed.reject(batch, places, Objection("step", words, blame))

    def check_weights(self) -> None:
        """Ends the run before weights that are not finite reach samplers, or a checkpoint."""
        model = self._p.model
        if not self._all_finite(model.moved() if isinstance(model, Population) else self._own):
            raise self._ruined()

    def _all_finite(self, weights: Sequence[Tensor]) -> bool:
        """Tells whether these are finite; all ranks decide alike."""
        here = not weights or bool(finite(weights))
        return not self._everywhere(not here)[0] if self._p.spread else here

    def check_optimiser(self, optimiser: torch.optim.Optimizer) -> None:
        """Ends the run before such an optimiser is saved: some weights would never move again."""
        state = optimiser_state.state_of(optimiser)[0]
        if bad := self._not_finite(state):
            raise self._diverged(f"the optimiser's state is not finite ({bad})")

    def _ruined(self) -> DivergedError:
        name = self._not_finite(self._p.model.state_dict())
        return self._diverged(f"the network itself is not finite ({name})")

    def _not_finite(self, tensors: Mapping[str, Tensor]) -> str:
        """Returns the first of these that is not finite, the same on all ranks; "" = all are."""
        here = [int(not is_finite(own_part(one))) for one in tensors.values()]
        there = self._everywhere(*here) if self._p.spread else here
        return next((name for name, bad in zip(tensors, there, strict=True) if bad), "")

    def _diverged(self, what: str, figures: Figures | None = None) -> DivergedError:
        p, last = self._p, {name: float(self._last[name]) for name in _LAST if name in self._last}
        known = (figures or Figures())._replace(**last)
        return DivergedError(
            f"training has diverged at version {p.progress.version}: {what};"
            f" {diagnosis(known, p.algorithm, p.config)}"
        )

    def _figures(self, broken: BrokenStep) -> Figures:
        """Returns the largest figures of a step on any rank; all must ask."""
        p, sample = self._p, broken.sample
        with torch.no_grad():
            values = p.model(sample.obs, sample.memory, sample.begins).value
        rewards = scaled_rewards(p.algorithm, sample.loss.reward)
        own = (rewards.abs().max(), values.abs().max(), broken.stats["value_loss"])
        packed = p.ranks.gather(msgpack.packb([float(one) for one in own]))
        everywhere = torch.tensor([msgpack.unpackb(of_rank) for of_rank in packed])
        return Figures(*everywhere.amax(0).tolist())  # NaN counts as the largest

    def _log(self, line: str, *values: object) -> None:
        """Logs a step that was skipped; of a flood only the beginning."""
        if self._in_a_row <= _MOST_KEPT:
            log.error(line, *values)

    def _everywhere(self, *counts: int) -> list[int]:
        """Sums over all ranks."""
        summed = self._p.ranks.total(torch.tensor(counts, dtype=torch.float64))
        return [int(count) for count in summed]

    def _keep(self, broken: Sample) -> None:
        """Keeps the first few such samples in files, for a person to look at."""
        number = self._p.progress.nonfinite
        if number > _MOST_KEPT:
            return
        kept = self._folder / f"{number:04d}-rank{self._p.ranks.rank}.safetensors"
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            save_file({name: rows.cpu().contiguous() for name, rows in broken.named()}, kept)
        except OSError as error:  # a full disk must not stop the run
            log.error("the batch cannot be kept: %s", error)


def finite(tensors: Sequence[Tensor]) -> Tensor:
    """Tells whether all are finite; their norms are one quick call."""
    return torch.stack(torch._foreach_norm(list(tensors))).isfinite().all()


def mark_dead(
    fresh: Sample, vs: Tensor | None, places: Sequence[int], unrolls: int
) -> Tensor | None:
    """Marks all steps of these unrolls dead; returns the targets with theirs at 0."""
    width = fresh.loss.flags.shape[1] // unrolls
    vs = None if vs is None else vs.clone()
    for place in places:
        columns = slice(place * width, (place + 1) * width)
        fresh.loss.flags[:, columns] = DEAD
        if vs is not None:
            vs[:, columns] = 0
    return vs


def search(sample: Sample, loss_of: LossOf, parameters: Sequence[Tensor]) -> list[int]:
    """Returns the places of the unrolls with which no step is finite, in order of columns."""
    count = round(sample.unrolls)
    width = sample.loss.flags.shape[1] // count

    def among(lo: int, hi: int) -> list[int]:
        loss = loss_of(sample.columns(slice(lo * width, hi * width)))
        if _survives(loss, parameters):
            return []
        if hi - lo == 1:
            return [lo]
        half = (lo + hi) // 2
        return among(lo, half) + among(half, hi)

    return among(0, count)


def _survives(loss: Tensor, parameters: Sequence[Tensor]) -> bool:
    if not bool(torch.isfinite(loss)):
        return False
    # Not `backward`: that would begin an exchange with the other ranks.
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return bool(torch.isfinite(nn.utils.get_total_norm([g for g in found if g is not None])))
