"""Keeps the output of a command in pipes of its warden. Most commands end before the pipes must be read.

The output of such a command is sent with its outcome, without descriptors. For a longer command, the host gets the read ends.
"""

from __future__ import annotations

import os
from errno import ETOOMANYREFS
from select import PIPE_BUF

from corral.containment import protocol
from corral.containment.kernel.syscalls import waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket

LOOK_SECONDS = 0.001  # after this time, the pipes of a command that prints much are handed over
HOLD_SECONDS = 0.005  # after this time, all are: compared with it, a hand-over takes little
MUCH_BYTES = 1 << 14  # a quarter of a pipe's capacity


class OutputPipes:
    """Two pipes for one command. The next command gets new ones: a process may have kept an end of the old ones."""

    def __init__(self) -> None:
        self._ours: list[int] = []
        self.theirs: list[int] = []
        self.is_held = False  # whether a command prints to them
        self._is_announced = False  # whether the host knows that the descriptors come

    def make(self) -> None:
        """Make the pipes for the next command, unless there are some."""
        if self.theirs:
            return
        try:
            for _ in range(2):
                ours, theirs = os.pipe2(os.O_CLOEXEC)
                self._ours.append(ours)
                self.theirs.append(theirs)
                # A process outside may keep the write end open and never write.
                os.set_blocking(ours, False)
        except OSError:
            self.clear()
            raise

    def renew(self) -> None:
        """Close the pipes of a command, and make those of the next one."""
        self.clear()
        try:
            self.make()
        except OSError:
            # The next command reports the error, if it persists.
            return

    def is_filling(self) -> bool:
        """Return whether a command may soon block on a full pipe."""
        return sum(map(waiting, self._ours)) > MUCH_BYTES

    def hand_over(self, sock: socket, nonce: bytes) -> bool:
        """Send the read ends to the host, unless that is done. Return false if it must be tried again."""
        if not self.is_held:
            return True
        message = protocol.CONTROL.pack(protocol.OUTPUT, nonce, 0)
        if not self._is_announced:
            # First a message without descriptors, because the host receives faster when it expects none.
            protocol.send(sock, message)
            self._is_announced = True
            # Otherwise the host would not see the end of the output.
            protocol.close_all(self.theirs)
            self.theirs.clear()
        try:
            protocol.send(sock, message, self._ours)
        except OSError as error:
            if error.errno != ETOOMANYREFS:
                raise
            # The user has too many descriptors in flight.
            return False
        self.clear()
        return True

    def take(self) -> tuple[bytes, bytes] | None:
        """Return the output to stdout and stderr; None if it is too much for one message."""
        stdout, stderr = self._ours
        size, error_size = waiting(stdout), waiting(stderr)
        if size + error_size > protocol.MAX_PRINTED_BYTES:
            return None
        return _read(stdout, size) if size else b"", _read(stderr, error_size) if error_size else b""

    def clear(self) -> None:
        """Close both pipes."""
        self.is_held = self._is_announced = False
        protocol.close_all(self._ours)
        protocol.close_all(self.theirs)
        self._ours.clear()
        self.theirs.clear()


def _read(end: int, size: int) -> bytes:
    """Return the bytes that were there, and at most one packet more."""
    data = b""
    while len(data) < size:
        try:
            # A command may have switched the pipe to packet mode. Then a read returns one packet and drops the bytes that do not fit.
            some = os.read(end, max(size - len(data), PIPE_BUF))
        except BlockingIOError:
            # Another process has opened this end too and read from it.
            break
        if not some:
            break
        data += some
    return data
