"""The HTTP server of every process: who it answers to, and that nobody occupies it."""

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import pytest

from headrace.launch.web import http, http_server

PATIENCE_S = 60.0


def served(
    pages: Mapping[str, http.Page] | None = None,
    *,
    host: str = "127.0.0.1",
    names: Sequence[str] = (),
) -> int:
    port = http.serve(
        http.registry("broker"), host=host, port=0, healthy=lambda: "", pages=pages, names=names
    )
    assert port is not None
    return port


def line(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def whole(connection: socket.socket) -> bytes:
    """All that comes until it is closed, whether it is with a word or without."""
    heard = b""
    try:
        while piece := connection.recv(1 << 16):
            heard += piece
    except ConnectionError:
        pass
    return heard


def ask(port: int, text: str) -> tuple[int, str]:
    """Status and body; status 0 = it was closed without an answer."""
    with line(port) as connection:
        connection.sendall(text.encode("latin-1"))
        head, _, body = whole(connection).partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, body.decode()


def get(port: int, path: str, host: str = "localhost") -> tuple[int, str]:
    return ask(port, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\n\r\n")


def page() -> tuple[str, bytes]:
    return "text/html", b"the page"


def test_who_hangs_is_not_live_and_who_waits_for_a_broker_is() -> None:
    hangs = [""]
    port = http.serve(
        http.registry("broker"),
        host="127.0.0.1",
        port=0,
        healthy=lambda: "no broker has welcomed it",
        stuck=lambda: hangs[0],
    )
    assert port is not None
    assert get(port, "/livez") == (200, "ok\n")
    assert get(port, "/healthz") == (503, "no broker has welcomed it\n")
    hangs[0] = "has not got on for 30 s"
    assert get(port, "/livez") == (503, "has not got on for 30 s\n")


def test_what_is_there_and_what_is_no_request() -> None:
    port = served({"/": page})
    assert get(port, "/") == get(port, "/?now") == (200, "the page")
    assert get(port, "/healthz") == (200, "ok\n")
    assert get(port, "/nowhere") == (404, "there are: /metrics /healthz /livez /runbook /\n")
    assert ask(port, "GET /healthz HTTP/1.0\r\n\r\n") == (200, "ok\n"), "who says no Host"
    assert ask(port, "POST / HTTP/1.1\r\n\r\n")[0] == 501
    assert ask(port, "\x16\x03\x01 hello\r\n\r\n")[0] == 400
    assert ask(port, "GET / HTTP/1.1\r\nHost: localhost\r\nHOST: evil.example\r\n\r\n")[0] == 400
    assert ask(port, "GET / HTTP/1.1\r\nX: " + "x" * 70_000)[0] in (431, 0)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:9100",
        "localhost.",
        "127.0.0.1",
        "127.0.0.1:1",
        "[::1]:9100",
        "192.168.7.7:9100",
        "[fe80::1]",
        socket.gethostname(),
        f"{socket.gethostname()}:9100",
        "",
    ],
)
def test_addresses_and_our_own_names_are_us(host: str) -> None:
    assert get(served({"/": page}), "/", host) == (200, "the page")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:9100",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        f"{socket.gethostname()}.evil.example",
        "evil.example#localhost",
        "localhost@evil.example",
        "[",
        "[::1",
        "1.2.3",
        "2130706433",
        "0x7f.1",
        "\xff",
        "a" * 10_000,
    ],
)
def test_a_name_that_was_made_to_lead_here_is_not_us(host: str) -> None:
    """DNS rebinding: a page of elsewhere asks for ours by a name of its own."""
    port = served({"/": page, "/status.json": page})
    for path in ("/", "/status.json", "/metrics", "/healthz", "/nowhere"):
        status, body = get(port, path, host)
        assert status == 421 and "--page-name" in body and "the page" not in body


def test_where_others_reach_us_machines_may_use_any_name_and_browsers_those_that_are_said() -> None:
    port = served({"/": page, "/sd": page}, host="0.0.0.0", names=["Runs.Lab"])
    for path in ("/metrics", "/healthz", "/sd"):
        assert get(port, path, "headrace-broker.default.svc:9100")[0] == 200
    assert get(port, "/", "headrace-broker.default.svc:9100")[0] == 421
    assert get(port, "/", "runs.lab:80") == (200, "the page")


def test_a_request_has_so_many_seconds_in_all_however_it_trickles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "_SECONDS", 0.3)
    port = served()
    with line(port) as silent, line(port) as trickling:
        began, sent = time.monotonic(), 0
        trickling.settimeout(0.01)
        while time.monotonic() - began < PATIENCE_S:
            try:
                trickling.sendall(b"G")
                sent += 1
                if not trickling.recv(1):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert sent > 2 and time.monotonic() - began < PATIENCE_S
        assert whole(silent) == b""


@pytest.mark.slow
def test_an_answer_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_SECONDS", 0.3)
    body = bytes(32 << 20)
    port = served({"/": lambda: ("text/plain", body)})
    with line(port) as slow:
        slow.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert slow.recv(1) == b"H"
        time.sleep(1.0)  # far beyond its time: it reads nothing
        assert len(whole(slow)) < len(body)


@pytest.mark.slow
def test_pages_that_take_long_keep_nobody_from_the_health_check() -> None:
    going = threading.Event()

    def slow() -> tuple[str, bytes]:
        assert going.wait(PATIENCE_S)
        return page()

    port = served({"/": slow})
    many: list[socket.socket] = []
    try:
        for _ in range(100):
            many.append(line(port))
            # Before the next: of too many that have said nothing the oldest gives way.
            many[-1].sendall(b"GET / HTTP/1.0\r\n\r\n")
        statuses: list[bytes] = []
        read: Callable[[socket.socket], bytes] = lambda one: whole(one)[9:12]  # noqa: E731
        statuses += [read(one) for one in many[32:]]  # those are too many, and told at once
        assert statuses == [b"503"] * 68
        assert get(port, "/healthz") == (200, "ok\n")
        going.set()
        assert [read(one) for one in many[:32]] == [b"200"] * 32
    finally:
        going.set()
        for connection in many:
            connection.close()


def test_a_page_that_fails_is_our_fault_and_no_more() -> None:
    def broken() -> tuple[str, bytes]:
        raise RuntimeError("no numbers")

    port = served({"/": broken})
    assert get(port, "/")[0] == 500
    assert get(port, "/healthz") == (200, "ok\n")


@pytest.mark.parametrize("host", ["k\xf6" * 40, "x" * 300, "no host", "\0"])
def test_a_host_that_cannot_be_is_one_line(host: str) -> None:
    with pytest.raises(http.PortError, match=r"cannot serve metrics at .*choose another with"):
        http.serve(http.registry("broker"), host=host, port=0, healthy=lambda: "")
