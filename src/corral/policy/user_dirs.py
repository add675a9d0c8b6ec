"""Where the owner's own files lie: choices, what lasts, what can be made again. Never where a command could write them."""

from __future__ import annotations

import os
import stat
from errno import EINVAL

from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

_PLACES = {
    "config": ("XDG_CONFIG_HOME", ".config"),
    "state": ("XDG_STATE_HOME", ".local/state"),
    "cache": ("XDG_CACHE_HOME", ".cache"),
}
# A directory that holds one of these is a project: commands of some sandbox may write in it.
PROJECT_MARKS = ("corral.toml", ".git", ".hg", "pyproject.toml", "package.json", "Cargo.toml", "go.mod")


def directory_options(environ: Mapping[str, str]) -> list[str]:
    """Return words that fix where the owner's files lie: a host may load its environment from a file in the project."""
    names = ("HOME", *(variable for variable, _ in _PLACES.values()), "TMPDIR")
    return [f"--{name}={environ[name]}" for name in names if environ.get(name, "").startswith("/")]


def apply_directory_options(words: list[str], environ: MutableMapping[str, str]) -> None:
    """Put the owner's files where such words say; what they do not name is where the home has it."""
    named = dict(word[2:].split("=", 1) for word in words)
    if "HOME" in named:
        for variable in (*(variable for variable, _ in _PLACES.values()), "TMPDIR"):
            environ.pop(variable, None)
    environ.update(named)


def user_directory(kind: str, environ: Mapping[str, str]) -> str:
    """Return corral's directory for `config`, `state` or `cache`; it need not exist."""
    variable, below_home = _PLACES[kind]
    own = environ.get(variable, "")
    base = own if own.startswith("/") else f"{environ.get('HOME') or '/nonexistent'}/{below_home}"
    return f"{os.path.realpath(base)}/corral"


def private_directory(kind: str, environ: Mapping[str, str], root: str = "") -> str:
    """Return corral's directory, made if need be; PolicyError where someone else, or a command, could write it."""
    path = user_directory(kind, environ)
    if root:
        refuse_inside_project(path, root)
    os.makedirs(path, 0o700, exist_ok=True)
    refuse_writable_by_others(path)
    return path


def refuse_inside_project(path: str, root: str) -> None:
    """Raise where a file of the owner's would lie in the project, or in what commands have for /tmp."""
    if any(f"{above}/scratch/" in f"{path}/" for above in ("/corral", f"/corral-{os.geteuid()}")):
        raise PolicyError(f"{path} lies in the scratch of commands, which could write it; look at the XDG_ variables")
    if path == root or path.startswith(root + "/"):
        raise PolicyError(
            f"{path} lies inside the project {root}, where its commands could write it; "
            "choose a smaller project, or set XDG_CONFIG_HOME, XDG_STATE_HOME and XDG_CACHE_HOME to places outside"
        )


def refuse_writable_by_others(path: str) -> None:
    """Raise where another user owns or may write what only the owner may, or where it is a link."""
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        raise PolicyError(f"{path} is a link; put the directory or file itself there")
    refuse_status_writable_by_others(path, found)


def refuse_status_writable_by_others(path: str, found: os.stat_result) -> None:
    """Raise where another user owns or may write what has this status."""
    if found.st_uid not in (os.geteuid(), 0):
        raise PolicyError(f"{path} belongs to another user; remove it, or run corral as that user")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PolicyError(f"{path} can be written by others; run: chmod go-w {path}")


def read_regular_file(path: str, most: int, *, follows: bool = False) -> tuple[bytes, os.stat_result]:
    """Return the bytes of a plain file, no more than one past `most`, and its status; OSError where it is none."""
    # What waits for a writer or a device must not hold the guard up.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follows else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(EINVAL, "it is not a file", path)
        parts = []
        left = most + 1
        while left > 0 and (part := os.read(descriptor, left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts), found
    finally:
        os.close(descriptor)
