"""Samplers far away: how many unrolls are trained is what README's formula says."""

import time

import pytest

from tests.system.conftest import RUN, Place, until
from tests.system.harness.figures import LONG, say
from tests.system.network.line import Condition
from tests.system.network.network import Network, net  # noqa: F401  # a fixture

pytestmark = pytest.mark.alone

LENGTH, STEP_S = 10, 0.02  # an unroll lasts 0.2 s: on any machine much longer than all else
SAMPLERS, GROUPS = 2, 8
STREAMS = SAMPLERS * GROUPS
AHEAD = 4  # unrolls that one stream may have under way
LEARNER_STEP_S = 0.005  # of so small a network, more or less
FAR = (
    RUN.replace('id = "CartPole-v1"', f'id = "headrace/Sleeper-v0"\nkwargs.step_s = {STEP_S}')
    .replace("length = 8\nenvs = 4", f"length = {LENGTH}\nenvs = 1")
    .replace("beat_s = 0.2\nlease_s = 2.0", "beat_s = 1.0\nlease_s = 10.0")
    .replace("groups = 2", f'groups = {GROUPS}\nstepping = "threads"')
)
# max_lag, batch_unrolls -> round trips
_SHORT = {(1, 8): (0.1,)}
_ROUND_TRIPS_S = (0.0, 0.05, 0.1, 0.5)
_LONG = dict.fromkeys([(0, 16), (1, 8), (7, 4), (31, 8)], _ROUND_TRIPS_S)


def predicted(*, max_lag: int, batch: int, round_trip_s: float) -> float:
    """Unrolls a second: the least of what streams play, may have under way, and pacing allows."""
    unroll_s, window = LENGTH * STEP_S, (max_lag + 1) * batch
    return min(
        STREAMS / unroll_s,
        AHEAD * STREAMS / (unroll_s + round_trip_s),
        batch / LEARNER_STEP_S,
        window / (2 * round_trip_s + unroll_s * max(1, batch / STREAMS) + LEARNER_STEP_S),
    )


@pytest.mark.parametrize(("max_lag", "batch"), _LONG if LONG else _SHORT)
def test_throughput_over_a_long_line(
    net: Network,  # noqa: F811
    place: Place,
    max_lag: int,
    batch: int,
) -> None:
    """Broker and learner on one host, the samplers on another: measured within a fifth of what is
    predicted, at each length of the line between them."""
    pacing = f"batch_unrolls = {batch}\nmax_lag = {max_lag}"
    place.run = place.toml("run.toml", FAR.replace("batch_unrolls = 2\nmax_lag = 2", pacing))
    far = net.host("samplers")
    net.hub.broker(place)
    net.hub.learner(place)
    for number in range(SAMPLERS):
        far.actor(place, "--name", f"far{number}")
    place.trains(4 * STREAMS)
    window = max(STREAMS, (max_lag + 1) * batch)
    ratios = {}
    for round_trip_s in (_LONG if LONG else _SHORT)[max_lag, batch]:
        far.becomes(Condition(delay_s=round_trip_s / 2))
        place.trains(3 * window)  # those under way began on another line
        began, before = moves(place)
        place.trains(10 * STREAMS)
        ended, after = moves(place)
        measured = (after - before) / (ended - began)
        foreseen = predicted(max_lag=max_lag, batch=batch, round_trip_s=round_trip_s)
        ratios[round_trip_s] = measured / foreseen
        say(
            "long line",
            max_lag=max_lag,
            batch_unrolls=batch,
            round_trip_ms=1000 * round_trip_s,
            unrolls_per_s=measured,
            predicted=foreseen,
        )
    assert all(0.8 <= ratio <= 1.2 for ratio in ratios.values()), ratios


def moves(place: Place) -> tuple[float, int]:
    """Waits for the next optimiser step; when it was, and how many are trained then."""
    before = place.trained()
    after: int = until(lambda: max(0, place.trained() - before), "a step")
    return time.monotonic(), before + after
