"""Passes a command's output on to corral's own stdout and stderr, and keeps its end: a result names the refusals that errors report.

Only where no stream is a terminal. If both are one file, they stay in order: the command then gets one pipe for both.
"""

from __future__ import annotations

import fcntl
import os
from _thread import allocate_lock, start_new_thread
from select import POLLIN, POLLOUT, poll
from termios import FIONREAD

READ_BYTES = 1 << 16
KEPT_BYTES = 1 << 16
POLL_SECONDS = 0.02


def can_relay() -> bool:
    """Say whether corral has all three streams, and none to write to is a terminal."""
    try:
        # A stream that was closed may be a descriptor of corral's by now. Python opens those non-inheritable.
        return all(map(os.get_inheritable, (0, 1, 2))) and not any(map(os.isatty, (1, 2)))
    except OSError:
        return False


class OutputRelay:
    """The pipes of one command, and a thread for each."""

    def __init__(self) -> None:
        stdout, stderr = os.fstat(1), os.fstat(2)
        self._errors = _Pump(2)
        is_one = (stdout.st_dev, stdout.st_ino) == (stderr.st_dev, stderr.st_ino)
        self._output = self._errors if is_one else _Pump(1)
        self.stdio = (0, self._output.writing, self._errors.writing)

    def start(self) -> None:
        """Begin to pass output on. The command has its streams by now."""
        for pump in {self._output, self._errors}:
            pump.start()

    def printed(self) -> tuple[bytes, bytes]:
        """Return the end of stdout and of stderr. All that was printed until now has been passed on."""
        for pump in (self._output, self._errors):
            pump.drain()
        return (b"" if self._output is self._errors else self._output.kept), self._errors.kept


class _Pump:
    """Copies a pipe to a descriptor."""

    def __init__(self, target: int) -> None:
        self._reading, self.writing = os.pipe2(os.O_CLOEXEC)
        self._target = target
        self._is_busy = False
        self._ended = allocate_lock()
        self._ended.acquire()
        self.kept = b""

    def start(self) -> None:
        os.close(self.writing)
        start_new_thread(self._copy, ())

    def drain(self) -> None:
        """Wait until all that is in the pipe has been passed on. A process that the command left may still hold its other end."""
        while not self._ended.acquire(timeout=POLL_SECONDS):
            pending = bytearray(4)
            try:
                fcntl.ioctl(self._reading, FIONREAD, pending)
            except OSError:
                return  # it has just ended
            if not any(pending) and not self._is_busy:
                return
        self._ended.release()

    def _copy(self) -> None:
        arrives = poll()
        arrives.register(self._reading, POLLIN)
        try:
            while True:
                arrives.poll()
                # Set before the pipe is emptied, so that `drain` sees one of the two.
                self._is_busy = True
                data = os.read(self._reading, READ_BYTES)
                if not data:
                    return
                self.kept = (self.kept + data)[-KEPT_BYTES:]
                _write(self._target, data)
                self._is_busy = False
        except OSError:
            # Nobody reads the output. The command gets SIGPIPE when it writes, as it would from the closed pipe itself.
            return
        finally:
            self._ended.release()
            os.close(self._reading)


def _write(target: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(target, rest) :]
        except BlockingIOError:
            # The reader made the pipe non-blocking.
            room = poll()
            room.register(target, POLLOUT)
            room.poll()
