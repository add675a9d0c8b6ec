"""What a warden does about the bounds of its command: asks who counts, and sees to it that it outlives a command without memory."""

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

METER_PATIENCE_MICROSECONDS = 100_000  # against a keeper that is busy; deadlines are kept meanwhile
COMMANDS_OOM_SCORE = 500  # the kernel ends a command before its warden, and before anything else of the owner's
_COUNTER_FLAGS = {"pids": protocol.TOO_MANY_PROCESSES, "memory": protocol.TOO_MUCH_MEMORY}
_UNBOUND = 1 << 63


class LimitMonitor:
    """What a warden gets of its keeper for the bounds of a command: what counts their hits, and the way to its meter."""

    def __init__(self, counters: Mapping[str, Counter], limits: Mapping[str, int], meter: socket | None) -> None:
        self.named = counters
        self.counters = [(counter, _COUNTER_FLAGS[controller]) for controller, counter in counters.items()]
        self.meter = meter
        self.cpu_seconds = limits.get("cpu_seconds", _UNBOUND)
        self.disk_bytes = limits.get("disk_bytes", _UNBOUND)
        if meter:
            meter.setsockopt(SOL_SOCKET, SO_RCVTIMEO, pack("@ll", 0, METER_PATIENCE_MICROSECONDS))

    def descriptors(self) -> list[int]:
        """Return what the warden keeps open, and nobody else."""
        found = [counter.descriptor for counter, _ in self.counters]
        return [*found, self.meter.fileno()] if self.meter else found

    def hits(self, cpu_seconds: float, written_bytes: int) -> int:
        """Return which bounds a command has hit that used so much and has ended: what the kernel says, and what nobody saw in time."""
        flags = protocol.TOO_MUCH_CPU if cpu_seconds > self.cpu_seconds else 0
        if written_bytes > self.disk_bytes:
            flags |= protocol.TOO_MUCH_WRITTEN
        for counter, flag in self.counters:
            if counter.has_risen():
                flags |= flag
        return flags

    def ask(self, asked: bytes) -> tuple[int, int]:
        """Return the bytes of memory in use and the broken bounds, as the meter says; nothing when it is busy."""
        if self.meter is None:
            return 0, 0
        try:
            self.meter.send(asked, MSG_NOSIGNAL | MSG_DONTWAIT)
            nonce, memory_bytes, broken = protocol.ANSWER.unpack(self.meter.recv(protocol.ANSWER.size))
        except OSError:
            return 0, 0
        # A late answer about the command before says nothing of this one.
        return (memory_bytes, broken) if asked.startswith(nonce) else (0, 0)


class OomScore:
    """Whom the kernel ends first when memory is out. A command begins with the score that its warden has at that moment."""

    def __init__(self) -> None:
        self.descriptor = -1
        self._is_own = True
        try:
            # Now: a process that is hidden cannot open its own.
            self.descriptor = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
            own = int(os.pread(self.descriptor, 16, 0))
        except OSError:
            return
        self.own, self.commands = b"%d" % own, b"%d" % min(own + COMMANDS_OOM_SCORE, 1000)
        self.before_a_start()

    def before_a_start(self) -> None:
        if self._is_own and self.descriptor >= 0:
            os.pwrite(self.descriptor, self.commands, 0)
            self._is_own = False

    def after_a_start(self) -> None:
        if not self._is_own:
            os.pwrite(self.descriptor, self.own, 0)
            self._is_own = True


def close_all_but(*kept: int) -> None:
    """Close every descriptor above the first three that is not among these."""
    after = 3
    for descriptor in sorted(kept):
        if descriptor >= 0:
            os.closerange(after, descriptor)
            after = descriptor + 1
    os.closerange(after, os.sysconf("SC_OPEN_MAX"))
