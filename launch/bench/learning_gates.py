"""Learning gates: shipped runs that must reach a return within a number of steps, seed by seed.

Each is `headrace train` as a user starts it. A falling loss proves little; these gates prove that
an algorithm, a network or an action space works.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.launch.bench import output
from headrace.launch.bench.train_command import train
from headrace.launch.config import run_file

SEEDS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Gate:
    """Requires of a run a mean return over 100 training episodes within `steps`."""

    run: str
    goal: float
    steps: int
    sets: tuple[str, ...] = ()
    seeds: tuple[int, ...] = SEEDS
    long: bool = False  # runs only when named


def _memory_gate(core: str, algorithm: str) -> Gate:
    sets = [f"model.core={core}", f"algorithm.name={algorithm}"]
    if algorithm == "impala":
        # Without a clip it needs smaller steps, and an entropy bonus against early certainty.
        sets += ["learner.lr=[[0, 1e-3], [1500000, 0]]", "algorithm.entropy_coef=0.01"]
    return Gate("memory", 400, 1_500_000, tuple(sets))


# CartPole pays 1 a step, 500 at most. Without velocities a network that remembers nothing stays
# below 100. Pendulum costs up to 16 a step for 200 steps; the best possible is about -150.
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
    "acrobot": Gate("acrobot", -100, 500_000),
    "pendulum-appo": Gate("pendulum", -250, 1_000_000),
    "pendulum-ppo": Gate("pendulum-ppo", -250, 1_000_000),
    "halfcheetah-ppo": Gate("halfcheetah", 2000, 1_000_000),
    "multi": Gate("multi", 0.95, 300_000),
    "parts": Gate("parts", 0.95, 500_000),
    "masked": Gate("masked", 0.95, 500_000),
    "tracker": Gate("tracker", 0.95, 300_000),
    "catch": Gate("catch", 0.9, 400_000),
    "pong": Gate("pong", 18, 10_000_000, seeds=(1,), long=True),
}


def bench(names: Sequence[str] = ()) -> dict[str, Any]:
    """Runs these gates, or all but the long ones; raises SystemExit if one fails."""
    unknown = [name for name in names if name not in GATES]
    if unknown:
        raise run_file.ConfigError(f"there is no gate {unknown[0]}; there are {', '.join(GATES)}")
    chosen = list(names) or [name for name, gate in GATES.items() if not gate.long]
    for name in chosen:
        gate = GATES[name]
        output.parameters(
            gate=name,
            run=gate.run,
            goal=gate.goal,
            within=gate.steps,
            seeds=list(gate.seeds),
            sets=" ".join(gate.sets) or "none",
        )
    figures = {name: run_gate(name) for name in chosen}
    output.result("learn", figures)
    failed = [name for name, found in figures.items() if found["passed"] != found["seeds"]]
    if failed:
        raise SystemExit(f"headrace bench learn: not passed: {', '.join(failed)}")
    return figures


def run_gate(name: str, *seeds: int) -> dict[str, Any]:
    """Runs one run per seed (none given = the gate's own), in turn: two at once would disturb each
    other's lag."""
    gate = GATES[name]
    seeds = seeds or gate.seeds
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
        )
    return {
        "goal": gate.goal,
        "within": gate.steps,
        "seeds": list(seeds),
        "passed": [
            seed
            for seed, one in zip(seeds, found, strict=True)
            if one["solved_at_steps"] is not None and one["solved_at_steps"] <= gate.steps
        ],
        "solved_at_steps": [one["solved_at_steps"] for one in found],
        "wall_s": [one["wall_s"] for one in found],
        "mean_return": [one["mean_return"] for one in found],
    }


def _train(gate: Gate, seed: int) -> dict[str, Any]:
    """Returns the run's summary; a run that left none counts as not solved."""
    options = [
        "--seed",
        str(seed),
        "--stop-return",
        str(gate.goal),
        "--stop-steps",
        str(gate.steps),
        *(word for setting in gate.sets for word in ("--set", setting)),
    ]
    try:
        return train(gate.run, options)
    except (FileNotFoundError, json.JSONDecodeError):
        return {"solved_at_steps": None, "wall_s": None, "mean_return": None}
