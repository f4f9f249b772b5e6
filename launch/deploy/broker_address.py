"""Checks the addresses of brokers in `headrace units`: peers must be able to use them."""

import ipaddress

from headrace.broker.config import BrokerConfig
from headrace.broker.transport import endpoints, several
from headrace.launch.config import run_file

RENDEZVOUS_PORT = 29400  # where several learner machines meet
NODE_PORT = 9120  # metrics of the first node, where all nodes are one machine
RANK_PORT = 9110  # metrics of the first rank of a machine
_SHARD_PORT = 9140  # metrics of further brokers, from the port after this one on
# All that the templates use themselves; the first three: broker, node, evaluator.
_FIXED = {9100, 9101, 9102, RENDEZVOUS_PORT}
_KUBERNETES = "tcp://headrace-broker:5755"


def broker_metrics_port(shard: int) -> int:
    """Returns the port of a broker's metrics: any of them may be on one machine."""
    return _SHARD_PORT + shard if shard else 9100


def broker_addresses(
    kind: str, given: str | None, config: BrokerConfig, *, nodes: int, ranks: int, learners: int
) -> tuple[str, ...]:
    """Returns the addresses of all brokers: --broker, or the kind's, or by broker.bind; ConfigError
    where peers could not reach one, or another process of these files listens there."""
    count = config.shards
    if count > 1 and kind not in ("systemd", "supervisor"):
        raise run_file.ConfigError(
            f"broker.shards is {count}: the files for {kind} start one broker; systemd's and"
            " supervisor's start several"
        )
    said = [*several.addresses(given)] if given is not None and "," in given else [given]
    if len(said) == 1:  # the others are on the same machine, as a broker without --bind is
        first = endpoints.check(given or config.bind) if count > 1 else ""
        said += [several.of_shard(first, shard) for shard in range(1, count)]
    if len(said) != count:
        raise run_file.ConfigError(
            f"--broker has {len(said)} addresses, and broker.shards is {count}"
        )
    return tuple(
        _address(kind, one, config.bind, nodes=nodes, ranks=ranks, learners=learners, shards=count)
        for one in said
    )


def _address(
    kind: str, given: str | None, bind: str, *, nodes: int, ranks: int, learners: int, shards: int
) -> str:
    """Returns the address of one broker."""
    if kind in ("slurm", "skypilot"):
        if given is not None:
            raise run_file.ConfigError(
                f"--broker is not for headrace units {kind}: its broker is on the first machine"
            )
        return bind
    address = endpoints.check(given or (_KUBERNETES if kind == "kubernetes" else bind))
    said = f"{'broker.bind' if given is None else '--broker'} {address}"
    if wrong := _unreachable(kind, address, nodes + learners - 1):
        raise run_file.ConfigError(f"{said} {wrong}; give --broker tcp://HOST:PORT")
    fixed = _FIXED.union(range(RANK_PORT, RANK_PORT + ranks))
    fixed.update(broker_metrics_port(shard) for shard in range(1, shards))
    if kind == "supervisor":
        fixed.update(range(NODE_PORT, NODE_PORT + nodes))
    port = address.rpartition(":")[2]
    if address.startswith("tcp://") and {int(port), int(port) + 1} & fixed:
        raise run_file.ConfigError(
            f"{said}: the broker needs this port and the next, and these files use"
            f" {', '.join(map(str, sorted(fixed)[:8]))} .. themselves; take another, such as 5755"
        )
    return address


def _unreachable(kind: str, address: str, machines: int) -> str:
    """Says why peers could not reach an address; "" = they can. `machines`: the head is one."""
    host, _, port = address.partition("://")[2].rpartition(":")
    if address.startswith("ipc://"):
        return "is for one machine" if kind == "kubernetes" or machines > 1 else ""
    if _is_wildcard(host):
        return "is where a broker listens, and no address that peers can reach"
    if port in ("*", "0", "65535"):
        return "has no port that peers could know, and one more for weights"
    # Nodes of supervisor may all be one machine: each has ports of its own there.
    if not endpoints.is_loopback(host) or kind == "supervisor":
        return ""
    if kind == "kubernetes":
        return "reaches no other pod"
    return f"reaches one machine, and --nodes and --learners ask for {machines}" * (machines > 1)


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return host == "*"
