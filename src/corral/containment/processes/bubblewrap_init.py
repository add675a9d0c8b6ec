"""The first process in a sandbox that bubblewrap has made: it looks whether it is held, and then is a warden as any other.

Where the tool did not do what it was told, nothing is served.
"""

from __future__ import annotations

import os
import sys
from _socket import socket

from corral.containment import protocol
from corral.containment.kernel.cgroups import Counter
from corral.containment.kernel.limit_monitor import LimitMonitor, close_all_but
from corral.containment.layers import LAYERS
from corral.containment.network.proxy_process import send_listener
from corral.containment.plan import BubblewrapStart
from corral.containment.processes import warden

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.containment.kernel.layer import Layer

SOCK, LIVES, PLAN, METER = 3, 4, 5, 6  # the descriptors that the keeper leaves this program
OUTLET = 19  # where the way to the proxy is left, for a network that this process alone is in
FIRST_COUNTER = 10  # and from here those that count how often bounds are hit


def main() -> None:
    """Serve the host whose keeper started this program."""
    try:
        start = BubblewrapStart.unpack(protocol.read_body(PLAN))
        os.close(PLAN)
        told = start.plan
        counters = {name: Counter(number, word) for number, name, word in start.counters}
        limits = told.limits
        monitor = LimitMonitor(counters, limits.limits, socket(fileno=METER) if limits.is_metered else None)
        kept = (SOCK, LIVES, *monitor.descriptors())
        if start.has_outlet:
            # Before it is looked at what holds: it is the tool that made this network, and not for the command to listen first.
            send_listener(socket(fileno=OUTLET))
        close_all_but(*kept)
        for descriptor in kept:
            os.set_inheritable(descriptor, False)
        lacking = _lacking(told.layers, told.host_namespaces)
        if lacking:
            raise RuntimeError(f"bubblewrap was told to hold commands by {', '.join(lacking)}, and did not")
        warden.serve(socket(fileno=SOCK), told, monitor, keeper_lives=LIVES, is_first=start.is_first)
    except (BrokenPipeError, ConnectionResetError):
        # The host hung up in the middle of an answer.
        pass
    except BaseException:  # noqa: BLE001  the last frame of this process: told to the keeper's stderr, then the end
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


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
