"""Made-up statuses of a broker, whole and damaged."""

import math
from typing import Any

SCRIPT = "<script>document.title = 'broken'</script><img src=x onerror=alert(1)>"
# Turned around, coloured, ringing, endless.
TURNED = "\u202etxet\u202c שלום \x1b[31mred\x07\x00"
LONG = "x" * 5000


def status(second: int = 0, *, samplers: int = 312, ranks: int = 8, **more: Any) -> dict[str, Any]:
    """At that second of a run; everything in it moves evenly."""
    trained = 1205 * second + 100
    return {
        "run": "breakout",
        "version": 2 * second + 10,
        "weights": 2 * second + 10,
        "queued": 37,
        "queued_bytes": 2.5e8,
        "queue_limit_bytes": 1e9,
        "unread_bytes": 3e6,
        "leased": 64,
        "running": 912,
        "received": trained + 124 + 101,
        "outcomes": {
            "trained": trained,
            "stale": 120,
            "shed": 0,
            "duplicate": 0,
            "rejected": 4,
            "poison": 0,
            "abandoned": 0,
        },
        "duplicates": 7,
        "over": False,
        "uptime_s": 4000.0 + second,
        "beat_s": 1.0,
        "max_lag": 4,
        "ahead": 3.5,
        "batch_unrolls": 64,
        "unaccounted": 0,
        "weights_bytes": 6.0 * 2**20,
        "actors": {
            "count": samplers,
            "behind": samplers // 30,
            "env_steps": 24000.0 * second,
            "episodes": 900.0,
            "generated": 1.0,
            "unacked": 2.0,
            "bytes": 2.0 * 2**20 * second,
            "wall_s": 100.0 * second,
            "inference_s": 23.0 * second,
            "replies_s": 2.0 * second,
            "loop_env_s": 12.0 * second,
            "wait_env_s": 55.0 * second,
            "wait_credit_s": 4.0 * second,
            "wait_weights_s": 0.5 * second,
            "wait_gather_s": 0.0,
        },
        "samplers": {"env_steps": 24200.0 * second, "episodes": 1200.0, "generated": 10.0},
        "learners": [
            {
                "name": f"learner-{rank}",
                "silent_s": 0.5,
                "clock": 1_795_000_000.0 + second,
                "version": 2.0 * second,
                "t": 1.0,
                "trained_steps": 24100.0 * second,
                "episodes": 12345.0,
                "mean_return": 312.42,
                "mean_length": 55.5,
                "metric.won": 0.25,
                "time_wait": 0.625,
                "time_forward": 0.25,
                "explained_variance": 0.875,
                "lag": 1.31,
                "policy_loss": -0.0123,
                "grad_norm": 0.9,
                "lr": 0.00025,
            }
            for rank in range(ranks)
        ],
        "evaluators": [
            {
                "name": "ev",
                "silent_s": 1.0,
                "version": 9.0,
                "mean": 341.0,
                "low": 322.0,
                "high": 360.0,
                "metric.won": 0.5,
                "metric.far": 3.0,
            }
        ],
        "league": [met("past", 60.5), met("random", 412.0)],
        "ways": [
            way("played", "started", "full", p50=41.26, p90=50.0, p99=66.0),
            way("sent", "full", "arrived", shortest=-3.04, p50=0.9, p90=2.0, p99=None),
        ],
        "explain": ["1. one core of two plays; set actor.count=2", "learner   wait 62 %"],
        "late": [],
        "behind_versions": 1,
        "troubles": [],
        "curve": [[400_000.0 * at, 340 * (1 - math.exp(-at / 60))] for at in range(240)],
        **more,
    }


def way(name: str, since: str, to: str, **took: float | None) -> dict[str, Any]:
    """Between two stations of the sampled unrolls."""
    return {"name": name, "since": since, "to": to, "unrolls": 1234, "negative": 0, **took}


def met(opponent: str, rating: float | None) -> dict[str, Any]:
    """Returns how games with one of the league ended."""
    games = {"who": "other_1", "opponent": opponent, "won": 1234, "drawn": 5, "lost": 678}
    return {**games, "points": 0.64, "rating": rating, "low": rating, "high": rating}


def hostile(second: int = 0) -> dict[str, Any]:
    """Every text that comes from a peer is one that should do harm."""
    late = [{"role": "actor", "name": name, "silent_s": 9.0} for name in (SCRIPT, TURNED, LONG)]
    troubles = [
        {"role": "actor", "name": text, "text": text, "count": 3, "ago_s": 60.0}
        for text in (SCRIPT, TURNED, LONG)
    ]
    learners = [
        {"name": SCRIPT, SCRIPT[:64]: 1.0, "__proto__": 2.0, "trained_steps": 5.0},
        {f"{kind}{text[:57]}": 0.5 for kind in ("metric.", "time_") for text in (SCRIPT, TURNED)},
    ]
    return status(
        second,
        run=SCRIPT,
        late=late,
        troubles=troubles,
        learners=learners,
        outcomes={"trained": 5, SCRIPT: 7},
        ways=["nonsense", way(SCRIPT, TURNED, LONG)],
        league=["nonsense", met(SCRIPT, None), met(TURNED, 1.0), met(LONG, 2.0)],
        evaluators=["nonsense"],
        curve=[[1, 2], "x", None],
        explain=[SCRIPT, TURNED, LONG, 7, None],
    )


# As a broker of before, or one without any peer, says it.
BARE: dict[str, Any] = {
    "run": "small",
    "version": 0,
    "weights": -1,
    "queued": 0,
    "leased": 0,
    "running": 0,
    "received": 0,
    "outcomes": {"trained": 0, "stale": 0},
    "duplicates": 0,
    "actors": {"behind": 0, "count": 0},
    "learners": [],
    "evaluators": [],
    "over": False,
}
