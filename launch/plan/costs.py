"""The costs of a run's parts, and what they come to for a number of steps a second. Pure, but for
the file or the run that they are read from."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from headrace.launch.config.run_file import ConfigError

_Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e4)]
_Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class Costs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds seconds of a core for each agent step."""

    sampler_s: _Seconds  # environment, network, unroll
    learner_s: _Seconds  # one rank on a core
    broker_s: Annotated[float, msgspec.Meta(ge=0, le=1e4)]  # 0 = not known, and bounds nothing
    busy: _Share = 1.0  # of the cores of a machine that is full: the rest waits
    host_cores: Annotated[float, msgspec.Meta(ge=0, le=64)] = 1.0  # of a rank on a GPU
    sampler_mib: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0  # of a process; 0 = not known
    step_bytes: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0  # on the wire; 0 = not known
    weights_bytes: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0  # of a version
    # Agent steps a second that a rank trains on one GPU of that name.
    gpus: dict[str, Annotated[float, msgspec.Meta(gt=0, le=1e12)]] = {}

    def learner_per_s(self, gpu: str) -> float:
        """Returns the steps a second that one rank trains; gpu: "" = on a core."""
        return self.gpus[gpu] if gpu else 1 / self.learner_s

    def broker_per_s(self) -> float:
        """Returns the steps a second that a broker's one core takes."""
        return 1 / self.broker_s if self.broker_s else math.inf

    def brokers(self, rate: float) -> int:
        """Returns the brokers that take so many steps a second."""
        return max(1, math.ceil(round(rate * self.broker_s, 9)))

    def ranks(self, rate: float, gpu: str) -> int:
        """Returns the ranks that train so many steps a second."""
        return max(1, math.ceil(round(rate / self.learner_per_s(gpu), 9)))

    def cores(self, rate: float, gpu: str) -> float:
        """Returns the cores that so many steps a second need, of all processes."""
        steps_s = self.sampler_s + self.broker_s + (0.0 if gpu else self.learner_s)
        hosts = self.ranks(rate, gpu) * self.host_cores if gpu else 0.0
        return rate * steps_s / self.busy + hosts

    def per_s(
        self, cores: float, gpu: str, *, ranks: int, brokers: int = 1, samplers: int = 0
    ) -> float:
        """Returns the steps a second of so many cores and ranks; samplers: 0 = one for each core
        that they can use."""
        steps_s = self.sampler_s + self.broker_s + (0.0 if gpu else self.learner_s)
        left = cores - (ranks * self.host_cores if gpu else 0.0)
        return min(
            max(0.0, left) * self.busy / steps_s,
            ranks * self.learner_per_s(gpu),
            brokers * self.broker_per_s(),
            samplers / self.sampler_s if samplers else math.inf,
        )


def read(path: Path) -> Costs:
    """Reads a file of costs, or what they were in the folder of a run; ConfigError for what is
    wrong there."""
    if path.is_dir():
        return of_run(path)
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Costs)
    except OSError as error:
        raise ConfigError(f"cannot read the costs {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def of_run(folder: Path) -> Costs:
    """Reads what a step cost in a run that has ended."""
    try:
        summary = json.loads((folder / "summary.json").read_bytes())
        broker = json.loads((folder / "broker.json").read_bytes())
        costs, step_bytes = summary.get("costs"), summary["wire_bytes_per_step"]
    except OSError as error:
        raise ConfigError(f"cannot read the costs {error.filename}: {error.strerror}") from error
    except (ValueError, KeyError, AttributeError) as error:
        raise ConfigError(f"{folder}: no summary of a run that says its costs") from error
    if costs is None:
        raise ConfigError(
            f"{folder}: too little was trained to tell what a step costs, or actor.acting was not"
            " local"
        )
    sizes = {"step_bytes": step_bytes, "weights_bytes": broker.get("weights_bytes", 0)}
    try:
        return msgspec.convert(costs | sizes, Costs)
    except (TypeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{folder}: {error}") from error


def with_gpus(costs: Costs, gpus: Mapping[str, float]) -> Costs:
    """Returns the costs with what ranks train on these GPUs."""
    return msgspec.structs.replace(costs, gpus={**costs.gpus, **gpus})
