"""Sinks beside a real run: one is killed, and nobody else notices."""

import csv
import os
import signal

from tests.needs import missing
from tests.system.conftest import Place, until


def test_one_sends_the_whole_run_though_the_other_dies(place: Place) -> None:
    train = place.train("--set", 'log.sinks=["csv", "parquet"]')
    dies = until(
        lambda: (
            [pid for pid, line in place.alive().items() if "--to parquet" in line]
            or "pip install" in train.text()
        ),
        "a sink",
    )
    if not isinstance(dies, list):
        missing("pyarrow is not installed: pip install 'headrace[parquet]'")
    place.trains()
    os.kill(dies[0], signal.SIGKILL)
    train.says("log-parquet ended early; the run goes on")
    place.trains()
    assert train.term() == 3, train.text()
    with (place.out / "figures.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(place.history())
    assert int(float(rows[-1]["steps"])) == place.history()[-1]["trained_steps"]
    assert not (place.out / "figures.parquet").exists()
    place.nothing_is_left()
