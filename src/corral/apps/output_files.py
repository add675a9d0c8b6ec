"""Writes files for the user into directories that commands may have prepared: whole or not at all, and never through a planted link."""

from __future__ import annotations

import os
from errno import ELOOP

from corral.containment.filesystem.temp_dirs import projects_around

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

MAX_LINKS = 40  # as the kernel has it, against links that lead in a circle
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class OutputDirectory:
    """An open directory. What happens to its path later does not change where files are written."""

    def __init__(self, path: str, *, make: bool = False) -> None:
        self._descriptor = os.open("/", _DIRECTORY)
        try:
            for name in resolved(path).split("/"):
                if name:
                    self._enter(name, make=make)
        except BaseException:
            self.close()
            raise

    def _enter(self, name: str, *, make: bool) -> None:
        above = self._descriptor
        try:
            inner = os.open(name, _DIRECTORY, dir_fd=above)
        except FileNotFoundError:
            if not make:
                raise
            os.mkdir(name, dir_fd=above)
            inner = os.open(name, _DIRECTORY, dir_fd=above)
        self._descriptor = inner
        os.close(above)

    def write(self, name: str, texts: Iterable[str], *, mode: int = 0o666) -> int:
        """Write a file atomically and return its size. An existing file, link or pipe of that name is replaced, never opened."""
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
        """Remove a file, or the link that stands at its name; nothing where there is none."""
        try:
            os.unlink(name, dir_fd=self._descriptor)
        except FileNotFoundError:
            return

    def close(self) -> None:
        """Give the directory back."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def resolved(path: str) -> str:
    """Return a path without links; OSError for a link that lies in a project, where a command may have planted it."""
    here = projects_around(os.getcwd())
    at, left, links = "/", os.path.join(os.getcwd(), path).split("/"), 0
    while left:
        name = left.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at)
            continue
        entry = os.path.join(at, name)
        try:
            text = os.readlink(entry)
        except OSError:
            # It is no link, or not there yet.
            at = entry
            continue
        links += 1
        if links > MAX_LINKS or _is_inside(at, here) or len(projects_around(at, marked=True)) > 0:
            raise OSError(
                ELOOP, f"{entry} is a link, which a command may have planted; name the directory that it leads to"
            )
        at = "/" if text.startswith("/") else at
        left = [*text.split("/"), *left]
    return at


def _is_inside(path: str, roots: Iterable[str]) -> bool:
    return any(f"{path}/".startswith(f"{root}/") for root in roots)
