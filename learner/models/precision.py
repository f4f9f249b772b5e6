"""The choice of the dtype in which a network multiplies."""

import functools
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from headrace.learner.models.model import Model

# x86 lists avx512_bf16 and amx_bf16, ARM bf16. A CPU without them computes bfloat16 in float32 with
# a conversion at both ends, which is slower than float32.
_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
_FLAG_LINES = ("flags", "features")


def native_bf16() -> bool:
    """Tells whether this CPU multiplies bfloat16 itself; False where that cannot be found out."""
    return multiplies_bf16("/proc/cpuinfo")


def choose_dtype(precision: str, model: Model, device_type: str) -> torch.dtype:
    """Returns the dtype that a `precision` setting means. auto: bfloat16 where it is known to be
    faster.

    Small fully connected networks gain nothing from it: their time goes into the calls.
    """
    if precision == "bfloat16":
        return torch.bfloat16
    if precision == "auto" and model.convolutional and _fast_bf16(device_type):
        return torch.bfloat16
    return torch.float32


def autocast(
    device_type: str, precision: str, model: Model
) -> AbstractContextManager[object, bool | None]:
    """Wraps the learner's forward pass: large products in the chosen dtype, weights and outputs in
    float32. For float32 it does nothing."""
    dtype = choose_dtype(precision, model, device_type)
    if dtype == torch.float32:
        return nullcontext()
    return torch.autocast(device_type, dtype)


def _fast_bf16(device_type: str) -> bool:
    if device_type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device_type == "cpu" and native_bf16()


@functools.cache
def multiplies_bf16(cpuinfo: str) -> bool:
    """Tells whether a file like /proc/cpuinfo lists such a flag."""
    try:
        lines = Path(cpuinfo).read_text(errors="replace").splitlines()
    except OSError:
        return False
    flags = [line.partition(":")[2] for line in lines if line.lower().startswith(_FLAG_LINES)]
    return any(not _BF16_FLAGS.isdisjoint(line.split()) for line in flags)
