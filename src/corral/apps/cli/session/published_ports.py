"""The ports of a session that this machine's loopback reaches: those of the policy, and those of `corral publish`.

The service listens and holds the sockets, so that a port stays published when the session gets a new sandbox. The keeper of the
sandbox forwards. No command can ask for this: the service answers only the user's own processes outside of any sandbox.
"""

from __future__ import annotations

import os
from _thread import RLock
from errno import EADDRINUSE
from socket import create_server, socket

from corral._lib.network.listening_sockets import listening_process
from corral.containment.network.proxy import HOST, PORT
from corral.model.errors import CorralError, PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from corral.sandbox import Sandbox

MAX_PORTS = 16  # each has a process of its own
BACKLOG = 256
NEXT_PORTS = 20  # that are tried where one is taken
FIRST_FREE_PORT = 1024  # an ordinary user cannot listen below
OFFSET = 8000  # so that port 80 becomes 8080


class _Published:
    """One port. `keeper` is the process that forwards it, and closing `lives` ends that."""

    def __init__(self, listener: socket, *, is_policy: bool) -> None:
        self.listener, self.is_policy = listener, is_policy
        self.at = int(listener.getsockname()[1])
        self.keeper = 0
        self.lives = -1

    def forward(self, box: Sandbox, port: int) -> None:
        """Have the keeper of a sandbox forward connections, unless it does already."""
        if self.keeper and self.keeper == box._pool.keeper_pid():
            return
        self._end_forwarding()
        read_end, self.lives = os.pipe2(os.O_CLOEXEC)
        try:
            number = box._pool.publish(port, self.listener.fileno(), read_end)
        finally:
            os.close(read_end)
        if number:
            raise PolicyError(
                f"port {port} cannot be published: {os.strerror(number)}; the sandbox has no network of its own"
            )
        self.keeper = box._pool.keeper_pid() or 0

    def _end_forwarding(self) -> None:
        self.keeper = 0
        if self.lives >= 0:
            os.close(self.lives)
            self.lives = -1

    def close(self) -> None:
        """Stop publishing."""
        self._end_forwarding()
        self.listener.close()


class PublishedPorts:
    """The published ports of one session."""

    def __init__(self) -> None:
        self._ports: dict[int, _Published] = {}  # by the port inside
        self._failed: dict[int, str] = {}  # ports of the policy that cannot be published, and why
        self._lock = RLock()

    def add(self, box: Sandbox, port: int, at: int) -> tuple[int, str]:
        """Publish a port at a port of this machine, or at a free one for 0. Return it, and what uses the same number, if anything does."""
        with self._lock:
            known = self._ports.get(port)
            if known is not None and at in (0, known.at):
                known.forward(box, port)
                return known.at, ""
            self._check(box, port)
            listener, taken = _listen(port, at)
            self.remove(port)
            made = self._ports[port] = _Published(listener, is_policy=False)
            try:
                made.forward(box, port)
            except BaseException:
                self.remove(port)
                raise
            return made.at, taken

    def _check(self, box: Sandbox, port: int) -> None:
        containment = box.config.containment
        if port == PORT:
            raise PolicyError(f"port {port} is the sandbox's own proxy, which cannot be published")
        if port in containment.local_ports:
            raise PolicyError(f"port {port} of this machine is open to the sandbox already; it can go one way only")
        if containment.network == "on":
            raise PolicyError("the policy opens the network, so this machine reaches every port without publishing")
        if port not in self._ports and len(self._ports) >= MAX_PORTS:
            raise PolicyError(
                f"{MAX_PORTS} ports of the session are published already; end one: corral publish --end PORT"
            )

    def remove(self, port: int) -> bool:
        """Stop publishing a port. Returns false if it was not published."""
        with self._lock:
            known = self._ports.pop(port, None)
            if known is not None:
                known.close()
            return known is not None

    def follow(self, box: Sandbox, policy: Collection[int]) -> None:
        """Publish the ports of the policy, and have the present keeper of the sandbox forward all. A taken port is tried again later."""
        with self._lock:
            for port in [port for port, known in self._ports.items() if known.is_policy and port not in policy]:
                self.remove(port)
            self._failed = {}
            for port in policy:
                if port not in self._ports:
                    self._publish_by_policy(box, port)
            for port, known in self._ports.items():
                try:
                    known.forward(box, port)
                except (CorralError, OSError) as error:
                    self._failed[port] = str(error)

    def _publish_by_policy(self, box: Sandbox, port: int) -> None:
        try:
            self._check(box, port)
            self._ports[port] = _Published(_listen(port, port)[0], is_policy=True)
        except (CorralError, OSError) as error:
            self._failed[port] = str(error)

    @property
    def is_empty(self) -> bool:
        """True if no port is published."""
        return not self._ports

    def facts(self) -> list[dict[str, object]]:
        """Return what `corral ps` shows."""
        with self._lock:
            found: list[dict[str, object]] = [{"port": port, "at": each.at} for port, each in self._ports.items()]
            return [*found, *({"port": port, "at": 0, "why": why} for port, why in self._failed.items())]

    def close(self) -> None:
        """Stop publishing all ports."""
        with self._lock:
            for port in list(self._ports):
                self.remove(port)


def _listen(port: int, at: int) -> tuple[socket, str]:
    """Return a listening socket of this machine's loopback, and why it is not at the port's own number, if it is not."""
    reason = ""
    for number in (at,) if at else _candidates(port):
        try:
            return create_server((HOST, number), backlog=BACKLOG), reason
        except OSError as error:
            reason = reason or _reason(number, error)
    raise PolicyError(f"port {at or port} cannot be published: {reason}")


def _reason(number: int, error: OSError) -> str:
    if error.errno == EADDRINUSE:
        return f"{listening_process(number) or 'another program'} uses port {number} of this machine"
    return f"{error.strerror} (port {number} of this machine)"


def _candidates(port: int) -> Iterator[int]:
    yield port
    first = port + (1 if port >= FIRST_FREE_PORT else OFFSET)
    yield from range(first, min(first + NEXT_PORTS, 65536))
    yield 0
