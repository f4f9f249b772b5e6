"""The distribution over an environment's actions, given by one row of a network's numbers.

A row of parameters: the logits of all choices, one after another, then the mean of every number,
then the logarithm of its standard deviation. A row of an action: the choices, then the numbers as
they were drawn. The choices and numbers are independent of each other, given the parameters.

The learner's half is torch and differentiable; the sampler's half is numpy.
"""

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from headrace.learner.models import categorical
from headrace.learner.models.categorical import FloatArray
from headrace.learner.models.gaussians import Constant, Gaussians, Rows
from headrace.learner.spaces import Action

# The logit of a forbidden choice. Its weight is exactly zero, but unlike -inf it leaves every
# product and gradient finite.
FORBIDDEN = -1e9
# The logit of padding: never drawn, not even where no choice is allowed, as after an episode's end.
_ABSENT = 2 * FORBIDDEN


def distribution_of(action: Action) -> "Distribution":
    """Returns the distribution that fits the action."""
    return _Single(action) if action.single else _Mixed(action)


class Distribution(ABC):
    """Defines the methods: torch ones take any leading dimensions, numpy ones take [N, params]."""

    params: int  # numbers per row
    density: bool  # an action has numbers: what log_prob returns is no probability

    def __init__(self, action: Action) -> None:
        self._logits = sum(action.categories)
        self.params = self._logits + 2 * action.numbers
        self.density = action.numbers > 0

    @abstractmethod
    def log_prob(self, params: Tensor, rows: Tensor) -> Tensor:
        """Returns the log-probability or log-density [...] of the actions."""

    @abstractmethod
    def log_prob_and_entropy(self, params: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the same, and the entropy [...] in nats, summed over choices and numbers."""

    @abstractmethod
    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        """Returns KL(p || q) [...]."""

    @abstractmethod
    def sample(self, params: FloatArray, rng: np.random.Generator) -> tuple[Rows, FloatArray]:
        """Draws one action from each row; returns them and their log-probabilities [N]."""

    @abstractmethod
    def mode(self, params: FloatArray) -> Rows:
        """Returns the likeliest choices, and the means of the numbers."""

    def masked(self, params: Tensor, mask: Tensor) -> Tensor:
        """Returns the parameters without the choices where mask [..., sum(categories)] is 0."""
        logits = params[..., : self._logits].masked_fill(mask == 0, FORBIDDEN)
        if self._logits == self.params:
            return logits
        return torch.cat((logits, params[..., self._logits :]), dim=-1)


class _Single(Distribution):
    """Handles one choice and nothing else."""

    def log_prob(self, params: Tensor, rows: Tensor) -> Tensor:
        return categorical.log_prob(params, rows)

    def log_prob_and_entropy(self, params: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        return categorical.log_prob_and_entropy(params, rows)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        return categorical.kl(p, q)

    def sample(self, params: FloatArray, rng: np.random.Generator) -> tuple[Rows, FloatArray]:
        return categorical.sample(params, rng)

    def mode(self, params: FloatArray) -> Rows:
        likeliest: Rows = params.argmax(axis=1)
        return likeliest


class _Mixed(Distribution):
    """Handles several choices, numbers, or both."""

    def __init__(self, action: Action) -> None:
        super().__init__(action)
        self._choices = _ChoiceLogits(action.categories) if action.categories else None
        self._numbers = Gaussians(action) if action.numbers else None
        self._dtype = np.dtype(action.dtype)

    def log_prob(self, params: Tensor, rows: Tensor) -> Tensor:
        terms = []
        if self._choices:
            log_probs = self._choices.log_probs(params[..., : self._logits])
            terms.append(self._choices.pick(log_probs, rows))
        if self._numbers:
            mean, log_std = self._numbers.split(params)
            terms.append(self._numbers.log_prob(mean, log_std, self._numbers.drawn(rows)))
        return _sum(terms)

    def log_prob_and_entropy(self, params: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        logps, entropies = [], []
        if self._choices:
            log_probs = self._choices.log_probs(params[..., : self._logits])
            logps.append(self._choices.pick(log_probs, rows))
            entropies.append(-(log_probs.exp() * log_probs).sum((-2, -1)))
        if self._numbers:
            mean, log_std = self._numbers.split(params)
            logps.append(self._numbers.log_prob(mean, log_std, self._numbers.drawn(rows)))
            entropies.append(self._numbers.entropy(mean, log_std))
        return _sum(logps), _sum(entropies)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        terms = []
        if self._choices:
            log_p, log_q = (self._choices.log_probs(x[..., : self._logits]) for x in (p, q))
            terms.append((log_p.exp() * (log_p - log_q)).sum((-2, -1)))
        if self._numbers:
            terms.append(self._numbers.kl(*self._numbers.split(p), *self._numbers.split(q)))
        return _sum(terms)

    def sample(self, params: FloatArray, rng: np.random.Generator) -> tuple[Rows, FloatArray]:
        parts: list[Rows] = []
        logp = np.zeros(len(params), np.float32)
        if self._choices:
            choices, logps = self._choices.sample(params[:, : self._logits], rng)
            parts.append(choices)
            logp += logps
        if self._numbers:
            numbers, logps = self._numbers.sample(params[:, self._logits :], rng)
            parts.append(numbers)
            logp += logps
        return self._joined(parts), logp

    def mode(self, params: FloatArray) -> Rows:
        parts: list[Rows] = []
        if self._choices:
            parts.append(self._choices.padded(params[:, : self._logits]).argmax(axis=2))
        if self._numbers:
            parts.append(params[:, self._logits : self._logits + self._numbers.count])
        return self._joined(parts)

    def _joined(self, parts: list[Rows]) -> Rows:
        if len(parts) == 1:
            return parts[0].astype(self._dtype, copy=False)
        return np.concatenate([part.astype(self._dtype, copy=False) for part in parts], axis=1)


class _ChoiceLogits:
    """Lays choices of different sizes side by side: [..., sum(sizes)] becomes [..., C, widest]."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self._count, self._width = len(sizes), max(sizes)
        self._even = min(sizes) == self._width
        starts = np.cumsum([0, *sizes[:-1]])[:, None]
        place = np.arange(self._width)[None]
        # Beyond its size a choice takes the one logit that is appended to all.
        index = np.where(place < np.array(sizes)[:, None], starts + place, sum(sizes))
        self._index = index.astype(np.int64)
        self._places = Constant(self._index.reshape(-1))

    def log_probs(self, logits: Tensor) -> Tensor:
        """Returns [..., C, widest]."""
        if not self._even:
            logits = functional.pad(logits, (0, 1), value=_ABSENT)
            logits = logits.index_select(-1, self._places.on(logits.device))
        logits = logits.reshape(*logits.shape[:-1], self._count, self._width)
        return torch.log_softmax(logits, dim=-1)

    def pick(self, log_probs: Tensor, rows: Tensor) -> Tensor:
        """Sums the log-probs of the choices, which lie first in a row. Among numbers they are
        float32, which holds each exactly."""
        choices = rows[..., : self._count].long().unsqueeze(-1)
        return log_probs.gather(-1, choices).squeeze(-1).sum(-1)

    def padded(self, logits: FloatArray) -> FloatArray:
        """Returns [N, C, widest]."""
        if self._even:
            return logits.reshape(len(logits), self._count, self._width)
        column = np.full((len(logits), 1), _ABSENT, np.float32)
        return np.concatenate((logits, column), axis=1)[:, self._index]

    def sample(self, logits: FloatArray, rng: np.random.Generator) -> tuple[Rows, FloatArray]:
        """Draws by inverse transform, as categorical.sample does."""
        padded = self.padded(logits)
        shifted = padded - padded.max(axis=2, keepdims=True)
        cumulated = np.exp(shifted).cumsum(axis=2)
        total = cumulated[..., -1]
        # A float64 draw below 1 keeps the product below the float32 total, so that a choice without
        # weight, such as a padded one, is never drawn.
        passed = rng.random(total.shape) * total
        choices = (cumulated[..., :-1] <= passed[..., None]).sum(axis=2, dtype=np.int64)
        picked = np.take_along_axis(shifted, choices[..., None], axis=2)[..., 0]
        return choices, (picked - np.log(total)).sum(axis=1)


def _sum(terms: list[Tensor]) -> Tensor:
    return terms[0] if len(terms) == 1 else terms[0] + terms[1]
