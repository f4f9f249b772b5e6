"""Nodes behind lines of 20 Mbit/s with a round trip of 100 ms: what they train of what a line
carries, and what they supply beside a node that is near."""

import pytest

from headrace.broker.journal.fates import TRAINED
from headrace.launch.bench.crowd import jain_fairness
from tests.system.conftest import RUN, Place
from tests.system.harness.figures import pick, say
from tests.system.network.line import Condition
from tests.system.network.network import PORT, Host, Network, net  # noqa: F401  # a fixture
from tests.system.network.test_long_lines import moves

pytestmark = pytest.mark.alone

LINE = Condition(delay_s=0.05, kbit_s=20_000)
NUMBERS, LENGTH = 256, 32
UNROLL_BYTES = (LENGTH + 1) * NUMBERS * 4  # and some more, for actions and the like
# Numbers that no compression makes fewer.
NOISE = f"""
import gymnasium
import numpy as np


class Noise(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, ({NUMBERS},), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self._look(), {{}}

    def step(self, action):
        return self._look(), 0.0, False, False, {{}}

    def _look(self):
        return self.np_random.uniform(-1.0, 1.0, {NUMBERS}).astype(np.float32)
"""
FAR = (
    RUN.replace('id = "CartPole-v1"', 'id = "noise:Noise"')
    .replace("length = 8\nenvs = 4", f"length = {LENGTH}\nenvs = 1")
    .replace("beat_s = 0.2\nlease_s = 2.0", "beat_s = 1.0\nlease_s = 10.0")
    .replace("batch_unrolls = 2\nmax_lag = 2", "batch_unrolls = 32\nmax_lag = 8")
    .replace("groups = 2", "groups = 16")
)
# Counts for some seconds what arrives on so many connections, once all of them are there.
READER = """
import selectors, socket, sys, time
port, senders, settle_s, seconds = int(sys.argv[1]), *map(float, sys.argv[2:])
listening = socket.create_server(("0.0.0.0", port))
print("listens", flush=True)
ready = selectors.DefaultSelector()
for _ in range(int(senders)):
    ready.register(listening.accept()[0], selectors.EVENT_READ)
count, begins = 0, time.monotonic() + settle_s
while (now := time.monotonic()) < begins + seconds:
    for key, _ in ready.select(1.0):
        size = len(key.fileobj.recv(1 << 20))
        count += size if now >= begins else 0
print("bytes a second", count / seconds, flush=True)
"""
SENDER = """
import socket, sys
line = socket.create_connection((sys.argv[1], int(sys.argv[2])))
while True:
    line.sendall(bytes(1 << 16))
"""


def carried(net: Network, place: Place, hosts: list[Host]) -> float:  # noqa: F811
    """Bytes a second that plain connections bring from these hosts together."""
    words = (str(PORT + 1), str(len(hosts)), "4", str(pick(8, 20)))
    reader = place.python("-c", READER, *words, namespace=net.hub.namespace)
    reader.says("listens")
    senders = [
        place.python("-c", SENDER, net.hub.address, str(PORT + 1), namespace=host.namespace)
        for host in hosts
    ]
    rate = float(reader.says(r"bytes a second ([\d.]+)")[1])
    for sender in senders:
        sender.kill()
    return rate


def test_nodes_train_what_their_lines_carry(
    net: Network,  # noqa: F811
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(place.folder))
    (place.folder / "noise.py").write_text(NOISE)
    place.run = place.toml("run.toml", FAR)
    hosts = [net.host("far0"), net.host("far1")]
    for host in hosts:
        host.becomes(LINE)
    line = carried(net, place, hosts)
    net.hub.broker(place)
    net.hub.learner(place)
    for host in hosts:
        host.node(place, "--samplers", "1", "--allow", "noise")
    place.trains(pick(1_000, 2_000))
    # From one trained batch to another: between them nothing is trained.
    began, before = moves(place)
    place.trains(pick(3_000, 10_000))
    ended, after = moves(place)
    trained = (after - before) * UNROLL_BYTES / (ended - began)
    say("thin lines", bytes_per_s=trained, of_line=trained / line, line_bytes_per_s=line)
    assert trained >= 0.9 * line


# 16 streams of 0.2 s an unroll, half of them far away, and a window of as many unrolls: by the
# formula of docs/deploy/far-away.md the line costs half of the speed.
_SHARED = (
    RUN.replace('id = "CartPole-v1"', 'id = "headrace/Sleeper-v0"\nkwargs.step_s = 0.02')
    .replace("length = 8\nenvs = 4", "length = 10\nenvs = 1")
    .replace("beat_s = 0.2\nlease_s = 2.0", "beat_s = 1.0\nlease_s = 10.0")
    .replace("groups = 2", 'groups = 8\nstepping = "threads"')
)


@pytest.mark.parametrize("balance", ["speed", "environments"])
def test_a_far_node_supplies_its_share_of_what_is_trained(
    net: Network,  # noqa: F811
    place: Place,
    balance: str,
) -> None:
    """By speed the far one supplies what its way leaves it; balanced, as much as the near one."""
    pacing = f'batch_unrolls = 8\nmax_lag = 1\nbalance = "{balance}"'
    place.run = place.toml("run.toml", _SHARED.replace("batch_unrolls = 2\nmax_lag = 2", pacing))
    near, far = net.host("near"), net.host("far")
    far.becomes(LINE)
    net.hub.broker(place)
    net.hub.learner(place)
    for host in (near, far):
        host.node(place, "--samplers", "1", "--name", host.namespace.rpartition("-")[2])
    place.trains(160)
    (began, before), then = moves(place), _trained_by(place)
    # Balanced streams may be 4 unrolls apart at either end, 64 for eight of each: few of so many.
    place.trains(pick(1_200, 4_000))
    (ended, after), now = moves(place), _trained_by(place)
    shares = {name: now[name] - then.get(name, 0) for name in now}
    say(
        "near and far",
        balance=balance,
        unrolls_per_s=(after - before) / (ended - began),
        far=shares["far-0"] / sum(shares.values()),
        jain=jain_fairness([*shares.values()]),
        **{key: place.history()[-1][key] for key in ("lag_mean", "lag_p99")},
    )
    assert len(shares) == 2
    assert jain_fairness([*shares.values()]) > (0.98 if balance == "environments" else 0.75)


def _trained_by(place: Place) -> dict[str, int]:
    """Unrolls of each sampler."""
    return {one.name: one.fates[TRAINED] for one in place.account().samplers}
