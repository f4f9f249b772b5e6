"""When sampled unrolls were where: what processes write, and what is made of it."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.broker.journal import audit, trace, trace_reader
from headrace.broker.journal.journal import Journal
from headrace.broker.journal.trace_reader import TracedUnroll, Traces
from headrace.broker.protocol.messages import Outcome, Unroll

STATIONS = ["started", "full", "arrived", "leased", "trained", "acknowledged", "acted"]


def write(folder: Path, every: int, unrolls: int) -> None:
    """All that three processes note of two streams whose unrolls are trained four at a time."""
    actor, broker, learner = (
        Journal(folder, f"{role}-1.log") for role in ("actor", "broker", "learner")
    )
    for journal in (actor, broker, learner):
        journal.trace(every)
    actor.joins("actor", 3, "node 1")
    for seq in range(unrolls):
        for stream in (0, 1):
            actor.started(3, stream, seq)
            actor.generated(3, stream, seq, 10)
            unroll = Unroll(3, stream, seq, 0, 0, 0, 10, 0, 0, ())
            broker.arrived(unroll)
            broker.leased(unroll)
        if seq % 2:
            version = (seq + 1) // 2
            learner.trained([(3, s, n) for s in (0, 1) for n in (seq - 1, seq)], version)
            broker.settled({(3, s, Outcome.TRAINED): [seq - 1, seq] for s in (0, 1)})
            actor.acknowledged(3, [(s, seq - 1, seq + 1) for s in (0, 1)], Outcome.TRAINED)
            actor.acts_with(3, version)
    for journal in (actor, broker, learner):
        journal.close()


@pytest.mark.parametrize("every", [1, 3, 10])
def test_one_in_so_many_of_each_stream_is_at_every_station(tmp_path: Path, every: int) -> None:
    write(tmp_path, every, 60)
    traces = trace_reader.read(tmp_path)
    assert traces.damage == []
    for stream in (0, 1):
        seqs = [unroll.seq for unroll in traces.unrolls if unroll.stream == stream]
        assert seqs == list(range(seqs[0], 60, every))
        assert seqs[0] < every
    for unroll in traces.unrolls:
        assert sorted(unroll.times, key=STATIONS.index) == STATIONS
        at = [unroll.times[station] for station in STATIONS]
        assert at == sorted(at)
        assert (unroll.end(), unroll.version) == ("trained", unroll.seq // 2 + 1)
    assert [way.unrolls for way in traces.ways()] == [120 // every] * 7


def test_its_price_is_six_lines_for_a_sampled_unroll_and_one_for_a_version(tmp_path: Path) -> None:
    """docs/monitor/trace.md says what a line costs; at N = 100 there are 0.06 to an unroll, and one
    to a version."""
    write(tmp_path, 100, 1000)
    lines = "".join(file.read_text() for file in tmp_path.glob("*.trace")).splitlines()
    versions = sum(line.startswith("acts ") for line in lines)
    assert versions == 500
    assert len(lines) - versions == 6 * 2000 / 100


def test_the_audit_does_not_look_at_traces(tmp_path: Path) -> None:
    write(tmp_path / "off", 0, 20)
    write(tmp_path / "on", 1, 20)
    assert audit.read(tmp_path / "on") == audit.read(tmp_path / "off")
    assert audit.read(tmp_path / "on").exact()


def test_switched_off_it_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, 0, 10)
    journal = Journal(None, "actor-1.log")
    journal.trace(1)
    journal.started(1, 0, 0)
    journal.close()
    assert list(tmp_path.rglob("*trace")) == []


def test_what_a_sampler_gives_up_is_abandoned(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "actor-1.log")
    journal.trace(1)
    journal.started(1, 0, 0)
    journal.generated(1, 0, 0, 5)
    journal.given_up(1, [(0, 0, 1)])
    (unroll,) = trace_reader.read(tmp_path).unrolls
    assert unroll.end() == "abandoned"
    journal.close()


def test_a_run_of_weeks_keeps_its_latest_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "LARGE", 2000)
    write(tmp_path, 1, 300)
    files = sorted(tmp_path.glob("*.trace"))
    assert len(files) == 6
    assert all(0 < path.stat().st_size < 2100 for path in files)
    traces = trace_reader.read(tmp_path)
    assert traces.damage == []
    assert max(unroll.seq for unroll in traces.unrolls) == 299


def test_a_trace_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "actor-1.trace").mkdir()  # in the way
    journal = Journal(tmp_path, "actor-1.log")
    journal.trace(1)
    for seq in range(3):
        journal.started(1, 0, seq)
        journal.generated(1, 0, seq, 5)
    journal.close()
    assert (tmp_path / "actor-1.log").read_text().count("G 1 0 ") == 3
    assert caplog.text.count("no more traces") == 1


# ---- reading -------------------------------------------------------------------------------------


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Traces]:
    """Writes files by name and reads them."""

    def _read(newest: int = 0, **files: str) -> Traces:
        for name, text in files.items():
            (tmp_path / f"{name}.trace").write_text(text)
        return trace_reader.read(tmp_path, newest=newest)

    return _read


def only(traces: Traces) -> TracedUnroll:
    (unroll,) = traces.unrolls
    return unroll


ACTOR = "started 7 0 5 1000\nfull 7 0 5 3000\nacknowledged 7 0 5 9000 trained\n"


def test_times_are_differences_in_milliseconds(read: Callable[..., Traces]) -> None:
    unroll = only(
        read(
            actor=f"acts 7 3 500\n{ACTOR}acts 7 4 9500\nacts 7 6 10000\n",
            other="acts 8 5 9600\n",  # of another sampler
            broker="arrived 7 0 5 3100\nleased 7 0 5 4100\n",
            learner="trained 7 0 5 8600 5\n",
        )
    )
    assert unroll.took("started", "full") == 2.0
    assert unroll.took("full", "arrived") == 0.1
    assert unroll.took("leased", "trained") == 4.5
    assert unroll.took("trained", "acted") == 1.4
    assert unroll.took("started", "acted") == 9.0


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"actor": "started 7 0 5 1000\n"}, "nothing after started"),
        ({"actor": ACTOR}, "nothing after acknowledged"),
        ({"broker": "arrived 7 0 5 1\nleased 7 0 5 2\n"}, "nothing after leased"),
        ({"actor": "started 7 0 5 1\nacknowledged 7 0 5 9 stale\n"}, "stale"),
        ({"actor": f"{ACTOR}acts 7 2 9999\n", "learner": "trained 7 0 5 8000 2\n"}, "trained"),
        ({"broker": "leased 7 0 5 2\n" * 3}, "nothing after leased, leased 3 times"),
    ],
)
def test_an_incomplete_trace_says_what_was_last_heard(
    read: Callable[..., Traces], files: dict[str, str], words: str
) -> None:
    assert only(read(**files)).end() == words


def test_the_first_time_at_a_station_counts(read: Callable[..., Traces]) -> None:
    unroll = only(read(learner="trained 7 0 5 2000 3\n", second="trained 7 0 5 4000 9\n"))
    assert (unroll.times["trained"], unroll.version) == (2000, 3)


def test_clocks_that_differ_are_not_hidden(read: Callable[..., Traces]) -> None:
    traces = read(actor=ACTOR, broker="arrived 7 0 5 500\n")
    assert only(traces).took("full", "arrived") == -2.5
    (way,) = [way for way in traces.ways() if way.to == "arrived"]
    assert (way.negative, way.shortest, way.longest) == (1, -2.5, -2.5)


def test_percentiles_are_times_that_were(read: Callable[..., Traces]) -> None:
    lines = [f"started 7 0 {n} 0\nfull 7 0 {n} {1000 * (n + 1)}\n" for n in range(1000)]
    played = read(actor="".join(lines)).ways()[0]
    assert (played.unrolls, played.p50, played.p90, played.p99) == (1000, 500, 900, 990)
    assert (played.shortest, played.longest, played.negative) == (1, 1000, 0)
    assert math.isnan(read(actor="").ways()[0].p50)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\0\0\0\0",
        "started",
        "started 7 0 5",
        "started 7 0 five 1",
        "started 7 0 5 -1",
        f"started 7 0 5 {10**40}",
        f"started 7 0 {'9' * 100_000} 1",
        "started 7 0 5 1 more",
        "trained 7 0 5 1",
        "acknowledged 7 0 5 1",
        "acts 7 1",
        f"acts 7 1 {1 << 52}",
        "acted 7 0 5 1",  # is found, not written
        "G 7 0 5 32",
    ],
    ids=lambda line: line[:30],
)
def test_a_damaged_line_is_named_and_the_others_count(
    read: Callable[..., Traces], line: str
) -> None:
    traces = read(actor=f"{ACTOR}{line}\nstarted 7 0 6 1\n")
    assert [unroll.seq for unroll in traces.unrolls] == [6, 5]
    (words,) = traces.damage
    assert words.startswith("actor.trace, line 4 is no line: ")
    assert len(words) < 120


def test_many_damaged_lines_are_counted(read: Callable[..., Traces]) -> None:
    traces = read(actor="x\n" * 100)
    assert len(traces.damage) == 4
    assert traces.damage[-1] == "actor.trace: 97 more such lines"


def test_a_torn_last_line_is_left_out(read: Callable[..., Traces]) -> None:
    traces = read(actor=f"{ACTOR}started 7 0 6 12")
    assert (len(traces.unrolls), traces.damage) == (1, [])


def test_the_newest_alone(read: Callable[..., Traces]) -> None:
    lines = "".join(f"started 7 0 {n} {n}\n" for n in range(100_000))
    traces = read(newest=4000, actor=lines, learner="")
    assert [unroll.seq for unroll in traces.unrolls][-1] == 99_999
    assert 50 < len(traces.unrolls) < 100
    assert traces.damage == []
