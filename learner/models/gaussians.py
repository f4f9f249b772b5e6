"""Independent Gaussians for the numbers of an action, squashed by tanh where the action is."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from headrace.learner.models.categorical import FloatArray
from headrace.learner.models.gradient_clamps import clamp_passing_gradient
from headrace.learner.spaces import Action

Rows = NDArray[Any]  # of action.dtype and shape [N, *action.shape]

LOG_STD = (-10.0, 2.0)
_LOG_ROOT_2_PI = 0.5 * math.log(2 * math.pi)
# Of the expectation in the squashed entropy. It is right to 1e-5 up to a standard deviation of 1,
# to 2e-3 up to e, and to 0.1 at e^2, where nearly all draws lie at the bounds.
_NODES = 32


class Gaussians:
    """Draws numbers and computes densities; a squashed one has that of tanh(u), in (-1, 1)."""

    def __init__(self, action: Action) -> None:
        self.count = action.numbers
        self._squashed = [at for at, squashed in enumerate(action.squashed) if squashed]
        self._all = len(self._squashed) == self.count
        self._columns = Constant(np.array(self._squashed, np.int64))
        nodes, weights = np.polynomial.hermite.hermgauss(_NODES)
        self._nodes = Constant((math.sqrt(2) * nodes).astype(np.float32))
        self._weights = Constant((weights / math.sqrt(math.pi)).astype(np.float32))

    def split(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Returns means and log-stds, each [..., D]: the last ones of the parameters."""
        mean, log_std = params[..., -2 * self.count : -self.count], params[..., -self.count :]
        return mean, clamp_passing_gradient(log_std, *LOG_STD)

    def drawn(self, rows: Tensor) -> Tensor:
        return rows[..., -self.count :]

    def log_prob(self, mean: Tensor, log_std: Tensor, drawn: Tensor) -> Tensor:
        distance = (drawn - mean) * torch.exp(-log_std)
        logp = (-0.5 * distance.square() - log_std - _LOG_ROOT_2_PI).sum(-1)
        return logp - _log_slope(self._only_squashed(drawn)).sum(-1) if self._squashed else logp

    def entropy(self, mean: Tensor, log_std: Tensor) -> Tensor:
        entropy = (log_std + 0.5 + _LOG_ROOT_2_PI).sum(-1)
        if not self._squashed:
            return entropy
        # H(tanh u) = H(u) + E[log tanh'(u)], the latter by Gauss-Hermite quadrature.
        middle, std = (self._only_squashed(x).unsqueeze(-1) for x in (mean, log_std.exp()))
        at = middle + std * self._nodes.on(mean.device)
        return entropy + (_log_slope(at) * self._weights.on(mean.device)).sum((-2, -1))

    def kl(self, p_mean: Tensor, p_log: Tensor, q_mean: Tensor, q_log: Tensor) -> Tensor:
        """Returns KL(p || q) [...], the same before and after squashing."""
        spread = (2 * (p_log - q_log)).exp()
        distance = ((p_mean - q_mean) * torch.exp(-q_log)).square()
        return (q_log - p_log + 0.5 * (spread + distance - 1)).sum(-1)

    def sample(self, params: FloatArray, rng: np.random.Generator) -> tuple[Rows, FloatArray]:
        mean, log_std = params[:, : self.count], params[:, self.count :].clip(*LOG_STD)
        drawn = mean + np.exp(log_std) * rng.standard_normal(mean.shape, np.float32)
        # From the float32 row, not from the draw: so the learner computes the same.
        distance = (drawn - mean) * np.exp(-log_std)
        logp = (-0.5 * np.square(distance) - log_std - np.float32(_LOG_ROOT_2_PI)).sum(axis=1)
        if self._squashed:
            u = drawn[:, self._squashed]
            slope = 2 * (np.float32(math.log(2)) - u - np.logaddexp(np.float32(0), -2 * u))
            logp = logp - slope.sum(axis=1)
        return drawn, logp

    def _only_squashed(self, numbers: Tensor) -> Tensor:
        if self._all:
            return numbers
        return numbers.index_select(-1, self._columns.on(numbers.device))


class Constant:
    """Holds an array as a tensor, copied once to each device that asks for it."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self._tensors: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        if device not in self._tensors:
            # A tensor made in inference mode could not be used where gradients are needed.
            with torch.inference_mode(False):
                self._tensors[device] = torch.from_numpy(self._array).to(device)
        return self._tensors[device]


def _log_slope(u: Tensor) -> Tensor:
    """Returns log(1 - tanh(u)^2), exact where tanh(u) rounds to 1."""
    return 2 * (math.log(2) - u - functional.softplus(-2 * u))
