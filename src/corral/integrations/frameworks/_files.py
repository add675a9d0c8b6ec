"""Files reached by commands of a sandbox: what a command may not reach raises the OSError that names why, a refusal is a PermissionError.

A mode that lets nobody read or write holds for root too: who took those bits away meant it.
"""

from __future__ import annotations

import os
import stat
from errno import EACCES, EEXIST, EINVAL, EISDIR, ELOOP, ENOENT, ENOSPC, ENOTDIR, EPERM
from typing import TypeVar, cast

from corral._lib.records import Record, frozen
from corral.integrations.frameworks._common import Gathered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from corral.model.result import SandboxResult
    from corral.sandbox import Sandbox

T = TypeVar("T")

ANY_READS = 0o444
ANY_WRITES = 0o222
PLAIN_MESSAGES = {"LC_ALL": "C"}
MAX_LISTING_BYTES = 64 * 1024 * 1024  # against a directory of millions of names
MEANING = {
    b"No such file or directory": ENOENT,
    b"Not a directory": ENOTDIR,
    b"Is a directory": EISDIR,
    b"File exists": EEXIST,
    b"Permission denied": EACCES,
    b"Operation not permitted": EPERM,
    b"Read-only file system": EACCES,
    b"Too many levels of symbolic links": ELOOP,
    b"No space left on device": ENOSPC,
}


class TooLarge(OSError):
    """A file has more bytes than the caller takes."""


@frozen
class Entry(Record):
    """One name in a directory; `is_directory` follows a link, `size` is of regular files alone."""

    name: str
    is_directory: bool
    size: int | None


class CommandFiles:
    """The files of one sandbox. In an event loop it `waits` there; else each of its coroutines ends at once, for `now`."""

    def __init__(self, box: Sandbox, *, waits: bool = True) -> None:
        self.box = box
        self.waits = waits

    async def status(self, path: str) -> tuple[int, int]:
        """Return mode and size of what a path leads to."""
        result = await self._done(["stat", "-L", "-c", "%f %s", "--", path], path)
        mode, size = result.stdout.split()
        return int(mode, 16), int(size)

    async def read(self, path: str, limit_bytes: int) -> bytes:
        """Return what a regular file holds; TooLarge where that is more than the limit."""
        mode, size = await self.status(path)
        _refuse(mode, ANY_READS, path)
        gathered = Gathered(limit_bytes)
        if size <= limit_bytes:
            await self._done(["cat", "--", path], path, gathered)
        # The second is a file that grew meanwhile.
        if size > limit_bytes or gathered.exceeded:
            raise TooLarge(EINVAL, f"the file has more than {limit_bytes} bytes", path)
        return gathered.stdout

    async def write(self, path: str, data: bytes) -> None:
        """Replace what a file holds, through a link too, and make the directories above it."""
        try:
            mode, _ = await self.status(path)
        except FileNotFoundError:
            if os.path.dirname(path):
                await self.make_directory(os.path.dirname(path))
        else:
            _refuse(mode, ANY_WRITES, path)
        await self._done(["tee", "--", path], path, stdin=data)

    async def make_directory(self, path: str) -> None:
        """Make a directory and those above it, if they are not there."""
        await self._done(["mkdir", "-p", "--", path], path)

    async def remove(self, path: str) -> None:
        """Remove a file, a link, or a directory with all in it."""
        await self._done(["rm", "-r", "--", path], path)

    async def real(self, path: str) -> str:
        """Return where a path leads through every link; names that do not exist stay as they are."""
        result = await self._done(["realpath", "-m", "-z", "--", path], path)
        return os.fsdecode(result.stdout.rstrip(b"\0"))

    async def entries(self, path: str) -> list[Entry]:
        """Return what a directory holds, by name."""
        mode, _ = await self.status(path)
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR), path)
        gathered = Gathered(MAX_LISTING_BYTES)
        # A path that begins with a dash would be an option.
        start = path if path.startswith("/") else f"./{path}"
        await self._done(
            ["find", "-H", start, "-mindepth", "1", "-maxdepth", "1", "-printf", r"%y %Y %s %f\0"], path, gathered
        )
        if gathered.exceeded:
            raise TooLarge(EINVAL, "the directory has too many names", path)
        return sorted(map(_entry, gathered.stdout.split(b"\0")[:-1]), key=lambda entry: entry.name)

    async def _done(
        self, argv: list[str], path: str, gathered: Gathered | None = None, stdin: bytes | None = None
    ) -> SandboxResult:
        if self.waits:
            result = await self.box.arun(argv, env=PLAIN_MESSAGES, stdin=stdin, on_output=gathered)
        else:
            result = self.box.run(argv, env=PLAIN_MESSAGES, stdin=stdin, on_output=gathered)
        if result.denied:
            raise PermissionError(EACCES, f"corral refused this. {result.reason}", path)
        if result.timed_out:
            raise TimeoutError(f"{argv[0]} took too long for {path}")
        if not result.ok:
            raise _error(result, path)
        return result


def now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    coroutine.close()
    raise RuntimeError("the coroutine waits for something")


def _entry(line: bytes) -> Entry:
    own, target, size, name = line.split(b" ", 3)
    return Entry(os.fsdecode(name), target == b"d", int(size) if own == b"f" else None)


def _refuse(mode: int, wanted: int, path: str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), path)
    if not stat.S_ISREG(mode):
        raise OSError(EINVAL, "not a regular file", path)
    if not mode & wanted:
        raise PermissionError(EACCES, os.strerror(EACCES), path)


def _error(result: SandboxResult, path: str) -> OSError:
    said = result.stderr_text.strip()
    number = next((number for text, number in MEANING.items() if text in result.stderr), EINVAL)
    return OSError(number, said or f"it ended with {result.exit_code}", path)
