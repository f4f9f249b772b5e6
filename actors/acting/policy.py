"""The policy that acts: a module, the version of its weights, and its random generator."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.actors.acting import exploration
from headrace.actors.acting.loaded_pieces import LoadedPieces
from headrace.actors.acting.networks import ActingNetwork, Network
from headrace.broker.weights.blobs import Blob
from headrace.learner.config import ModelConfig
from headrace.learner.models.build import SETTINGS, build
from headrace.learner.models.encoders import custom
from headrace.learner.spaces import Spaces
from headrace.learner.weights import WeightsError, layout_digest

Floats = NDArray[np.float32]
Actions = NDArray[Any]  # of the action's dtype, [N, *action.shape]


class Policy:
    """Acts in numpy arrays; knows nothing of environments."""

    def __init__(
        self,
        config: ModelConfig,
        spaces: Spaces,
        *,
        seed: int,
        precision: str = "auto",
        explore: str = "",
        device: str = "cpu",
    ) -> None:
        self._model = build(config, spaces, seed=0).to(device)  # the learner's replace these
        self._kind = config.kind
        self._weights = LoadedPieces(self._model)
        self._layout = layout_digest(self._model)
        self.network: Network = ActingNetwork(self._model, spaces, precision, device)
        self._distribution = self._model.distribution
        self.numbers = self._distribution.params  # of one row of the network's output
        self._explore = exploration.function(explore) if explore else None
        # What environments are to play with, by these weights.
        self.settings = np.asarray(torch.as_tensor(getattr(self._model, SETTINGS, ())).cpu())
        # A stream of its own: environments are seeded from the same number, and dice that fall as
        # theirs do would make the actions follow their noise.
        self._random = np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])
        self.memory = self._model.memory  # numbers carried from step to step; 0 = none
        self.previous = config.previous  # it also sees the step before
        # Of the weights it acts with, as they were announced; -1 = none arrived yet.
        self.version, self.digest = -1, ""

    @property
    def quick(self) -> bool:
        """Says whether a call for few rows costs so little that batching gains nothing."""
        return self.network.quick

    def load(self, blob: Blob) -> str:
        """Takes the weights; returns the digest of what the module holds now."""
        if blob.announce.layout != self._layout:
            raise WeightsError(
                "the learner's network has other layers than this sampler's:"
                " are both of one release?"
            )
        held = self._weights.load(blob)
        self.network.refresh()
        self.version, self.digest = blob.announce.version, blob.announce.digest
        return held

    def act(
        self,
        obs: dict[str, NDArray[np.generic]],
        memory: Floats | None = None,
        *,
        greedy: bool = False,
    ) -> tuple[Actions, Floats, Floats | None]:
        """Returns actions, the log-probabilities they were really drawn with, and the memory after
        them. `greedy`: the likeliest action instead of a drawn one."""
        # Values of an environment that are not finite are reported when the unroll is full.
        with np.errstate(invalid="ignore", over="ignore"):
            try:
                params, carried = self.network.params(obs, memory)
            except Exception as error:
                if ":" not in self._kind:
                    raise
                raise ValueError(custom.failure(self._kind, error)) from error
            actions, logp = self._chosen(params, greedy)
            # One product instead of isfinite() on every number: this runs at every step.
            sound = math.isfinite(logp.dot(logp))
            if not sound or (carried is not None and not math.isfinite(carried.sum())):
                params, carried = self._mended(obs, params, carried)
                actions, logp = self._chosen(params, greedy)
        return actions, logp, carried

    def _chosen(self, params: Floats, greedy: bool) -> tuple[Actions, Floats]:
        if not greedy:
            if self._explore is not None:
                params = self._explore(params, self.version)
            return self._distribution.sample(params, self._random)
        # No log-probability is needed; this one is 0, or not finite where the params are not.
        return self._distribution.mode(params), params.sum(axis=1) * np.float32(0.0)

    def _mended(
        self, obs: dict[str, NDArray[np.generic]], params: Floats, carried: Floats | None
    ) -> tuple[Floats, Floats | None]:
        """Replaces what is not finite by zeros, in the parameters and the memory, for rows whose
        observation was not finite. Raises ValueError where the observation was finite: the network
        is at fault."""
        wrong = _unsound([params] if carried is None else [params, carried])
        came_wrong = _unsound([rows for rows in obs.values() if rows.dtype.kind == "f"])
        if (wrong & ~came_wrong).any() or not wrong.any():
            raise ValueError(
                f'model.kind = "{self._kind}" makes of an observation what is no number; mend the'
                " network, or clip the observation in a wrapper"
            )
        params = np.where(np.isfinite(params), params, np.float32(0.0))
        if carried is not None:
            carried = np.where(wrong[:, None], np.float32(0.0), carried)
        return params, carried


def _unsound(arrays: Sequence[NDArray[Any]]) -> NDArray[np.bool_]:
    """Says by row whether it holds anything that is not finite."""
    wrong = np.zeros(1, np.bool_)
    for rows in arrays:
        wrong = wrong | ~np.isfinite(rows.reshape(len(rows), -1)).all(axis=1)
    return wrong
