"""Spreads a network over the ranks by FSDP2: each holds a part of every parameter, of its gradient
and of what the optimiser keeps for it.

    encoder.layers[i], core.layers[i]    each is whole on every rank while it is at work
    encoder, core, the value's           with what is not in their layers
    the model                            with the heads

A layer is gathered before it runs, forward and backward, and let go after it; its gradients are
averaged into the parts. So beside its part a rank holds one layer, and what goes between layers.
"""

import warnings
from collections.abc import Iterator

import torch
from torch import nn

from headrace.learner.learner_config import LearnerConfig
from headrace.learner.models.model import Model
from headrace.learner.models.precision import choose_dtype


def shard(model: Model, config: LearnerConfig, device: torch.device) -> None:
    """Spreads the model over the ranks, all of which call this, and moves it to the device."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    # Nothing writes into what a network returns.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    dtype = choose_dtype(config.precision, model, device.type)
    # What multiplies in 16 bits is gathered in 16 bits; its gradients are averaged in 32.
    narrow = MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,
    )
    for unit, may_narrow in _units(model):
        policy = narrow if may_narrow else MixedPrecisionPolicy()
        fully_shard(unit, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)


def _units(model: Model) -> Iterator[tuple[nn.Module, bool]]:
    """Yields what is gathered at once, inner ones first, and whether its products may have 16
    bits."""
    parts = (model.encoder, True), (model.value_encoder, True)
    for part, may_narrow in (*parts, (model.core, False), (model.value_core, False)):
        layers = getattr(part, "layers", ())
        inner = [one for one in layers if isinstance(one, nn.Module)] if layers else []
        for unit in (*inner, part):
            if unit is not None and next(unit.parameters(), None) is not None:
                yield unit, may_narrow
