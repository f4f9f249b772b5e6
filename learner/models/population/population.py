"""A population: many policies of one network, trained side by side.

Each policy is a row of one matrix: all its layers, one after another. A call takes the rows of the
policies that play, sorts the steps by them, and computes all policies in one batched product for
each layer. Rows that did not play have no gradient, and are not touched.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from headrace.learner.models.model import Model, Output
from headrace.learner.models.normalise import Normaliser, PopArt
from headrace.learner.models.population.places import Places, places_of
from headrace.learner.spaces import POLICY

ROWS, HEADS = "weights.rows", "weights.heads"  # the two parts in which the weights travel
# By the setting that each policy has times its own factor: the buffer of these factors.
FACTORS: Final = {"lr": "lr_factor", "entropy_coef": "entropy_factor", "clip": "clip_factor"}


class Piece(NamedTuple):
    """Describes a layer's weights or biases in a row."""

    name: str
    shape: torch.Size
    begin: int
    end: int

    def of(self, rows: Tensor) -> Tensor:
        """Returns it of rows [R, P] as [R, *shape]."""
        return rows[:, self.begin : self.end].view(-1, *self.shape)


class Population(Model):
    """Computes policies and value functions, by the leaf that says whose each step is."""

    def __init__(
        self,
        one: Model,
        policies: int,
        *,
        normaliser: Normaliser | None,
        normalise_returns: bool,
        seed: int,
    ) -> None:
        """Draws all policies; `one` is a network without statistics or memory, as all are."""
        nn.Module.__init__(self)
        self.leaves, self.acted_on, self.mask = one.leaves, one.acted_on, one.mask
        self.distribution, self.normaliser, self.images = one.distribution, normaliser, None
        self.encoder: nn.Module = nn.Identity()  # the rows have them
        self.core = self.value_core = self.value_encoder = self.log_std = None
        self.memory, self.convolutional = 0, False
        self.pieces = pieces_of(one)
        # Not parts of us: their own weights stand for none of the policies.
        self._one, self._acting = (one,), (_Acting(one),)
        self.weights = nn.Parameter(_first_weights(one, policies, seed))
        # Rows that the optimiser has moved, since whoever asks has set them back.
        self.touched = torch.ones(policies, dtype=torch.bool)
        self.kept: tuple[Tensor, ...] = ()  # what the optimiser keeps, a row for each policy
        self.returns = PopArt(_ValueHeads(self)) if normalise_returns else None
        for factor in FACTORS.values():
            self.register_buffer(factor, torch.ones(policies))

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Takes the network's own buffers along, to another device or dtype."""
        self._one[0]._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def spread(self, most: Mapping[Any, float], seed: int) -> None:
        """Draws each policy's factors, log-uniformly from 1/most to most, by setting."""
        rng = torch.Generator().manual_seed(seed)
        for setting, buffer in FACTORS.items():
            drawn = 2 * torch.rand(len(self.weights), generator=rng) - 1
            self.get_buffer(buffer).copy_(most.get(setting, 1.0) ** drawn)

    @torch.no_grad()
    def take_over(self, policy: int, better: int) -> None:
        """Makes a policy what another is: its weights, its factors, what its optimiser keeps."""
        factors = (self.get_buffer(buffer) for buffer in FACTORS.values())
        for rows in (self.weights, *self.kept, *factors):
            rows[policy] = rows[better]
        self.touched[policy] = True

    def multiply(self, policy: int, factors: Mapping[Any, float]) -> None:
        """Changes a policy's factors, by setting."""
        for setting, factor in factors.items():
            self.get_buffer(FACTORS[setting])[policy] *= factor

    @property
    def one(self) -> Model:
        """Returns the network that each policy has; its own weights are nobody's."""
        return self._one[0]

    def piece(self, name: str) -> Piece:
        """Returns where a parameter of that network lies in a row."""
        return next(piece for piece in self.pieces if piece.name == name)

    def moved(self) -> list[Tensor]:
        """Returns the rows that the optimiser has moved since the last version."""
        rows = self.weights.detach()
        return [rows[policy] for policy in self.touched.nonzero().flatten().tolist()]

    def sent(self) -> dict[str, Tensor]:
        """Returns what travels to samplers. A policy that does not train stays as it is, but for
        its value head, the last of a row, which moves with the returns of all: so the heads travel
        apart."""
        state = dict(self.state_dict())
        rows, begin = state.pop("weights"), self.piece("value_head.weight").begin
        return state | {HEADS: rows[:, begin:], ROWS: rows[:, :begin]}

    @property
    def reads(self) -> tuple[str, ...]:
        return (*super().reads, POLICY)

    def policy(
        self,
        obs: dict[str, Tensor],
        memory: Tensor | None = None,  # noqa: ARG002 - there is none
    ) -> tuple[Tensor, Tensor | None]:
        places = places_of(obs[POLICY])
        pieces = [piece for piece in self.pieces if not piece.name.startswith("value_")]
        params: Tensor = self._computed(self._acting[0], "one.", pieces, places, obs)
        return places.collect(params), None

    def forward(
        self,
        obs: dict[str, Tensor],
        memory: Tensor | None = None,  # noqa: ARG002 - there is none
        begins: Tensor | None = None,  # noqa: ARG002
    ) -> Output:
        lead = obs[POLICY].shape
        flat = {name: rows.flatten(0, len(lead) - 1) for name, rows in obs.items()}
        places = places_of(flat[POLICY])
        output: Output = self._computed(self._one[0], "", self.pieces, places, flat)
        params, value = (places.collect(blocks).view(*lead, *blocks.shape[2:]) for blocks in output)
        return Output(params, value if self.returns is None else self.returns(value))

    def alone(self, policy: int) -> Model:
        """Returns a copy of one policy as a network of its own."""
        one = copy.deepcopy(self._one[0])
        nn.utils.vector_to_parameters(self.weights.detach()[policy], one.parameters())
        one.normaliser = copy.deepcopy(self.normaliser)
        if self.returns is not None:
            one.returns = PopArt(one.value_head)
            one.returns.load_state_dict(self.returns.state_dict())
        return one

    def _computed(
        self, network: nn.Module, prefix: str, pieces: Sequence[Piece], places: Places, obs: Any
    ) -> Any:
        """Returns what the network makes of the steps in their blocks, by each block's weights."""
        held: Any = _Rows.apply(self.weights, places.present, pieces)  # type: ignore[no-untyped-call]
        if places.row is not None:
            held = [one[places.row] for one in held]
        weights = {prefix + piece.name: one for piece, one in zip(pieces, held, strict=True)}
        seen = self.seen({name: rows for name, rows in obs.items() if name != POLICY})
        blocks = {name: places.spread(rows) for name, rows in seen.items()}

        def compute(weights: dict[str, Tensor], obs: dict[str, Tensor]) -> Any:
            return functional_call(network, weights, (obs,))

        return vmap(compute)(weights, blocks)


