"""The policy that acts: a module, the version of its weights, and its own dice."""

import numpy as np
from numpy.typing import NDArray

from actors.acting import Acting
from broker.blobs import Blob
from learner.config import ModelConfig
from learner.models import categorical
from learner.models.build import build
from learner.spaces import Spaces
from learner.weights import FlatWeights, WeightsError, layout_digest


class Policy:
    """Acts in numpy arrays; knows nothing of environments."""

    def __init__(
        self, config: ModelConfig, spaces: Spaces, *, seed: int, precision: str = "auto"
    ) -> None:
        self._model = build(config, spaces, seed=0)  # the learner's weights replace these
        self._weights = FlatWeights(self._model)
        self._layout = layout_digest(self._model)
        self._acting = Acting(self._model, spaces, precision)
        # A stream of its own: environments are seeded from the same number, and dice that fall as
        # theirs do would make the actions follow their noise.
        self._random = np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])
        self.version = -1  # of the weights it acts with; -1 = none arrived yet

    @property
    def quick(self) -> bool:
        """A call for few rows costs next to nothing: nothing is gained by putting rows together."""
        return self._acting.quick

    def load(self, blob: Blob) -> str:
        """Takes the weights; returns the digest of what the module holds now."""
        if blob.announce.layout != self._layout:
            raise WeightsError(
                "the learner's network has other layers than this sampler's:"
                " are both of one release?"
            )
        self._weights.load(blob.body)
        self._acting.refresh()
        self.version = blob.announce.version
        return self._weights.digest()

    def act(
        self, obs: dict[str, NDArray[np.generic]]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Actions and the log-probabilities they were really drawn with."""
        # What an environment gives that is no number is found and said when the unroll is full.
        with np.errstate(invalid="ignore", over="ignore"):
            return categorical.sample(self._acting.logits(obs), self._random)
