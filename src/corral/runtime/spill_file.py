"""Saves output that is too long for its result to a bounded file in the commands' /tmp, where they can read it. Off by default.

A failure to write only loses the saved copy. The command neither waits nor fails.
"""

from __future__ import annotations

import os
from collections import deque

from corral.runtime.capture import Capture

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.guard.machine import Shown
    from corral.policy.config import SandboxConfig
    from corral.runtime.capture import Captured

MAX_KEPT_OUTPUTS = 16  # per sandbox, against a session that fills the disk with many long outputs
LOOK_BYTES = 1 << 20  # written between two checks of the free disk space
CUT = b"\n[corral: truncated, the rest was not saved]\n"
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_EXCL and O_NOFOLLOW: commands can create files and links in this directory too.
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class SpillDirectory:
    """The directory in which one sandbox saves long outputs."""

    def __init__(self, config: SandboxConfig, max_bytes: int, shown: Callable[[], Shown]) -> None:
        self._config = config
        self._room = min(max_bytes, config.limits.disk_bytes or max_bytes)
        self._shown = shown
        self._kept: deque[str] = deque()

    def capture(self) -> Capture:
        """Return a capture for one command."""
        return SpillingCapture(self, self._config.max_output_bytes, self._config.output.keep, self._room)

    def open(self) -> tuple[int, str] | None:
        """Create a file and return its descriptor and its path in the sandbox. Removes the oldest file if there are too many."""
        name = f"corral-output-{os.urandom(8).hex()}.txt"
        for seen, real in self._shown()[:1]:
            try:
                directory = os.open(real, _DIRECTORY)
            except OSError:
                return None
            try:
                descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=directory)
                self._kept.append(name)
                while len(self._kept) > MAX_KEPT_OUTPUTS:
                    _remove(self._kept.popleft(), directory)
                return descriptor, f"{seen}/{name}"
            except OSError:
                return None
            finally:
                os.close(directory)
        return None

    def has_room(self, descriptor: int) -> bool:
        """Return whether the disk has more free space than the limit `free_disk_bytes`."""
        found = os.fstatvfs(descriptor)
        return found.f_bavail * found.f_frsize > (self._config.limits.free_disk_bytes or 0)


def _remove(name: str, directory: int) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except OSError:
        # A command has removed it, or put a directory in its place.
        return


class SpillingCapture(Capture):
    """A capture that also writes both streams to a file, once one of them exceeds `max_bytes`."""

    __slots__ = ("_descriptor", "_directory", "_early", "_look_at", "_max_bytes", "_path", "_room", "_written")

    def __init__(self, directory: SpillDirectory, max_bytes: int, keep: str, room: int) -> None:
        super().__init__(max_bytes, keep)
        self._directory = directory
        self._max_bytes = max_bytes
        self._room = room
        self._early: bytearray | None = bytearray()  # output until it is known whether a file is needed
        self._descriptor = -1
        self._path: str | None = None
        self._written = self._look_at = 0

    def feed(self, stream: int, data: bytes | bytearray | memoryview) -> None:
        """Copy the next bytes of STDOUT or STDERR."""
        super().feed(stream, data)
        if self._early is not None:
            self._early += data
            if self.streams[stream].total <= self._max_bytes:
                return
            data, self._early = self._early, None
            self._descriptor, self._path = self._directory.open() or (-1, None)
        if self._descriptor >= 0:
            self._write(data)

    def finish(self) -> Captured:
        """Return the kept output and the path of the file."""
        self._close()
        return super().finish().replace(path=self._path)

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        try:
            if self._written >= self._look_at:
                self._look_at = self._written + LOOK_BYTES
                if not self._directory.has_room(self._descriptor):
                    self._room = 0
            for part in (data[: self._room], CUT if len(data) > self._room else b""):
                view = memoryview(part)
                while view:
                    view = view[os.write(self._descriptor, view) :]
            self._written += len(data)
            self._room -= len(data)
        except OSError:
            self._room = -1
        if self._room < 0:
            self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self._close()
