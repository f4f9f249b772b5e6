"""A Ray cluster of several simulated machines on the loopback: python ray_cluster.py CPUS CPUS ...

Says its address once all are there; adds a machine, of as many CPUs as the last, at each SIGUSR1.
"""

import os
import signal
import sys

# Before ray is imported. The second, named for other systems, keeps every address at 127.0.0.1.
ENV = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
MEMORY = 80 * 2**20


def main(cpus: list[int]) -> None:
    os.environ.update(ENV)
    from ray.cluster_utils import Cluster

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    each = {"node_ip_address": "127.0.0.1", "object_store_memory": MEMORY}
    head = {"num_cpus": cpus[0], "include_dashboard": False, **each}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for count in cpus[1:]:
        cluster.add_node(num_cpus=count, **each)
    print(f"cluster at {cluster.address}", flush=True)  # noqa: T201
    while signal.sigwait({signal.SIGUSR1}):
        cluster.add_node(num_cpus=cpus[-1], **each)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
