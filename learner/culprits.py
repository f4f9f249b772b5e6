"""A step that is not finite: whose unrolls make it so. They alone are rejected; the others stay in
their batch, which is filled up again.

    the weights are not finite       nobody's fault but training's: the run ends
    some unrolls break the step      rejected, and their samplers blamed if they are the fewer
    no unroll breaks it alone        the batch is rejected, and nobody is blamed

Only a failure pays for it: halves are tried, and halves of those that fail.
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
from headrace.learner.pieces import Pieces
from headrace.learner.spaces import DEAD

log = logging.getLogger(__name__)

LossOf = Callable[[Sample], Tensor]  # what some unrolls add to a batch's loss, without other ranks

# So many skipped steps in a row, and not one more unroll found that a step survives: training is
# over.
_MOST_IN_A_ROW = 20
# Samples that are kept for a look.
_MOST_KEPT = 3


class DivergedError(Exception):
    """Loss or gradients stay non-finite."""


class Verdict(NamedTuple):
    """Of one step that was not finite."""

    places: list[int]  # in this rank's batch: rejected, and out of it
    anywhere: bool  # some rank has rejected some


class Inquest:
    """One rank's. All ranks ask at the same steps and decide alike."""

    def __init__(self, p: Pieces) -> None:
        self._p = p
        self._in_a_row = 0  # skipped steps by which nothing was gained
        self._sound: set[Key] = set()  # unrolls that a step survives, found since the last step
        self._folder = p.folder / "nonfinite"
        self._trained = [one for one in p.model.parameters() if one.requires_grad]

    def stepped(self) -> None:
        """A batch was used, and all was finite."""
        self._in_a_row = 0
        self._sound.clear()

    def look(
        self, batch: Batch, fresh: Sample, broken: Sample, loss_of: LossOf, *, used: bool
    ) -> Verdict:
        """Rejects what no step survives. `broken`: the step's sample; `used`: an earlier step on
        this batch was finite."""
        p = self._p
        p.metrics.nonfinite.labels("gradient").inc()
        p.progress.nonfinite += 1
        self._keep(broken)
        self._check_weights()
        by_targets = p.algorithm.name == "ppo"
        unrolls = batch.unrolls
        found: list[int] = []
        if by_targets or not used:  # else it is an older batch, trained before and forgotten now
            found = search(fresh if by_targets else broken, loss_of, self._trained)
        places = [at for at in found if at < unrolls]  # those beyond were remembered, likewise
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
        """Where most of a batch is bad it is training that goes wrong, and nobody is to blame."""
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
        """The first few such samples, for a look."""
        number = self._p.progress.nonfinite
        if number > _MOST_KEPT:
            return
        kept = self._folder / f"{number:04d}-rank{self._p.ranks.rank}.safetensors"
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            save_file({name: rows.cpu().contiguous() for name, rows in broken.named()}, kept)
        except OSError as error:  # a full disk must not stop the run
            log.error("the batch cannot be kept: %s", error)


def without(fresh: Sample, vs: Tensor | None, places: Sequence[int], unrolls: int) -> Tensor | None:
    """These unrolls of it are as if all their steps were dead; returns such targets."""
    width = fresh.loss.flags.shape[1] // unrolls
    vs = None if vs is None else vs.clone()
    for place in places:
        columns = slice(place * width, (place + 1) * width)
        fresh.loss.flags[:, columns] = DEAD
        if vs is not None:
            vs[:, columns] = 0
    return vs


def search(sample: Sample, loss_of: LossOf, parameters: Sequence[Tensor]) -> list[int]:
    """Places of the unrolls that no step survives, in the order of their columns."""
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
