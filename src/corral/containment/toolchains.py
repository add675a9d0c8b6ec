"""Which directories the programs on PATH need, besides the system's: a prefix of pyenv, nvm, cargo or conda. Reads the disk only."""

from __future__ import annotations

import os

from corral.places import inside

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
    pending = list(directories)
    seen: set[str] = set()
    while pending:
        real = os.path.realpath(pending.pop())
        if real in seen or is_system(real) or not os.path.isdir(real):
            continue
        seen.add(real)
        prefix = _prefix(real, home, project)
        if inside(project, prefix) or inside(home, prefix):
            # The home directory itself on PATH, or a link there to a file of it: everything in it would be seen.
            continue
        if not inside(prefix, project):
            found.add(prefix)
        pending += _interpreter(prefix)
        pending += _targets(real, prefix)
        if os.path.exists(f"{real}/rustup"):
            pending.append(os.environ.get("RUSTUP_HOME", f"{home}/.rustup"))
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
    try:
        with open(f"{prefix}/pyvenv.cfg", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read(1 << 16).splitlines()
    except OSError:
        return []
    return [value.strip() for name, _, value in (line.partition("=") for line in lines) if name.strip() == "home"]


def _targets(directory: str, prefix: str) -> list[str]:
    """Return the directories that links in a directory of programs lead to."""
    found: set[str] = set()
    try:
        with os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                if number >= MAX_PROGRAMS:
                    break
                if entry.is_symlink():
                    found.add(os.path.dirname(os.path.realpath(entry.path)))
    except OSError:
        return []
    return [path for path in found if not inside(path, prefix)]
