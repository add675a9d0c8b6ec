"""Finds the directories that the programs on PATH need besides the system's, such as a prefix of pyenv, nvm, cargo or conda.

A directory that only a file or link of the project names is shown only if it is a Python installation: an earlier command may have
written the name. Reads the disk only.
"""

from __future__ import annotations

import os

from corral._lib.symlink_chain import resolve_links
from corral.containment.filesystem.protected import read_lines
from corral.guard.path_zones import inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/snap")
MAX_PROGRAMS = 2000  # against a directory on PATH that holds other files
_BIN_NAMES = ("bin", "sbin", "shims", "condabin", "Scripts")
# Prefixes that also hold credentials or private data: only their directory of programs is shown.
_PRIVATE_PREFIXES = (".local", ".cargo", ".config", ".npm", ".docker", ".kube", ".aws", ".ssh", ".gnupg")


def find(directories: Iterable[str], home: str, project: str) -> list[str]:
    """Return the directories to show read-only, none of them below another."""
    found: set[str] = set()
    pending = [_resolve(path, project) for path in dict.fromkeys(directories)]
    seen: set[str] = set()
    while pending:
        real = pending.pop()
        if real in seen or is_system(real) or not os.path.isdir(real):
            continue
        seen.add(real)
        prefix = _prefix(real, home, project)
        if inside(project, prefix) or inside(home, prefix):
            # The home directory itself is on PATH, or a link there leads to a file in it: all of it would be shown.
            continue
        named = [_resolve(path, project) for path in _base_interpreters(prefix)] + _link_targets(real, prefix, project)
        if inside(real, project):
            pending += [path for path in named if inside(path, project) or _holds_python(path)]
            continue
        found.add(prefix)
        pending += named
        if os.path.exists(f"{real}/rustup"):
            pending.append(os.path.realpath(os.environ.get("RUSTUP_HOME", f"{home}/.rustup")))
    return sorted(path for path in found if not any(path != other and inside(path, other) for other in found))


def is_system(path: str) -> bool:
    """Say whether a path lies in a system directory, which every command sees."""
    return any(inside(path, directory) for directory in SYSTEM)


def _prefix(directory: str, home: str, project: str) -> str:
    above, _, name = directory.rpartition("/")
    if name not in _BIN_NAMES or not above or inside(project, above) or inside(home, above):
        return directory
    if above.startswith(home + "/") and above[len(home) + 1 :] in _PRIVATE_PREFIXES:
        return directory
    return above


def _base_interpreters(prefix: str) -> list[str]:
    """Return the directory of the interpreter that a virtual environment was made from."""
    settings = (line.partition("=") for line in read_lines(f"{prefix}/pyvenv.cfg"))
    return [home for name, _, value in settings if name.strip() == "home" and (home := value.strip()).startswith("/")]


def _holds_python(directory: str) -> bool:
    """Say whether a directory is the `bin` of a Python installation."""
    prefix, _, name = directory.rpartition("/")
    try:
        return name == "bin" and any(
            os.path.isfile(f"{prefix}/lib/{version}/os.py")
            for version in os.listdir(f"{prefix}/lib")
            if version.startswith(("python3", "pypy3"))
        )
    except OSError:
        return False


def _resolve(path: str, project: str, *, is_file: bool = False) -> str:
    """Return the directory that a path leads to, or "" if only the project leads there."""
    # A command could leave a link .venv/bin/x to ~/.ssh/id, which would show ~/.ssh to the commands of the next sandbox.
    links, real = resolve_links(path)
    directory = os.path.dirname(real) if is_file else real
    by_project = any(inside(place, project) for place in (os.path.normpath(path), *links))
    return directory if not by_project or inside(directory, project) or _holds_python(directory) else ""


def _link_targets(directory: str, prefix: str, project: str) -> list[str]:
    """Return the directories outside the prefix that links in a directory of programs lead to."""
    found: set[str] = set()
    try:
        with os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                if number >= MAX_PROGRAMS:
                    break
                if entry.is_symlink():
                    found.add(_resolve(entry.path, project, is_file=True))
    except OSError:
        return []
    return [path for path in found if path and not inside(path, prefix)]
