"""The search for the unrolls that make a step non-finite. They alone are rejected; the others stay
in their batch, which is filled up again.

    the weights are not finite       training has diverged: the run ends
    some unrolls break the step      they are rejected, with blame if at most half
    no unroll breaks it alone        the batch is rejected without blame

It costs nothing until a step fails. Then it is a bisection: halves are tried, and halves of those
that fail.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from headrace.broker.peers.inbox import Key
from headrace.broker.peers.learner import Objection
from headrace.learner.algorithms.batch_uses import Sample
from headrace.learner.batches.batch import Batch
from headrace.learner.spaces import DEAD
from headrace.learner.train_parts import TrainParts

log = logging.getLogger(__name__)

LossOf = Callable[[Sample], Tensor]  # what some unrolls add to a batch's loss, without other ranks

# After this many skipped steps in a row without one more sound unroll found, training is over.
_MOST_IN_A_ROW = 20
# Samples that are kept in files for a person to look at.
_MOST_KEPT = 3


class DivergedError(Exception):
    """Ends a run whose loss or gradients stay non-finite."""


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
        self._sound: set[Key] = (
            set()
        )  # unrolls with which a step is finite, since the last finite one
        self._folder = p.folder / "nonfinite"
        self._trained = [one for one in p.model.parameters() if one.requires_grad]

    def reset(self) -> None:
        """Resets the search: a batch was used, and all was finite."""
        self._in_a_row = 0
        self._sound.clear()

    def reject_culprits(
        self, batch: Batch, fresh: Sample, broken: Sample, loss_of: LossOf, *, used: bool
    ) -> Verdict:
        """Rejects the unrolls with which no step is finite. `broken`: the step's sample; `used`: an
        earlier step on this batch was finite."""
        p = self._p
        p.metrics.nonfinite.labels("gradient").inc()
        p.progress.nonfinite += 1
        self._keep(broken)
        self._check_weights()
        by_targets = p.algorithm.name == "ppo"
        unrolls = batch.unrolls
        found: list[int] = []
        if by_targets or not used:  # else: an older batch, now forgotten
            found = search(fresh if by_targets else broken, loss_of, self._trained)
        places = [
            at for at in found if at < unrolls
        ]  # those beyond came from replay: forgotten too
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
            log.error("non-finite gradients: step skipped, sample kept in %s", self._folder)
            if not (used or remembered):
                places = list(range(unrolls))
                p.feed.reject(batch, places, Objection("step", "non-finite gradients", blame=False))
        if self._in_a_row >= _MOST_IN_A_ROW:
            raise DivergedError(
                f"{self._in_a_row} steps in a row had non-finite gradients; lower learner.lr or"
                f" learner.grad_clip, and look at {self._folder}"
            )
        return Verdict(places, guilty > 0)

    def _reject(self, batch: Batch, places: list[int], *, blame: bool) -> None:
        """Rejects these unrolls; where most of a batch is bad, training has gone wrong and no
        sampler is blamed."""
        if not places:
            return
        samplers = sorted({batch.messages[at].actor for at in places})
        log.error(
            "non-finite gradients: step skipped, %d of %d unrolls rejected, of %s, kept in %s",
            len(places),
            batch.unrolls,
            ", ".join(samplers[:8]),
            self._folder,
        )
        words = "no optimiser step is finite with it"
        self._p.feed.reject(batch, places, Objection("step", words, blame))

    def _check_weights(self) -> None:
        for name, tensor in self._p.model.state_dict().items():
            if not bool(torch.isfinite(tensor).all()):
                raise DivergedError(
                    f"the network itself is not finite ({name}): training has diverged; lower"
                    " learner.lr or learner.grad_clip, and continue from a checkpoint"
                )

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
