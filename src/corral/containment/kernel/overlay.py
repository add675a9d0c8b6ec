"""Mounts the overlays of transactions over the project, so that commands write to another directory and not to the project.

The keeper mounts them, because all wardens of one transaction share one.
"""

from __future__ import annotations

import os
from errno import ESTALE

from corral.containment.kernel import namespaces
from corral.containment.kernel.syscalls import call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from corral.containment.plan import KnownPath, Step

UPPER, WORK, MERGED, COPY = "upper", "work", "merged", "copy"  # the directories of a transaction
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_SLAVE = 2, 4, 0x4000, 0x80000
_MNT_DETACH = 2
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# By /proc/self/fd, since a path can contain a comma. Without index and metacopy: commands write the upper layer, and the host
# reads it, so nothing in it may refer to another path of the lower layer.
_OPTIONS = (
    b"lowerdir=/proc/self/fd/%d,upperdir=/proc/self/fd/%d,workdir=/proc/self/fd/%d,userxattr,index=off,metacopy=off"
)


class Overlays:
    """The overlays of one keeper."""

    def __init__(self, project: KnownPath) -> None:
        self._project = project
        self._own_mounts = False
        self._roots: dict[str, tuple[int, int]] = {}

    def mount(self, place: str) -> None:
        """Mount the overlay of the transaction in a directory, unless it is mounted."""
        if place in self._roots:
            return
        if not self._own_mounts:
            namespaces.unshare("mount")
            self._own_mounts = True
            # As a slave, so that later mounts of the host still appear.
            call("mount", None, b"/", None, _MS_REC | _MS_SLAVE, None)
        path, *known = self._project
        opened: list[int] = []
        try:
            # A generator, so that after a failure the list has the descriptors opened before.
            opened.extend(os.open(name, _DIRECTORY) for name in (path, f"{place}/{UPPER}", f"{place}/{WORK}"))
            found = os.fstat(opened[0])
            if [found.st_dev, found.st_ino] != known:
                raise OSError(ESTALE, f"{path} was replaced since the sandbox was made")
            merged = f"{place}/{MERGED}"
            os.makedirs(merged, 0o700, exist_ok=True)
            call("mount", b"overlay", os.fsencode(merged), b"overlay", _MS_NOSUID | _MS_NODEV, _OPTIONS % tuple(opened))
        finally:
            for descriptor in opened:
                os.close(descriptor)
        self._roots[place] = _identity(merged)

    def unmount(self, place: str) -> None:
        """Unmount an overlay. The upper directory stays."""
        if self._roots.pop(place, None):
            call("umount2", os.fsencode(f"{place}/{MERGED}"), _MNT_DETACH)

    def root_of(self, place: str) -> KnownPath:
        """Return the directory that replaces the project in a transaction, the overlay or a copy, with device and inode."""
        if os.path.isdir(f"{place}/{COPY}"):
            return f"{place}/{COPY}", *_identity(f"{place}/{COPY}")
        self.mount(place)
        return f"{place}/{MERGED}", *self._roots[place]


def replace_project_source(steps: Iterable[Step], project: str, source: str) -> tuple[Step, ...]:
    """Return the steps of a tree with another source for the project, and with the user's other grants read-only."""
    return tuple(_over(step, project, source) for step in steps)


def _over(step: Step, project: str, source: str) -> Step:
    if step.action != "bind":
        return step
    if step.source == project:
        return step.replace(source=source)
    # The user's other grants are read-only here: a transaction cannot undo writes to them.
    return step.replace(access="ro") if step.access == "rw" and step.source == step.target else step


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino
