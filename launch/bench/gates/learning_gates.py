"""Learning gates: shipped runs that must reach a return within a number of steps, seed by seed.

Each is `headrace train` as a user starts it. A falling loss proves little; these gates prove that
an algorithm, a network or an action space works. Two runs of one seed differ, because sampling is
asynchronous: a gate is passed by a share of its runs, and by their quartiles.
"""

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from headrace.launch.bench import output
from headrace.launch.bench.gates.games import HALF, Games, play, play_alone
from headrace.launch.bench.train_command import train
from headrace.launch.config import run_file
from headrace.launch.policies.split import has_policies, split

SEEDS = (1, 2, 3)
# A gate is passed when so many of its runs pass, and its third quartile of steps is at most so many
# times the median: a slow quarter is a failed run at another seed.
PASS_RATE, SLOWEST = 0.95, 2.0


@dataclass(frozen=True, slots=True)
class Gate:
    """Requires of a run a mean return over 100 training episodes, or over an evaluation, within
    `steps`, or that what it learned in `steps` plays as well against others as `games` say."""

    run: str
    goal: float  # counts for nothing where there are games
    steps: int
    sets: tuple[str, ...] = ()
    seeds: tuple[int, ...] = SEEDS
    long: bool = False  # runs only when named
    package: str = ""  # the environment's own, which may not be installed
    games: tuple[Games, ...] = ()
    # The mean of all kept checkpoints makes all choices alike, within so much; 0 = off.
    even: float = 0.0

    @property
    def plays(self) -> bool:
        """Tells whether what it learned is tried, in place of a return that it must reach."""
        return bool(self.games or self.even)

    @property
    def evaluated(self) -> bool:
        """Tells whether the return is that of an evaluation, by the likeliest actions."""
        return "stop.metric=evaluation" in self.sets


def _memory_gate(core: str, algorithm: str) -> Gate:
    sets = [f"model.core={core}", f"algorithm.name={algorithm}"]
    if algorithm == "impala":
        # Without a clip it needs smaller steps, and an entropy bonus against early certainty.
        sets += ["learner.lr=[[0, 1e-3], [1500000, 0]]", "algorithm.entropy_coef=0.01"]
        # As it was measured.
        sets += ["algorithm.drift_limit=0.0", "algorithm.replay_share=0.0"]
    return Gate("memory", 400, 1_500_000, tuple(sets))


def _tmaze_gate(run: str, corridor: int, steps: int) -> Gate:
    return Gate(run, 0.9, steps, (f"env.kwargs.length={corridor}",), (1, 2, 3, 4, 5))


def _attending_gate(corridor: int, steps: int) -> Gate:
    sets = (
        f"env.kwargs.length={corridor}",
        "model.core=transformer",
        "model.core_units=64",
        "learner.lr=1e-3",  # with three times as much it forgets what it has learned
        "unroll.length=64",
        "unroll.envs=8",
    )
    return Gate("tmaze-ppo", 0.9, steps, sets, (1, 2, 3, 4, 5))


# Tasks that no run is tuned for: id, package, goal and steps. Where there is a figure, they are of
# Stable Baselines3's PPO as its zoo tunes it; docs/benchmarks.md has the sources.
_BARE: Final = {
    "cartpole": ("CartPole-v1", "", 475, 100_000),
    "acrobot": ("Acrobot-v1", "", -85, 1_000_000),
    "lunarlander": ("LunarLander-v3", "Box2D", 242, 1_000_000),
    "minatar-breakout": ("MinAtar/Breakout-v1", "minatar", 11, 1_000_000),
    "minigrid-doorkey": ("minigrid:MiniGrid-DoorKey-5x5-v0", "minigrid", 0.95, 300_000),
    "pendulum": ("Pendulum-v1", "", -170, 2_000_000),
    "lunarlander-continuous": ("LunarLanderContinuous-v3", "Box2D", 242, 1_000_000),
    "inverteddoublependulum": ("InvertedDoublePendulum-v5", "mujoco", 9100, 1_000_000),
}
_CONTINUOUS: Final = ("pendulum", "lunarlander-continuous", "inverteddoublependulum")
# What acts with numbers plays less well by drawn ones, and the references play the likeliest ones.
_EVALUATED: Final = ("lunarlander-continuous", "inverteddoublependulum")


def _bare_gates() -> Iterator[tuple[str, Gate]]:
    """Yields the gates of runs that name an environment and an algorithm, and nothing else."""
    for task, (env, package, goal, steps) in _BARE.items():
        for algorithm in ("ppo", "appo", *(("impala",) if task not in _CONTINUOUS else ())):
            sets = [f"env.id={env}", f"algorithm.name={algorithm}"]
            if task in _EVALUATED:
                sets += [f"stop.return={goal}", "stop.metric=evaluation"]
            gate = Gate("bare", goal, steps, tuple(sets), long=True, package=package)
            yield f"bare-{task}-{algorithm}", gate


