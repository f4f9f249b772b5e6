"""The network as it acts: in float32, bfloat16 or int8.

Parameters in fewer bits are another policy than the learner's, by a little. That is no error as
long as the log-probabilities that are recorded come from these very parameters: V-trace corrects
the rest.
"""

import copy
import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.actors.acting.int8 import Int8
from headrace.learner.models import precision as precisions
from headrace.learner.models.encoders.images import JoinedFeatures
from headrace.learner.models.encoders.mlp import Mlp
from headrace.learner.models.model import Model
from headrace.learner.models.normalise import FARTHEST, Normaliser
from headrace.learner.models.population.population import Population
from headrace.learner.spaces import POLICY, Leaf, Spaces

# Up to this many multiplications numpy's OpenBLAS uses one thread, and numpy is faster than torch:
# 5 instead of 28 us for one row of 2 x 64 units, 16 instead of 37 us for 64 rows.
_FEW = 1 << 18

Obs = dict[str, NDArray[np.generic]]
Numbers = NDArray[np.float32]
Tensors = dict[str, Tensor]


class Network(Protocol):
    """Declares what acts: an ActingNetwork, or what stands for it."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def quick(self) -> bool: ...

    def refresh(self) -> None: ...

    def params(self, obs: Obs, memory: Numbers | None = None) -> tuple[Numbers, Numbers | None]: ...


class ActingNetwork:
    """Computes the parameters of a model's actions, in float32, bfloat16 or int8."""

    def __init__(self, model: Model, spaces: Spaces, precision: str, device: str = "cpu") -> None:
        self.names: tuple[str, ...] = model.reads  # of the leaves that it needs
        self._device = device
        missing = {leaf.name for leaf in spaces.observation} - set(self.names)
        assert not missing, f"the model is of another environment: it does not read {missing}"
        self._network = _network(model, precision, device)
        # For few rows; None = this model has no such short cut.
        self._small: _Small | None = None
        if isinstance(self._network, _Float32) and _plain(model) and device == "cpu":
            self._small = _Small(model)

    @property
    def quick(self) -> bool:
        """Says whether a call for few rows costs next to nothing."""
        return self._small is not None

    def refresh(self) -> None:
        """Follows a change of the model's weights."""
        self._network.refresh()
        if self._small is not None:
            self._small.refresh()

    def params(self, obs: Obs, memory: Numbers | None = None) -> tuple[Numbers, Numbers | None]:
        """Maps leaves [N, *leaf.seen] and the memory [N, S] before this step (None = nothing is
        remembered) to what the distribution reads, [N, P], and the memory after the step (None
        without a core)."""
        if self._small is not None and len(obs[self.names[0]]) <= self._small.rows:
            return self._small.params(obs), None
        with torch.inference_mode():
            device = self._device
            tensors = {name: torch.from_numpy(obs[name]).to(device) for name in self.names}
            before = None if memory is None else torch.from_numpy(memory).to(device)
            params, after = self.computed(tensors, before)
            return params.cpu().numpy(), None if after is None else after.cpu().numpy()

    def computed(self, obs: Tensors, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Returns the same of tensors that lie on the network's device, where they stay."""
        return self._network.policy(obs, memory)


def _plain(model: Model) -> bool:
    """Says whether the model has numbers as inputs, fully connected layers, and nothing else."""
    return (
        isinstance(_one(model).encoder, Mlp)
        and model.core is None
        and not model.mask
        and not any(leaf.categories for leaf in model.acted_on)
    )


def _one(model: Model) -> Model:
    """Returns the network whose layers it has: itself, or what each policy of a population is."""
    return model.one if isinstance(model, Population) else model


class _Small:
    """Runs an mlp in numpy: most of a torch call for a few rows is the call itself.

    The arrays are the module's own parameters, so new weights are in place at once; what follows
    from the statistics of the observations is computed at every refresh.
    """

    def __init__(self, model: Model) -> None:
        encoder = _one(model).encoder
        assert isinstance(encoder, Mlp)
        layers, features = encoder.layers, encoder.features
        self._model = model
        self._leaves = [leaf.name for leaf in model.acted_on]
        linears = [at for at, layer in enumerate(layers) if isinstance(layer, nn.Linear)]
        names = [*(f"encoder.layers.{at}" for at in linears), "policy_head"]
        *self._layers, self._head = (_linear(model, name) for name in names)
        sizes = (_one(model).get_parameter(f"{name}.weight").numel() for name in names)
        self.rows = _FEW // max(sizes)  # at most, in one call
        self._scale = None if features.scale is None else _array(features.scale)
        self._log_std = None if _one(model).log_std is None else _held(model, "log_std")
        kinds = [layer for layer in layers if not isinstance(layer, nn.Linear)]
        self._activate = _ACTIVATIONS[type(kinds[0])] if kinds else _tanh
        self._normal: _Normal | None = None
        self.refresh()

    def refresh(self) -> None:
        normaliser = self._model.normaliser
        if normaliser is not None:
            known = bool(normaliser.count > 0)
            self._normal = _Normal(self._model, normaliser) if known else None

    def params(self, obs: Obs) -> Numbers:
        rows = [obs[name].reshape(len(obs[name]), -1) for name in self._leaves]
        joined = rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1)
        x = joined.astype(np.float32) if self._normal is None else self._normal(joined)
        if self._scale is not None:
            x = x / self._scale
        for linear in self._layers:
            x = self._activate(linear(x, obs))
        params = self._head(x, obs)
        if self._log_std is not None:
            free = self._log_std(obs)
            free = np.broadcast_to(free, (len(params), free.shape[-1]))
            params = np.concatenate((params, free), axis=1)
        return params


