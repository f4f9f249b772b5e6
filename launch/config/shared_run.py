"""Says what the broker tells its peers of a run, and reads it as a peer does."""

from typing import Any

from headrace.launch.config.run_file import ConfigError, Run, build, to_dict

# A sampler, the broker and the learner must agree on these. The rest is each process's own affair.
SHARED = ("env", "unroll", "model", "algorithm", "pacing")
# Told to every peer, not agreed upon.
_SUGGESTED = ("actor", "evaluate", "league")


def shared(run: Run) -> dict[str, Any]:
    """Returns what every peer of this run must agree on."""
    plain = to_dict(run)
    return {"run": {"name": plain["run"]["name"]}, **{name: plain[name] for name in SHARED}}


def for_peers(run: Run) -> dict[str, Any]:
    """Returns what WELCOME carries: the agreement, and how a sampler or an evaluator with nothing
    but an address works."""
    plain = to_dict(run)
    return {**shared(run), **{name: plain[name] for name in _SUGGESTED}}


def from_shared(data: dict[str, Any]) -> Run:
    """Returns the run a peer described; sections that are not shared keep their defaults."""
    source = "the broker's run"
    wrong = (set(data) - {*_SUGGESTED}) ^ {"run", *SHARED}
    if wrong:
        names = ", ".join(sorted(map(str, wrong)))
        raise ConfigError(f"{source}: not the sections this version shares: {names}")
    return build(data, (), source=source)
