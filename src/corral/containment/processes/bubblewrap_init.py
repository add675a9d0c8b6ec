"""Runs as the first process of a sandbox that bubblewrap has made: checks that it is confined, then serves as a warden.

If bubblewrap did not enter a layer, the process exits.
"""

from __future__ import annotations

import os
from _socket import socket

from corral.containment import protocol
from corral.containment.kernel.cgroups import Counter
from corral.containment.kernel.limit_monitor import LimitMonitor, close_all_but
from corral.containment.layers import LAYERS
from corral.containment.network.proxy_process import send_listeners
from corral.containment.plan import BubblewrapStart
from corral.containment.processes import warden

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.containment.kernel.layer import Layer

SOCK, LIVES, PLAN, METER = 3, 4, 5, 6  # the descriptors that the keeper leaves to this program
OUTLET = 19  # the socket to the proxy, for a warden in a network of its own
FIRST_COUNTER = 10  # the counters of limit hits begin here


def main() -> None:
    """Serve the host whose keeper started this program."""
    warden.exit_after(_serve)


def _serve() -> None:
    start = BubblewrapStart.unpack(protocol.read_body(PLAN))
    os.close(PLAN)
    plan = start.plan
    counters = {name: Counter(number, word) for number, name, word in start.counters}
    limits = plan.limits
    monitor = LimitMonitor(counters, limits.limits, socket(fileno=METER) if limits.is_metered else None)
    kept = (SOCK, LIVES, *monitor.descriptors())
    if start.has_outlet:
        # First, so that no command can listen on the proxy's port before the proxy.
        send_listeners(socket(fileno=OUTLET), plan.host.listeners)
    close_all_but(*kept)
    for descriptor in kept:
        os.set_inheritable(descriptor, False)
    lacking = _lacking(plan.layers, plan.host_namespaces)
    if lacking:
        raise RuntimeError(f"bubblewrap did not enter the layers {', '.join(lacking)}")
    warden.serve(socket(fileno=SOCK), plan, monitor, keeper_lives=LIVES, is_first=start.is_first)


def namespace_ids() -> dict[str, str]:
    """Return the ids of the namespaces that this process is in, by layer."""
    paths = {name: f"/proc/self/ns/{layer.namespace}" for name, layer in LAYERS.items() if layer.namespace}
    return {name: os.readlink(path) for name, path in paths.items() if os.path.lexists(path)}


def _lacking(layers: frozenset[str], outside: Mapping[str, str]) -> list[str]:
    """Return the layers that this process shows no sign of. `outside` has the namespaces of the host."""
    own = namespace_ids()
    with open("/proc/self/status", "rb", buffering=0) as file:
        status = dict(line.split(b":\t", 1) for line in file.read().splitlines() if b":\t" in line)

    def is_entered(layer: Layer) -> bool:
        if layer.namespace and (layer.name not in own or own[layer.name] == outside.get(layer.name)):
            return False
        return layer.is_evident is None or layer.is_evident(status)

    return sorted(name for name in layers if not is_entered(LAYERS[name]))
