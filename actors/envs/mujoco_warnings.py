"""Logs once what MuJoCo would write for every model on the terminal and into a file."""

import logging
import re
import sys

_log = logging.getLogger(__name__)
_said: set[str] = set()  # warnings without their numbers
_MOST_SAID = 100


def log_once() -> None:
    """Sends MuJoCo's warnings to our log, once for each kind, where it is imported and has no other
    listener. Deprecation warnings are left out: they are for those who ship the model."""
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None and mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_warn)


def _warn(message: str) -> None:
    kind = re.sub(r"[-+]?\d[\d.e+-]*", "", message)
    if "deprecated" in message or kind in _said or len(_said) >= _MOST_SAID:
        return
    _said.add(kind)
    _log.warning("MuJoCo: %s (said once, whatever its numbers)", " ".join(message.split()))