def _minigrid_memory_gate(algorithm: str) -> Gate:
    """Returns a bare run with a memory: which of two things is the right one follows from the one
    seen before; 0.5 is chance."""
    env = "env.id=minigrid:MiniGrid-MemoryS7-v0"
    sets = (env, f"algorithm.name={algorithm}", "model.core=lstm")
    return Gate("bare", 0.9, 500_000, sets, long=True, package="minigrid")


# Its agents come and go.
_SHIFTS: Final = (
    "env.id=headrace.actors.envs.toys.several_agents:Shifts",
    "env.kwargs.agents=4",
    "unroll.envs=8",
)

# CartPole pays 1 a step, 500 at most. Without velocities a network that remembers nothing stays
# below 100. A T-maze pays 1 for a cue that was remembered, half of it for a guess.
# Pendulum costs up to 16 a step for 200 steps; the best possible is about -150.
# Catch pays 1 or -1. The other tasks of headrace.actors.envs.toys.tasks pay at most 1;
# drawn actions lose a little of that, so a gate allows 5 % less.
GATES: dict[str, Gate] = {
    "cartpole-impala": Gate("cartpole-impala", 475, 500_000),
    "cartpole-appo": Gate("cartpole", 475, 400_000),
    "cartpole-ppo": Gate("cartpole-ppo", 475, 200_000),
    "memory-lstm-impala": _memory_gate("lstm", "impala"),
    "memory-lstm-appo": _memory_gate("lstm", "appo"),
    "memory-gru-impala": _memory_gate("gru", "impala"),
    "memory-gru-appo": _memory_gate("gru", "appo"),
    "tmaze-10-ppo": _tmaze_gate("tmaze-ppo", 10, 30_000),
    "tmaze-10-appo": _tmaze_gate("tmaze", 10, 200_000),
    "tmaze-25-ppo": _tmaze_gate("tmaze-ppo", 25, 100_000),
    "tmaze-25-appo": _tmaze_gate("tmaze", 25, 200_000),
    "tmaze-10-transformer": _attending_gate(10, 50_000),
    "tmaze-25-transformer": _attending_gate(25, 100_000),
    "acrobot": Gate("acrobot", -100, 500_000),
    "pendulum-appo": Gate("pendulum", -250, 1_000_000),
    "pendulum-ppo": Gate("pendulum-ppo", -250, 1_000_000),
    "halfcheetah-ppo": Gate("halfcheetah", 2000, 1_000_000),
    "multi": Gate("multi", 0.95, 300_000),
    "parts": Gate("parts", 0.95, 500_000),
    "masked": Gate("masked", 0.95, 500_000),
    "tracker": Gate("tracker", 0.95, 300_000),
    "catch": Gate("catch", 0.9, 400_000),
    "seats-2": Gate("seats", 9.5, 150_000, ("env.kwargs.agents=2", "unroll.envs=8")),
    "seats-5": Gate("seats", 9.5, 300_000),
    "shifts": Gate("seats", 0.95, 150_000, _SHIFTS),
    # A policy that speaks, and one that listens: each must reach it.
    "signals": Gate("signals", 0.95, 100_000),
    "nim": Gate("nim", 0.95, 150_000),
    "rock-paper-scissors": Gate("rock-paper-scissors", 0.0, 500_000, even=0.05),
    # Two that find all share a return of 1: 0.9 of it.
    "foraging": Gate("foraging", 0.45, 2_000_000, long=True, package="lbforaging"),
    # What a PPO of Stable Baselines3 with the same settings has after 500k steps, measured here.
    "spread": Gate("spread", -19.7, 500_000, long=True, package="mpe2"),
    "tictactoe": Gate(
        "tictactoe",
        0.0,
        2_000_000,
        long=True,
        package="pettingzoo",
        games=(
            Games("random", 1000, lost=0.0),
            Games("headrace.launch.bench.gates.games:perfect_tictactoe", 1000, lost=0.05),
        ),
    ),
    "connect-four": Gate(
        "connect-four",
        0.0,
        3_000_000,
        long=True,
        package="pettingzoo",
        games=(Games("random", 1000, won=0.95), Games(HALF, 1000, won=0.6, greedy=False)),
    ),
    "pong": Gate("pong", 18, 2_500_000, seeds=(1,), long=True),
    "pong-ppo": Gate("pong-ppo", 18, 2_500_000, seeds=(1, 2), long=True),
    "minigrid-memory-ppo": _minigrid_memory_gate("ppo"),
    "minigrid-memory-appo": _minigrid_memory_gate("appo"),
    **dict(_bare_gates()),
}


