"""The network in the numbers that it acts with.

Logits in fewer bits are another policy than the learner's, by a little. That is no error as long as
the log-probabilities that are recorded come from these very logits: V-trace corrects the rest.
"""

import copy
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from learner.models import precision as precisions
from learner.models.mlp import Mlp
from learner.models.model import Model
from learner.models.nature import PIXEL, Nature
from learner.spaces import Spaces

# A product of so few multiplications numpy's OpenBLAS does on one thread, and numpy is faster than
# torch: 5 instead of 28 us for one row of 2 x 64 units, 16 instead of 37 us for 64 rows.
_FEW = 1 << 18
# Rows of a batch that the ranges of int8 are measured on: in float32, so not on more than needed.
_MEASURED_ROWS = 8
# A range shrinks no faster than this per refresh: the next batch may hold what this one lacks.
_SHRINK = 0.9


class Acting:
    """Logits of one model, in float32, bfloat16 or int8."""

    def __init__(self, model: Model, spaces: Spaces, precision: str) -> None:
        self._leaves = [leaf.name for leaf in spaces.observation]
        self._network = _network(model, precision)
        # For few rows; None = this model has no such short cut.
        self._small: _Small | None = None
        if isinstance(self._network, _Float32) and _plain(model, spaces):
            assert isinstance(model, Mlp)
            self._small = _Small(model, self._leaves)

    @property
    def quick(self) -> bool:
        """A call for few rows costs next to nothing."""
        return self._small is not None

    def refresh(self) -> None:
        """The model's weights have changed."""
        self._network.refresh()

    def logits(self, obs: dict[str, NDArray[np.generic]]) -> NDArray[np.float32]:
        """[N, A] of leaves [N, *leaf.seen]."""
        if self._small is not None and len(obs[self._leaves[0]]) <= self._small.rows:
            return self._small.logits(obs)
        with torch.inference_mode():
            tensors = {name: torch.from_numpy(obs[name]) for name in self._leaves}
            logits: NDArray[np.float32] = self._network.policy(tensors).numpy()
        return logits


def _plain(model: Model, spaces: Spaces) -> bool:
    """Numbers in, fully connected layers, nothing else."""
    return isinstance(model, Mlp) and not any(leaf.categories for leaf in spaces.observation)


class _Small:
    """An Mlp in numpy: of a call for a few rows torch spends most on being called.

    The arrays are the module's own parameters, so new weights are in place at once.
    """

    def __init__(self, model: Mlp, leaves: list[str]) -> None:
        self._leaves = leaves
        linears = [layer for layer in model.trunk if isinstance(layer, nn.Linear)]
        self._layers = [(_array(layer.weight).T, _array(layer.bias)) for layer in linears]
        self._head = (_array(model.policy_head.weight).T, _array(model.policy_head.bias))
        largest = max(weight.size for weight, _ in (*self._layers, self._head))
        self.rows = _FEW // largest  # at most so many of them
        scale = model.features.scale
        self._scale = None if scale is None else _array(scale)
        kinds = [layer for layer in model.trunk if not isinstance(layer, nn.Linear)]
        self._activate = _ACTIVATIONS[type(kinds[0])] if kinds else _tanh

    def logits(self, obs: dict[str, NDArray[np.generic]]) -> NDArray[np.float32]:
        rows = [obs[name].reshape(len(obs[name]), -1) for name in self._leaves]
        x = (rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1)).astype(np.float32)
        if self._scale is not None:
            x = x / self._scale
        for weight, bias in self._layers:
            x = x @ weight
            x += bias
            x = self._activate(x)
        weight, bias = self._head
        logits: NDArray[np.float32] = x @ weight + bias
        return logits


