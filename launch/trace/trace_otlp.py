"""`headrace trace --otlp`: sends each sampled unroll as a trace of OpenTelemetry: a span for the
whole with every station as an event, and below it a span for each way between two stations."""

import logging
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

from headrace.broker.errors import install_extra
from headrace.broker.journal.trace_reader import WAYS, TracedUnroll
from headrace.launch.config import run_file

try:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON
except ImportError as error:
    raise run_file.ConfigError(
        f"--otlp needs {error.name or 'opentelemetry'}: {install_extra('otlp')}"
    ) from error

_PATH: Final = "/v1/traces"  # where a receiver takes traces, unless the URL says another
_TRACES: Final = 100  # in one request
_PATIENCE_S: Final = 10.0  # of one request with its repetitions


def send(unrolls: Sequence[TracedUnroll], url: str) -> str:
    """Sends all of them; returns in words what was sent."""
    exporter = OTLPSpanExporter(endpoint=_endpoint(url), timeout=_PATIENCE_S)
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # we say it in one line
    for at in range(0, len(unrolls), _TRACES):
        if exporter.export(_spans(unrolls[at : at + _TRACES])) is not SpanExportResult.SUCCESS:
            raise run_file.ConfigError(
                f"--otlp {url} does not take traces; sent before: {at:,} of {len(unrolls):,}"
            )
    return f"sent {len(unrolls):,} traces to {url}"


def _endpoint(url: str) -> str:
    try:
        found = urlsplit(url)
        if found.scheme not in ("http", "https") or not found.hostname or found.port == 0:
            raise ValueError("such as http://127.0.0.1:4318 is wanted")
    except ValueError as error:
        raise run_file.ConfigError(f"--otlp {url}: {error}") from None
    return url if found.path.strip("/") else f"{url.rstrip('/')}{_PATH}"


def _spans(unrolls: Iterable[TracedUnroll]) -> Sequence[ReadableSpan]:
    made = InMemorySpanExporter()
    resource = Resource({"service.name": "headrace"})
    provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(made))
    tracer = provider.get_tracer("headrace")
    for unroll in unrolls:
        _trace(unroll, tracer)
    return made.get_finished_spans()


def _trace(unroll: TracedUnroll, tracer: trace.Tracer) -> None:
    times = {station: 1000 * at for station, at in unroll.times.items()}  # ns
    facts = {"incarnation": unroll.inc, "stream": unroll.stream, "number": unroll.seq}
    facts |= {"version": unroll.version} if unroll.version >= 0 else {}
    whole = tracer.start_span(
        "unroll",
        attributes={f"headrace.{name}": fact for name, fact in facts.items()},
        start_time=min(times.values()),
    )
    whole.set_attribute("headrace.ended", unroll.end())
    for station, at in times.items():
        whole.add_event(station, timestamp=at)
    inside = trace.set_span_in_context(whole)
    for name, since, to in WAYS[:-1]:
        took = unroll.took(since, to)
        if took is not None:  # below 0 where two clocks differ, which no span can be
            span = tracer.start_span(name, inside, start_time=times[since])
            span.set_attribute("headrace.took_ms", took)
            span.end(max(times[since], times[to]))
    whole.end(max(times.values()))
