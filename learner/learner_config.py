"""The run's [learner] section: the optimiser, and the machine it runs on; needs no torch."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from headrace.learner.config import Point


class LearnerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Sets the optimiser and the machine it runs on."""

    optimiser: Annotated[Literal["adam", "rmsprop"], Meta(description="the optimiser")] = "adam"
    lr: Annotated[
        Annotated[float, Meta(gt=0, le=10)] | tuple[Point, ...] | str,
        Meta(
            description="its step size; auto: ppo's is 1e-3 for grids under 36 pixels, 5e-4 for"
            " larger pictures, else 3e-4; appo's and impala's is their default"
        ),
    ] = 6e-4
    eps: Annotated[float, Meta(gt=0, description="its epsilon")] = 1e-5
    decay: Annotated[
        float, Meta(ge=0, lt=1, description="rmsprop: how long squared gradients are remembered")
    ] = 0.99
    momentum: Annotated[float, Meta(ge=0, lt=1, description="rmsprop: momentum")] = 0.0
    grad_clip: Annotated[float, Meta(ge=0, description="largest global gradient norm; 0 = off")] = (
        40.0
    )
    grad_clip_value: Annotated[
        float, Meta(ge=0, description="each gradient stays in +- this, before the norm; 0 = off")
    ] = 0.0
    spread: Annotated[
        dict[Literal["lr", "entropy_coef", "clip"], Annotated[float, Meta(ge=1, le=1000)]],
        Meta(
            description="of a population: each policy has its own, the run's times a factor that is"
            " drawn between 1 / this and this, as {lr = 3.0}; empty = all are alike"
        ),
    ] = field(default_factory=dict)
    replace_every: Annotated[
        int,
        Meta(
            ge=0,
            description="of a population: after so many steps of each policy the worst quarter"
            " go on as copies of the best, what learner.spread names times 0.8 or 1.25; 0 = never",
        ),
    ] = 0
    warm_start: Annotated[
        str,
        Meta(
            description="the folder of a run, or one of its checkpoints, whose weights this one"
            " begins with, where name and shape are the same; empty = new ones"
        ),
    ] = ""
    device: Annotated[str, Meta(description="auto, cpu or cuda")] = "auto"
    precision: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Meta(description="of the network's large products; auto: bfloat16 where it is faster"),
    ] = "auto"
    graph: Annotated[
        bool | Literal["auto"],
        Meta(
            description="a GPU runs all of a step as one graph, and where batches are used once"
            " the device itself skips a step that is not finite, so that nothing waits for the"
            " host; for adam; auto: on a GPU"
        ),
    ] = "auto"
    compile: Annotated[
        bool | Literal["auto"],
        Meta(
            description="on a CPU all of an optimiser step is compiled to one function, beside the"
            " training; for adam, one rank and networks that are not recurrent; needs g++; auto:"
            " once the steps have taken half a minute"
        ),
    ] = "auto"
    gpu_share: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="the part of the GPU's memory that this rank takes, and of its time where"
            " MPS runs; refused where others leave less; 0 = what it needs, and it is not counted",
        ),
    ] = 0.0
    shard: Annotated[
        bool,
        Meta(
            description="each rank holds a part of every parameter and of what the optimiser keeps"
            " for it, instead of all: for networks that one device has no memory for"
        ),
    ] = False
    together: Annotated[
        bool,
        Meta(
            description="headrace train: policies of one file that have it are trained in turns by"
            " one process, which takes less memory, of a GPU above all, and no more than one core"
        ),
    ] = False
    threads: Annotated[int, Meta(ge=0, description="torch threads per rank; 0 = torch decides")] = 1
    prefetch: Annotated[
        int, Meta(ge=1, le=16, description="batches received ahead of the one in training")
    ] = 2
    rank_timeout_s: Annotated[
        float, Meta(gt=1, le=3600, description="a collective this late ends the group")
    ] = 45.0
    progress_s: Annotated[
        float, Meta(ge=0, description="seconds between lines of progress in its log; 0 = none")
    ] = 10.0
