"""Finds, locks and cleans scratch directories that outlive a sandbox: one per project, in the user's cache.

Sandboxes of a project share it. It is removed a week after its last use. It never lies where a command can write, and is used
only if no other user can change it.
"""

from __future__ import annotations

import os
import stat
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from time import monotonic, time

from corral._lib.nofollow import DIRECTORY, make_directory
from corral.containment.filesystem import scratch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from corral.policy.config import SandboxConfig

KEPT_SECONDS = 7 * 24 * 3600.0  # since the last use
CLEANED_SECONDS = 24 * 3600.0  # between two searches for expired directories
REMOVE_SECONDS = 0.5  # limit of one clean-up; the next one continues
MARKER_PREFIX = "open-"  # of the files that running sandboxes keep beside /tmp and home
_CLEANED = ".cleaned"
_EXPIRED = ".old-"


def scratch_path(
    project: str, writable: Iterable[str], environ: Mapping[str, str], *, make: bool, kind: str = "scratch"
) -> str:
    """Return the path of a project's directory, or "" if no place is safe. `make` creates the directories above it."""
    return next(scratch_paths(project, writable, environ, make=make, kind=kind), "")


def scratch_paths(
    project: str, writable: Iterable[str], environ: Mapping[str, str], *, make: bool, kind: str = "scratch"
) -> Iterator[str]:
    """Yield all safe paths, the preferred one first. Sandboxes with other write grants may use another one."""
    from _blake2 import blake2b  # noqa: PLC0415  only hosts need it, and importing hashlib takes longer than a call

    name = blake2b(os.fsencode(project), digest_size=16).hexdigest()
    cache = environ.get("XDG_CACHE_HOME", "")
    home = environ.get("HOME", "")
    bases = [(cache, ("corral", kind)), (home and f"{home}/.cache", ("corral", kind))]
    bases.append(("/var/tmp", (f"corral-{os.geteuid()}", kind)))  # noqa: S108  the directory must be ours alone
    # Also if this sandbox shows the project read-only: commands of another sandbox may write it.
    roots = [project, *writable]
    for base, below in bases:
        real = os.path.realpath(base) if base.startswith("/") else ""
        if not real or any(_inside(real, root) or _inside(root, f"{real}/{below[0]}") for root in roots):
            continue
        if _is_private(real, below, make=make):
            yield "/".join((real, *below, name))


def project_tmp(config: SandboxConfig, environ: Mapping[str, str]) -> str:
    """Return the host path of the commands' /tmp, or "" if the project has no persistent scratch yet."""
    containment = config.containment
    if containment.scratch != "project" or containment.backend in ("none", "bubblewrap"):
        return ""
    found = scratch_path(config.project_root, (config.project_root, *containment.write), environ, make=False)
    own = f"{found}/tmp"  # noqa: S108  in the user's cache
    return own if found and os.path.isdir(own) else ""


def _inside(path: str, root: str) -> bool:
    # guard.path_zones has the same, but loads the table of places, which the keeper does not need.
    return f"{path}/".startswith(f"{root}/")


def _is_private(base: str, below: tuple[str, ...], *, make: bool) -> bool:
    """Say whether no other user can change the contents of `base` joined with the names in `below`."""
    try:
        if make:
            os.makedirs(base, 0o700, exist_ok=True)
        at = os.open(base, DIRECTORY)
    except OSError:
        return False
    try:
        status = os.fstat(at)
        if status.st_uid not in (0, os.geteuid()) or (status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX):
            return False
        for name in below:
            if make:
                make_directory(name, at)
            inner = os.open(name, DIRECTORY, dir_fd=at)
            os.close(at)
            at = inner
            status = os.fstat(at)
            # Other users may read the directories above, such as the cache of policies, but not scratch.
            if status.st_uid != os.geteuid() or status.st_mode & (0o077 if name == below[-1] else 0o022):
                return False
    except OSError:
        return False
    finally:
        os.close(at)
    return True


def acquire(path: str) -> int:
    """Make the directory if it is missing, and return a descriptor that keeps it from being removed while it is open."""
    while True:
        make_directory(path)
        descriptor = os.open(path, DIRECTORY)
        flock(descriptor, LOCK_SH)
        if _is_at(path, descriptor):
            os.utime(descriptor)
            return descriptor
        # Another process moved it away to remove it, between our open and our lock.
        os.close(descriptor)


def release(path: str, descriptor: int) -> None:
    """Close what `acquire` returned, and once a day remove expired directories."""
    try:
        os.utime(descriptor)
        os.close(descriptor)
        _clean(os.path.dirname(path))
    except OSError:
        # The user has removed the cache, or the disk is full.
        return


def _clean(above: str) -> None:
    mark = f"{above}/{_CLEANED}"
    if os.path.lexists(mark) and 0 <= time() - os.lstat(mark).st_mtime < CLEANED_SECONDS:
        return
    give_up_at = monotonic() + REMOVE_SECONDS
    for name in os.listdir(above):
        if name != _CLEANED:
            _remove_if_expired(above, name, give_up_at)
        if monotonic() > give_up_at:
            return
    os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    os.utime(mark)


def _remove_if_expired(above: str, name: str, give_up_at: float) -> None:
    path = f"{above}/{name}"
    if name.startswith(_EXPIRED):
        scratch.remove(path, give_up_at)
        return
    try:
        descriptor = os.open(path, DIRECTORY)
    except OSError:
        return
    try:
        flock(descriptor, LOCK_EX | LOCK_NB)
        if time() - os.fstat(descriptor).st_mtime < KEPT_SECONDS or not _is_at(path, descriptor):
            return
        if any(inner.startswith(MARKER_PREFIX) for inner in os.listdir(descriptor)):
            # The next sandbox still has to search for files that a killed sandbox's command planted.
            return
        # Renamed first: a sandbox that starts now makes a new directory.
        expired = f"{above}/{_EXPIRED}{os.urandom(8).hex()}"
        os.rename(path, expired)
    except OSError:
        # Another sandbox holds the lock.
        return
    finally:
        os.close(descriptor)
    scratch.remove(expired, give_up_at)


def _is_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except OSError:
        return False
