"""Says which protocols are spoken, and what a peer of an older one does not know of a run. Pure.

    broker            speaks all from OLDEST to PROTOCOL, with each peer in the peer's own
    everybody else    speaks PROTOCOL alone; so the broker is upgraded first

The settings in WELCOME belong to the protocol: a key that is new since the one before stands in
ADDED, and peers that do not know it are not told of it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

PROTOCOL: Final = 3
OLDEST: Final = PROTOCOL - 1  # that of the release before

Sections: TypeAlias = Mapping[str, Mapping[str, Any]]  # a run as peers see it


class Added(NamedTuple):
    """Describes a new key, or new values of an older one. Nobody is refused where it matters to no
    role."""

    roles: tuple[str, ...] = ()  # refused where the run has another value: they would act wrongly
    without: Any = None  # the value by which a peer acts that does not know the key
    # The key is an older one, and only these values are new; a type stands for all of its values.
    values: tuple[Any, ...] = ()

    def is_new(self, value: Any) -> bool:
        if not self.values:
            return bool(value != self.without)
        return any(
            value == new or (isinstance(new, type) and isinstance(value, new))
            for new in self.values
        )


_PLAYERS: Final = ("actor", "evaluator")
# Protocol -> "section.key" -> what came with it.
ADDED: Final[Mapping[int, Mapping[str, Added]]] = {
    3: {
        "actor.acting": Added(),  # an older sampler acts by itself
        "actor.explore": Added(("actor",), without=""),
        **{
            f"algorithm.{key}": Added(("learner", *_PLAYERS), values=("auto",))
            for key in ("buffer_batches", "target_interval", "uses")
        },
        "algorithm.clip": Added(("learner", *_PLAYERS), values=(str,)),
        "algorithm.entropy_coef": Added(("learner", *_PLAYERS), values=(str,)),
        "algorithm.drift_limit": Added(("learner",), without=0.0),
        "algorithm.gamma": Added(("learner", *_PLAYERS), values=("auto",)),
        "algorithm.loss": Added(("learner",), without=""),
        "algorithm.minibatches": Added(("learner", *_PLAYERS), values=("auto",)),
        "algorithm.normalise_advantages": Added(("learner", *_PLAYERS), values=("running",)),
        "algorithm.trace": Added(("learner", *_PLAYERS), values=("auto",)),
        "env.agents": Added(("learner", *_PLAYERS), without=[]),
        "env.critic": Added(("learner", *_PLAYERS), without=[]),
        "env.curriculum": Added(("learner",), without=""),
        "env.others": Added(_PLAYERS, without={}),
        "env.population": Added(("learner", *_PLAYERS), without=0),
        "env.policy": Added(_PLAYERS, without=-1),
        "env.settings": Added(("learner", *_PLAYERS), without={}),  # a part of the weights
        "env.metrics": Added(("actor", "learner"), without=[]),  # their unrolls have a buffer less
        "evaluate.against": Added(("evaluator",), without=""),
        "evaluate.keep": Added(),  # an older evaluator keeps two
        "evaluate.share": Added(),  # it takes what it took before
        "league.share": Added(("actor",), without=0.0),
        **{f"league.{key}": Added() for key in ("every", "keep", "others", "pick")},
        "model.core": Added(("learner", *_PLAYERS), values=("transformer",)),
        "model.core_context": Added(),  # of a transformer, which they do not know
        "model.core_layers": Added(),
        "model.core_bias": Added(),  # of first weights; what trains already has others
        "model.kind": Added(_PLAYERS, values=("auto", "grid")),
        "model.normalise_images": Added(("learner", *_PLAYERS), without=False),
        "model.separate": Added(_PLAYERS, values=("auto",)),
        "model.wire": Added(("learner", *_PLAYERS), without="float32"),
        "pacing.balance": Added(),  # the broker sees to it
        "unroll.trace_every": Added(),  # its unrolls leave no times
    }
}


def refusal(theirs: int) -> str:
    """Returns what a peer is told whose protocol is not spoken here."""
    older = "the broker first" if theirs > PROTOCOL else "this peer"
    return f"it speaks protocol {OLDEST} to {PROTOCOL}, you speak {theirs}: upgrade {older}"


def unknown_setting(run: Sections, protocol: int, role: str) -> str:
    """Returns why a peer cannot take part: a setting of the run that it does not know and ought to
    obey; "" = there is none."""
    for place, added in _since(protocol).items():
        section, _, key = place.partition(".")
        value = run.get(section, {}).get(key, added.without)
        if added.is_new(value) and role in added.roles:
            told = f"the run has {place} = {value!r}, which protocol {protocol} does not know"
            return f"{told}: upgrade this {role}"
    return ""


def known(run: Sections, protocol: int) -> dict[str, dict[str, Any]]:
    """Returns the run without the keys that a peer of that protocol does not know, and without
    sections of which it knows none."""
    new = _new_keys(protocol)
    told = {
        section: {key: value for key, value in keys.items() if f"{section}.{key}" not in new}
        for section, keys in run.items()
    }
    return {section: keys for section, keys in told.items() if keys or not run[section]}


def completed(theirs: Mapping[str, Any], ours: Sections, protocol: int) -> dict[str, Any]:
    """Returns the run of a learner of that protocol with our values of the keys that it does not
    know: unknown_setting has judged them."""
    full = {section: dict(keys) for section, keys in theirs.items()}
    for place in _new_keys(protocol):
        section, _, key = place.partition(".")
        if section in full and key in ours.get(section, ()):
            full[section].setdefault(key, ours[section][key])
    return full


def spoken(frames: Sequence[Any], protocol: int) -> Sequence[Any]:
    """Returns the frames of a message of ours for a peer of that protocol."""
    prefix = frames[0]
    if prefix[2] == protocol:
        return frames
    return [prefix[:2] + bytes([protocol]) + prefix[3:], *frames[1:]]


def _new_keys(protocol: int) -> set[str]:
    return {place for place, added in _since(protocol).items() if not added.values}


def _since(protocol: int) -> dict[str, Added]:
    return {
        place: added
        for number in range(protocol + 1, PROTOCOL + 1)
        for place, added in ADDED[number].items()
    }
