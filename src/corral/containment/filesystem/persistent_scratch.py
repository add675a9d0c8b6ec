"""Finds, locks and cleans scratch directories that outlive a sandbox, in the user's cache.

All sandboxes of a project share one for /tmp, and those with the same grants share one for HOME. Each is removed a week after its
last use. It never lies where a command can write, and is used only if no other user can change it.
"""

from __future__ import annotations

import os
import stat
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from time import monotonic, time

from corral._lib.nofollow import DIRECTORY, make_directory
from corral.containment.filesystem import scratch
from corral.containment.filesystem.running_sandboxes import MARKER_PREFIX, lies_in, scratch_bases

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from corral.containment.plan import Plan
    from corral.policy.config import SandboxConfig

KEPT_SECONDS = 7 * 24 * 3600.0  # since the last use
CLEANED_SECONDS = 24 * 3600.0  # between two searches for expired directories
REMOVE_SECONDS = 0.5  # limit of one clean-up; the next one continues
# The fields of `containment` that open something to a command.
_GRANTS = (
    *(
        "network",
        "hosts",
        "inject",
        "read",
        "write",
        "local",
        "publish",
        "listings",
        "credentials",
        "requests",
        "settings",
        "project",
        "accept_partial",
        "ptrace",
    ),
)
NETWORKED = "-net"  # ends the name of the directory above the HOME of commands with some network
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
    # Also if this sandbox shows the project read-only: commands of another sandbox may write it.
    roots = [project, *writable]
    for real, below in scratch_bases(environ, kind):
        if any(lies_in(real, root) or lies_in(root, f"{real}/{below[0]}") for root in roots):
            continue
        if _is_private(real, below, make=make):
            yield "/".join((real, *below, name))


def grants_digest(config: SandboxConfig) -> str:
    """Return a name for what a sandbox is granted. What commands leave for later ones is kept apart by it."""
    from _blake2 import blake2b  # noqa: PLC0415  as below

    granted = [(name, getattr(config.containment, name)) for name in _GRANTS]
    text = repr([(name, value if isinstance(value, (str, bool)) else sorted(value)) for name, value in granted])
    text += repr(sorted(config.env_allowlist)) + repr(_served(config))
    return blake2b(os.fsencode(text), digest_size=8).hexdigest()


def _served(config: SandboxConfig) -> list[str]:
    """Return what the broker does for a call. Each call has a broker of its own, so its directory would be another name each time.

    A signature is left out: each call that commits can get one, so there is nothing that an earlier command could gain.
    """
    broker = config.containment.broker
    if not broker:
        return []
    # The keeper loads this module too, and needs none of these.
    from corral.guard.git_signatures import SIGNATURE  # noqa: PLC0415  few calls have a broker
    from corral.model.grant import BROKER, TRANSPORT  # noqa: PLC0415

    served = [grant for grant in config.grants if grant.kind in (BROKER, TRANSPORT)]
    if not served:
        return [broker]
    # Without the hash of a command's words: the broker compares those.
    names = {grant.target.partition(" ")[0] if grant.kind == BROKER else grant.target for grant in served}
    return sorted(names - {SIGNATURE.target})


def home_path(scratch: str, config: SandboxConfig) -> str:
    """Return the path beside a project's scratch directory for the HOME of commands with the grants of this config.

    Programs run the start-up files in HOME, which no call names. So a command must not write them for one with other grants.
    """
    containment = config.containment
    is_networked = containment.network == "on" or bool(
        containment.destinations or containment.requests or containment.local
    )
    return f"{scratch}-{grants_digest(config)}{NETWORKED if is_networked else ''}"


def readable_homes(plan: Plan) -> list[str]:
    """Return the homes whose package caches the commands of a plan may read: those of commands with network, for commands without."""
    above, _, name = plan.scratch.rpartition("/")
    if plan.network == "on" or not plan.grants_nothing or not plan.scratch_lasts:
        return []
    try:
        found = sorted(os.listdir(above))
    except OSError:
        return []
    return [f"{above}/{one}/home" for one in found if one.startswith(f"{name}-") and one.endswith(NETWORKED)]


def project_tmp(config: SandboxConfig, environ: Mapping[str, str]) -> str:
    """Return the host path of the commands' /tmp, or "" if the project has no persistent scratch yet."""
    containment = config.containment
    if containment.scratch != "project" or containment.backend in ("none", "bubblewrap"):
        return ""
    found = scratch_path(config.project_root, (config.project_root, *containment.write), environ, make=False)
    own = f"{found}/tmp"  # noqa: S108  in the user's cache
    return own if found and os.path.isdir(own) else ""


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


def give_back(plan: Plan, held: Mapping[str, int]) -> None:
    """Remove the scratch directory of a keeper that ends, or release it to the next sandbox of the project."""
    for path, descriptor in held.items():
        release(path, descriptor)
    if plan.layers and not plan.scratch_lasts:
        scratch.remove(plan.scratch)


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
