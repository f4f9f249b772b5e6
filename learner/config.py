"""The run's [unroll], [model], [algorithm], [learner] and [checkpoint] sections. Needs no torch."""

from typing import Annotated, Literal

from msgspec import Meta, Struct


class UnrollConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The unit of experience: `length` steps of `envs` environments that move together."""

    length: Annotated[int, Meta(ge=1, le=4096, description="steps per environment, T")] = 16
    envs: Annotated[
        int, Meta(ge=1, le=4096, description="environments in one unroll, its columns")
    ] = 16


class ModelConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The network; every sampler builds the same one from this section."""

    kind: Annotated[
        str,
        Meta(
            description="mlp; nature: the convolutions of the 2015 DQN paper, for images; of this"
            " section it takes only obs_scale"
        ),
    ] = "mlp"
    hidden: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=65536)], ...],
        Meta(description="mlp: units of each hidden layer; nature always has 512"),
    ] = (64, 64)
    activation: Annotated[
        Literal["tanh", "relu", "elu"],
        Meta(description="mlp: between the hidden layers; nature: always relu"),
    ] = "tanh"
    separate: Annotated[
        bool,
        Meta(description="mlp: a value network of its own, no shared layers; nature always shares"),
    ] = True
    obs_scale: Annotated[
        tuple[Annotated[float, Meta(gt=0)], ...],
        Meta(
            description="divide each observation feature by this, categories counted as one feature"
            " for each value; nature: only what is no image; empty = leave as it is"
        ),
    ] = ()


class AlgorithmConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What the optimiser step minimises."""

    name: Annotated[Literal["impala", "appo"], Meta(description="the loss")] = "impala"
    gamma: Annotated[float, Meta(ge=0, le=1, description="discount")] = 0.99
    reward_scale: Annotated[
        float, Meta(gt=0, description="multiplies rewards in the loss: values near 1 learn fastest")
    ] = 1.0
    reward_clip: Annotated[
        float,
        Meta(ge=0, description="in the loss rewards stay in +- this, before scaling; 0 = off"),
    ] = 0.0
    trace: Annotated[
        float, Meta(ge=0, le=1, description="lambda: multiplies the V-trace cutting coefficients c")
    ] = 1.0
    rho_clip: Annotated[float, Meta(gt=0, description="clips rho in the value targets")] = 1.0
    c_clip: Annotated[float, Meta(gt=0, description="clips c, how far a target looks ahead")] = 1.0
    pg_rho_clip: Annotated[float, Meta(gt=0, description="clips rho in the policy gradient")] = 1.0
    value_coef: Annotated[float, Meta(ge=0, description="weight of the value loss")] = 0.5
    entropy_coef: Annotated[float, Meta(ge=0, description="weight of the entropy bonus")] = 0.01
    normalise_advantages: Annotated[
        bool, Meta(description="zero mean, unit variance over the whole batch, all ranks")
    ] = False
    clip: Annotated[
        float, Meta(gt=0, description="appo: the surrogate's ratio stays in 1 +- clip")
    ] = 0.2
    target_interval: Annotated[
        int, Meta(ge=1, description="appo: optimiser steps between copies to the target network")
    ] = 2
    kl_coef: Annotated[
        float, Meta(ge=0, description="appo: weight of KL(target, policy); 0 = off")
    ] = 0.0


class LearnerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The optimiser and the machine it runs on."""

    lr: Annotated[float, Meta(gt=0, le=10, description="Adam's step size")] = 6e-4
    anneal_steps: Annotated[
        int, Meta(ge=0, description="trained steps over which lr falls to 0; 0 = constant")
    ] = 0
    adam_eps: Annotated[float, Meta(gt=0, description="Adam's epsilon")] = 1e-5
    grad_clip: Annotated[float, Meta(ge=0, description="largest global gradient norm; 0 = off")] = (
        40.0
    )
    device: Annotated[str, Meta(description="auto, cpu or cuda")] = "auto"
    precision: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Meta(description="of the network's large products; auto: bfloat16 where it is faster"),
    ] = "auto"
    threads: Annotated[int, Meta(ge=0, description="torch threads per rank; 0 = torch decides")] = 1
    prefetch: Annotated[
        int, Meta(ge=1, le=16, description="batches received ahead of the one in training")
    ] = 2
    rank_timeout_s: Annotated[
        float, Meta(gt=1, le=3600, description="a collective this late ends the group")
    ] = 45.0


class CheckpointConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """When the learner's whole state is written, and how many stay."""

    every_s: Annotated[float, Meta(gt=0, description="seconds between checkpoints")] = 60.0
    keep: Annotated[int, Meta(ge=2, le=1000, description="newest ones kept")] = 3
