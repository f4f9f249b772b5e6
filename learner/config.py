"""The run's [unroll], [model] and [algorithm] sections; needs no torch."""

from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec import Meta, Struct, field

N = TypeVar("N", int, float)
# A number, or pairs of (trained steps, number): in between it moves in a straight line, before the
# first and after the last it stands still.
Point = tuple[Annotated[int, Meta(ge=0)], Annotated[float, Meta(ge=0)]]
# Or text: module:function, which is given the trained steps. (No pattern here: msgspec 0.22 frees a
# pattern beside a tuple once too often.)
Schedule = Annotated[float, Meta(ge=0)] | tuple[Point, ...] | str


class UnrollConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Sets the unit of experience: `length` steps of `envs` environments that move together."""

    length: Annotated[int, Meta(ge=1, le=4096, description="steps per environment, T")] = 16
    envs: Annotated[
        int, Meta(ge=1, le=4096, description="environments in one unroll, its columns")
    ] = 16
    largest: Annotated[
        float,
        Meta(
            gt=0,
            le=3.4e38,
            description="an unroll with a reward, an observation or a log-probability beyond +-"
            " this is refused: no step survives numbers whose squares are infinite",
        ),
    ] = 1e9
    trace_every: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000_000,
            description="one unroll in this many leaves in the ledgers when it came by, for"
            " headrace trace; 0 = none does",
        ),
    ] = 0


# model.kind of which model.normalise_images holds; auto may be one of them.
NORMALISED_KINDS: Final = ("nature", "resnet")


class ModelConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Describes the network; every sampler builds the same one from this section."""

    kind: Annotated[
        str,
        Meta(
            description="the encoder. mlp; nature: the convolutions of the 2015 DQN paper; resnet:"
            " the residual network of the IMPALA paper; grid: small convolutions, for boards of a"
            " few cells; module:factory: your own; auto: nature for images from 36 x 36 pixels on,"
            " grid for smaller ones, resnet for both together, else mlp"
        ),
    ] = "auto"
    kwargs: Annotated[
        dict[str, Any], Meta(description="module:factory: keyword arguments for it")
    ] = field(default_factory=dict)
    hidden: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=65536)], ...],
        Meta(description="mlp: units of each hidden layer; nature has 512, resnet 256, grid 128"),
    ] = (64, 64)
    activation: Annotated[
        Literal["tanh", "relu", "elu"],
        Meta(description="mlp: between the hidden layers; the others: always relu"),
    ] = "tanh"
    separate: Annotated[
        bool | Literal["auto"],
        Meta(
            description="a value network of its own, no layers shared with the policy; auto: unless"
            " there are convolutions, which cost most of a step, and no core"
        ),
    ] = "auto"
    obs_scale: Annotated[
        tuple[Annotated[float, Meta(gt=0)], ...],
        Meta(
            description="divide each observation feature by this, categories counted as one feature"
            " for each value, images not counted unless mlp reads them; empty = leave it as it is"
        ),
    ] = ()
    core: Annotated[
        Literal["none", "lstm", "gru", "transformer"],
        Meta(description="memory between the encoder and the heads, carried from step to step"),
    ] = "none"
    core_units: Annotated[int, Meta(ge=1, le=65536, description="of the core: units")] = 128
    core_context: Annotated[
        int,
        Meta(
            ge=1,
            le=4096,
            description="transformer: steps before its own that a step sees; every column of an"
            " unroll carries core_layers * core_context * core_units numbers",
        ),
    ] = 32
    core_layers: Annotated[int, Meta(ge=1, le=32, description="transformer: layers")] = 1
    core_bias: Annotated[
        float,
        Meta(
            ge=-10,
            le=10,
            description="of the core: bias, in the first weights, of the gate that keeps what is"
            " remembered; lstm, gru: the larger, the further back a cue can be learned from;"
            " transformer: of the gates around its layers, the larger, the less they do at first",
        ),
    ] = 2.0
    previous: Annotated[
        bool, Meta(description="the network also sees the action and the reward before")
    ] = False
    normalise_obs: Annotated[
        bool,
        Meta(
            description="numbers of the observation by their running mean and deviation; categories"
            " stay as they are"
        ),
    ] = False
    normalise_images: Annotated[
        bool,
        Meta(
            description="nature, resnet: bytes of images less the running mean of their pixel, by"
            " the deviation of the image; false: divided by 255"
        ),
    ] = False
    normalise_returns: Annotated[
        bool,
        Meta(description="the value head predicts returns by their running mean and deviation"),
    ] = False
    std: Annotated[
        Literal["free", "network"],
        Meta(
            description="standard deviations of a Box action: free parameters, or an output of the"
            " network"
        ),
    ] = "free"
    std_init: Annotated[
        float,
        Meta(ge=1e-4, le=7, description="Box actions: at the start, in units of half the range"),
    ] = 1.0
    wire: Annotated[
        Literal["float32", "bfloat16"],
        Meta(description="parameters on their way to samplers; bfloat16: half the bytes"),
    ] = "float32"

    @property
    def memory(self) -> int:
        """Counts the numbers in the memory of one environment."""
        units = self.core_units
        attends = self.core_layers * self.core_context * units + 1
        one = {"none": 0, "gru": units, "lstm": 2 * units, "transformer": attends}[self.core]
        return one if self.separate is False else 2 * one


class AlgorithmConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Sets what the optimiser step minimises, and how often it uses a batch."""

    name: Annotated[Literal["impala", "appo", "ppo"], Meta(description="the loss")] = "impala"
    loss: Annotated[
        str,
        Meta(
            description="module:function of your own instead of it; batches, targets and all else"
            " stay those of the algorithm; empty = none"
        ),
    ] = ""
    gamma: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | Literal["auto"],
        Meta(
            description="discount; auto: 0.998 where an episode may have 1000 steps or more, as the"
            " environment is registered, else 0.99"
        ),
    ] = 0.99
    reward_scale: Annotated[
        float, Meta(gt=0, description="multiplies rewards in the loss: values near 1 learn fastest")
    ] = 1.0
    reward_clip: Annotated[
        float,
        Meta(ge=0, description="in the loss rewards stay in +- this, before scaling; 0 = off"),
    ] = 0.0
    trace: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | Literal["auto"],
        Meta(
            description="lambda of GAE; also multiplies V-trace's coefficients c; auto: 0.97 where"
            " ppo's actions are numbers and an episode may have 1000 steps or more, else 0.95"
        ),
    ] = 1.0
    rho_clip: Annotated[
        float, Meta(gt=0, description="impala, appo: clips rho in the value targets")
    ] = 1.0
    c_clip: Annotated[
        float, Meta(gt=0, description="impala, appo: clips c, how far a target looks ahead")
    ] = 1.0
    pg_rho_clip: Annotated[
        float, Meta(gt=0, description="impala, appo: clips rho in the policy gradient")
    ] = 1.0
    value_coef: Annotated[float, Meta(ge=0, description="weight of the value loss")] = 0.5
    value_clip: Annotated[
        float, Meta(ge=0, description="ppo: values move no further than this in one batch; 0 = off")
    ] = 0.0
    entropy_coef: Annotated[
        Schedule,
        Meta(
            description="weight of the entropy bonus; auto: ppo: 0.003 where actions are numbers"
            " and an episode may have 1000 steps or more, else 0.01; the others: 0.01 where actions"
            " are numbers, 0.02 where they are choices from large images, else 0.003"
        ),
    ] = 0.01
    normalise_advantages: Annotated[
        bool | Literal["running"],
        Meta(
            description="true: zero mean, unit variance over the whole batch, all ranks; running:"
            " impala, appo: divided by the root of their running mean square; where actions are"
            " numbers, a mean below 0 is taken away first"
        ),
    ] = False
    clip: Annotated[
        Schedule, Meta(description="appo, ppo: the surrogate's ratio stays in 1 +- clip")
    ] = 0.2
    epochs: Annotated[
        int, Meta(ge=1, le=1000, description="ppo: times that a batch is gone through")
    ] = 4
    minibatches: Annotated[
        Annotated[int, Meta(ge=1, le=65536)] | Literal["auto"],
        Meta(
            description="ppo: parts of a batch, shuffled, one step each; auto: of about 256 steps"
            " where the network has convolutions, else of 64"
        ),
    ] = 4
    kl_stop: Annotated[
        float,
        Meta(ge=0, description="ppo: a batch is left when KL(old, new) is above this; 0 = never"),
    ] = 0.0
    buffer_batches: Annotated[
        Annotated[int, Meta(ge=1, le=4096)] | Literal["auto"],
        Meta(description="appo: newest batches kept for further use, N; auto: as many as uses"),
    ] = 1
    uses: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | Literal["auto"],
        Meta(
            description="appo: optimiser steps for each new batch, K; auto: 16 where actions are"
            " numbers, 2 where they are choices from large images, else 8"
        ),
    ] = 1
    target_interval: Annotated[
        Annotated[int, Meta(ge=1)] | Literal["auto"],
        Meta(
            description="appo: optimiser steps between moves of the target network; auto: twice"
            " uses"
        ),
    ] = 2
    target_rate: Annotated[
        float, Meta(gt=0, le=1, description="appo: how far it moves towards the policy; 1 = a copy")
    ] = 1.0
    kl_coef: Annotated[
        float, Meta(ge=0, description="appo: weight of KL(target, policy); 0 = off")
    ] = 0.0
    kl_target: Annotated[
        float,
        Meta(ge=0, description="appo: kl_coef adapts itself to hold KL near this; 0 = it is fixed"),
    ] = 0.0
    drift_limit: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="impala, appo: a step trains the policy no further once the probability of"
            " its action has moved this far, since it was played, to where its advantage pulls; of"
            " numbers the share by which their density has moved, 0.5 = twofold; 0 = off",
        ),
    ] = 0.0
    replay_share: Annotated[
        float,
        Meta(ge=0, lt=1, description="impala: share of all trained unrolls that come from memory"),
    ] = 0.0
    replay_unrolls: Annotated[
        int, Meta(ge=1, le=1_000_000, description="impala: unrolls that each rank remembers")
    ] = 256
    replay_pick: Annotated[
        Literal["uniform", "recent"],
        Meta(description="impala: which of them: any, or the newest that were used least"),
    ] = "uniform"

    @property
    def parts(self) -> int:
        """Returns minibatches, once that is a number."""
        return number(self.minibatches)


def number(value: N | Literal["auto"]) -> N:
    """Returns a setting that may be "auto", once it is a number."""
    assert not isinstance(value, str), "settled before it trains"
    return value
