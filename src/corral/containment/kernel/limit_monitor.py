"""Watches the limits of a command from within its warden, and makes the OOM killer prefer the command to the warden."""

from __future__ import annotations

import os
from _socket import MSG_DONTWAIT, MSG_NOSIGNAL, SO_RCVTIMEO, SOL_SOCKET
from _struct import pack

from corral.containment import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Mapping

    from corral.containment.kernel.cgroups import Counter

METER_PATIENCE_MICROSECONDS = 100_000  # against a busy keeper: the warden must keep deadlines meanwhile
COMMANDS_OOM_SCORE = 500  # the kernel kills a command before its warden, and before other processes of the user
_COUNTER_FLAGS = {"pids": protocol.TOO_MANY_PROCESSES, "memory": protocol.TOO_MUCH_MEMORY}
_UNLIMITED = 1 << 63


class LimitMonitor:
    """A warden's access to the counters of its control group and to the meter of its keeper."""

    def __init__(self, counters: Mapping[str, Counter], limits: Mapping[str, int], meter: socket | None) -> None:
        self.named = counters
        self.counters = [(counter, _COUNTER_FLAGS[controller]) for controller, counter in counters.items()]
        self.meter = meter
        self.cpu_seconds = limits.get("cpu_seconds", _UNLIMITED)
        self.disk_bytes = limits.get("disk_bytes", _UNLIMITED)
        if meter:
            meter.setsockopt(SOL_SOCKET, SO_RCVTIMEO, pack("@ll", 0, METER_PATIENCE_MICROSECONDS))

    def descriptors(self) -> list[int]:
        """Return the descriptors that the warden must keep open."""
        found = [counter.descriptor for counter, _ in self.counters]
        return [*found, self.meter.fileno()] if self.meter else found

    def hits(self, cpu_seconds: float, written_bytes: int) -> int:
        """Return the flags of the limits that a command has hit which has ended and used this much.

        The meter looks at intervals, so it may have missed the end of the command.
        """
        flags = protocol.TOO_MUCH_CPU if cpu_seconds > self.cpu_seconds else 0
        if written_bytes > self.disk_bytes:
            flags |= protocol.TOO_MUCH_WRITTEN
        for counter, flag in self.counters:
            if counter.has_risen():
                flags |= flag
        return flags

    def ask(self, asked: bytes) -> tuple[int, int]:
        """Ask the meter for the bytes of memory in use and the flags of exceeded limits. Return zeros if it is busy."""
        if self.meter is None:
            return 0, 0
        try:
            self.meter.send(asked, MSG_NOSIGNAL | MSG_DONTWAIT)
            nonce, memory_bytes, exceeded = protocol.ANSWER.unpack(self.meter.recv(protocol.ANSWER.size))
        except OSError:
            return 0, 0
        # A late answer can be about the previous command.
        return (memory_bytes, exceeded) if asked.startswith(nonce) else (0, 0)


class OomScore:
    """Switches the OOM score of a warden. A command inherits the score that its warden has when it starts."""

    def __init__(self) -> None:
        self.descriptor = -1
        self._is_own = True
        try:
            # Open it now: an undumpable process cannot open its own.
            self.descriptor = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
            own = int(os.pread(self.descriptor, 16, 0))
        except OSError:
            return
        self.own, self.commands = b"%d" % own, b"%d" % min(own + COMMANDS_OOM_SCORE, 1000)
        self.use_command_score()

    def use_command_score(self) -> None:
        if self._is_own and self.descriptor >= 0:
            os.pwrite(self.descriptor, self.commands, 0)
            self._is_own = False

    def use_own_score(self) -> None:
        if not self._is_own:
            os.pwrite(self.descriptor, self.own, 0)
            self._is_own = True


def close_all_but(*kept: int) -> None:
    """Close every descriptor except stdin, stdout, stderr and these."""
    after = 3
    for descriptor in sorted(kept):
        if descriptor >= 0:
            os.closerange(after, descriptor)
            after = descriptor + 1
    os.closerange(after, os.sysconf("SC_OPEN_MAX"))
