"""All of an output that is too long for its result, in a file where commands can read it: their own /tmp. Bounded, and off by default.

What cannot be written there is lost as it would have been without; the command never waits or fails for it.
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

MAX_KEPT_OUTPUTS = 16  # of one sandbox, against a session that fills the disk one long output at a time
LOOK_BYTES = 1 << 20  # between two looks at what is free on the disk
CUT = b"\n[corral: truncated, the rest was not saved]\n"
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not followed, not opened if it is there: a command may write in that directory too.
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class SpillDirectory:
    """Where one sandbox saves long outputs."""

    def __init__(self, config: SandboxConfig, max_bytes: int, shown: Callable[[], Shown]) -> None:
        self._config = config
        self._room = min(max_bytes, config.limits.disk_bytes or max_bytes)
        self._shown = shown
        self._kept: deque[str] = deque()

    def capture(self) -> Capture:
        """Return what takes the output of one command."""
        return SpillingCapture(self, self._config.max_output_bytes, self._config.output.keep, self._room)

    def open(self) -> tuple[int, str] | None:
        """Make a file and return its descriptor and its path as commands see it; the oldest goes for it."""
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
        """Say whether the disk has more left than every command must leave."""
        found = os.fstatvfs(descriptor)
        return found.f_bavail * found.f_frsize > (self._config.limits.free_disk_bytes or 0)


def _remove(name: str, directory: int) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except OSError:
        # The commands' own to remove, or to put a directory in its place.
        return


class SpillingCapture(Capture):
    """A capture that also writes both streams as they come, once one of them is longer than what is kept of it."""

    __slots__ = ("_descriptor", "_early", "_look_at", "_max_bytes", "_path", "_room", "_shelf", "_written")

    def __init__(self, shelf: SpillDirectory, max_bytes: int, keep: str, room: int) -> None:
        super().__init__(max_bytes, keep)
        self._shelf = shelf
        self._max_bytes = max_bytes
        self._room = room
        self._early: bytearray | None = bytearray()  # until it is known whether a file is needed
        self._descriptor = -1
        self._path: str | None = None
        self._written = self._look_at = 0

    def feed(self, stream: int, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of STDOUT or STDERR."""
        super().feed(stream, data)
        if self._early is not None:
            self._early += data
            if self.streams[stream].total <= self._max_bytes:
                return
            data, self._early = self._early, None
            self._descriptor, self._path = self._shelf.open() or (-1, None)
        if self._descriptor >= 0:
            self._write(data)

    def finish(self) -> Captured:
        """Return what was kept, and where all of it is."""
        self._close()
        return super().finish().replace(path=self._path)

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        try:
            if self._written >= self._look_at:
                self._look_at = self._written + LOOK_BYTES
                if not self._shelf.has_room(self._descriptor):
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
