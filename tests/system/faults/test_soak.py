"""A small run under steady load: nothing grows, and the account is exact."""

import os
import time
from statistics import median

from tests.system.conftest import Place
from tests.system.harness.chaos import System
from tests.system.harness.figures import LONG, say
from tests.system.harness.tally import tally
from tests.system.harness.watching import Held, held, slope

# Minutes of the soak; of `make test` a quarter of one, which shows that the measuring works.
MINUTES = float(os.environ.get("HEADRACE_SOAK_MINUTES", "60")) if LONG else 0.15
WARM_UP = 1 / 6  # of the whole: 10 min of 60
EVERY_S = 5.0 if LONG else 0.5


def test_nothing_grows(place: Place, tcp: str) -> None:
    """No faults. Memory, descriptors and threads of each process are looked at all the time."""
    system = System(place, tcp, samplers=2)
    seen: dict[str, list[tuple[float, Held]]] = {name: [] for name in system.names}
    began, seconds = time.monotonic(), 60 * MINUTES
    while (now := time.monotonic() - began) < seconds:
        for name, role in system.roles.items():
            seen[name].append((now / 3600, held(role.pid)))
        time.sleep(EVERY_S)
    lost = system.unsettled()
    system.finish()

    found, account = tally(place.ledger), place.account()
    written = sum(path.stat().st_size for path in place.ledger.iterdir())
    warm = {
        name: [(at, what) for at, what in looks if at > WARM_UP * MINUTES / 60]
        for name, looks in seen.items()
    }
    slopes = {
        name: slope([(hour, what.rss_mb) for hour, what in looks]) for name, looks in warm.items()
    }
    say(
        "soak",
        minutes=MINUTES,
        generated=len(found.generated),
        **found.outcomes(),
        lost=len(lost),
        twice=found.twice(),
        **{f"{name}_mb_per_h": value for name, value in slopes.items()},
        **{f"{name}_mb": looks[-1][1].rss_mb for name, looks in warm.items()},
        ledger_bytes_per_unroll=written / max(1, len(found.generated)),
    )
    assert lost == set()
    assert (found.untrue(), found.ghosts(), found.twice()) == (0, 0, 0)
    assert len(found.generated) == sum(found.outcomes().values())
    assert (account.unaccounted(), account.untrue, account.in_flight) == (0, 0, 0)
    for name, looks in warm.items():
        halves = looks[: len(looks) // 2], looks[len(looks) // 2 :]
        threads = [median(what.threads for _, what in half) for half in halves]
        assert threads[0] == threads[1], f"threads of {name}: {threads}"
        # One or two come and go: a checkpoint that is written, a journal that is folded. Of the few
        # looks of a short run, all may meet them.
        descriptors = [min(what.descriptors for _, what in half) for half in halves]
        may = 0 if LONG else 2
        assert descriptors[1] <= descriptors[0] + may, f"descriptors of {name}: {descriptors}"
        if LONG and MINUTES >= 30:
            assert slopes[name] <= 1.0, f"{name} grows by {slopes[name]:.2f} MB an hour"
