"""Lays an overlay over the project, in a keeper's own mounts: what commands write there goes elsewhere, and the project stays as it is.

It is of the keeper's and not of a warden's making, so that all wardens of one transaction share it.
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

UPPER, WORK, MERGED, COPY = "upper", "work", "merged", "copy"  # what lies in a transaction's place
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_SLAVE = 2, 4, 0x4000, 0x80000
_MNT_DETACH = 2
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# By the magic links of descriptors, since a path may hold what options are parted by. Nothing that an upper layer says may lead
# into the lower by another name: the host reads it, and commands wrote it.
_OPTIONS = (
    b"lowerdir=/proc/self/fd/%d,upperdir=/proc/self/fd/%d,workdir=/proc/self/fd/%d,userxattr,index=off,metacopy=off"
)


class Overlays:
    """The overlays of one keeper."""

    def __init__(self, project: KnownPath) -> None:
        self._project = project
        self._own_mounts = False
        self._roots: dict[str, tuple[int, int]] = {}

    def lay(self, place: str) -> None:
        """Mount an overlay in a transaction's place, unless it is there."""
        if place in self._roots:
            return
        if not self._own_mounts:
            namespaces.unshare("mount")
            self._own_mounts = True
            # What the host mounts later is still to be seen.
            call("mount", None, b"/", None, _MS_REC | _MS_SLAVE, None)
        path, *known = self._project
        opened: list[int] = []
        try:
            # Those that were opened before one fails are in the list by then.
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

    def lift(self, place: str) -> None:
        """Unmount an overlay; what was written to it stays."""
        if self._roots.pop(place, None):
            call("umount2", os.fsencode(f"{place}/{MERGED}"), _MNT_DETACH)

    def root_of(self, place: str) -> KnownPath:
        """Return what stands for the project in a transaction, and how it is recognised: the overlay, or a copy."""
        if os.path.isdir(f"{place}/{COPY}"):
            return f"{place}/{COPY}", *_identity(f"{place}/{COPY}")
        self.lay(place)
        return f"{place}/{MERGED}", *self._roots[place]


def replace_project_source(steps: Iterable[Step], project: str, source: str) -> tuple[Step, ...]:
    """Return a tree's steps with something else in the project's place, and nothing besides that commands could change for good."""
    return tuple(_over(step, project, source) for step in steps)


def _over(step: Step, project: str, source: str) -> Step:
    if step.action != "bind":
        return step
    if step.source == project:
        return step.replace(source=source)
    # The user's other grants are read-only here: a transaction could not take back what a command wrote to them.
    return step.replace(access="ro") if step.access == "rw" and step.source == step.target else step


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino
