"""The recurrent kernels for GPUs that need not be here: the interpreter takes what no GPU does."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is for Linux on x86-64 only")

_COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from headrace.learner.models.kernels import gru, lstm

for module in (gru, lstm):
    for kernel in (module._step, module._step_back):
        fixed = {"SIZE": int(sys.argv[1]), "ROWS": 32, "UNITS": 32, "INNER": 32}
        kinds = dict.fromkeys(kernel.arg_names, "*fp32")
        kinds |= dict.fromkeys({"t", "steps", "count"} & set(kinds), "i32")
        kinds |= dict.fromkeys(fixed, "constexpr")
        places = {(kernel.arg_names.index(name),): value for name, value in fixed.items()}
        source = ASTSource(kernel, kinds, places)
        made = triton.compile(source, target=GPUTarget("cuda", int(sys.argv[2]), 32))
        print(module.__name__, kernel.__name__, len(made.asm["cubin"]) > 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("size", "capability"), [(256, 90), (33, 80)])
def test_the_recurrent_kernels_compile(size: int, capability: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE, str(size), str(capability)],
        capture_output=True,
        text=True,
        timeout=300,
        env={"PATH": "/usr/bin:/bin", "TRITON_CACHE_DIR": str(tmp_path)},
    )
    assert done.stdout.count("True") == 4, done.stderr[-2000:]
