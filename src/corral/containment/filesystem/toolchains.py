"""Which directories the programs on PATH need, besides the system's: a prefix of pyenv, nvm, cargo or conda. Reads the disk only.

What a file or link of the project names is shown only when it is an installation of Python: an earlier command may have written it.
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
MAX_PROGRAMS = 2000  # against a directory on PATH that is no directory of programs
_OF_PROGRAMS = ("bin", "sbin", "shims", "condabin", "Scripts")
# Prefixes that hold credentials or private data beside programs: of these only the directory of programs is seen.
_MIXED = (".local", ".cargo", ".config", ".npm", ".docker", ".kube", ".aws", ".ssh", ".gnupg")


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
            # The home directory itself on PATH, or a link there to a file of it: everything in it would be seen.
            continue
        named = [_resolve(path, project) for path in _interpreter(prefix)] + _targets(real, prefix, project)
        if inside(real, project):
            pending += [path for path in named if inside(path, project) or _holds_python(path)]
            continue
        found.add(prefix)
        pending += named
        if os.path.exists(f"{real}/rustup"):
            pending.append(os.path.realpath(os.environ.get("RUSTUP_HOME", f"{home}/.rustup")))
    return sorted(path for path in found if not any(path != other and inside(path, other) for other in found))


def is_system(path: str) -> bool:
    """Say whether a path lies in a directory of the system that is shown anyway."""
    return any(inside(path, directory) for directory in SYSTEM)


def _prefix(directory: str, home: str, project: str) -> str:
    above, _, name = directory.rpartition("/")
    if name not in _OF_PROGRAMS or not above:
        return directory
    # What holds the project or the home directory is no prefix of a program.
    if inside(project, above) or inside(home, above):
        return directory
    if above.startswith(home + "/") and above[len(home) + 1 :] in _MIXED:
        return directory
    return above


def _interpreter(prefix: str) -> list[str]:
    settings = (line.partition("=") for line in read_lines(f"{prefix}/pyvenv.cfg"))
    return [home for name, _, value in settings if name.strip() == "home" and (home := value.strip()).startswith("/")]


def _holds_python(directory: str) -> bool:
    """Say whether a directory is the one of an installation's programs."""
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
    """Return the directory that a path means, or nothing where only the project says so."""
    # A link .venv/bin/x to ~/.ssh/id, left by a command, would show ~/.ssh to those of the next sandbox.
    links, real = resolve_links(path)
    directory = os.path.dirname(real) if is_file else real
    by_project = any(inside(place, project) for place in (os.path.normpath(path), *links))
    return directory if not by_project or inside(directory, project) or _holds_python(directory) else ""


def _targets(directory: str, prefix: str, project: str) -> list[str]:
    """Return the directories that links in a directory of programs lead to."""
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
