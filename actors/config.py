"""The run's [env] and [actor] sections."""

from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct, field

from headrace.broker.league_results import MOST_OTHERS

PICKS = ("uniform", "newest", "prioritised")
Stepping = Literal["auto", "inline", "vector", "threads", "processes"]
Acting = Literal["auto", "local", "central"]
# Names of env.metrics, and characters of one: all of them travel with each beat of a learner.
MOST_METRICS, MOST_METRIC_NAME = 16, 40

STEPPINGS: tuple[str, ...] = get_args(Stepping)
ACTINGS: tuple[str, ...] = get_args(Acting)


def names_code(player: str) -> bool:
    """Tells whether it is a function of the user's, module:function, and no folder."""
    module, colon, name = player.partition(":")
    return bool(colon) and name.isidentifier() and "/" not in module


class EnvConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Selects the environment, and says how it is made."""

    id: Annotated[str, Meta(description="a gymnasium id, or module:factory")] = "CartPole-v1"
    kwargs: Annotated[dict[str, Any], Meta(description="keyword arguments for it")] = field(
        default_factory=dict
    )
    wrappers: Annotated[
        tuple[dict[str, Any], ...],
        Meta(description="put around it in this order; id = module:factory, the rest are keywords"),
    ] = ()
    stack: Annotated[
        int, Meta(ge=1, le=64, description="images: frames that the network sees at once")
    ] = 1
    mask: Annotated[
        str,
        Meta(
            description="the part of the observation, or the entry of info, that says which choices"
            " are allowed; empty = all are"
        ),
    ] = ""
    agents: Annotated[
        tuple[str, ...],
        Meta(
            max_length=64,
            description="names or patterns, as wolf_*, of the agents that this run's policy plays,"
            " where others have policies of their own; empty = all",
        ),
    ] = ()
    others: Annotated[
        dict[str, str],
        Meta(
            max_length=64,
            description="beside env.agents: name or pattern of agents that nobody trains = who"
            " plays them; random, module:function of your own, or the folder of a run or of one"
            " of its checkpoints, on the sampler's machine",
        ),
    ] = field(default_factory=dict)
    critic: Annotated[
        tuple[str, ...],
        Meta(
            max_length=16,
            description="parts of the observation that only the value network sees while it learns:"
            " what a simulator knows, or the state of a game; who acts later does without them",
        ),
    ] = ()
    metrics: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[ -~]+\Z", max_length=MOST_METRIC_NAME)], ...],
        Meta(
            max_length=MOST_METRICS,
            description="entries of info to sum up and show, as success; episode.r = entry r of the"
            " dict episode",
        ),
    ] = ()
    settings: Annotated[
        dict[str, bool | int | float],
        Meta(
            max_length=16,
            description="attributes of the environment, set before its episodes; env.curriculum may"
            " change them for samplers",
        ),
    ] = field(default_factory=dict)
    curriculum: Annotated[
        str,
        Meta(
            pattern=r"^([\w.]+:\w+)?\Z",
            description="module:function that the learner asks at every version for the"
            " env.settings to sample with; empty = they stay",
        ),
    ] = ""
    bounds: Annotated[
        Literal["clip", "tanh"],
        Meta(
            description="how the policy's numbers are kept inside a bounded Box: cut, or squashed"
        ),
    ] = "clip"
    population: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="so many policies of the same network are trained by one"
            " learner, and play in turn; 0 = the run has one policy",
        ),
    ] = 0
    policy: Annotated[
        int, Meta(ge=-1, description="of a population: who plays all episodes; -1 = all in turn")
    ] = -1

    @property
    def single(self) -> bool:
        """Tells whether something is put around each environment alone, or set in it."""
        return bool(self.wrappers or self.settings or self.population)


class ActorConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Configures one sampler process."""

    count: Annotated[
        int, Meta(ge=1, le=1024, description="sampler processes that `headrace train` starts")
    ] = 2
    groups: Annotated[
        int, Meta(ge=1, le=4096, description="groups of unroll.envs environments in each process")
    ] = 1
    stepping: Annotated[
        Stepping,
        Meta(
            description="inline: one Python env after another; vector: the env's own vector class;"
            " threads, processes: every group by itself; auto: measured at the start"
        ),
    ] = "auto"
    workers: Annotated[
        int,
        Meta(ge=0, le=1024, description="processes that share the groups; 0 = one for each group"),
    ] = 0
    precision: Annotated[
        Literal["auto", "float32", "bfloat16", "int8"],
        Meta(
            description="numbers the network acts with; int8: nature only; auto: bfloat16 for"
            " nature where the CPU multiplies it, else float32"
        ),
    ] = "auto"
    acting: Annotated[
        Acting,
        Meta(
            description="local: each sampler calls the network itself; central: `headrace node`, or"
            " `headrace train`, has one process that calls it for all of its samplers, on a GPU if"
            " there is one; auto: the way by which more rows are done, tried every two minutes"
        ),
    ] = "local"
    explore: Annotated[
        str,
        Meta(
            description="module:function of your own that makes other parameters of those by which"
            " actions are drawn; evaluations do without; empty = none"
        ),
    ] = ""
    threads: Annotated[
        int, Meta(ge=1, le=1024, description="torch threads of each process; not above its cores")
    ] = 1
    wait_ms: Annotated[
        float,
        Meta(ge=0, le=100, description="the network waits at most this long for more of them"),
    ] = 1.0
    step_timeout_s: Annotated[
        float,
        Meta(gt=0, description="threads, processes: a step or reset that takes longer has hung"),
    ] = 60.0
    crashes_per_hour: Annotated[
        int, Meta(ge=0, description="environments restarted in an hour before the sampler ends")
    ] = 100
    drain_s: Annotated[
        float, Meta(ge=0, le=600, description="on SIGTERM, wait this long for acknowledgements")
    ] = 5.0


class EvaluateConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Says which episodes an evaluator plays with the newest weights."""

    episodes: Annotated[int, Meta(ge=1, le=100_000, description="episodes of each evaluation")] = 20
    every_s: Annotated[
        float, Meta(ge=0, description="at least so many seconds between their starts")
    ] = 2.0
    share: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="most of the machine's processor time that evaluations take; what takes"
            ' more comes less often than every_s. 0.2 where stop.metric is "evaluation"',
        ),
    ] = 0.02
    envs: Annotated[int, Meta(ge=1, le=4096, description="environments played side by side")] = 4
    against: Annotated[
        str,
        Meta(
            description="environments of several agents: who plays the others while one is scored,"
            " in each episode another one; random, module:function of your own, or the folder of a"
            " run or of one of its checkpoints; empty = the policy plays all"
        ),
    ] = ""
    greedy: Annotated[
        bool, Meta(description="the likeliest action; false = drawn, as samplers do")
    ] = True
    seed: Annotated[int, Meta(ge=0, lt=2**31, description="of its environments")] = 1_000_000
    keep: Annotated[
        int, Meta(ge=1, le=1000, description="so many of the best weights stay in best/")
    ] = 2


class LeagueConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Says who plays the other agents while one learns, in environments of several."""

    share: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="share of episodes in which only one agent learns, each time another one,"
            " and somebody else plays the others; in the rest the policy plays all. Of several"
            " policies: of those that are its turn, and only this policy learns. 0 = no league",
        ),
    ] = 0.0
    every: Annotated[
        int,
        Meta(
            ge=1,
            description="each sampler keeps the weights of every so many versions, to play against"
            " them; twice as many whenever there are more than keep, so that they span the run",
        ),
    ] = 100
    keep: Annotated[
        int, Meta(ge=0, le=64, description="most weights of before that a sampler keeps; 0 = none")
    ] = 8
    others: Annotated[
        tuple[str, ...],
        Meta(
            max_length=MOST_OTHERS,
            description="who else is met: random, module:function of your own, or the folder of a"
            " run or of one of its checkpoints, on the sampler's machine",
        ),
    ] = ()
    pick: Annotated[
        str,
        Meta(
            description="who is met next. uniform: all alike; newest: the newest weights kept, or"
            " the last of others where there are none; prioritised: by the square of the share of"
            " games lost to each; or module:function of your own"
        ),
    ] = "uniform"