def _linear(model: Model, name: str) -> Callable[[Numbers, Obs], Numbers]:
    """Returns what applies this layer to inputs [N, in]: each step's by its policy."""
    bias = _held(model, f"{name}.bias")
    if isinstance(model, Population):
        weights = _held(model, f"{name}.weight")

        def by_rows(x: Numbers, obs: Obs) -> Numbers:
            y: Numbers = (weights(obs) @ x[:, :, None])[:, :, 0]
            y += bias(obs)
            return y

        return by_rows
    weight, added = _array(model.get_parameter(f"{name}.weight")).T, bias({})

    def by_all(x: Numbers, obs: Obs) -> Numbers:  # noqa: ARG001 - whoever plays
        x = x @ weight
        x += added
        return x

    return by_all


def _held(model: Model, name: str) -> Callable[[Obs], Numbers]:
    """Returns what gives a parameter: [*shape], or of the policies that play [N, *shape]."""
    if not isinstance(model, Population):
        array = _array(model.get_parameter(name))
        return lambda obs: array  # noqa: ARG005
    rows, piece = _array(model.weights), model.piece(name)
    return lambda obs: rows[obs[POLICY], piece.begin : piece.end].reshape(-1, *piece.shape)


class _Normal:
    """Applies the normaliser to all features side by side; the others pass unchanged."""

    def __init__(self, model: Model, normaliser: Normaliser) -> None:
        normal = _each_feature(model.acted_on, {leaf.name for leaf in normaliser.leaves})
        kept = _each_feature(normaliser.leaves, {leaf.name for leaf in model.acted_on})
        self._mean, self._factor = np.zeros(len(normal)), np.ones(len(normal))
        self._mean[normal] = normaliser.mean.numpy()[kept]
        self._factor[normal] = normaliser.factor().numpy()[kept]
        self._most = np.where(normal, FARTHEST, np.inf)
        self._least = -self._most

    def __call__(self, x: NDArray[np.generic]) -> Numbers:
        y = (x.astype(np.float64) - self._mean) * self._factor
        np.minimum(y, self._most, out=y)
        np.maximum(y, self._least, out=y)
        normal: Numbers = y.astype(np.float32)
        return normal


def _each_feature(leaves: tuple[Leaf, ...], chosen: set[str]) -> NDArray[np.bool_]:
    """Tells of each feature of these leaves whether its leaf is among the chosen."""
    return np.concatenate([np.full(math.prod(leaf.seen), leaf.name in chosen) for leaf in leaves])


def _array(tensor: Tensor) -> Numbers:
    array: Numbers = tensor.detach().numpy()
    return array


def _tanh(x: Numbers) -> Numbers:
    return np.tanh(x, out=x)


def _relu(x: Numbers) -> Numbers:
    return np.maximum(x, 0.0, out=x)


def _elu(x: Numbers) -> Numbers:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0.0)))


_ACTIVATIONS = {nn.Tanh: _tanh, nn.ReLU: _relu, nn.ELU: _elu}


class _Network(Protocol):
    def refresh(self) -> None: ...

    def policy(self, obs: Tensors, memory: Tensor | None) -> tuple[Tensor, Tensor | None]: ...


def _network(model: Model, precision: str, device: str) -> _Network:
    if precision == "int8" and device == "cpu":
        return Int8(model)
    if precisions.choose_dtype(precision, model, device) == torch.bfloat16:
        return (
            _BFloat16(model)
            if isinstance(model.encoder, Mlp | JoinedFeatures)
            else _Autocast(model, device)
        )
    return _Float32(model)


class _Float32:
    """Runs the model itself."""

    def __init__(self, model: Model) -> None:
        self.policy = model.policy

    def refresh(self) -> None:
        pass


class _Autocast:
    """Runs the model itself, its large products in bfloat16: for an encoder of unknown layers."""

    def __init__(self, model: Model, device: str) -> None:
        self._model, self._device = model, device

    def refresh(self) -> None:
        pass

    def policy(self, obs: Tensors, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        with torch.autocast(self._device, torch.bfloat16, cache_enabled=False):
            return self._model.policy(obs, memory)


class _BFloat16:
    """Runs a copy whose encoders hold bfloat16; cores, heads and statistics stay exact."""

    def __init__(self, model: Model) -> None:
        lowered = copy.deepcopy(model).requires_grad_(False)
        for encoder in (lowered.encoder, lowered.value_encoder):
            for layer in encoder.modules() if encoder is not None else ():
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    layer.to(torch.bfloat16)
        self.policy = lowered.policy
        exact, copied = model.state_dict(), lowered.state_dict()
        self._pairs = [(copied[name], exact[name]) for name in exact]

    @torch.no_grad()
    def refresh(self) -> None:
        for lowered, exact in self._pairs:
            lowered.copy_(exact)
