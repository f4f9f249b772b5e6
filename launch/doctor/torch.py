"""The doctor's check of torch and the GPUs, in a process of its own: a bad driver may crash it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.launch.doctor.finding import (
    BAD,
    OK,
    WARN,
    Finding,
    Subject,
    json_of,
    last_line,
    run_program,
)

_SECONDS = 60.0
_DRIVER = Path("/proc/driver/nvidia/version")
_LOOK = """
import json, warnings
import torch
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    usable = torch.cuda.is_available()
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] * usable
    if usable:
        torch.ones(2, device="cuda").sum().item()
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda, "usable": usable, "names": names,
    "said": [" ".join(str(line.message).split()) for line in said],
}))
"""


def torch(subject: Subject) -> Iterator[Finding]:
    status, said = run_program("-c", _LOOK, seconds=_SECONDS)
    if status:
        mend = "install torch anew, a build that fits this machine"
        yield Finding(BAD, "torch", f"does not work here: {last_line(said)[:300]}; {mend}")
        return
    wanted = subject.run is not None and subject.run.learner.device == "cuda"
    yield torch_finding(json_of(said), wanted=wanted, driver=_DRIVER.exists())


def torch_finding(facts: dict[str, Any], *, wanted: bool, driver: bool) -> Finding:
    """Judges what torch reports. `wanted`: the run says cuda. `driver`: NVIDIA's is loaded."""
    version, cuda, names = facts["version"], facts["cuda"], facts["names"]
    if names:
        kinds = ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
        return Finding(OK, "torch", f"{version}, CUDA {cuda}: {kinds}")
    level = BAD if wanted else WARN
    if cuda is None and driver:
        mend = "install a CUDA build of torch to use the GPU"
        return Finding(
            level, "torch", f"{version} has no CUDA, and here is an NVIDIA driver; {mend}"
        )
    if driver:
        why = facts["said"][0][:300] if facts["said"] else "no device is visible to this process"
        mend = "update the driver, or look at CUDA_VISIBLE_DEVICES"
        return Finding(level, "torch", f"{version}, CUDA {cuda}: no GPU works: {why}; {mend}")
    if wanted:
        mend = 'set learner.device = "auto" or "cpu"'
        return Finding(BAD, "torch", f"{version}: learner.device is cuda, and no GPU here; {mend}")
    return Finding(OK, "torch", f"{version}: no GPU here, training on the CPU")


CHECKS = (torch,)
