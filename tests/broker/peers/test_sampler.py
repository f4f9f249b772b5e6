"""Tests the sampler's end: what it writes down."""

from pathlib import Path

import zmq

from headrace.broker.journal.journal import Journal
from headrace.broker.peers.sampler import SamplerEnd


def test_the_groups_are_in_the_journal_before_their_first_unrolls(tmp_path: Path) -> None:
    with zmq.Context() as context:
        journal = Journal(tmp_path, "actor-7.log")
        end = SamplerEnd("tcp://127.0.0.1:1", name="a", inc=7, context=context, journal=journal)
        end.open(streams=3, spaces=("digest", "words"))
        journal.close()
        context.destroy(linger=0)
    assert (tmp_path / "actor-7.log").read_text().splitlines() == ["P actor 7 a", "S 7 3", "E"]
