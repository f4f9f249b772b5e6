"""The lines of real processes, as a log collector gets them."""

import json
from typing import Any

from tests.system.conftest import Place, Process, until

JSON = {"HEADRACE_LOG": "json"}


def lines(process: Process) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.lines()]


def test_every_line_tells_whose_it_is(place: Place) -> None:
    broker = place.broker("--log", "json")
    learner = place.learner("--log", "json", "--metrics-port", "0")
    actor = place.headrace("actor", "--broker", place.ipc, "--name", "node7-1", env=JSON)
    evaluator = place.headrace("evaluate", "--broker", place.ipc, "--name", "eve", env=JSON)
    until(lambda: any("return" in line["text"] for line in lines(evaluator)), "it was evaluated")
    started = {"broker": broker, "learner": learner, "actor": actor, "evaluator": evaluator}
    for process in (actor, evaluator, learner, broker):
        assert process.term() == 0, process.text()
    names = {"broker": "", "learner": "learner-0", "actor": "node7-1", "evaluator": "eve"}
    incs = set()
    for role, process in started.items():
        last = lines(process)[-1]
        assert (last["role"], last["run"], last["name"]) == (role, "small", names[role])
        assert int(last["inc"], 16) > 0 and len(last["inc"]) == 16
        incs.add(last["inc"])
    assert len(incs) == 4
    # The same incarnation as in the journal.
    (journal,) = place.ledger.glob("broker-*.log")
    assert journal.name == f"broker-{int(lines(broker)[-1]['inc'], 16)}.log"
