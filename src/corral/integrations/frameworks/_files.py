"""Reads and writes files by running commands in a sandbox, so that the sandbox applies to file operations too.

A failure raises the OSError with the errno of its cause, a refusal raises PermissionError. A file without any read or write
permission bit is not read or written, not even by root: the missing bits are the user's decision.
"""

from __future__ import annotations

import os
import stat
from errno import EACCES, EEXIST, EINVAL, EISDIR, ELOOP, ENOENT, ENOSPC, ENOTDIR, EPERM

from corral._lib.records import Record, frozen
from corral.integrations.frameworks._commands import OutputCollector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.model.result import SandboxResult
    from corral.sandbox import Sandbox

ANY_READS = 0o444
ANY_WRITES = 0o222
ENGLISH_MESSAGES = {"LC_ALL": "C"}
MAX_LISTING_BYTES = 64 * 1024 * 1024  # against a directory of millions of names
ERRNO_OF_MESSAGE = {
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
    """The file or listing is larger than the caller's limit."""


@frozen
class DirectoryEntry(Record):
    """A name in a directory. `is_directory` follows symlinks; only regular files have a `size`."""

    name: str
    is_directory: bool
    size: int | None


class CommandFiles:
    """The files of a sandbox. With `waits=False` no coroutine suspends, so that `run_coroutine` can run it without a loop."""

    def __init__(self, box: Sandbox, *, waits: bool = True) -> None:
        self.box = box
        self.waits = waits

    async def status(self, path: str) -> tuple[int, int]:
        """Return mode and size of the file at a path, following symlinks."""
        result = await self._run(["stat", "-L", "-c", "%f %s", "--", path], path)
        mode, size = result.stdout.split()
        return int(mode, 16), int(size)

    async def read(self, path: str, limit_bytes: int) -> bytes:
        """Return the content of a regular file. Raises TooLarge above the limit."""
        mode, size = await self.status(path)
        _require_regular_file(mode, ANY_READS, path)
        output = OutputCollector(limit_bytes)
        if size <= limit_bytes:
            await self._run(["cat", "--", path], path, output)
        # `exceeded` catches a file that grew after stat.
        if size > limit_bytes or output.exceeded:
            raise TooLarge(EINVAL, f"the file has more than {limit_bytes} bytes", path)
        return bytes(output.stdout)

    async def write(self, path: str, data: bytes) -> None:
        """Replace the content of a file, following symlinks. Creates missing parent directories."""
        try:
            mode, _ = await self.status(path)
        except FileNotFoundError:
            if os.path.dirname(path):
                await self.make_directory(os.path.dirname(path))
        else:
            _require_regular_file(mode, ANY_WRITES, path)
        await self._run(["tee", "--", path], path, stdin=data)

    async def make_directory(self, path: str) -> None:
        """Create a directory and its missing parents."""
        await self._run(["mkdir", "-p", "--", path], path)

    async def remove(self, path: str) -> None:
        """Remove a file, a symlink, or a directory with its content."""
        await self._run(["rm", "-r", "--", path], path)

    async def real(self, path: str) -> str:
        """Resolve all symlinks of a path. Names that do not exist stay as they are."""
        result = await self._run(["realpath", "-m", "-z", "--", path], path)
        return os.fsdecode(result.stdout.rstrip(b"\0"))

    async def entries(self, path: str) -> list[DirectoryEntry]:
        """List a directory, sorted by name."""
        mode, _ = await self.status(path)
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR), path)
        output = OutputCollector(MAX_LISTING_BYTES)
        # find would take a path that begins with a dash for an option.
        start = path if path.startswith("/") else f"./{path}"
        argv = ["find", "-H", start, "-mindepth", "1", "-maxdepth", "1", "-printf", r"%y %Y %s %f\0"]
        await self._run(argv, path, output)
        if output.exceeded:
            raise TooLarge(EINVAL, "the directory has too many names", path)
        return sorted(map(_parse_entry, bytes(output.stdout).split(b"\0")[:-1]), key=lambda entry: entry.name)

    async def _run(
        self, argv: list[str], path: str, output: OutputCollector | None = None, stdin: bytes | None = None
    ) -> SandboxResult:
        if self.waits:
            result = await self.box.arun(argv, env=ENGLISH_MESSAGES, stdin=stdin, on_output=output)
        else:
            result = self.box.run(argv, env=ENGLISH_MESSAGES, stdin=stdin, on_output=output)
        if result.denied:
            raise PermissionError(EACCES, f"corral refused this. {result.reason}", path)
        if result.timed_out:
            raise TimeoutError(f"{argv[0]} timed out on {path}")
        if not result.ok:
            number = next((number for text, number in ERRNO_OF_MESSAGE.items() if text in result.stderr), EINVAL)
            message = result.stderr_text.strip() or f"{argv[0]} exited with code {result.exit_code}"
            raise OSError(number, message, path)
        return result


def _parse_entry(line: bytes) -> DirectoryEntry:
    own_type, target_type, size, name = line.split(b" ", 3)
    return DirectoryEntry(os.fsdecode(name), target_type == b"d", int(size) if own_type == b"f" else None)


def _require_regular_file(mode: int, permission: int, path: str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), path)
    if not stat.S_ISREG(mode):
        raise OSError(EINVAL, "not a regular file", path)
    if not mode & permission:
        raise PermissionError(EACCES, os.strerror(EACCES), path)
