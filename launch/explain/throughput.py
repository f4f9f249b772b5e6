"""Finds what bounds the steps a second: the learner, acting, the environment, the broker's credit,
the wire, or a core that nobody uses. Pure functions of a run's figures. None speaks against the
default of an algorithm: that is as fast as its learning allows.

    learner waits, samplers do not    the samplers bound it: environment, network, their own loop
    samplers wait, learner does not   the learner bounds it: the phase that takes most of its time
    both wait                         they wait for one another: credit, or the wire between them
"""

from collections.abc import Iterator

from headrace.launch.config import algorithm_defaults, run_file
from headrace.launch.config.algorithm_defaults import LEAST_USES
from headrace.launch.explain.figures import Figures
from headrace.launch.explain.finding import Finding

_LEAST_GAIN = 1.25  # what promises less is not worth a line
_BUSY = 0.85  # share of its time from which on a process is the bound
_WAITS = 0.35  # share of its time from which on it waits for others
_WIDE = 512  # a hidden layer that costs more than most tasks need
_ROWS = 16  # observations that one call of a small network takes about as long for as one
_GROUPS = 16  # that wait for slow environments side by side
_LEAST_LINE_S = 0.02  # less is the time until a sampler's next step
_LONG_LINE = 0.25  # share of the time that an unroll and its weights are under way
_SLOW_STEP_S = 1e-3  # an environment that steps faster waits for nothing


def find(figures: Figures) -> list[Finding]:
    """Returns what bounds the run, the largest gain first; [] = nothing stands out."""
    if not (figures.learner and figures.samplers):
        return []
    found = [one for one in _bounds(figures) if one.gain is None or one.gain >= _LEAST_GAIN]
    return sorted(found, key=lambda one: -(one.gain or 0.0))


def _bounds(figures: Figures) -> Iterator[Finding]:
    learner_waits = figures.learner.get("wait", 0.0)
    samplers_wait = figures.samplers.get("wait_credit", 0.0)
    waits = samplers_wait + figures.samplers.get("wait_weights", 0.0)
    if 1 - learner_waits >= _BUSY and samplers_wait >= _WAITS:
        yield from _learner(figures, waits)
    elif learner_waits >= _WAITS and _line_share(figures) >= _LONG_LINE:
        yield from _wire(figures, learner_waits, max(waits, _idle_streams(figures)))
    elif learner_waits >= _WAITS and samplers_wait >= _WAITS:
        yield from _pacing(figures)
    elif learner_waits >= _WAITS:
        yield from _samplers(figures)


