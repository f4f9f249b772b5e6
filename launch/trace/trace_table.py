"""`headrace trace`: where sampled unrolls were when, and how long each way took, as tables."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from headrace.broker.journal import trace_reader
from headrace.broker.journal.trace_reader import WAYS, TracedUnroll, Traces
from headrace.launch.config import run_file
from headrace.launch.process import runtime
from headrace.launch.results.ledger_folder import ledger_folder
from headrace.launch.results.text_table import columns

_SHOWN = 20  # unrolls that get a row of their own: the newest
_MISSING = (
    "has no traces: switch them on with --set unroll.trace_every=100; a learner, a broker and"
    " samplers that are started alone need --ledger FOLDER too"
)


def trace_table(folder: Path, *, otlp: str | None = None) -> int:
    """Prints the tables, and sends the traces to an OTLP receiver if one is named."""
    try:
        traces = trace_reader.read(ledger_folder(folder, files="*.trace", missing=_MISSING))
    except OSError as error:
        raise run_file.ConfigError(f"cannot read {error.filename}: {error.strerror}") from error
    for line in lines(traces):
        print(line)  # noqa: T201
    if otlp is not None:
        from headrace.launch.trace import trace_otlp

        print(trace_otlp.send(traces.unrolls, otlp))  # noqa: T201
    return runtime.OK


def lines(traces: Traces) -> Iterator[str]:
    shown = traces.unrolls[-_SHOWN:]
    head: tuple[str, ...] = ("incarnation", "stream", "number", "began")
    head += (*(name for name, _, _ in WAYS), "version", "ended")
    yield from columns([head, *map(_row, shown)], words=(0, len(head) - 1))
    yield f"the newest {len(shown)} of {len(traces.unrolls):,}; milliseconds; began: UTC"
    yield ""
    ways = traces.ways()
    figures = [
        (
            way.name,
            f"{way.since} to {way.to}",
            f"{way.unrolls:,}",
            *map(_ms, (way.p50, way.p90, way.p99, way.longest)),
        )
        for way in ways
    ]
    head = ("way", "", "unrolls", "p50", "p90", "p99", "longest")
    yield from columns([head, *figures], words=(0, 1))
    yield ""
    ends = Counter(unroll.end() for unroll in traces.unrolls)
    yield from (f"{count:,} {words}" for words, count in ends.most_common())
    for way in ways:
        if way.negative:
            yield (
                f"negative: {way.negative:,} of {way.unrolls:,} from {way.since} to {way.to}, down"
                f" to {_ms(way.shortest)} ms: the clocks of two machines differ by that at least"
            )
    yield from (f"damage: {words}" for words in traces.damage)


def _row(unroll: TracedUnroll) -> tuple[str, ...]:
    began = datetime.fromtimestamp(min(unroll.times.values()) // 1000 / 1000, UTC)
    took = (unroll.took(since, to) for _, since, to in WAYS)
    version = str(unroll.version) if unroll.version >= 0 else "-"
    key = (str(unroll.inc), str(unroll.stream), str(unroll.seq))
    at = began.strftime("%m-%d %H:%M:%S.%f")[:-3]
    return (*key, at, *map(_ms, took), version, unroll.end())


def _ms(took: float | None) -> str:
    return "-" if took is None or took != took else f"{took:,.1f}"
