"""The notice that a machine is to be taken away, from a web server of this machine's."""

import contextlib
import http.server
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.launch import cli
from headrace.launch.node import notice
from headrace.launch.node.notice import Notice
from tests.system.conftest import until

HEADER = "X-Token"


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if "_ask" in thread.name}


@pytest.fixture(autouse=True)
def nobody_asks_on() -> Iterator[None]:
    """Holds what is closed to its word: it would log in the middle of another test."""
    yield
    until(lambda: not threads(), "no thread asks any more")


class Cloud:
    """Answers every request as it is told at the time."""

    def __init__(self) -> None:
        self.answer = (404, "")
        self.asked = 0
        self.header: str | None = None  # of the last request
        self.hangs = threading.Event()
        self.hangs.set()  # set = it does not
        cloud = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                cloud.header = self.headers[HEADER]
                cloud.asked += 1
                cloud.hangs.wait(30)
                status, body = cloud.answer
                self.send_response(status)
                self.end_headers()
                with contextlib.suppress(BrokenPipeError):  # who asked had no more patience
                    self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/notice"

    def is_asked(self, seen: Notice) -> None:
        """Waits until an answer of now has been read: by the request after it, or the notice."""
        goal = self.asked + 2
        until(lambda: self.asked >= goal or seen.has_come(), "another request")


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setattr(notice, "_EVERY_S", 0.01)
    made = Cloud()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield made
    finally:
        made.hangs.set()
        made.server.shutdown()
        thread.join()
        made.server.server_close()


@pytest.mark.parametrize("body", ["TRUE", '{"action": "terminate"}'])
def test_an_answer_that_says_so_and_no_other_is_the_notice(
    cloud: Cloud, body: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    caplog.set_level(logging.INFO)
    with contextlib.closing(Notice(cloud.url, (HEADER, "secret"))) as seen:
        for stays in (
            (404, body),
            (401, body),
            (500, body),
            (204, ""),
            (200, ""),
            (200, "false\n"),
        ):
            cloud.answer = stays
            cloud.is_asked(seen)
            assert not seen.has_come(), cloud.answer
        assert cloud.header == "secret"
        assert caplog.text.count("HTTP Error 401: Unauthorized': this machine stays") == 1
        cloud.answer = (200, body)
        until(seen.has_come, "the notice")
    assert f"{cloud.url} says {body!r}: this machine goes" in caplog.text
    assert "secret" not in caplog.text


def test_a_server_that_hangs_or_is_not_there_says_nothing(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notice, "_PATIENCE_S", 0.05)
    cloud.answer = (200, "TRUE")
    cloud.hangs.clear()
    with contextlib.closing(Notice(cloud.url, None)) as seen:
        cloud.is_asked(seen)
        assert not seen.has_come()
    with contextlib.closing(Notice("http://127.0.0.1:9/notice", None)) as seen:
        assert not seen.has_come()


def test_a_file_is_a_notice_by_being_there(tmp_path: Path) -> None:
    seen = Notice(tmp_path / "notice", None)
    assert not seen.has_come()
    (tmp_path / "notice").touch()
    assert seen.has_come()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--notice", "http:///notice"], "names no host"),
        (["--notice-header", "X-Token: a"], "--notice-header is for a --notice that is a URL"),
        (["--notice", "http://h/", "--notice-header", "secret"], "a header is 'NAME: VALUE'"),
        (["--notice", "http://h/", "--notice-header", "X: secret\nY: b"], "in printable ASCII"),
    ],
)
def test_what_can_be_no_notice_is_refused(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = cli.main(["node", "--broker", "ipc:///nobody", *words])
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 2
    said = capsys.readouterr().err
    assert line in said
    assert "secret" not in said
