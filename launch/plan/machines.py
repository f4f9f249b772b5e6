"""Reads what machines there are, and what an hour of each costs.

The file has the columns of SkyPilot's catalogues (vms.csv), so a copy of one will do:
InstanceType, vCPUs, MemoryGiB, AcceleratorName, AcceleratorCount, Price, SpotPrice, Region.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.launch.config.run_file import ConfigError

_NEEDED = ("InstanceType", "vCPUs", "Price")
_MOST_VCPUS, _MOST_GPUS = 4096, 64  # of one machine; more is a slip in the file


@dataclass(frozen=True, slots=True)
class Machine:
    """Holds one kind of machine."""

    name: str
    vcpus: int
    price: float  # dollars an hour
    memory_gib: float = 0.0  # 0 = not known
    gpu: str = ""  # "" = it has none
    gpus: int = 0


def read(path: Path, *, spot: bool, region: str) -> list[Machine]:
    """Returns each kind of machine at its lowest price; ConfigError for a file without any."""
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            found = list(_machines(path, csv.DictReader(lines), spot=spot, region=region))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read the prices {path}: {why}") from error
    if not found:
        where = f" in region {region}" if region else ""
        raise ConfigError(f"{path} has no machine with a {'spot ' if spot else ''}price{where}")
    lowest: dict[str, Machine] = {}
    for one in found:
        if one.name not in lowest or one.price < lowest[one.name].price:
            lowest[one.name] = one
    return list(lowest.values())


def named(machines: Iterable[Machine], names: Iterable[str]) -> list[Machine]:
    """Returns those that are named; all, where none is. ConfigError for one that is not there."""
    known = {one.name: one for one in machines}
    wanted = list(names)
    if unknown := [name for name in wanted if name not in known]:
        raise ConfigError(f"the prices have no machine {unknown[0]}, or no price for it")
    return [known[name] for name in wanted] or list(known.values())


def _machines(
    path: Path, rows: "csv.DictReader[str]", *, spot: bool, region: str
) -> Iterator[Machine]:
    missing = [name for name in _NEEDED if name not in (rows.fieldnames or ())]
    if missing:
        raise ConfigError(f"{path} has no column {missing[0]}; it needs {', '.join(_NEEDED)}")
    for row in rows:
        if region and row.get("Region") != region:
            continue
        price = _number(path, rows, row, "SpotPrice" if spot else "Price")
        vcpus = int(_number(path, rows, row, "vCPUs"))
        if not (row["InstanceType"] and price and vcpus):  # a catalogue leaves out what it lacks
            continue
        gpu, gpus = row.get("AcceleratorName") or "", _number(path, rows, row, "AcceleratorCount")
        if vcpus > _MOST_VCPUS or gpus > _MOST_GPUS:
            raise ConfigError(
                f"{path}, line {rows.line_num}: {row['InstanceType']} has {vcpus} vCPUs and"
                f" {gpus:g} GPUs; {_MOST_VCPUS} and {_MOST_GPUS} at most"
            )
        yield Machine(
            name=row["InstanceType"],
            vcpus=vcpus,
            price=price,
            memory_gib=_number(path, rows, row, "MemoryGiB"),
            gpu=gpu if gpus >= 1 else "",  # a part of a GPU trains nothing here
            gpus=int(gpus) if gpu else 0,
        )


def _number(
    path: Path, rows: "csv.DictReader[str]", row: Mapping[str, str | None], column: str
) -> float:
    """Returns a number of a row; 0 = it is left out."""
    word = row.get(column) or "0"
    try:
        number = float(word)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e9:
        raise ConfigError(f"{path}, line {rows.line_num}: {column} = {word!r:.40} is no number")
    return number
