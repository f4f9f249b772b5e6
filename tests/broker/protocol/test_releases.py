"""What a broker says to peers of the release before; held against that release, frozen."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.broker.protocol import hello_payload, messages, releases
from headrace.broker.protocol.messages import Hello, Malformed, OtherProtocol, Refusal
from headrace.broker.server.connections.counters import Counters
from headrace.broker.server.connections.replies import Replies
from headrace.broker.server.connections.roster import ROLES, Peer, Roster
from headrace.broker.server.server import Server
from headrace.launch.config import run_file, shared_run
from tests.frozen import freeze
from tests.fuzz.framing import framed

SPOKEN = range(releases.OLDEST, releases.PROTOCOL + 1)
NEW = releases.ADDED[releases.PROTOCOL]
BEFORE: dict[str, Any] = json.loads(freeze.KEYS.read_text(encoding="utf-8"))
NOW = freeze.key_types()


def place_of(run: dict[str, dict[str, Any]], place: str) -> tuple[dict[str, Any], str]:
    section, _, key = place.partition(".")
    return run[section], key


def plain_run() -> dict[str, dict[str, Any]]:
    """A run that says nothing which the release before does not know."""
    run = shared_run.for_peers(run_file.load("cartpole"))
    for place, added in NEW.items():
        keys, key = place_of(run, place)
        assert not (added.values and added.is_new(keys[key]))
        keys[key] = keys[key] if added.values else added.without
    return run


# ---- the list of what is new -------------------------------------------------------------------


def test_the_frozen_release_is_the_one_before() -> None:
    with tarfile.open(freeze.ARCHIVE) as archive:
        source = archive.extractfile("headrace/broker/protocol/messages.py")
        assert source is not None and b"\nPROTOCOL: Final = 2\n" in source.read()
    assert releases.OLDEST == 2, "freeze the release before: python -m tests.frozen.freeze COMMIT"


def test_every_new_setting_is_listed() -> None:
    """Add it to ADDED in broker/protocol/releases.py: else the release before, which does not know
    it, takes no part in any run."""
    assert BEFORE.keys() - NOW.keys() == set(), "peers of the release before still expect these"
    added = {place for place, of in NEW.items() if not of.values}
    assert NOW.keys() - BEFORE.keys() == added
    changed = {place for place in BEFORE if BEFORE[place] != NOW[place]}
    assert changed <= NEW.keys() - added, "these take other values now"
    assert all(set(of.roles) <= set(ROLES) for of in NEW.values())


@pytest.mark.processes
def test_the_release_before_takes_the_welcome_of_every_shipped_run(tmp_path: Path) -> None:
    welcomes = {}
    for name in run_file.shipped():
        run = shared_run.for_peers(run_file.load(name))
        if not releases.unknown_setting(run, releases.OLDEST, "actor"):
            welcomes[name] = releases.known(run, releases.OLDEST)
    assert "cartpole" in welcomes
    code = (
        "import json, sys; from headrace.launch.config import shared_run\n"
        "for name, run in json.load(sys.stdin).items(): shared_run.from_shared(run)"
    )
    env = {**os.environ, "PYTHONPATH": str(freeze.unpack(tmp_path))}
    told, reads = json.dumps(welcomes), [sys.executable, "-P", "-c", code]
    read = subprocess.run(reads, input=told, capture_output=True, text=True, env=env, check=False)
    assert read.returncode == 0, read.stderr


# ---- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("protocol", SPOKEN)
def test_nobody_is_refused_for_what_he_knows(protocol: int, role: str) -> None:
    assert releases.unknown_setting(plain_run(), protocol, role) == ""


@given(st.sampled_from(sorted(NEW)), st.sampled_from(ROLES), st.sampled_from(SPOKEN), st.data())
def test_a_new_setting_is_refused_by_name_where_it_matters(
    place: str, role: str, protocol: int, data: st.DataObject
) -> None:
    run, added = plain_run(), NEW[place]
    keys, key = place_of(run, place)
    new = [*added.values] if str not in added.values else ["module:function"]
    keys[key] = data.draw(st.sampled_from(new) if new else st.text(min_size=1))
    told = releases.unknown_setting(run, protocol, role)
    if role in added.roles and protocol < releases.PROTOCOL:
        assert f"{place} = {keys[key]!r}" in told and f"upgrade this {role}" in told
    else:
        assert told == ""


@given(
    st.dictionaries(
        st.sampled_from(sorted({place.partition(".")[0] for place in NOW} | {"other"})),
        st.dictionaries(
            st.sampled_from(sorted({place.partition(".")[2] for place in NOW} | {"other"})),
            st.integers() | st.none() | st.lists(st.text()),
        ),
    ),
    st.sampled_from(SPOKEN),
)
@example({"actor": {}, "pacing": {"balance": None}}, releases.OLDEST)
def test_a_peer_is_told_all_that_it_knows(run: dict[str, Any], protocol: int) -> None:
    told = releases.known(run, protocol)
    places = {f"{section}.{key}" for section, keys in run.items() for key in keys}
    kept = {f"{section}.{key}" for section, keys in told.items() for key in keys}
    # A section of which it knows nothing is not there at all.
    sections = {section for section, keys in run.items() if not keys or told.get(section)}
    assert told.keys() == sections
    assert places - kept == {
        place
        for place in places
        if protocol < releases.PROTOCOL and place in NOW.keys() - BEFORE.keys()
    }
    ours = {section: run[section] for section in sections}
    assert releases.completed(told, run, protocol) == ours
    for role in ROLES:
        releases.unknown_setting(run, protocol, role)


@given(
    st.dictionaries(
        st.sampled_from(("algorithm", "model", "x")), st.dictionaries(st.text(), st.text())
    )
)
def test_what_an_older_learner_says_is_not_overwritten(theirs: dict[str, dict[str, str]]) -> None:
    full = releases.completed(theirs, plain_run(), releases.OLDEST)
    assert full.keys() == theirs.keys()
    assert all(full[section].items() >= keys.items() for section, keys in theirs.items())


# ---- messages ----------------------------------------------------------------------------------


@given(st.integers(0, 255))
def test_only_the_spoken_protocols_are_read(protocol: int) -> None:
    frames = releases.spoken(messages.encode(messages.Resync(7)), protocol)
    if protocol in SPOKEN:
        assert messages.decode(frames)[0] == messages.Resync(7)
    else:
        with pytest.raises(OtherProtocol) as caught:
            messages.decode(frames)
        assert caught.value.theirs == protocol
        assert f"you speak {protocol}: upgrade" in releases.refusal(protocol)


@given(
    st.sampled_from(range(len(messages.TYPES))),
    st.lists(st.integers() | st.text() | st.lists(st.integers()), min_size=1, max_size=9),
)
def test_what_a_later_protocol_adds_is_ignored(tag: int, more: list[Any]) -> None:
    """And what it cannot add, in the place of a field of ours, is malformed: nothing else."""
    kind = messages.TYPES[tag]
    try:
        fields = msgpack.packb(more)
        message, _ = messages.decode(framed(fields, tag))
    except (Malformed, OverflowError):
        return
    assert type(message) is kind


def test_an_unroll_with_a_field_more() -> None:
    header = msgpack.packb([1, 2, 3, 0, 4, 5, 6, 7, 1, [], {"later": 9}])
    tag = messages.TYPES.index(messages.Unroll)
    message, _ = messages.decode(framed(header, tag))
    assert message == messages.Unroll(1, 2, 3, 0, 4, 5, 6, 7, 1, ())


class Recorded:
    """Takes what the broker sends, as its ROUTER would."""

    def __init__(self) -> None:
        self.sent: list[list[Any]] = []

    def send(self, frames: list[Any], _left: object = None) -> bool:
        self.sent.append(frames)
        return True

    reaches = send


@pytest.mark.parametrize("protocol", SPOKEN)
def test_a_peer_is_answered_in_its_own_protocol(protocol: int) -> None:
    """Whatever is sent, also the message inside the Open of one that comes in pieces."""
    roster, mail = Roster("r", lambda _: None), Recorded()
    peer = Peer(b"there", "learner", "n", 7, 0.0, protocol=protocol)
    roster.join(peer)
    replies = Replies(mail, roster, Counters(), 10.0, 1 << 30)  # type: ignore[arg-type]
    replies.send(peer.route, messages.Resync(7))
    replies.is_reachable(peer.route, messages.LearnerPong(1, 2, 3))
    replies.refuse(peer.route, Refusal.RUN, "no")
    replies.bulk(peer, 0, messages.Chunk(1, 0), bytes(1 << 20))
    kinds = {messages.kind(frames) for _, *frames in mail.sent}
    assert {messages.Open, messages.Piece, messages.Mark} <= kinds
    for _, *frames in mail.sent:
        assert frames[0][2] == protocol
        message, _ = messages.decode(frames)
        if isinstance(message, messages.Open):
            assert frames[2][2] == protocol
    # Where nobody is, by the number that came from there.
    replies.refuse(b"stranger", Refusal.PROTOCOL, "no", protocol)
    assert mail.sent[-1][1][2] == protocol


def test_a_hello_of_an_older_peer_reads_as_ours() -> None:
    """The payload is a table: what it lacks has a default, what it has more is ignored."""
    said = msgpack.packb({"spaces": "s", "later": [1]})
    assert hello_payload.decode(said).spaces == "s"
    hello = releases.spoken(messages.encode(Hello("actor", "n", 7), said), releases.OLDEST)
    assert messages.decode(hello)[0] == Hello("actor", "n", 7)
    assert xxhash.xxh32_intdigest(hello[1], seed=1) == int.from_bytes(hello[0][12:])


def test_announcements_are_for_all() -> None:
    mail = Recorded()
    announce = messages.Announce(1, "layout", "digest", 8, 8, b"h" * 8)
    Server._publish(SimpleNamespace(_xpub=mail), announce)  # type: ignore[arg-type]
    assert mail.sent[0][0][2] == releases.OLDEST
    assert messages.decode(mail.sent[0])[0] == announce
