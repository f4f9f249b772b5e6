"""The run's [checkpoint] section."""

from typing import Annotated

from msgspec import Meta, Struct


class CheckpointConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Sets when the learner's whole state is written, and how many copies stay."""

    every_s: Annotated[float, Meta(gt=0, description="seconds between checkpoints")] = 60.0
    keep: Annotated[int, Meta(ge=2, le=1000, description="newest ones kept")] = 3
    keep_every: Annotated[
        int,
        Meta(ge=0, description="of every so many versions the first one stays for ever; 0 = off"),
    ] = 0
