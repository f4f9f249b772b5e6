"""Finds the frames of the user's own code in a traceback.

That is an environment, a wrapper, an encoder: whatever a run names by module:factory. The line that
ends a process says what failed; its user also needs to know where.
"""

import sys
import traceback
from collections.abc import Iterator
from types import TracebackType

# Of these no frame tells a user where to look. What comes below a frame of the user's own is shown
# all the same: that is how it was called.
_NOT_THEIRS = frozenset(
    {
        *sys.stdlib_module_names,
        "__main__",
        "headrace",
        "PIL",
        "gymnasium",
        "imageio",
        "imageio_ffmpeg",
        "lz4",
        "matplotlib",
        "msgpack",
        "msgspec",
        "numpy",
        "onnx",
        "onnxruntime",
        "onnxscript",
        "prometheus_client",
        "rich",
        "safetensors",
        "torch",
        "uvloop",
        "xxhash",
        "zmq",
    }
)
_MOST_BYTES = 8192


def traceback_of(error: BaseException | None) -> str:
    """Returns the traceback from the first frame of the user's code on; "" = it has none."""
    for one in _and_below(error):
        if told := getattr(one, "traceback", ""):  # of another process
            return str(told)
        if (trace := _theirs(one.__traceback__)) is not None:
            return _end("".join(traceback.format_exception(type(one), one, trace)))
    return ""


def raised_by(error: BaseException) -> BaseException | None:
    """Returns what came out of the user's code, as it was raised; None = nothing did."""
    return next((one for one in _and_below(error) if _theirs(one.__traceback__)), None)


def full_traceback(error: BaseException) -> str:
    """Returns the whole traceback, or its end, where the reason stands."""
    return _end("".join(traceback.format_exception(error)))


def _and_below(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, and those whose words it replaced."""
    while error is not None:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
            continue
        yield error
        hidden = error.__suppress_context__ or error.__cause__ is not None
        error = error.__cause__ if hidden else error.__context__


def _end(text: str) -> str:
    return text.encode(errors="replace")[-_MOST_BYTES:].decode(errors="ignore")


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """Returns the part of the trace from the user's first frame on; None = there is none."""
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] not in _NOT_THEIRS:
            break
        trace = trace.tb_next
    return trace
