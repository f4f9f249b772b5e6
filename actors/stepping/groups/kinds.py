"""Chooses the group that steps an environment, by its kind."""

from headrace.actors.stepping.groups.agents import AgentsGroup
from headrace.actors.stepping.groups.group import EnvGroup, Group
from headrace.actors.stepping.groups.turns import TurnsGroup
from headrace.actors.stepping.groups.vector import VectorGroup
from headrace.actors.stepping.stepper import EnvsSpec


def group_kind(made: EnvsSpec) -> type[Group]:
    """Returns the class of the groups of these environments."""
    if made.agents:
        return TurnsGroup if made.turns else AgentsGroup
    return VectorGroup if made.vector else EnvGroup
