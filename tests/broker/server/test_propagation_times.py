"""How weights spread."""

from headrace.broker.server.propagation_times import PropagationTimes


def test_weights_are_timed_from_when_they_were_whole() -> None:
    spread = PropagationTimes()
    spread.first_used(7, now=5.0)  # of a broker before us: nobody knows when
    spread.published(8, 1000, now=10.0, wall=1e9)
    spread.first_used(8, now=10.015)
    spread.first_used(8, now=12.0)
    assert (spread.versions_published, spread.nbytes, spread.published_at) == (1, 1000, 1e9)
    assert sum(spread.ready.counts) == 2
    assert abs(spread.ready.total - 2.015) < 1e-9
    for version in range(9, 2000):
        spread.published(version, 1, now=20.0, wall=1e9)
    assert len(spread._whole) <= 256
