"""Mounts the overlays of transactions over the project, and those over package caches: commands write to another directory.

The keeper mounts them, because all wardens of one transaction share one.
"""

from __future__ import annotations

import os
from errno import ESTALE
from fcntl import LOCK_EX, LOCK_NB, flock

from corral._lib.nofollow import DIRECTORY, make_directory
from corral.containment.kernel import namespaces
from corral.containment.kernel.syscalls import call
from corral.containment.plan import Step
from corral.guard.toolchain_kinds import CACHES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.containment.plan import KnownPath, Plan

UPPER, WORK, MERGED, COPY, GIT = "upper", "work", "merged", "copy", "git"  # the directories of a transaction
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_SLAVE = 2, 4, 0x4000, 0x80000
_MNT_DETACH = 2
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# By /proc/self/fd, since a path can contain a comma. Without index and metacopy: commands write the upper layer, and the host
# reads it, so nothing in it may refer to another path of the lower layer.
_OPTIONS = b"lowerdir=%b,upperdir=/proc/self/fd/%d,workdir=/proc/self/fd/%d,userxattr,index=off,metacopy=off"


class Overlays:
    """The overlays of one keeper."""

    def __init__(self, project: KnownPath) -> None:
        self._project = project
        self._own_mounts = False
        self._roots: dict[str, tuple[int, int]] = {}
        self._locks: list[int] = []  # of the caches' directories, until the keeper ends

    def mount(self, place: str) -> None:
        """Mount the overlay of the transaction in a directory, unless it is mounted."""
        if place in self._roots:
            return
        self._unshare()
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
            _mount(merged, opened[:1], *opened[1:])
        finally:
            for descriptor in opened:
                os.close(descriptor)
        self._roots[place] = _identity(merged)

    def _unshare(self) -> None:
        if not self._own_mounts:
            namespaces.unshare("mount")
            self._own_mounts = True
            # As a slave, so that later mounts of the host still appear.
            call("mount", None, b"/", None, _MS_REC | _MS_SLAVE, None)

    def mount_caches(self, plan: Plan, homes: list[str]) -> Plan:
        """Mount an overlay over each package cache, and return the plan that binds them instead of the caches.

        Commands see the user's packages, then those in `homes`, and what they add is in their own home directory. A cache whose overlay
        cannot be mounted, or that another sandbox of the project uses now, stays read-only.
        """
        own = f"{plan.above_home}/home"
        home = next((step.target for step in plan.steps if step.source == own), "")
        steps = list(plan.steps)
        for number, step in enumerate(steps):
            if step.access == "cache" and home:
                name = step.target[len(home) + 1 :]
                try:
                    merged = self._mount_cache(plan.above_home, name, [step.source, *(f"{at}/{name}" for at in homes)])
                except OSError:
                    continue
                steps[number] = step.replace(source=merged, access="rw")
        shown = {step.target for step in plan.steps if step.action == "bind"}
        for name in CACHES if homes and home else ():
            if f"{home}/{name}" not in shown and any(os.path.isdir(f"{at}/{name}") for at in homes):
                steps += self._cache_of_homes(plan.above_home, home, name, homes)
        return plan.replace(steps=tuple(steps))

    def _cache_of_homes(self, above_home: str, home: str, name: str, homes: list[str]) -> list[Step]:
        """Return the steps for a cache that the user does not have, or none if it cannot be mounted."""
        try:
            merged = self._mount_cache(above_home, name, [f"{at}/{name}" for at in homes])
        except OSError:
            return []
        parts = name.split("/")
        above = [f"{home}/{'/'.join(parts[:count])}" for count in range(1, len(parts))]
        made = [step for path in above for step in (Step("directory", path), Step("pin", path))]
        return [*made, Step("bind", f"{home}/{name}", merged, "rw")]

    def _mount_cache(self, above_home: str, name: str, lower: list[str]) -> str:
        """Mount the overlay of one cache, named relative to the home directory, and return its path on the host."""
        self._unshare()
        place = f"{above_home}/caches"
        work, merged = (f"{place}/{name.replace('/', '+')}.{kind}" for kind in (WORK, MERGED))
        for path in (place, work, merged):
            make_directory(path)
        opened = [os.open(work, DIRECTORY)]
        # The kernel does not define what happens if two overlays have one upper directory.
        flock(opened[0], LOCK_EX | LOCK_NB)
        self._locks += opened
        upper = _open_below(f"{above_home}/home", name, make=True)
        lowers: list[int] = []
        try:
            for path in lower:
                try:
                    lowers.append(_open_below(path.removesuffix(f"/{name}"), name))
                except OSError:
                    # It has no such cache, or a command has put a link there.
                    continue
            _mount(merged, lowers, upper, opened[0])
        finally:
            for descriptor in (upper, *lowers):
                os.close(descriptor)
        return merged

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


def replace_project_source(plan: Plan, source: str, place: str) -> tuple[Step, ...]:
    """Return the steps of a tree with another source for the project, and with the user's other grants read-only."""
    return tuple(_over(step, plan, source, place) for step in plan.steps)


def _over(step: Step, plan: Plan, source: str, place: str) -> Step:
    if step.action != "bind":
        return step
    if step.source == plan.project[0]:
        return step.replace(source=source)
    if step.source in plan.copies:
        *_, name, last = step.source.split("/")
        return step.replace(source=f"{place}/{GIT}/{name}/{last}")
    # The user's other grants are read-only here: a transaction cannot undo writes to them.
    return step.replace(access="ro") if step.access == "rw" and step.source == step.target else step


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _mount(merged: str, lower: list[int], upper: int, work: int) -> None:
    layers = b":".join(b"/proc/self/fd/%d" % descriptor for descriptor in lower)
    call("mount", b"overlay", os.fsencode(merged), b"overlay", _MS_NOSUID | _MS_NODEV, _OPTIONS % (layers, upper, work))


def _open_below(path: str, name: str, *, make: bool = False) -> int:
    """Open a directory below a path. No component below it may be a link: commands write there."""
    at = os.open(path, _DIRECTORY)
    for part in name.split("/"):
        try:
            if make:
                make_directory(part, at)
            inner = os.open(part, _DIRECTORY, dir_fd=at)
        finally:
            os.close(at)
        at = inner
    return at