class _ValueHeads:
    """Holds the last layers of all value networks."""

    def __init__(self, population: Population) -> None:
        self._weights = population.get_parameter
        self._place = population.piece

    @property
    def weight(self) -> Tensor:
        return self._piece("value_head.weight")

    @property
    def bias(self) -> Tensor:
        return self._piece("value_head.bias")

    def _piece(self, name: str) -> Tensor:
        return self._place(name).of(self._weights("weights").detach())


class _Acting(nn.Module):
    """Computes the policy alone."""

    def __init__(self, one: Model) -> None:
        super().__init__()
        self.one = one

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return self.one.policy(obs)[0]


class _Rows(torch.autograd.Function):
    """Takes pieces of some rows; their gradient is that of these rows alone."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, present: Tensor, pieces: Sequence[Piece]) -> Any:
        ctx.save_for_backward(present)
        ctx.shape = weights.shape
        return tuple(
            weights[:, piece.begin : piece.end].index_select(0, present).view(-1, *piece.shape)
            for piece in pieces
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (present,) = ctx.saved_tensors
        rows = torch.cat([gradient.flatten(1) for gradient in gradients], dim=1)
        sparse = torch.sparse_coo_tensor(
            present.unsqueeze(0), rows, ctx.shape, check_invariants=False, is_coalesced=True
        )
        return sparse, None, None


def pieces_of(one: nn.Module) -> tuple[Piece, ...]:
    """Returns where each parameter of a network lies in a row."""
    pieces, end = [], 0
    for name, parameter in one.named_parameters():
        begin, end = end, end + parameter.numel()
        pieces.append(Piece(name, parameter.shape, begin, end))
    return tuple(pieces)


@torch.no_grad()
def _first_weights(one: nn.Module, policies: int, seed: int) -> Tensor:
    """Returns a row for each policy: matrices that are orthogonal with the gain that the network's
    own has, drawn anew; the rest as it is there."""
    rng = torch.Generator().manual_seed(seed)
    rows = nn.utils.parameters_to_vector(one.parameters()).expand(policies, -1).clone()
    for piece in pieces_of(one):
        if len(piece.shape) < 2:
            continue
        height, width = piece.shape[0], math.prod(piece.shape[1:])
        least, most = sorted((height, width))
        gain = one.get_parameter(piece.name).norm() / math.sqrt(least)
        drawn = torch.randn(policies, most, least, generator=rng)
        q, r = torch.linalg.qr(drawn)
        q *= r.diagonal(dim1=1, dim2=2).sign().unsqueeze(1)  # so that all are equally likely
        q = q if height == most else q.mT
        rows[:, piece.begin : piece.end] = gain * q.reshape(policies, -1)
    return rows
