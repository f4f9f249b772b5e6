"""Seven hosts: two of brokers, two of learner ranks that meet over the network, three nodes."""

import re
from pathlib import Path

import headrace.launch
from tests.system.conftest import Place, Process, until
from tests.system.network.line import Condition
from tests.system.network.network import BROKER, PORT, Host, Network, net  # noqa: F401  # a fixture

_MEET = 29400  # the port of the first host where the ranks meet
_SHIPPED = Path(headrace.launch.__file__).parent / "runs" / "cartpole-impala.toml"
_FAR = Condition(delay_s=0.02, kbit_s=20_000)
_QUICK = """
[broker]
shards = 2
beat_s = 0.2
lease_s = 2.0

[checkpoint]
every_s = 0.3
"""


def _run() -> str:
    """Returns the shipped run for two ranks and two brokers, with the beats of tests.

    A step of four unrolls, a quarter the size, is one of the shipped run: it learns as that does.
    """
    text = _SHIPPED.read_text() + _QUICK
    for there, here in (
        ('name = "cartpole-impala"', 'name = "small"'),
        ("batch_unrolls = 1", "batch_unrolls = 4"),
        ("envs = 8", "envs = 2"),
        ("replay_unrolls = 128", "replay_unrolls = 512"),
        ("grad_clip = 0.5", "grad_clip = 0.5\nrank_timeout_s = 10.0"),
    ):
        assert text.count(there) == 1, there
        text = text.replace(there, here)
    return text


def _rank(place: Place, host: Host, first: Host, brokers: str) -> Process:
    """Starts one rank, which also trains alone."""
    words = (
        "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=9",
        "--rdzv-backend=c10d", f"--rdzv-endpoint={first.address}:{_MEET}", "--rdzv-id=small",
        "--rdzv-conf=last_call_timeout=2", f"--local-addr={host.address}",
        "-m", "headrace.launch.learner", place.run, "--broker", brokers, "--out", str(place.out),
        "--ledger", str(place.ledger), "--resume",
    )  # fmt: skip
    return place.module("headrace.launch.torchrun", *words, namespace=host.namespace)


def _joined(broker: Process) -> list[str]:
    """Returns the ranks that joined, in order."""
    return re.findall(r"learner learner-(\d) joins", broker.text())


def test_a_learner_on_two_hosts_goes_on_with_one_and_with_two_again(
    net: Network,  # noqa: F811
    place: Place,
) -> None:
    """A broker's host is lost and comes back, a node is cut off, a rank's host is lost and comes
    back; CartPole is solved."""
    place.toml("run.toml", _run())
    broker = net.hub.broker(place)
    # The router stays in the namespace that it opened last.
    names = ("beside", "first", "second", "near", "far", "any")
    beside, first, second, near, far, third = map(net.host, names)
    far.becomes(_FAR)
    own, other = BROKER, f"tcp://{beside.address}:{PORT}"
    beside.broker(place, "--shard", "1")
    nodes = [
        host.node(place, "--samplers", "1", "--name", name, broker=its)
        for host, name, its in (
            (near, "near", own),
            (far, "far", other),
            (third, "any", f"{own},{other}"),
        )
    ]
    ranks = [_rank(place, host, first, f"{own},{other}") for host in (first, second)]
    until(place.checkpoints, "a checkpoint")
    assert sorted(_joined(broker)) == ["0", "1"]

    told = "".join  # rank 0 may be on either of them
    beside.dies()
    alone = f"of each step: 4 from {own}, 0 from {other}"
    until(lambda: alone in told(rank.text() for rank in ranks), "the other broker's share moves")
    place.trains(20)
    beside.heal()
    again = beside.broker(place, "--shard", "1")
    both = f"of each step: 2 from {own}, 2 from {other}"
    until(
        lambda: both in told(rank.text() for rank in ranks).rpartition(alone)[2], "and comes back"
    )
    place.trains(20)

    near.cut()
    broker.says("sampler near-0 fell silent")
    near.heal()
    place.trains(20)

    second.dies()
    ranks[0].says(r"ERROR rank \d: a collective failed, another rank is gone or stuck")
    ranks[0].says("INFO continues from")
    place.trains(20)

    for host in (near, far, third):  # lest it be solved by the one that is left
        host.cut()
    second.heal()
    assert _joined(broker).count("1") == 1
    returned = _rank(place, second, first, f"{own},{other}")
    until(lambda: _joined(broker).count("1") == 2, "two ranks again")
    near.heal()
    third.heal()
    far.becomes(_FAR)
    assert [process.ends() for process in (ranks[0], returned, *nodes)] == [0] * 5
    assert [broker.term(), again.term()] == [0, 0]
    assert place.history()[-1]["mean_return"] >= 475
    account = place.account()
    assert (account.unaccounted(), account.untrue, account.in_flight) == (0, 0, 0)
