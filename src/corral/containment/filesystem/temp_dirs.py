"""Chooses where temporary directories lie: only where no command can write, and no other user can rename them.

Python's own `tempfile` also takes TEMP, TMP and the current directory, which is often the project.
"""

from __future__ import annotations

import os
import stat

from corral.model.errors import ContainmentError
from corral.policy.user_dirs import PROJECT_MARKS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

STANDARD = ("/tmp", "/var/tmp")  # noqa: S108  each is checked before it is used


def safe_temp_dir(writable: Iterable[str], environ: Mapping[str, str]) -> str:
    """Return the real path of TMPDIR, /tmp or /var/tmp, whichever is safe first. Commands can write below `writable`."""
    roots = [os.path.realpath(root) for root in writable]
    refused = []
    for place in (environ.get("TMPDIR", ""), *STANDARD):
        if not place:
            continue
        real = os.path.realpath(place)
        why = "it is not an absolute path" if not place.startswith("/") else why_unsafe(real, roots)
        if not why:
            return real
        refused.append(f"{place}: {why}")
    raise ContainmentError(
        "there is no safe directory for temporary files. Set TMPDIR to a directory of your own, outside all projects "
        f"and outside everything that containment.write grants ({'; '.join(refused)})"
    )


def process_temp_dir(*projects: str) -> str:
    """Return the directory to use in this process, whose commands run in these projects or around the working directory."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        here = "/"
    return safe_temp_dir((*projects, *projects_around(here)), os.environ)


def make_temp_dir(prefix: str, *projects: str) -> str:
    """Make a directory with an unpredictable name and mode 0700."""
    path = f"{process_temp_dir(*projects)}/{prefix}{os.urandom(8).hex()}"
    os.mkdir(path, 0o700)
    return path


def why_unsafe(real: str, roots: Iterable[str]) -> str:
    """Return why temporary files must not lie in a directory, or "". All paths are resolved."""
    for root in roots:
        if f"{real}/".startswith(f"{root.rstrip('/')}/"):
            return f"commands can write {root}"
    for project in projects_around(real, marked=True):
        # Another process may run a sandbox in that project. /tmp itself is no project: any user can put a mark there.
        if project not in STANDARD:
            return f"commands in the project {project} could write it"
    if any(f"/{above}/scratch/" in f"{real}/" for above in ("corral", f"corral-{os.geteuid()}")):
        return "it is inside a sandbox's scratch directory"
    if not os.path.isdir(real):
        return "it is not a directory"
    return _why_movable(real) or _why_unwritable(real)


def _why_unwritable(real: str) -> str:
    """Return why no file can be written in a directory, such as a full disk, or ""."""
    if not os.access(real, os.W_OK | os.X_OK):
        return "it cannot be written"
    try:
        descriptor = os.open(real, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError:
        # Some file systems do not support O_TMPFILE.
        return ""
    try:
        os.write(descriptor, b"-")
    except OSError as error:
        return f"it cannot be written: {error.strerror}"
    finally:
        os.close(descriptor)
    return ""


def _why_movable(real: str) -> str:
    """Return which directory of a path another user could rename or replace, or ""."""
    # In a user namespace that does not map root, the machine's root owns / under another user id.
    trusted = {0, os.geteuid(), os.stat("/").st_uid}
    at = real
    while True:
        found = os.lstat(at)
        if found.st_uid not in trusted:
            return f"{at} belongs to another user"
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
            return f"{at} can be written by others and has no sticky bit"
        if at == "/":
            return ""
        at = os.path.dirname(at)


def projects_around(at: str, *, marked: bool = False) -> list[str]:
    """Return the directories above a directory that look like a project. Unless `marked`, the directory itself comes first."""
    # The root directory is no project, and a service that starts there needs temporary files too.
    found = [at] if at != "/" and not marked else []
    while at != "/":
        if any(os.path.lexists(f"{at}/{mark}") for mark in PROJECT_MARKS):
            found.append(at)
        at = os.path.dirname(at)
    return found
