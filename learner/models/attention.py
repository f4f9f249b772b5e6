"""A transformer as a core: it remembers what its layers saw in the steps before.

As in GTrXL (Parisotto and others, 2020): norms come before attention and products, and a gate
decides after each how much of it goes on, so that it begins as if it were not there. A step sees
itself and so many steps before it, of its own episode. All of it is float32, as in cores.py.
"""

import math

import torch
from torch import Tensor, nn

from headrace.learner.models.cores import Core
from headrace.learner.models.layers import linear, without_autocast

_HEAD = 16  # numbers of a head, at least
_MOST_HEADS = 8


class Transformer(Core):
    """Keeps, as its memory, what went into each layer in the `context` steps before, and how many
    of these there have been in this episode."""

    def __init__(
        self,
        inputs: int,
        units: int,
        rng: torch.Generator,
        *,
        layers: int,
        context: int,
        bias: float,
    ) -> None:
        super().__init__()
        self.units, self.context = units, context
        self.size = layers * context * units + 1
        self.enter = linear(inputs, units, 1.0, rng)
        self.layers = nn.ModuleList(_Layer(units, context, rng, bias=bias) for _ in range(layers))
        self.leave = nn.LayerNorm(units)

    def forward(self, x: Tensor, memory: Tensor, begins: Tensor | None = None) -> Tensor:
        return self._look(x, memory, begins)[0]

    def step(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        outputs, layers = self._look(x.unsqueeze(0), memory, None)
        held = (memory[:, -1:] + 1).clamp(max=self.context)
        kept = self._newest(held.squeeze(-1)).unsqueeze(-1)
        after = [(seen[:, 1:] * kept).flatten(1) for seen in layers]
        return outputs.squeeze(0), torch.cat([*after, held], dim=-1)

    def _look(
        self, x: Tensor, memory: Tensor, begins: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Returns the outputs, and of each layer what was remembered and went into it now, as
        [B, context + T, units]."""
        steps, rows, _ = x.shape
        with without_autocast(x.device.type):
            past = memory[:, :-1].view(rows, len(self.layers), self.context, self.units)
            hidden = self.enter(x.float()).transpose(0, 1)
            visible = self._visible(steps, memory[:, -1], begins)
            seen = []
            for layer, before in zip(self.layers, past.unbind(1), strict=True):
                seen.append(torch.cat([before, hidden], dim=1))
                hidden = layer(seen[-1], visible)
            return self.leave(hidden).transpose(0, 1), seen

    def _visible(self, steps: int, held: Tensor, begins: Tensor | None) -> Tensor:
        """Returns what each step may look at [B, steps, context + steps]: itself, and steps of its
        own episode that are near enough."""
        distance = _distance(steps, self.context, held.device)
        near = (distance >= 0) & (distance <= self.context)
        whole = torch.cat([self._newest(held), held.new_ones(len(held), steps)], dim=-1) > 0
        visible = near & whole.unsqueeze(1)
        if begins is None:
            return visible
        episode = begins.transpose(0, 1).long().cumsum(-1)
        of_keys = torch.cat([episode.new_zeros(len(held), self.context), episode], dim=-1)
        return visible & (of_keys.unsqueeze(1) == episode.unsqueeze(2))

    def _newest(self, held: Tensor) -> Tensor:
        """Returns 1 for the newest so many of the remembered steps, 0 for the others."""
        place = torch.arange(self.context, 0, -1, device=held.device)
        return (place <= held.unsqueeze(-1)).to(held.dtype)


class _Layer(nn.Module):
    """Lets each step look at others, and works on what it found."""

    def __init__(self, units: int, context: int, rng: torch.Generator, *, bias: float) -> None:
        super().__init__()
        self.context = context
        most = max(1, min(_MOST_HEADS, units // _HEAD))
        self.heads = next(n for n in range(most, 0, -1) if units % n == 0)
        self.before_looking, self.before_working = nn.LayerNorm(units), nn.LayerNorm(units)
        self.query = linear(units, units, 1.0, rng)
        self.key_value = linear(units, 2 * units, 1.0, rng)
        self.found = linear(units, units, 1.0, rng)
        # Added to the keys, by how many steps ago they are.
        self.places = nn.Parameter(torch.zeros(context + 1, units))
        self.widen = linear(units, 2 * units, 1.0, rng)
        self.narrow = linear(2 * units, units, 1.0, rng)
        self.after_looking = _Gate(units, rng, bias=bias)
        self.after_working = _Gate(units, rng, bias=bias)

    def forward(self, whole: Tensor, visible: Tensor) -> Tensor:
        """Returns [B, T, units] of what went into it [B, context + T, units]."""
        hidden, seen = whole[:, self.context :], self.before_looking(whole)
        query = self._by_head(self.query(seen[:, self.context :]))
        key, value = (self._by_head(part) for part in self.key_value(seen).chunk(2, dim=-1))
        places = self._by_head(self.places)  # [heads, context + 1, numbers of a head]
        ago = _distance(hidden.shape[1], self.context, whole.device).clamp(0, self.context)
        by_place = query @ places.transpose(-1, -2)
        scores = query @ key.transpose(-1, -2)
        scores = scores + by_place.gather(-1, ago.expand(*scores.shape))
        scores = scores / math.sqrt(query.shape[-1])
        weights = scores.masked_fill(~visible.unsqueeze(1), -math.inf).softmax(-1)
        found = (weights @ value).transpose(1, 2).flatten(2)
        hidden = self.after_looking(hidden, self.found(found).relu())
        worked = self.narrow(self.widen(self.before_working(hidden)).relu())
        out: Tensor = self.after_working(hidden, worked.relu())
        return out

    def _by_head(self, x: Tensor) -> Tensor:
        """Returns [.., T, units] as [.., heads, T, numbers of a head]."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(-2, -3)


class _Gate(nn.Module):
    """Lets in what a part of a layer found, as a GRU lets in its input."""

    def __init__(self, units: int, rng: torch.Generator, *, bias: float) -> None:
        super().__init__()
        self.found = linear(units, 3 * units, 1.0, rng)
        self.kept = linear(units, 2 * units, 1.0, rng)
        self.chosen = linear(units, units, 1.0, rng)
        with torch.no_grad():
            self.found.bias[units : 2 * units] = -bias

    def forward(self, kept: Tensor, found: Tensor) -> Tensor:
        """Returns a mixture of both."""
        reset, opens, new = self.found(found).chunk(3, dim=-1)
        reset_kept, opens_kept = self.kept(kept).chunk(2, dim=-1)
        new = (new + self.chosen((reset + reset_kept).sigmoid() * kept)).tanh()
        return torch.lerp(kept, new, (opens + opens_kept).sigmoid())


def _distance(steps: int, context: int, device: torch.device) -> Tensor:
    """Returns how many steps before each step [steps, context + steps] the others are."""
    at = torch.arange(context + steps, device=device)
    return at[context:].unsqueeze(-1) - at