def _learner(figures: Figures, samplers_wait: float) -> Iterator[Finding]:
    """Explains a learner that is always busy while samplers wait for it and its weights."""
    shares, run = figures.learner, figures.run
    samplers_could = 1 / max(0.05, 1 - samplers_wait)
    works = {name: share for name, share in shares.items() if name != "wait"}
    phase = max(works, key=lambda name: works[name], default="")
    what = f"the learner is busy {_percent(1 - shares.get('wait', 0.0))} of its time"

    # `left`: the learner's time, of what it spends now.
    def finding(why: str, sets: tuple[str, ...], left: float, advice: str = "") -> Finding:
        return Finding(
            "learner",
            f"{what}, {why}, and samplers wait {_percent(samplers_wait)}",
            sets,
            advice=advice,
            gain=min(samplers_could, 1 / max(0.05, left)),
        )

    if phase == "checkpoint":
        every = run.checkpoint.every_s * 10
        share = shares["checkpoint"]
        why = f"{_percent(share)} with checkpoints"
        yield finding(why, (f"checkpoint.every_s={every:g}",), 1 - 0.9 * share)
        return
    if phase == "publish":
        share, batch = shares["publish"], run.pacing.batch_unrolls * 2
        why = f"{_percent(share)} with new weights"
        yield finding(why, (f"pacing.batch_unrolls={batch}",), 1 - 0.5 * share)
        return
    if phase == "others":
        share = shares["others"]
        why = f"{_percent(share)} with other networks that its process trains"
        sets = ("learner.together=false",) if run.learner.together else ()
        yield finding(why, sets, 1 - share, "start a learner for each run")
        return
    trains = sum(shares.get(name, 0.0) for name in ("forward", "backward", "optimise"))
    why = f"{_percent(trains)} with network and gradients"
    uses = run.algorithm.uses
    if uses != "auto" and uses > LEAST_USES:
        yield finding(why, (f"algorithm.uses={uses // 2}",), 1 - 0.5 * trains)
        return
    if max(run.model.hidden, default=0) >= _WIDE:
        hidden = ", ".join(str(max(16, width // 4)) for width in run.model.hidden)
        yield finding(why, (f"model.hidden=[{hidden}]",), 1 - 15 / 16 * trains)


def _pacing(figures: Figures) -> Iterator[Finding]:
    """Explains both sides waiting for one another. For PPO that is as it should be: what it learns
    from was played by the weights that it starts from, and its default is 0."""
    run, learner, samplers = figures.run, figures.learner, figures.samplers
    if run.pacing.max_lag >= _default(run, "pacing.max_lag", 0):
        return
    lag = max(2, run.pacing.max_lag * 2)
    cores = figures.cores / figures.cores_busy if figures.cores_busy else 2.0
    yield Finding(
        "pacing",
        f"samplers wait {_percent(samplers['wait_credit'])} of their time for credit and the"
        f" learner waits {_percent(learner['wait'])} for them",
        (f"pacing.max_lag={lag}", f"pacing.max_lag_hard={max(2 * lag, run.pacing.max_lag_hard)}"),
        gain=min(1 / max(0.05, 1 - learner["wait"], 1 - samplers["wait_credit"]), cores),
    )


def _line_share(figures: Figures) -> float:
    """Returns the share that the line takes of the time between the moment at which sampling may
    run ahead for a version and its training; 0 = not known, or too short to tell."""
    run = figures.run
    version = run.unroll.length * run.unroll.envs * run.pacing.batch_unrolls
    under_way_s = (run.pacing.max_lag + 1) * version / max(figures.rate, 1e-9)
    return figures.line_s / under_way_s if figures.line_s >= _LEAST_LINE_S else 0.0


def _idle_streams(figures: Figures) -> float:
    """Returns the share of their time that streams do not play, of environments that step beside
    the sampler's loop: it waits for those that do."""
    beside = figures.samplers.get("wait_env", 0.0) >= 0.5
    return 1 - figures.samplers.get("environment", 0.0) / figures.run.actor.groups if beside else 0


def _wire(figures: Figures, learner_waits: float, samplers_wait: float) -> Iterator[Finding]:
    """Explains both sides waiting for what is on its way: a larger batch has more of it under way,
    and fewer versions to carry (docs/deploy/far-away.md)."""
    if samplers_wait < _WAITS:
        return
    could = min(1 / max(0.05, 1 - learner_waits), 1 / max(0.05, 1 - samplers_wait))
    times = 2 if could <= 2 else 4
    yield Finding(
        "wire",
        f"new weights take {1000 * figures.line_s:.0f} ms to the samplers, which wait"
        f" {_percent(samplers_wait)} of their time, as the learner does {_percent(learner_waits)}"
        f" (unrolls of {figures.unroll_bytes_s / 1e6:.2g} MB a second, versions of"
        f" {figures.weights_bytes / 1e6:.2g} MB)",
        (f"pacing.batch_unrolls={times * figures.run.pacing.batch_unrolls}",),
        gain=min(times, could),
    )


def _samplers(figures: Figures) -> Iterator[Finding]:
    """Explains a learner that waits for samplers which do not wait for it."""
    run, shares = figures.run, figures.samplers
    on_loop = shares.get("environment_on_loop", 0.0)
    waits = shares.get("wait_env", 0.0) + shares.get("wait_gather", 0.0)
    idle = figures.cores - _used(figures)
    learner_could = 1 / max(0.05, 1 - figures.learner["wait"])
    acts = max(0.0, 1 - on_loop - waits - shares.get("wait_credit", 0.0))
    # Environments that sleep, as those that wait for a simulator, keep no core busy.
    slow = not 0 < figures.step_s < _SLOW_STEP_S
    if slow and max(on_loop, waits) >= 0.5 and figures.cores_busy < 0.6 * min(figures.cores, 2):
        yield from _slow_environment(figures, max(on_loop, waits), learner_could)
    elif idle >= 0.3 * figures.cores and run.actor.count < figures.cores:
        gain = min(learner_could, figures.cores / run.actor.count, figures.cores / _used(figures))
        yield Finding(
            "one core",
            f"{run.actor.count} of {figures.cores} cores play, and the learner waits"
            f" {_percent(figures.learner['wait'])} of its time",
            (f"actor.count={figures.cores}",),
            gain=gain,
        )
    if acts >= 0.5:
        yield from _acting(figures, acts, learner_could)
    if max(on_loop, waits) >= _BUSY and (idle < 0.3 * figures.cores or not figures.cores):
        busy, spare = f", and all {figures.cores} cores are busy", ""
        if not figures.cores:
            key = "groups" if run.actor.stepping in ("threads", "processes") else "stepping"
            busy, spare = "", f"another actor.{key} where cores are idle, "
        yield Finding(
            "environment",
            f"the environment takes {_percent(max(on_loop, waits))} of the samplers' time{busy}",
            advice=f"{spare}a faster environment or more machines (headrace node) would give more",
        )


def _used(figures: Figures) -> float:
    """Returns how many cores the run keeps busy: no more than were, starting included, and no more
    than its processes can without their waits."""
    waits = sum(share for name, share in figures.samplers.items() if name.startswith("wait"))
    could = figures.run.actor.count * max(0.0, 1 - waits) + 1 - figures.learner.get("wait", 0.0)
    return max(0.1, min(figures.cores_busy, could))


def _slow_environment(figures: Figures, share: float, most: float) -> Iterator[Finding]:
    run = figures.run
    side_by_side = run.actor.groups if run.actor.stepping in ("threads", "processes") else 1
    groups = max(_GROUPS, 2 * side_by_side)
    sets: tuple[str, ...] = ("actor.stepping=threads", f"actor.groups={groups}")
    if run.unroll.envs > 1:  # those of a group wait for the slowest of them
        batch = run.unroll.envs * run.pacing.batch_unrolls
        sets = (*sets, "unroll.envs=1", f"pacing.batch_unrolls={batch}")
    yield Finding(
        "slow environment",
        f"samplers wait {_percent(share)} of their time for the environment, and only"
        f" {figures.cores_busy:.1f} of {figures.cores} cores are busy",
        sets,
        gain=min(most, groups / side_by_side, figures.cores / max(0.05, figures.cores_busy)),
    )


def _acting(figures: Figures, share: float, most: float) -> Iterator[Finding]:
    """Explains samplers that spend their time around the environment: a call costs as much for a
    few observations as for one."""
    run = figures.run
    rows = run.unroll.envs * run.actor.groups
    if rows >= _ROWS or run.unroll.envs >= _default(run, "unroll.envs", _ROWS):
        return
    envs = _ROWS // run.actor.groups
    times = envs / run.unroll.envs
    batch = max(1, round(run.pacing.batch_unrolls / times))
    yield Finding(
        "acting",
        f"samplers spend {_percent(share)} of their time choosing actions, for {rows}"
        " environments at once",
        (f"unroll.envs={envs}", f"pacing.batch_unrolls={batch}"),
        gain=min(most, 1 / (1 - share * (1 - 1 / times))),
    )


def _default(run: run_file.Run, key: str, otherwise: int) -> int:
    """Returns what the run's algorithm sets where nobody does; `otherwise` if it leaves it."""
    return int(algorithm_defaults.of(run_file.to_dict(run)).get(key, otherwise))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
