"""The origin of each value of a run: its file, a setting, or a default."""

from collections.abc import Sequence

from headrace.launch.config import run_file
from headrace.launch.config.algorithm_defaults import DEFAULTS


def origins(name_or_path: str, sets: Sequence[str], *, algorithm: str) -> dict[str, str]:
    """Returns, for each "section.key" of the run that `run_file.load` makes of these, where its
    value comes from. `algorithm`: that of the run."""
    path, tables = run_file.read(name_or_path)
    found = {
        f"{section}.{key}": "default" for section, keys in run_file.SECTIONS.items() for key in keys
    }
    found["run.name"] = "name of the file"
    found |= dict.fromkeys(DEFAULTS[algorithm], f"default of {algorithm}")
    for section, held in tables.items():
        found |= {f"{section}.{key}": f"from {path.name}" for key in held}
    for setting in sets:
        section, key, *_ = setting.partition("=")[0].split(".")
        found[f"{section.strip()}.{key.strip()}"] = "by --set"
    return found
