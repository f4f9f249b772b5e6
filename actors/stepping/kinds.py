"""Which group steps which environments."""

from headrace.actors.stepping.agents import AgentsGroup
from headrace.actors.stepping.group import EnvGroup, Group
from headrace.actors.stepping.stepper import EnvsSpec
from headrace.actors.stepping.vector import VectorGroup


def group_kind(made: EnvsSpec) -> type[Group]:
    """Returns the class of the groups of these environments."""
    if made.agents:
        return AgentsGroup
    return VectorGroup if made.vector else EnvGroup
