"""A warden's own pipes for what its command prints. Most commands are over before anybody has to read them.

Then what was printed goes with the answer, and no descriptor does; of a command that goes on, the host gets the ends to read.
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

LOOK_SECONDS = 0.001  # after which a command that prints much is waited for no longer
HOLD_SECONDS = 0.005  # after which none is: a hand-over is little beside that
MUCH_BYTES = 1 << 14  # a quarter of what a pipe holds


class OutputPipes:
    """Two pipes for one command after another, each for one alone: who has kept an end of it reaches no other."""

    def __init__(self) -> None:
        self._ours: list[int] = []
        self.theirs: list[int] = []
        self.is_held = False  # while a command prints to them
        self._is_announced = False  # that they come

    def make(self) -> None:
        """Make a pair for the next command, where there is none; OSError if it cannot be."""
        if self.theirs:
            return
        try:
            for _ in range(2):
                ours, theirs = os.pipe2(os.O_CLOEXEC)
                self._ours.append(ours)
                self.theirs.append(theirs)
                # Somebody elsewhere may keep the other end, and never print.
                os.set_blocking(ours, False)
        except OSError:
            self.clear()
            raise

    def renew(self) -> None:
        """Let go of what a command had, and have the next one's ready."""
        self.clear()
        try:
            self.make()
        except OSError:
            # The next command is told, if it is still so.
            return

    def is_filling(self) -> bool:
        """Say whether a command may soon have to wait for somebody to read."""
        return sum(map(waiting, self._ours)) > MUCH_BYTES

    def hand_over(self, sock: socket, nonce: bytes) -> bool:
        """Give the host the ends to read, if they are still here; false if that has to be tried again."""
        if not self.is_held:
            return True
        message = protocol.CONTROL.pack(protocol.OUTPUT, nonce, 0)
        if not self._is_announced:
            # Twice: who expects no descriptors has a quicker way to receive.
            protocol.send(sock, message)
            self._is_announced = True
            # Who reads them is to see their end.
            protocol.close_all(self.theirs)
            self.theirs.clear()
        try:
            protocol.send(sock, message, self._ours)
        except OSError as error:
            if error.errno != ETOOMANYREFS:
                raise
            # As many of the user's descriptors as may be are on their way, to whomever.
            return False
        self.clear()
        return True

    def take(self) -> tuple[bytes, bytes] | None:
        """Return what was printed, to stdout and to stderr; None if that is too much for a message."""
        stdout, stderr = self._ours
        size, error_size = waiting(stdout), waiting(stderr)
        if size + error_size > protocol.MAX_PRINTED_BYTES:
            return None
        return _read(stdout, size) if size else b"", _read(stderr, error_size) if error_size else b""

    def clear(self) -> None:
        """Let go of both."""
        self.is_held = self._is_announced = False
        protocol.close_all(self._ours)
        protocol.close_all(self.theirs)
        self._ours.clear()
        self.theirs.clear()


def _read(end: int, size: int) -> bytes:
    """Return what there was, and no more than a packet besides."""
    data = b""
    while len(data) < size:
        try:
            # A command may have made it a pipe of packets, of which one is read at a time, and what has no room is lost.
            some = os.read(end, max(size - len(data), PIPE_BUF))
        except BlockingIOError:
            # Somebody with the other end has opened this one too.
            break
        if not some:
            break
        data += some
    return data
