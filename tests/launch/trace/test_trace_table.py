"""`headrace trace`: its tables, its words, and what it sends by OTLP."""

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from headrace.launch import cli
from headrace.launch.trace import trace_otlp

AT = 1_795_000_000_000_000  # microseconds since 1970


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three unrolls: trained, stale, lost. The broker's clock is 2 ms behind."""
    ledger = tmp_path / "ledger"
    ledger.mkdir()
    (ledger / "actor-7.trace").write_text(
        f"started 7 0 5 {AT}\nfull 7 0 5 {AT + 40_000}\nstarted 7 1 9 {AT + 41_000}\n"
        f"acknowledged 7 0 5 {AT + 60_000} trained\nacts 7 12 {AT + 70_000}\n"
        f"started 7 0 6 {AT + 80_000}\nfull 7 0 6 {AT + 90_000}\n"
        f"acknowledged 7 0 6 {AT + 95_000} stale\n"
    )
    (ledger / "broker-1.trace").write_text(
        f"arrived 7 0 5 {AT + 38_500}\nleased 7 0 5 {AT + 39_000}\n"
        f"arrived 7 0 6 {AT + 92_000}\nwhat is this\n"
    )
    (ledger / "learner-1.trace").write_text(f"trained 7 0 5 {AT + 55_250} 12\n")
    return tmp_path


