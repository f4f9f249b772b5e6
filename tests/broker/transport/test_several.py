"""The addresses of several brokers, and a peer's choice among them."""

import re
import socket
from collections import Counter
from pathlib import Path

import pytest

from headrace.broker.transport import several
from headrace.broker.transport.endpoints import EndpointError


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("tcp://a:1,tcp://a:1", "tcp://a:1 stands twice among the brokers tcp://a:1,tcp://a:1"),
        ("tcp://a:1,", "'' is no address"),
        ("tcp://a:1,tcp:/b:2", "'tcp:/b:2' is no address"),
        ("tcp://a:1 tcp://b:1", "is no address"),
    ],
)
def test_a_misspelt_list_is_refused(text: str, fault: str) -> None:
    with pytest.raises(EndpointError, match=re.escape(fault)):
        several.addresses(text)


def test_a_list_may_have_spaces() -> None:
    assert several.addresses("tcp://a:1, ipc:///b") == ("tcp://a:1", "ipc:///b")


def test_the_addresses_follow_from_the_first() -> None:
    assert several.of_run("tcp://*:5755", 3) == "tcp://*:5755,tcp://*:5757,tcp://*:5759"
    assert several.of_run("ipc:///b", 2) == "ipc:///b,ipc:///b.1"
    assert several.of_shard("tcp://a:0", 1) == "tcp://a:0"


def test_a_crowd_spreads_and_whoever_comes_again_comes_back(tmp_path: Path) -> None:
    places = [f"ipc://{tmp_path / name}" for name in "abcd"]
    with _listening(*places):
        text = ",".join(places)
        found = {f"node-{n}": several.choose(text, f"node-{n}") for n in range(400)}
        counts = Counter(found.values())
        assert set(counts) == set(places) and min(counts.values()) > 60
        assert found == {name: several.choose(text, name) for name in found}
        # In whatever order they are named; and who had another keeps it when one goes.
        assert found == {name: several.choose(",".join(places[::-1]), name) for name in found}
        fewer = ",".join(places[1:])
        kept = [name for name, place in found.items() if place != places[0]]
        assert all(several.choose(fewer, name) == found[name] for name in kept)


def test_one_that_does_not_answer_is_passed_over(tmp_path: Path) -> None:
    here, gone = f"ipc://{tmp_path / 'a'}", f"ipc://{tmp_path / 'b'}"
    with _listening(here):
        assert {several.choose(f"{here},{gone}", f"n{n}") for n in range(20)} == {here}
    nobody = {several.choose(f"{here},{gone}", f"n{n}") for n in range(20)}
    assert nobody == {here, gone}  # each waits for its first


def test_a_port_answers_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with socket.create_server(("127.0.0.1", 0)) as other:
            gone = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        assert {several.choose(f"{gone},{here}", f"n{n}") for n in range(9)} == {here}


def test_a_single_one_is_not_asked() -> None:
    assert several.choose("tcp://nowhere.invalid:1", "n") == "tcp://nowhere.invalid:1"


class _listening:  # noqa: N801 - a context manager
    def __init__(self, *places: str) -> None:
        self._sockets = [socket.socket(socket.AF_UNIX) for _ in places]
        for one, place in zip(self._sockets, places, strict=True):
            one.bind(place.removeprefix("ipc://"))
            one.listen(2000)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        for one in self._sockets:
            one.close()
