"""Names the figures that a sampler tells of itself at every beat: a closed set, for both ends."""

from typing import Final

from headrace.broker import histograms
from headrace.broker.protocol.messages import Outcome

WAITS: Final = ("credit", "weights", "env", "gather")
FAILURES: Final = ("make", "reset", "step", "time-out", "death", "values")
OUTCOMES: Final = tuple(outcome.name.lower() for outcome in Outcome)

# Every name that a sampler may say and that only grows.
GROWING: Final = (
    "env_steps",
    "episodes",
    "generated",
    "bytes",
    "raw_bytes",
    "env_s",
    "inference_s",
    "replies_s",
    "calls",
    "rows",
    "reconnects",
    *(f"wait_{phase}_s" for phase in WAITS),
    *(f"out_{outcome}" for outcome in OUTCOMES),
    *(f"fail_{where}" for where in FAILURES),
    *histograms.names("ack", histograms.ACK_S),
    *histograms.names("step", histograms.STEP_S),
)
