"""Scratch that outlives its sandbox: one directory a project in the owner's cache, shared by those who use it, removed a week after the last.

It never lies where a command could write, and is used only if it is this user's alone.
"""

from __future__ import annotations

import os
import stat
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from time import monotonic, time

from corral.containment.filesystem import scratch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from corral.policy.config import SandboxConfig

KEPT_SECONDS = 7 * 24 * 3600.0  # since the last use
CLEANED_SECONDS = 24 * 3600.0  # between two searches for what is older
REMOVE_SECONDS = 0.5  # for removing it; what is left is removed by the next
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MARK = ".cleaned"
_OLD = ".old-"
MARKER_PREFIX = "open-"  # of the marks that sandboxes leave beside /tmp and home until they end


def scratch_path(
    project: str, writable: Iterable[str], environ: Mapping[str, str], *, make: bool, kind: str = "scratch"
) -> str:
    """Return the path of a project's scratch, or nothing where none is safe; what lies above it is made if asked for."""
    return next(scratch_paths(project, writable, environ, make=make, kind=kind), "")


def scratch_paths(
    project: str, writable: Iterable[str], environ: Mapping[str, str], *, make: bool, kind: str = "scratch"
) -> Iterator[str]:
    """Yield all of them, the one that is used first; who may write more has had another."""
    from _blake2 import blake2b  # noqa: PLC0415  only hosts need it, and hashlib takes longer than a call

    name = blake2b(os.fsencode(project), digest_size=16).hexdigest()
    cache = environ.get("XDG_CACHE_HOME", "")
    home = environ.get("HOME", "")
    bases = [(cache, ("corral", kind)), (home and f"{home}/.cache", ("corral", kind))]
    bases.append(("/var/tmp", (f"corral-{os.geteuid()}", kind)))  # noqa: S108  the directory must be ours alone
    # Also where it is shown read-only: commands of another sandbox may write it.
    roots = [project, *writable]
    for base, below in bases:
        real = os.path.realpath(base) if base.startswith("/") else ""
        if not real or any(_inside(real, root) or _inside(root, f"{real}/{below[0]}") for root in roots):
            continue
        if _is_ours(real, below, make=make):
            yield "/".join((real, *below, name))


def project_tmp(config: SandboxConfig, environ: Mapping[str, str]) -> str:
    """Return where the /tmp of a project's commands lies, or nothing while there is none that lasts."""
    containment = config.containment
    if containment.scratch != "project" or containment.backend in ("none", "bubblewrap"):
        return ""
    found = scratch_path(config.project_root, (config.project_root, *containment.write), environ, make=False)
    own = f"{found}/tmp"  # noqa: S108  in the owner's cache
    return own if found and os.path.isdir(own) else ""


def _inside(path: str, root: str) -> bool:
    # Not by the table of places, which a keeper has no use for.
    return f"{path}/".startswith(f"{root}/")


def _is_ours(base: str, below: tuple[str, ...], *, make: bool) -> bool:
    """Say whether nobody else can change what lies in the last of these directories."""
    try:
        if make:
            os.makedirs(base, 0o700, exist_ok=True)
        at = os.open(base, _DIRECTORY)
    except OSError:
        return False
    try:
        state = os.fstat(at)
        if state.st_uid not in (0, os.geteuid()) or (state.st_mode & 0o022 and not state.st_mode & stat.S_ISVTX):
            return False
        for name in below:
            if make:
                scratch.make_directory(name, at)
            inner = os.open(name, _DIRECTORY, dir_fd=at)
            os.close(at)
            at = inner
            state = os.fstat(at)
            # What lies beside scratch may be read by others, as the cache of policies.
            if state.st_uid != os.geteuid() or state.st_mode & (0o077 if name == below[-1] else 0o022):
                return False
    except OSError:
        return False
    finally:
        os.close(at)
    return True


def acquire(path: str) -> int:
    """Make the directory if need be, and return a descriptor while which is open nobody removes it."""
    while True:
        scratch.make_directory(path)
        descriptor = os.open(path, _DIRECTORY)
        flock(descriptor, LOCK_SH)
        if _is_at(path, descriptor):
            os.utime(descriptor)
            return descriptor
        # It was moved away to be removed between opening and locking.
        os.close(descriptor)


def release(path: str, descriptor: int) -> None:
    """Give back what `hold` returned, and once a day remove what nobody has used for long."""
    try:
        os.utime(descriptor)
        os.close(descriptor)
        _clean(os.path.dirname(path))
    except OSError:
        # A cache that the owner has removed meanwhile, or a full disk.
        return


def _clean(above: str) -> None:
    mark = f"{above}/{_MARK}"
    if os.path.lexists(mark) and 0 <= time() - os.lstat(mark).st_mtime < CLEANED_SECONDS:
        return
    give_up_at = monotonic() + REMOVE_SECONDS
    for name in os.listdir(above):
        if name != _MARK:
            _remove_if_old(above, name, give_up_at)
        if monotonic() > give_up_at:
            return
    os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    os.utime(mark)


def _remove_if_old(above: str, name: str, give_up_at: float) -> None:
    path = f"{above}/{name}"
    if name.startswith(_OLD):
        scratch.remove(path, give_up_at)
        return
    try:
        descriptor = os.open(path, _DIRECTORY)
    except OSError:
        return
    try:
        flock(descriptor, LOCK_EX | LOCK_NB)
        if time() - os.fstat(descriptor).st_mtime < KEPT_SECONDS or not _is_at(path, descriptor):
            return
        if any(inner.startswith(MARKER_PREFIX) for inner in os.listdir(descriptor)):
            # What a sandbox that was killed has planted is still to be looked for.
            return
        # Out of the way at once: who comes now makes another.
        aside = f"{above}/{_OLD}{os.urandom(8).hex()}"
        os.rename(path, aside)
    except OSError:
        # Somebody uses it.
        return
    finally:
        os.close(descriptor)
    scratch.remove(aside, give_up_at)


def _is_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except OSError:
        return False