def bench(names: Sequence[str] = (), runs: int = 0, sets: Sequence[str] = ()) -> dict[str, Any]:
    """Runs these gates, those of these runs, or all but the long ones, with seeds 1 to `runs` (0 =
    each gate's own) and these settings beside their own; raises SystemExit if one fails."""
    chosen = [gate for name in names for gate in _named(name)]
    chosen = chosen or [name for name, gate in GATES.items() if not gate.long]
    for name in [name for name in chosen if not _installed(name)]:
        output.parameters(gate=name, skipped=f"{GATES[name].package} is not installed")
        chosen.remove(name)
    gates = {name: _with(GATES[name], sets) for name in chosen}
    for name, gate in gates.items():
        output.parameters(
            gate=name,
            run=gate.run,
            goal="games" if gate.plays else gate.goal,
            within=gate.steps,
            seeds=list(_seeds(gate, runs)),
            sets=" ".join(gate.sets) or "none",
        )
    figures = {name: run_gate(name, gate, *_seeds(gate, runs)) for name, gate in gates.items()}
    output.result("learn", figures)
    failed = [
        name
        for name, found in figures.items()
        if found["pass_rate"] < PASS_RATE or found["third_over_median"] > SLOWEST
    ]
    if failed:
        raise SystemExit(f"headrace bench learn: not passed: {', '.join(failed)}")
    return figures


def _with(gate: Gate, sets: Sequence[str]) -> Gate:
    """Returns the gate with these settings, too; raises ConfigError where its run lacks one."""
    whole = (*gate.sets, *sets)
    if has_policies(gate.run):
        for one in split(gate.run, whole):
            run_file.build(one.tables, one.sets, source=one.name)
    else:
        run_file.load(gate.run, whole)
    return replace(gate, sets=whole)


def _seeds(gate: Gate, runs: int) -> tuple[int, ...]:
    return tuple(range(1, runs + 1)) or gate.seeds


def _named(name: str) -> list[str]:
    """Returns the gate of this name, or those of the run of this name."""
    of_run = [gate for gate, one in GATES.items() if one.run == name]
    if name not in GATES and not of_run:
        raise run_file.ConfigError(f"there is no gate {name}; there are {', '.join(GATES)}")
    return [name] if name in GATES else of_run


def _installed(name: str) -> bool:
    package = GATES[name].package
    return not package or find_spec(package) is not None


def run_gate(name: str, gate: Gate, *seeds: int) -> dict[str, Any]:
    """Runs one run per seed, in turn: two at once would disturb each other's lag."""
    found: list[dict[str, Any]] = []
    for seed in seeds:
        summary = _train(gate, seed)
        found.append(summary)
        output.parameters(
            gate=name,
            seed=seed,
            solved_at_steps=summary["solved_at_steps"],
            wall_s=summary["wall_s"],
            mean_return=summary["mean_return"],
            **({"games": json.dumps(summary["games"])} if gate.plays else {}),
        )
    solved = [one["solved_at_steps"] for one in found]
    # A run that was not solved needs more steps than there are.
    needed = [gate.steps + 1 if steps is None else steps for steps in solved]
    passed = [seed for seed, steps in zip(seeds, needed, strict=True) if steps <= gate.steps]
    quartiles = statistics.quantiles(needed * 2 if len(needed) == 1 else needed, method="inclusive")
    return {
        "goal": gate.goal,
        "within": gate.steps,
        "seeds": list(seeds),
        "passed": passed,
        "pass_rate": round(len(passed) / len(seeds), 3),
        "quartiles": [round(steps) for steps in quartiles],
        "third_over_median": round(quartiles[2] / quartiles[1], 2),
        "solved_at_steps": solved,
        "wall_s": [one["wall_s"] for one in found],
        "mean_return": [one["mean_return"] for one in found],
        **({"games": [one["games"] for one in found]} if gate.plays else {}),
    }


def _train(gate: Gate, seed: int) -> dict[str, Any]:
    """Returns the run's summary; a run that left none counts as not solved. One that plays games
    is solved at its end, if they all hold."""
    goal = [] if gate.plays else ["--stop-return", str(gate.goal)]
    options = ["--seed", str(seed), *goal, "--stop-steps", str(gate.steps)]

    def playing(folder: Path) -> dict[str, Any]:
        played = [play(folder, games) for games in gate.games]
        played += [play_alone(folder, gate.even)] if gate.even else []
        holds = all(one["holds"] for one in played)
        return {"games": played, "solved_at_steps": gate.steps if holds else None}

    try:
        afterwards = playing if gate.plays else None
        return train(gate.run, options, gate.sets, afterwards, evaluated=gate.evaluated)
    except (FileNotFoundError, json.JSONDecodeError):
        return {"solved_at_steps": None, "wall_s": None, "mean_return": None, "games": []}
