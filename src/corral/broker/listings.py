"""Makes a copy of a directory's names for a call that may list it: names, sizes and dates, and no contents.

The call sees the copy in place of the directory, so no content, socket or device of the host is in reach, whatever the call runs.
"""

from __future__ import annotations

import os
import stat

from corral.containment.filesystem.temp_dirs import safe_temp_dir
from corral.guard.path_zones import classify_path
from corral.model.errors import PolicyError
from corral.model.grant import LIST_ALL
from corral.policy.path_grants import home_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from corral.policy.config import SandboxConfig

MAX_NAMES = 100_000  # of one call, about four seconds; a home directory may have millions
_PRIVATE = 0o700


class Listings:
    """A temporary directory that holds the copy of each listed directory at its own path."""

    def __init__(self, config: SandboxConfig, targets: Iterable[str], environ: Mapping[str, str]) -> None:
        above = safe_temp_dir((config.project_root, *config.containment.write), environ)
        self.directory = f"{above}/corral-names-{os.getuid()}-{os.urandom(8).hex()}"
        self._root, self._home = config.project_root, home_directory(environ)
        self._left = MAX_NAMES
        os.mkdir(self.directory, _PRIVATE)
        try:
            for target in targets:
                path = target.removesuffix(LIST_ALL)
                os.makedirs(os.path.dirname(self.directory + path), exist_ok=True)
                self._copy(path, os.lstat(path), MAX_NAMES if target.endswith(LIST_ALL) else 1)
        except OSError as error:
            self.close()
            raise PolicyError(f"{error.filename} cannot be listed: {error.strerror}") from None
        except PolicyError:
            self.close()
            raise

    def close(self) -> None:
        """Remove the copies."""
        from shutil import rmtree  # noqa: PLC0415  few calls list a directory outside

        rmtree(self.directory, ignore_errors=True)

    def _copy(self, top: str, found: os.stat_result, levels: int) -> None:
        pending = [(top, found, levels)]
        directories = []
        while pending:
            path, found, levels = pending.pop()
            made = self.directory + path
            self._left -= 1
            if self._left < 0:
                raise PolicyError(f"{top} has more than {MAX_NAMES:,} names: list a directory below it")
            if stat.S_ISLNK(found.st_mode):
                os.symlink(os.readlink(path), made)
            elif stat.S_ISDIR(found.st_mode):
                os.makedirs(made, _PRIVATE, exist_ok=True)
                directories.append((made, found))
                if levels and classify_path(path, self._root, self._home) not in ("secret", "notes"):
                    pending += ((entry.path, entry.stat(follow_symlinks=False), levels - 1) for entry in _entries(path))
            elif not os.path.lexists(made):
                _make_file(made, found)
        for made, found in reversed(directories):
            os.chmod(made, stat.S_IMODE(found.st_mode) & 0o777 | _PRIVATE)
            os.utime(made, ns=(found.st_atime_ns, found.st_mtime_ns))


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as listing:
            return list(listing)
    except OSError:
        return []  # the user cannot list it either


def _make_file(made: str, found: os.stat_result) -> None:
    """Make a file of the same size, date and mode. It has no blocks, so it takes no space and reads as zeros."""
    descriptor = os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        if stat.S_ISREG(found.st_mode):
            os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & 0o777)
            os.truncate(descriptor, found.st_size)
        os.utime(descriptor, ns=(found.st_atime_ns, found.st_mtime_ns))
    except OSError:
        pass  # a file system may have no files of this size; the name is what was asked for
    finally:
        os.close(descriptor)
