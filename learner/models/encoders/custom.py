"""Encoders of users: imported by name, called, and tried before training."""

import traceback
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from headrace.learner.config import ModelConfig
from headrace.learner.models import named_code
from headrace.learner.models.model import Model
from headrace.learner.models.normalise import Normaliser
from headrace.learner.spaces import Leaf

# A sampler may have any number of rows.
_PROBED_ROWS = (2, 1, 7)


def custom_encoder(
    config: ModelConfig,
    leaves: tuple[Leaf, ...],
    rng: torch.Generator,
    normaliser: Normaliser | None,
) -> nn.Module:
    """Makes the encoder of model.kind = "module:factory" for these leaves, and tries it."""
    kind = config.kind
    if config.obs_scale:
        raise ValueError(
            f'model.obs_scale is not for model.kind = "{kind}"; scale in your encoder, or set'
            " model.normalise_obs = true"
        )
    try:
        encoder = named_code.imported(kind)(leaves, rng, **config.kwargs)
    except Exception as error:
        hint = ""
        if isinstance(error, TypeError) and "argument" in str(error):
            hint = "; it is called with (leaves, rng, **model.kwargs)"
        raise ValueError(
            f'model.kind = "{kind}" cannot be made: {named_code.one_line(error)}{hint}'
        ) from error
    if not isinstance(encoder, nn.Module):
        _refuse(kind, f"made a {type(encoder).__name__}, which is no torch.nn.Module")
    units = getattr(encoder, "units", None)
    if type(units) is not int or units < 1:
        _refuse(kind, "needs an attribute units, the width of its output, a whole number from 1 up")
    assert isinstance(units, int)
    _refuse_moods(kind, encoder)
    for rows in _PROBED_ROWS:
        _probe(kind, encoder, units, _zeros(leaves, normaliser, rows))
    return encoder


def failure(kind: str, error: Exception) -> str:
    """Returns the one line that ends the process."""
    return f'model.kind = "{kind}" failed, mend the encoder: {named_code.one_line(error)}'


def blame_users_code(kind: str, error: Exception) -> str:
    """Returns `failure` if the error came out of a network with a user's encoder; else ""."""
    if ":" not in kind or isinstance(error, torch.OutOfMemoryError):
        return ""
    frames = traceback.walk_tb(error.__traceback__)
    inside = any(isinstance(frame.f_locals.get("self"), Model) for frame, _ in frames)
    return failure(kind, error) if inside else ""


def _refuse_moods(kind: str, encoder: nn.Module) -> None:
    """Refuses layers whose answer depends on random numbers or on the other rows: a sampler and the
    learner would get different answers, and no log-probability would be right."""
    for name, layer in encoder.named_modules():
        remedy = ""
        tracks = isinstance(layer, _InstanceNorm) and layer.track_running_stats
        if isinstance(layer, _BatchNorm) or tracks:
            remedy = "use nn.LayerNorm or nn.GroupNorm"
        throws = isinstance(layer, _DropoutNd) and layer.p > 0
        if throws or (isinstance(layer, nn.RNNBase | nn.MultiheadAttention) and layer.dropout > 0):
            remedy = "leave dropout out, or set it to 0"
        if remedy:
            shown = f"a {type(layer).__name__}{f' ({name})' if name else ''}"
            _refuse(kind, f"has {shown}, which acts differently when training and acting; {remedy}")


def _zeros(leaves: tuple[Leaf, ...], normaliser: Normaliser | None, rows: int) -> dict[str, Tensor]:
    obs = {leaf.name: torch.from_numpy(np.zeros((rows, *leaf.seen), leaf.dtype)) for leaf in leaves}
    return obs if normaliser is None else normaliser(obs)


def _probe(kind: str, encoder: nn.Module, units: int, obs: dict[str, Tensor]) -> None:
    """Tries forward and backward, as the learner does it, and leaves no trace in the encoder."""
    shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in obs.items())
    training = encoder.training
    try:
        with torch.no_grad():
            encoder.eval()(obs)  # a lazy layer has its parameters and buffers from now on
        before = {name: buffer.clone() for name, buffer in encoder.named_buffers()}
        with torch.enable_grad():
            hidden = encoder.train()(obs)
    except Exception as error:
        line = named_code.one_line(error)
        raise ValueError(
            f'model.kind = "{kind}" cannot read rows of zeros ({shapes}): {line}'
        ) from error
    rows = len(next(iter(obs.values())))
    if not isinstance(hidden, Tensor):
        _refuse(kind, f"gives a {type(hidden).__name__}; it must give a tensor [rows, units]")
    if hidden.shape != (rows, units) or not hidden.is_floating_point():
        dtype = str(hidden.dtype).removeprefix("torch.")
        _refuse(
            kind,
            f"gives {dtype}{list(hidden.shape)} for {rows} rows; with units = {units} it"
            f" must give float32{[rows, units]}",
        )
    _probe_gradients(kind, encoder, hidden)
    with torch.no_grad():
        for name, buffer in encoder.named_buffers():
            buffer.copy_(before[name])  # running statistics must not count these rows
    encoder.train(training)


def _probe_gradients(kind: str, encoder: nn.Module, hidden: Tensor) -> None:
    """Refuses parameters without a gradient: DDP would wait for them."""
    trained = {name: p for name, p in encoder.named_parameters() if p.requires_grad}
    found: tuple[Tensor | None, ...] = (None,) * len(trained)
    if trained and hidden.requires_grad:
        try:
            with torch.enable_grad():
                total = hidden.sum()
            found = torch.autograd.grad(total, list(trained.values()), allow_unused=True)
        except RuntimeError as error:
            _refuse(kind, f"cannot be trained on rows of zeros: {named_code.one_line(error)}")
    for name, gradient in zip(trained, found, strict=True):
        if gradient is None:
            _refuse(
                kind,
                f"has a parameter that forward does not use, {name}; use it, leave it out, or set"
                " its requires_grad to False",
            )


def _refuse(kind: str, what: str) -> NoReturn:
    raise ValueError(f'model.kind = "{kind}" {what}')
