"""Gives the environments of this folder their gymnasium ids, such as headrace/Catch-v0."""

from typing import Final

_FACTORIES: Final = {
    "headrace/Catch-v0": "catch:Catch",
    "headrace/Multi-v0": "tasks:Multi",
    "headrace/Parts-v0": "tasks:Parts",
    "headrace/Tracker-v0": "tasks:Tracker",
    "headrace/Masked-v0": "tasks:Masked",
    "headrace/Chance-v0": "tasks:Chance",
    "headrace/CartPolePositions-v0": "tasks:cartpole_positions",
    "headrace/TMaze-v0": "tmaze:TMaze",
    "headrace/SlowBranch-v0": "slow_branch:SlowBranch",
    "headrace/Sleeper-v0": "sleepers:Sleeper",
}
# What runs named before there were ids.
_OLD: Final = {f"actors.envs.{factory}": name for name, factory in _FACTORIES.items()} | {
    "actors.envs.sleepers:make": "headrace/Sleeper-v0"
}


def registered_id(name: str) -> str:
    """Returns the gymnasium id for an older run's name of one of these; other names as they are."""
    return _OLD.get(name, name)


def register() -> None:
    """Registers the environments of this folder with gymnasium, once a process."""
    from gymnasium.envs import registration

    for name, factory in _FACTORIES.items():
        if name not in registration.registry:
            # No wrapper around them: a run gets what it asks for, and nothing slower.
            place = f"headrace.actors.envs.toys.{factory}"
            registration.register(name, place, order_enforce=False)