def _array(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().numpy()
    return array


def _tanh(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.tanh(x, out=x)


def _relu(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.maximum(x, 0.0, out=x)


def _elu(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0.0)))


_ACTIVATIONS = {nn.Tanh: _tanh, nn.ReLU: _relu, nn.ELU: _elu}


class _Network(Protocol):
    def refresh(self) -> None: ...

    def policy(self, obs: dict[str, Tensor]) -> Tensor: ...


def _network(model: Model, precision: str) -> _Network:
    if precision == "int8":
        if not isinstance(model, Nature):
            raise ValueError(
                'actor.precision = "int8" needs model.kind = "nature"; set it to "auto"'
            )
        if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            raise ValueError('actor.precision = "int8" needs a torch with oneDNN; set it to "auto"')
        return _Int8(model)
    if precisions.choose(precision, model, "cpu") == torch.bfloat16:
        return _BFloat16(model)
    return _Float32(model)


class _Float32:
    """The model itself."""

    def __init__(self, model: Model) -> None:
        self.policy = model.policy

    def refresh(self) -> None:
        pass


class _BFloat16:
    """A copy whose layers, all but the heads, hold bfloat16."""

    def __init__(self, model: Model) -> None:
        lowered = copy.deepcopy(model).requires_grad_(False)
        for layer in lowered.modules():
            head = layer in (lowered.policy_head, lowered.value_head)
            if isinstance(layer, nn.Conv2d | nn.Linear) and not head:
                layer.to(torch.bfloat16)
        lowered.held = torch.bfloat16
        self.policy = lowered.policy
        self._pairs = list(zip(lowered.parameters(), model.parameters(), strict=True))

    @torch.no_grad()
    def refresh(self) -> None:
        for lowered, exact in self._pairs:
            lowered.copy_(exact)


class _Int8:
    """Nature in bytes: the image as it is, weights scaled by channel, activations by layer.

    The ranges of the activations are the largest that were seen in float32 passes: over the first
    batch after every refresh, and, so that weights which never change see more than an episode's
    beginning, over the 1st, 2nd, 4th, 8th ... batch of all.
    """

    def __init__(self, model: Nature) -> None:
        self._model = model
        self._convolutions = [model.conv1, model.conv2, model.conv3]
        self._peaks = [0.0 for _ in self._convolutions]
        self._packed: list[_Packed] = []
        self._batches = 0

    def refresh(self) -> None:
        self._packed.clear()

    def policy(self, obs: dict[str, Tensor]) -> Tensor:
        model = self._model
        x = model.pixels(obs)
        self._prepare(x)
        scale = PIXEL
        for packed, peak in zip(self._packed, self._peaks, strict=False):
            after = peak / 255
            x = packed.convolve(x, scale, after)
            scale = after
        hidden = self._packed[-1].multiply(model.rows(x), scale)
        if model.rest.count:
            rest = model.full.weight[:, -model.rest.count :]
            hidden += functional.linear(model.rest(obs), rest)
        return functional.linear(hidden.relu_(), model.policy_head.weight, model.policy_head.bias)

    def _prepare(self, x: Tensor) -> None:
        self._batches += 1
        if self._packed and self._batches & (self._batches - 1):
            return
        every = -(-len(x) // _MEASURED_ROWS)
        measured = [float(y.max()) for y in self._model.convolved(x[::every])]
        shrink = 1.0 if self._packed else _SHRINK
        # A layer that is silent so far still needs a scale above 0.
        self._peaks = [
            max(now, before * shrink, 1e-6)
            for now, before in zip(measured, self._peaks, strict=True)
        ]
        if not self._packed:
            full = self._model.full
            convolved = full.in_features - self._model.rest.count
            self._packed = [_Packed(layer, layer.weight) for layer in self._convolutions]
            self._packed.append(_Packed(full, full.weight[:, :convolved]))


class _Packed:
    """A layer's weights as int8, in the order that oneDNN multiplies them in.

    These are the operators behind torch's quantised CPU graphs. Those of torch.ops.quantized do the
    same on a kind of tensor that torch has deprecated, and were slower.
    """

    def __init__(self, layer: nn.Conv2d | nn.Linear, weight: Tensor) -> None:
        rows = weight.flatten(1)
        self._scales = rows.abs().amax(1).div_(127).clamp_(min=1e-12)
        rows = (rows / self._scales.unsqueeze(1)).round_().to(torch.int8)
        self._zeros = torch.zeros(len(rows), dtype=torch.int32)
        self._bias = layer.bias
        self._stride: list[int] = []
        if isinstance(layer, nn.Conv2d):
            self._stride = list(layer.stride)
            self._weight = torch.ops.onednn.qconv_prepack(
                rows.view_as(weight), self._scales, 1.0, 0, self._stride, [0, 0], [1, 1], 1, None
            )
        else:
            self._weight = torch.ops.onednn.qlinear_prepack(rows, None)

    def convolve(self, x: Tensor, scale: float, after: float) -> Tensor:
        """uint8 of `scale` -> uint8 of `after`, with ReLU."""
        y: Tensor = torch.ops.onednn.qconv2d_pointwise(
            x, scale, 0, self._weight, self._scales, self._zeros, self._bias,
            self._stride, [0, 0], [1, 1], 1, after, 0, torch.uint8, "relu", [], "",
        )  # fmt: skip
        return y

    def multiply(self, x: Tensor, scale: float) -> Tensor:
        """uint8 of `scale` -> float32."""
        y: Tensor = torch.ops.onednn.qlinear_pointwise(
            x, scale, 0, self._weight, self._scales, self._zeros, self._bias,
            1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        return y
