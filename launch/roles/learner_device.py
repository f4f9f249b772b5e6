"""The device that a learner rank trains on: found, its own, and no more of it than it may take."""

import contextlib
import logging
import warnings
from collections.abc import Iterator

import torch

from headrace.launch.config.run_file import ConfigError
from headrace.launch.process import gpu_share
from headrace.learner.ranks import Ranks

log = logging.getLogger(__name__)


def found(name: str) -> torch.device:
    """Returns the kind of device that learner.device means on this machine."""
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f'learner.device = "{name}": it is auto, cpu or cuda')
    with warnings.catch_warnings(record=True) as told:  # as of a driver that is too old
        warnings.simplefilter("always")
        there = name != "cpu" and torch.cuda.is_available()
    why = f" ({' '.join(str(told[0].message).split()):.200})" if told else ""
    if name == "cuda" and not there:
        raise ConfigError(
            f'learner.device = "cuda", but torch finds no GPU here{why}; use "auto" or "cpu"'
        )
    if why and not there:
        log.warning("the learner is on a CPU, torch finds no GPU%s", why)
    return torch.device("cuda" if there else "cpu")


def of_rank(device: torch.device, ranks: Ranks) -> torch.device:
    """Returns this rank's own GPU, or the CPU; all ranks call it."""
    if device.type != "cuda":
        return device
    if ranks.local_rank >= (count := torch.cuda.device_count()):
        raise ConfigError(
            f"there is no GPU for rank {ranks.rank}: each takes one, and torch finds {count} here;"
            f" start torchrun with --nproc-per-node {count}"
        )
    own = torch.device("cuda", ranks.local_rank)
    torch.cuda.set_device(own)
    gpus = {name.decode() for name in ranks.gather(torch.cuda.get_device_name(own).encode())}
    if len(gpus) > 1 and ranks.rank == 0:
        log.warning(
            "the ranks have different GPUs (%s): all go at the pace of the slowest, for their parts"
            " of a batch are equal",
            ", ".join(sorted(gpus)),
        )
    return own


@contextlib.contextmanager
def share_taken(device: torch.device, share: float) -> Iterator[None]:
    """Takes learner.gpu_share of the device, if it is a GPU."""
    if share and device.type == "cuda":
        gpu = str(torch.cuda.get_device_properties(device).uuid)
        with gpu_share.taken(share, gpu):
            torch.cuda.set_per_process_memory_fraction(share, device)
            yield
        return
    if share:
        log.warning("learner.gpu_share does nothing: the learner is on a CPU")
    yield
