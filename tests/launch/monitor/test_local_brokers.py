"""Tests which broker `headrace top` takes when nobody names one."""

import socket
from pathlib import Path

import pytest

from headrace.launch.config.run_file import ConfigError
from headrace.launch.monitor import local_brokers


@pytest.fixture(autouse=True)
def no_usual_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this machine there is what a test puts there."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setattr(local_brokers, "_PORT", free.getsockname()[1])


def test_there_is_one_none_or_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = [tmp_path / name / "broker" for name in ("headrace-a b", "headrace-c", "gone")]
    others = [tmp_path / "headrace-a b" / "other", tmp_path / "mybroker"]
    table = tmp_path / "unix"
    lines = [f"0000: 00000002 00000000 00010000 0001 01 123 {path}" for path in (*ours, *others)]
    table.write_text("\n".join(["Num RefCount Path", *lines, ""]))
    monkeypatch.setattr(local_brokers, "_SOCKETS", table)
    monkeypatch.setattr(local_brokers, "_run_at", lambda _: "cartpole")
    with pytest.raises(ConfigError, match="no run was found on this machine"):
        local_brokers.only_one()
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        for listening, path in ((first, ours[0]), (second, ours[1])):
            path.parent.mkdir()
            listening.bind(str(path))
        first.listen()
        assert local_brokers.only_one() == f"ipc://{ours[0]}"
        second.listen()
        with pytest.raises(ConfigError, match=r"several runs .*a b/broker .cartpole., .*c/broker"):
            local_brokers.only_one()


def test_one_at_the_usual_port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(local_brokers, "_SOCKETS", tmp_path / "no-such-table")
    with socket.create_server(("127.0.0.1", 0)) as usual:
        port = usual.getsockname()[1]
        monkeypatch.setattr(local_brokers, "_PORT", port)
        assert local_brokers.only_one() == f"tcp://127.0.0.1:{port}"
