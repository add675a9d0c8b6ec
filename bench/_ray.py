"""A Ray cluster of several nodes on this machine, each with room for so many commands at a time. All of it is gone afterwards."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STORE_BYTES = 100_000_000  # of each node, in shared memory


class Missing(Exception):
    """There is no Ray here."""


class Nodes:
    """The nodes, of which the first holds the cluster together."""

    def __init__(self, cluster: Any, room: int, count: int) -> None:
        self._cluster = cluster
        self._others = [cluster.add_node(**about(room, number)) for number in range(1, count)]
        cluster.wait_for_nodes()

    def kill_one(self) -> None:
        """Kill a node with all its processes, without a word."""
        self._cluster.remove_node(self._others.pop(), allow_graceful=False)


@contextmanager
def cluster(*, nodes: int, room: int) -> Iterator[Nodes]:
    """Give a running cluster that this process is connected to."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    try:
        import ray
        from ray.cluster_utils import Cluster
    except ImportError:
        raise Missing(
            "not on Ray, which is not installed here; `make bench-ray` runs it where `make test-frameworks` has it"
        ) from None
    try:
        head = Cluster(initialize_head=True, head_node_args=about(room, 0))
    except Exception as error:  # noqa: BLE001  whatever keeps Ray from starting, what was measured without it stays
        raise Missing(f"not on Ray, which did not start: {error}") from None
    try:
        ray.init(address=head.address, log_to_driver=False, logging_level="ERROR")
        yield Nodes(head, room, nodes)
    finally:
        ray.shutdown()
        head.shutdown()


def about(room: int, number: int) -> dict[str, Any]:
    """Return what a node is: on a loopback address of its own."""
    place = {"node_ip_address": f"127.0.0.{number + 3}", "include_dashboard": False}
    return {"num_cpus": 1, "resources": {"corral": room}, "object_store_memory": STORE_BYTES, **place}
