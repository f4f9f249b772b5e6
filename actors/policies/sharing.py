"""Makes the environments that policies share, among themselves or with who is not trained."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from headrace.actors.acting.trained_policy import PolicyLike
from headrace.actors.config import ActorConfig, EnvConfig
from headrace.actors.envs.convert import EnvError
from headrace.actors.policies.joint_env import joint_config
from headrace.actors.policies.seats import Seats, seated
from headrace.actors.policies.shared_stepper import PolicyStepper, SharedStepper
from headrace.actors.stepping.choose import make_stepper
from headrace.learner.spaces import Spaces


class Learner(NamedTuple):
    """Describes a policy that learns in the environments."""

    run: str  # its name
    env: EnvConfig
    columns: int  # of an unroll
    over: Callable[[], object]  # whether its run is
    # Hears of so many agent steps that it has played and no unroll holds.
    unrecorded: Callable[[int], object]
    may_begin: Callable[[int], bool]  # an unroll of this group; it has credit


def share(
    learners: Sequence[Learner],
    actor: ActorConfig,
    *,
    player: Callable[[str, Spaces], PolicyLike],
    done: Sequence[tuple[EnvConfig, PolicyLike]] = (),
    seed: int,
    sampler: str,
) -> list[PolicyStepper]:
    """Returns a stepper for each policy. `player`: makes who plays, by a value of env.others, what
    has these spaces. `done`: policies that learn no more, and play on."""
    seats, others = seated([*(one.env for one in learners), *(config for config, _ in done)])
    own = seats[: len(learners)]
    seats += [theirs for _, theirs in others]
    envs = _environments(learners, own)
    if own[0].turns and len(learners) > 1:
        _check_turns(learners, own)
    # Where agents take turns each environment goes on by itself.
    parts = envs if seats[0].turns else 1
    stepper = make_stepper(
        msgspec.structs.replace(actor, groups=actor.groups * parts),
        joint_config([one.config for one in seats]),
        envs=envs // parts,
        seed=seed,
        sampler=sampler,
        whole=True,
    )
    players = [one for _, one in done] + [player(name, own.spaces) for name, own in others]
    views = SharedStepper(
        stepper, seats, over=[one.over for one in learners], players=players, parts=parts
    ).views
    for view, one in zip(views, learners, strict=True):
        view.tell_unrecorded, view.may_begin = one.unrecorded, one.may_begin
    return views


def _check_turns(learners: Sequence[Learner], seats: Sequence[Seats]) -> None:
    """Raises EnvError unless several policies can learn in a game of turns: where an unroll had to
    wait for two agents, policies would wait for each other."""
    for one, own in zip(learners, seats, strict=True):
        if one.columns > 1 or len(own.agents) > 1:
            raise EnvError(
                f"{one.run}: in a game of turns in which several policies learn each plays one"
                f" agent, with unroll.envs = 1 and many actor.groups; it has {one.columns} columns"
                f" and plays {', '.join(own.agents)}"
            )


def _environments(learners: Sequence[Learner], seats: Sequence[Seats]) -> int:
    """Returns how many environments fill an unroll: as many for every policy."""
    counts = []
    for one, own in zip(learners, seats, strict=True):
        agents = len(own.agents)
        if one.columns % agents:
            raise EnvError(
                f"{one.run}: unroll.envs = {one.columns}, and each of its {agents} agents is a"
                f" column; set it to {agents}, or a multiple of that"
            )
        counts.append(one.columns // agents)
    if len(set(counts)) > 1:
        said = ", ".join(
            f"{one.run}: {one.columns} for {len(own.agents)} agents"
            for one, own in zip(learners, seats, strict=True)
        )
        raise EnvError(
            f"unroll.envs must be the same multiple of each policy's agents; there is {said}"
        )
    return counts[0]
