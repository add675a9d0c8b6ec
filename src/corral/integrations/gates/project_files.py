"""Files for the recency gate: the version of a file, and the files that a command reads and writes. Runs nothing."""

from __future__ import annotations

import os
import stat
from hashlib import sha256

from corral.guard.axes import structure
from corral.guard.evaluate import commands_of
from corral.guard.machine import Machine
from corral.guard.path_zones import inside
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import NUMBER_HOLE
from corral.integrations.gates.recency import ABSENT
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.model.call import Call
    from corral.policy.config import SandboxConfig

READ_BYTES = 1024 * 1024
MAX_HASHED_BYTES = 16 * 1024 * 1024  # a larger file is known by size and times: hashing it would delay every call


class FileStates:
    """Returns the versions of files by path, relative to `root`. It follows symlinks, and no path makes it raise.

    A version is a hash of the content, so `touch` does not change it, and a change that keeps size and times does.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.realpath(os.fspath(root))
        if not os.path.isdir(self._root):
            # Every file in it would be absent, so the gate would never refuse.
            raise PolicyError(f"{self._root!r} is not an existing directory; give the directory that paths start from")

    def key_of(self, path: str) -> str:
        """Return the resolved path, so that a file has the same key under all its names."""
        try:
            return os.path.realpath(os.path.join(self._root, path))
        except ValueError:  # a NUL
            return path

    def __call__(self, path: str) -> str:
        """Return the version of a file, or `ABSENT`. Other file types have one version per type."""
        try:
            # O_NONBLOCK: opening a named pipe would wait for a writer.
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            descriptor = os.open(os.path.join(self._root, path), flags)
            try:
                return _version(descriptor)
            finally:
                os.close(descriptor)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return ABSENT
        except OSError as error:
            return f"unreadable:{error.errno}"


def _version(descriptor: int) -> str:
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        return f"special:{stat.S_IFMT(facts.st_mode):o}"
    digest, read = sha256(), 0
    while read <= MAX_HASHED_BYTES >= facts.st_size:
        data = os.read(descriptor, READ_BYTES)
        if not data:
            return version_of_digest(digest.digest())
        digest.update(data)
        read += len(data)
    return f"stat:{facts.st_dev}:{facts.st_ino}:{facts.st_size}:{facts.st_mtime_ns}:{facts.st_ctime_ns}"


def version_of_digest(digest: bytes) -> str:
    """Return the version of a file whose content has this SHA-256 digest."""
    return f"sha256:{digest.hex()}"


def files_touched(call: Call, config: SandboxConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the project files that a call reads, and those it writes or deletes, as far as its text proves it."""
    machine = Machine.of(config)
    try:
        commands = [] if structure.refuse(call) is not None else commands_of(call, machine)[0]
    except Exception:  # noqa: BLE001  the sandbox gate refuses a call on which the guard fails
        return (), ()
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    for command in commands:
        if command.cwds is None or len(command.cwds) != 1:
            continue
        for verb, word, _ in command.effects:
            if HOLE in word.text or NUMBER_HOLE in word.text or word.glob or not word.text:
                continue
            path = machine.absolute(word.text, command.cwds[0])
            if not inside(path, machine.root):
                continue
            # A command lists a directory; it does not read the files in it.
            if verb == "reads" and not os.path.isdir(path):
                reads[path] = None
            elif verb in ("writes", "deletes"):
                writes[path] = None
    return tuple(reads), tuple(writes)
