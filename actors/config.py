"""The run's [env] and [actor] sections."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field


class EnvConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Which environment, made how."""

    id: Annotated[str, Meta(description="a gymnasium id, or module:factory")] = "CartPole-v1"
    kwargs: Annotated[dict[str, Any], Meta(description="keyword arguments for it")] = field(
        default_factory=dict
    )


class ActorConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """One sampler process."""

    count: Annotated[
        int, Meta(ge=1, le=1024, description="sampler processes that `headrace train` starts")
    ] = 2
    groups: Annotated[
        int, Meta(ge=1, le=4096, description="groups of unroll.envs environments in each process")
    ] = 1
    stepping: Annotated[
        Literal["inline", "vector"],
        Meta(
            description="inline: one Python env after another; vector: the env's own vector class"
        ),
    ] = "inline"
    drain_s: Annotated[
        float, Meta(ge=0, le=600, description="on SIGTERM, wait this long for acknowledgements")
    ] = 5.0
