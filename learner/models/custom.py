"""An encoder of the user's own: imported by name, called, and tried before it is relied on."""

import importlib
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from learner.config import ModelConfig
from learner.models.normalise import Normaliser
from learner.spaces import Leaf

_PROBED_ROWS = 2


def custom_encoder(
    config: ModelConfig,
    leaves: tuple[Leaf, ...],
    rng: torch.Generator,
    normaliser: Normaliser | None,
) -> nn.Module:
    """What model.kind = "module:factory" makes of these leaves."""
    kind = config.kind
    if config.obs_scale:
        raise ValueError(
            f'model.obs_scale is not for model.kind = "{kind}"; scale in your encoder, or set'
            " model.normalise_obs = true"
        )
    try:
        encoder = _factory(kind)(leaves, rng, **config.kwargs)
    except Exception as error:
        hint = ""
        if isinstance(error, TypeError) and "argument" in str(error):
            hint = "; it is called with (leaves, rng, **model.kwargs)"
        raise ValueError(f'model.kind = "{kind}" cannot be made: {_line(error)}{hint}') from error
    if not isinstance(encoder, nn.Module):
        _refuse(kind, f"made a {type(encoder).__name__}, which is no torch.nn.Module")
    units = getattr(encoder, "units", None)
    if type(units) is not int or units < 1:
        _refuse(kind, "needs an attribute units, the width of its output, a whole number from 1 up")
    assert isinstance(units, int)
    _probe(kind, encoder, units, _zeros(leaves, normaliser))
    return encoder


def _factory(kind: str) -> Any:
    module, _, name = kind.partition(":")
    return getattr(importlib.import_module(module), name)


def _zeros(leaves: tuple[Leaf, ...], normaliser: Normaliser | None) -> dict[str, Tensor]:
    obs = {
        leaf.name: torch.from_numpy(np.zeros((_PROBED_ROWS, *leaf.seen), leaf.dtype))
        for leaf in leaves
    }
    return obs if normaliser is None else normaliser(obs)


def _probe(kind: str, encoder: nn.Module, units: int, obs: dict[str, Tensor]) -> None:
    training = encoder.training
    encoder.eval()  # what counts its inputs shall not count these
    try:
        with torch.no_grad():
            hidden = encoder(obs)
    except Exception as error:
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in obs.items())
        raise ValueError(
            f'model.kind = "{kind}" cannot read rows of zeros ({shapes}): {_line(error)}'
        ) from error
    encoder.train(training)
    if not isinstance(hidden, Tensor):
        _refuse(kind, f"gives a {type(hidden).__name__}; it must give a tensor [rows, units]")
    if hidden.shape != (_PROBED_ROWS, units) or not hidden.is_floating_point():
        dtype = str(hidden.dtype).removeprefix("torch.")
        _refuse(
            kind,
            f"gives {dtype}{list(hidden.shape)} for {_PROBED_ROWS} rows; with units = {units} it"
            f" must give float32{[_PROBED_ROWS, units]}",
        )


def _refuse(kind: str, what: str) -> NoReturn:
    raise ValueError(f'model.kind = "{kind}" {what}')


def _line(error: Exception) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
