"""Writes files for the user into directories that commands can change. Each write is atomic and never follows a planted link."""

from __future__ import annotations

import os
from contextlib import suppress
from errno import ELOOP

from corral._lib.symlink_chain import resolve_links
from corral.containment.filesystem.temp_dirs import projects_around

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class OutputDirectory:
    """An open directory. Replacing its path later does not change where files are written."""

    def __init__(self, path: str, *, make: bool = False) -> None:
        self._descriptor = os.open("/", _DIRECTORY)
        try:
            for name in filter(None, _resolve(path).split("/")):
                above = self._descriptor
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(name, dir_fd=above)
                self._descriptor = os.open(name, _DIRECTORY, dir_fd=above)
                os.close(above)
        except BaseException:
            self.close()
            raise

    def write(self, name: str, texts: Iterable[str], *, mode: int = 0o666) -> int:
        """Write a file atomically and return its size. Replaces an existing file, link or pipe of that name and never opens it."""
        partial = f".{name}.{os.urandom(8).hex()}.new"
        descriptor = os.open(partial, _NEW_FILE, mode, dir_fd=self._descriptor)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.writelines(texts)
                file.flush()
                size = os.fstat(descriptor).st_size
            os.rename(partial, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except BaseException:
            os.unlink(partial, dir_fd=self._descriptor)
            raise
        return size

    def remove(self, name: str) -> None:
        """Remove a file or a link, if there is one."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _resolve(path: str) -> str:
    """Return a path without symbolic links. Refuses a link inside a project: a command may have planted it."""
    links, real = resolve_links(os.path.join(os.getcwd(), path))
    roots = projects_around(os.getcwd())
    for link in links:
        above = os.path.dirname(link)
        if any(f"{above}/".startswith(f"{root}/") for root in roots) or projects_around(above, marked=True):
            raise OSError(
                ELOOP, f"{link} is a symbolic link in a project, and a command may have planted it; name its target"
            )
    return real