def trace(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    status = cli.main(["trace", *words])
    said = capsys.readouterr()
    return status, [" ".join(line.split()) for line in (said.err or said.out).splitlines()]


def test_the_tables(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = trace(capsys, str(run))
    assert status == 0
    assert lines == [
        "incarnation stream number began played sent queued learnt told acted on whole version"
        " ended",
        "7 0 5 11-18 11:06:40.000 40.0 -1.5 0.5 16.2 4.8 14.8 70.0 12 trained",
        "7 1 9 11-18 11:06:40.041 - - - - - - - - nothing after started",
        "7 0 6 11-18 11:06:40.080 10.0 2.0 - - - - - - stale",
        "the newest 3 of 3; milliseconds; began: UTC",
        "",
        "way unrolls p50 p90 p99 longest",
        "played started to full 2 10.0 40.0 40.0 40.0",
        "sent full to arrived 2 -1.5 2.0 2.0 2.0",
        "queued arrived to leased 1 0.5 0.5 0.5 0.5",
        "learnt leased to trained 1 16.2 16.2 16.2 16.2",
        "told trained to acknowledged 1 4.8 4.8 4.8 4.8",
        "acted on trained to acted 1 14.8 14.8 14.8 14.8",
        "whole started to acted 1 70.0 70.0 70.0 70.0",
        "",
        "1 trained",
        "1 nothing after started",
        "1 stale",
        "negative: 1 of 2 from full to arrived, down to -1.5 ms: the clocks of two machines differ"
        " by that at least",
        "damage: broker-1.trace, line 4 is no line: 'what is this'",
    ]
    assert trace(capsys, str(run / "ledger")) == (status, lines)


def test_of_many_unrolls_the_newest_have_a_row(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = "".join(f"started 8 0 {n} {AT + n}\n" for n in range(2000))
    (run / "ledger" / "actor-8.trace").write_text(more)
    _, lines = trace(capsys, str(run))
    assert lines[21] == "the newest 20 of 2,003; milliseconds; began: UTC"
    assert "2,001 nothing after started" in lines


def test_a_run_without_traces_says_how_to_have_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "actor-7.log").write_text("G 7 0 0 32\n")  # as an older release's
    status, (line,) = trace(capsys, str(tmp_path))
    assert status == 2
    assert "has no traces: switch them on with --set unroll.trace_every=100" in line
    status, (line,) = trace(capsys, str(tmp_path / "none"))
    assert (status, line.endswith("none: no such folder")) == (2, True)


# ---- OTLP ----------------------------------------------------------------------------------------


class Receiver:
    """Takes what is posted, and answers with `status`."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, bytes]] = []
        self.status = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # the standard library's name
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append((self.path, body))
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def spans(self) -> list[Span]:
        found = []
        for _, body in self.requests:
            request = ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                names = {at.key: at.value.string_value for at in resource.resource.attributes}
                assert names["service.name"] == "headrace"
                found += [span for scope in resource.scope_spans for span in scope.spans]
        return found

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def attributes(span: Span) -> dict[str, object]:
    kinds = ((at.key, at.value, at.value.WhichOneof("value")) for at in span.attributes)
    return {key: getattr(value, kind) for key, value, kind in kinds if kind is not None}


def test_an_unroll_is_a_trace_and_a_way_is_a_span(
    run: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    status, lines = trace(capsys, str(run), "--otlp", receiver.url)
    assert (status, lines[-1]) == (0, f"sent 3 traces to {receiver.url}")
    assert [path for path, _ in receiver.requests] == ["/v1/traces"]
    spans = receiver.spans()
    roots = [span for span in spans if not span.parent_span_id]
    assert [span.name for span in roots] == ["unroll"] * 3
    assert len({span.trace_id for span in roots}) == 3
    whole = roots[0]
    below = {span.name: span for span in spans if span.parent_span_id == whole.span_id}
    assert list(below) == ["played", "sent", "queued", "learnt", "told", "acted on"]
    assert all(span.trace_id == whole.trace_id for span in below.values())
    assert attributes(whole) == {
        "headrace.incarnation": 7,
        "headrace.stream": 0,
        "headrace.number": 5,
        "headrace.version": 12,
        "headrace.ended": "trained",
    }
    assert (whole.start_time_unix_nano, whole.end_time_unix_nano) == (
        AT * 1000,
        (AT + 70_000) * 1000,
    )
    events = {event.name: event.time_unix_nano // 1000 - AT for event in whole.events}
    assert events == {
        "started": 0,
        "full": 40_000,
        "arrived": 38_500,
        "leased": 39_000,
        "trained": 55_250,
        "acknowledged": 60_000,
        "acted": 70_000,
    }
    # No span ends before it begins; the attribute keeps the truth.
    sent = below["sent"]
    assert sent.end_time_unix_nano == sent.start_time_unix_nano == (AT + 40_000) * 1000
    assert attributes(sent) == {"headrace.took_ms": -1.5}
    assert attributes(below["learnt"]) == {"headrace.took_ms": 16.25}


def test_many_traces_go_in_several_requests(
    run: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    more = "".join(f"started 8 0 {n} {AT + n}\n" for n in range(250))
    (run / "ledger" / "actor-8.trace").write_text(more)
    assert trace(capsys, str(run), "--otlp", f"{receiver.url}/own/path")[0] == 0
    assert [path for path, _ in receiver.requests] == ["/own/path"] * 3
    assert len({span.trace_id for span in receiver.spans()}) == 253


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("127.0.0.1:4318", "such as http://127.0.0.1:4318 is wanted"),
        ("ftp://a", "such as http://127.0.0.1:4318 is wanted"),
        ("http://", "such as http://127.0.0.1:4318 is wanted"),
        ("http://a:99999", "Port out of range 0-65535"),
        ("http://[a", "Invalid IPv6 URL"),
    ],
)
def test_an_address_that_is_none(
    run: Path, capsys: pytest.CaptureFixture[str], url: str, words: str
) -> None:
    status, lines = trace(capsys, str(run), "--otlp", url)
    assert status == 2
    assert lines == [f"headrace: --otlp {url}: {words}"]


def test_a_receiver_that_refuses(
    run: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    receiver.status = 404
    status, lines = trace(capsys, str(run), "--otlp", receiver.url)
    assert status == 2
    assert lines == [f"headrace: --otlp {receiver.url} does not take traces; sent before: 0 of 3"]


def test_the_extra_may_be_missing(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, trace_otlp.__name__)
    monkeypatch.delattr("headrace.launch.trace.trace_otlp")
    for name in list(sys.modules):
        if name.split(".")[0] == "opentelemetry":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    status, lines = trace(capsys, str(run), "--otlp", "http://127.0.0.1:4318")
    assert status == 2
    assert lines == ["headrace: --otlp needs opentelemetry: pip install 'headrace[otlp]'"]
    assert trace(capsys, str(run))[0] == 0  # the tables need no extra
