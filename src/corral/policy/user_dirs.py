"""Locates the user's directories for config, state and cache, and refuses them where a command or another user could write."""

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
_NO_HOME = "/nonexistent"
# A directory with one of these files is a project, so commands of some sandbox may write in it.
PROJECT_MARKS = ("corral.toml", ".git", ".hg", "pyproject.toml", "package.json", "Cargo.toml", "go.mod")


def directory_options(environ: Mapping[str, str]) -> list[str]:
    """Return options that fix the user's directories: a host may load its environment from a file in the project."""
    names = ("HOME", *(variable for variable, _ in _PLACES.values()), "TMPDIR")
    return [f"--{name}={environ[name]}" for name in names if environ.get(name, "").startswith("/")]


def apply_directory_options(words: list[str], environ: MutableMapping[str, str]) -> None:
    """Set the user's directories from such options. A directory that they do not name is at its default place below HOME."""
    named = dict(word[2:].split("=", 1) for word in words)
    if "HOME" in named:
        for variable in (*(variable for variable, _ in _PLACES.values()), "TMPDIR"):
            environ.pop(variable, None)
    environ.update(named)


def user_directory(kind: str, environ: Mapping[str, str]) -> str:
    """Return corral's directory for `config`, `state` or `cache`; it need not exist."""
    variable, below_home = _PLACES[kind]
    configured = environ.get(variable, "")
    base = configured if configured.startswith("/") else f"{environ.get('HOME') or _NO_HOME}/{below_home}"
    return f"{os.path.realpath(base)}/corral"


def private_directory(kind: str, environ: Mapping[str, str], root: str = "") -> str:
    """Return corral's directory, and create it if needed. Raise PolicyError where another user or a command could write it."""
    path = user_directory(kind, environ)
    if root:
        refuse_inside_project(path, root)
    # Root could create it, and then every program without HOME would find files there.
    if path.startswith(f"{_NO_HOME}/"):
        raise PolicyError(
            f"HOME names no directory of the user, so corral has no place for its {kind}; set HOME or {_PLACES[kind][0]}"
        )
    os.makedirs(path, 0o700, exist_ok=True)
    refuse_writable_by_others(path)
    return path


def refuse_inside_project(path: str, root: str) -> None:
    """Raise where a path is inside the project, or inside the directory that commands see as /tmp."""
    if any(f"{above}/scratch/" in f"{path}/" for above in ("/corral", f"/corral-{os.geteuid()}")):
        raise PolicyError(
            f"{path} is in the scratch directory of commands, which could write it; check the XDG_ variables"
        )
    if path == root or path.startswith(root + "/"):
        raise PolicyError(
            f"{path} lies inside the project {root}, where commands could write it; "
            "choose a smaller project, or set XDG_CONFIG_HOME, XDG_STATE_HOME and XDG_CACHE_HOME to directories outside"
        )


def refuse_writable_by_others(path: str) -> None:
    """Raise where another user owns or may write a path, or where the path is a symbolic link."""
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        raise PolicyError(f"{path} is a symbolic link; put the directory or file itself there")
    refuse_status_writable_by_others(path, found)


def refuse_status_writable_by_others(path: str, found: os.stat_result) -> None:
    """Raise where another user owns or may write the file with this status."""
    if found.st_uid not in (os.geteuid(), 0):
        raise PolicyError(f"{path} belongs to another user; remove it, or run corral as that user")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PolicyError(f"{path} can be written by others; run: chmod go-w {path}")


def read_regular_file(path: str, most: int, *, follows: bool = False) -> tuple[bytes, os.stat_result]:
    """Return the bytes of a regular file, at most `most` + 1 of them, and its status. Raise OSError for anything else."""
    # O_NONBLOCK: opening a named pipe or a device must not block the guard.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follows else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(EINVAL, "it is not a regular file", path)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most + 1), found
    finally:
        os.close(descriptor)
