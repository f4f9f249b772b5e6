"""Checks the address of the broker in `headrace units`: peers must be able to use it."""

import ipaddress

from headrace.broker.transport import endpoints
from headrace.launch.config import run_file

RENDEZVOUS_PORT = 29400  # where several learner machines meet
NODE_PORT = 9120  # metrics of the first node, where all nodes are one machine
RANK_PORT = 9110  # metrics of the first rank of a machine
# All that the templates use themselves; the first three: broker, node, evaluator.
_FIXED = {9100, 9101, 9102, RENDEZVOUS_PORT}
_KUBERNETES = "tcp://headrace-broker:5755"


def broker_address(
    kind: str, given: str | None, bind: str, *, nodes: int, ranks: int, learners: int
) -> str:
    """Returns --broker, or the kind's address, or broker.bind; ConfigError where peers could not
    reach it, or another process of these files listens there."""
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
