"""Starts a temporary Ray cluster of several nodes on this machine, each with slots for a number of commands."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STORE_BYTES = 100_000_000  # of shared memory for each node


class Missing(Exception):
    """Raised when Ray is not installed or does not start."""


class Nodes:
    """The nodes of a cluster. The first is the head node."""

    def __init__(self, cluster: Any, room: int, count: int) -> None:
        self._cluster = cluster
        self._others = [cluster.add_node(**about(room, number)) for number in range(1, count)]
        cluster.wait_for_nodes()

    def kill_one(self) -> None:
        """Kill a node and all its processes with SIGKILL."""
        self._cluster.remove_node(self._others.pop(), allow_graceful=False)


@contextmanager
def cluster(*, nodes: int, room: int) -> Iterator[Nodes]:
    """Yield a running cluster, to which this process is connected."""
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
    except Exception as error:  # noqa: BLE001  if Ray does not start for any reason, the numbers measured without it are kept
        raise Missing(f"not on Ray, which did not start: {error}") from None
    try:
        ray.init(address=head.address, log_to_driver=False, logging_level="ERROR")
        yield Nodes(head, room, nodes)
    finally:
        ray.shutdown()
        head.shutdown()


def about(room: int, number: int) -> dict[str, Any]:
    """Return the settings of a node, which has a loopback address of its own."""
    place = {"node_ip_address": f"127.0.0.{number + 3}", "include_dashboard": False}
    return {"num_cpus": 1, "resources": {"corral": room}, "object_store_memory": STORE_BYTES, **place}
