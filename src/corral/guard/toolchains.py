"""Finds the toolchains that commands see besides the system's directories. The guard and the sandbox both ask here, so they agree.

A home directory is full of credentials, so no prefix in it is shown whole: a known kind of toolchain shows the parts that KINDS lists, another
installation on PATH shows INSTALLED, and another dot-directory shows its programs alone. A path that only a file or link of the project names
is shown only if it is a Python installation: an earlier command may have written the name. Reads the disk only.
"""

from __future__ import annotations

import os
import stat
import sys

from corral._lib.records import Record, frozen
from corral._lib.symlink_chain import matching_paths, resolve_links
from corral.guard.path_zones import inside, is_secret_in_home
from corral.guard.rules.loader import places
from corral.guard.toolchain_kinds import CACHES, INSTALLED, KINDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

SYSTEM = tuple(path.removesuffix("/**") for path in places()["system"] if path not in ("/proc/**", "/sys/**"))
MAX_SETTINGS_BYTES = 64 * 1024  # of a pyvenv.cfg, which a command may have written
_ENVIRONMENTS = (".venv", "venv", "env")  # directories of a project that usually hold a virtual environment
MAX_PROGRAMS = 2000  # against a directory on PATH that holds other files
_BIN_NAMES = ("bin", "sbin", "shims", "condabin", "Scripts")
# A directory that holds one of these beside `bin` is an installation, whatever its name.
_LIBRARIES = ("lib", "lib64", "libexec")
_MARKERS = ("pyvenv.cfg", "conda-meta", "lib/node_modules/npm", "jmods", "lib/rustlib", "pkg/tool")


@frozen
class Toolchains(Record):
    """The paths to show read-only, none of them below another, the links by which PATH leads to them, and the user's package caches."""

    shown: tuple[str, ...]
    links: tuple[str, ...]
    caches: tuple[str, ...] = ()


def sandbox_toolchains(path: str, home: str, project: str) -> Toolchains:
    """Return the toolchains that the commands of a sandbox see, for a PATH and a real home directory."""
    directories = [entry for entry in path.split(":") if entry.startswith("/")]
    directories += [f"{project}/{name}/bin" for name in _ENVIRONMENTS if os.path.isdir(f"{project}/{name}/bin")]
    return find([*directories, f"{sys.base_prefix}/bin", f"{sys.prefix}/bin"], home, project)


def find(directories: Iterable[str], home: str, project: str) -> Toolchains:
    """Return the known kinds in the home directory, and what the programs in the directories need besides the system and the project."""
    search = _Search(home, project)
    for name, parts in KINDS.items():
        search.shown.update(search.parts(name, parts))
    for path in dict.fromkeys(directories):
        search.follow(path)
    while search.pending:
        search.look(search.pending.pop())
    found = {real for path in search.shown for real in search.behind_links(path)}
    shown = sorted(path for path in found if not any(above in found for above in _above(path)))
    caches = [path for name in CACHES for path in search.parts(name, ()) if os.path.isdir(path)]
    return Toolchains(tuple(shown), tuple(search.links), tuple(caches))


def is_system(path: str) -> bool:
    """Say whether a path lies in a system directory, which every command sees."""
    return any(inside(path, directory) for directory in SYSTEM)


def home_of(path: str, home: str) -> str:
    """Return the home directory that a path lies in: the user's or, under sudo, another user's. Empty if it lies in no home."""
    for base in (home, "/root"):
        if inside(path, base):
            return base
    parts = path.split("/")
    return "/".join(parts[:3]) if parts[:2] == ["", "home"] and len(parts) > 2 else ""


def parts_of(prefix: str, home: str) -> list[str]:
    """Return the existing paths that commands see of an installation, such as its `bin` and `lib`."""
    base = home_of(prefix, home)
    kind = _kind(prefix, base)
    if kind == () or os.path.isdir(f"{prefix}/conda-meta"):
        return [prefix]
    if kind is None:
        kind = _BIN_NAMES if _is_dot_directory(prefix, base) and not _is_marked(prefix) else INSTALLED
    return _existing_parts(prefix, kind)


def _existing_parts(prefix: str, parts: tuple[str, ...]) -> list[str]:
    """Return the existing paths among the parts of a prefix. No parts are the whole prefix."""
    if not parts:
        return [prefix] if os.path.exists(prefix) else []
    return [path for part in parts for path in matching_paths(f"{prefix}/{part}") if os.path.exists(path)]


def system_parts(directories: Iterable[str], home: str) -> list[str]:
    """Return what the programs in the directories need of installations in /opt."""
    found: list[str] = []
    for real in dict.fromkeys(map(os.path.realpath, directories)):
        prefix, _, name = real.rpartition("/")
        if inside(real, "/opt") and real != "/opt":
            found += parts_of(prefix, home) if name in _BIN_NAMES and prefix != "/opt" else [real]
    return found


def _kind(prefix: str, base: str) -> tuple[str, ...] | None:
    """Return the parts of a known kind of toolchain, by its path in the home directory."""
    name = prefix[len(base) + 1 :] if base else ""
    return KINDS.get(name, KINDS.get(f"{name.rpartition('/')[0]}/*"))


def _is_dot_directory(path: str, base: str) -> bool:
    return bool(base) and os.path.dirname(path) == base and os.path.basename(path).startswith(".")


def _is_marked(prefix: str) -> bool:
    return any(os.path.exists(f"{prefix}/{mark}") for mark in _MARKERS) or _holds_python(f"{prefix}/bin")


class _Search:
    """Collects what programs need. Each path that is found may lead to others."""

    def __init__(self, home: str, project: str) -> None:
        self.home, self.project = home, project
        self.pending: list[str] = []
        self.seen: set[str] = set()
        self.shown: set[str] = set()
        self.links: dict[str, None] = {}

    def follow(self, path: str, prefix: str = "", *, by_project: bool = False) -> None:
        """Follow a directory of PATH, or a path that the installation `prefix` names, to the programs that it leads to."""
        links, real = resolve_links(path)
        # Of a prefix such as ~/.local only some parts are shown, and a program may lie in another: ~/.local/share/tool/bin/tool.
        is_seen = inside(prefix, self.project) or any(inside(real, part) for part in self.shown)
        if prefix and inside(real, prefix) and is_seen:
            return
        # A command could leave a link .venv/bin/x to ~/.ssh/id, which would show it to the commands of the next sandbox.
        holder = real if os.path.isdir(real) else os.path.dirname(real)
        by_project = by_project or any(inside(place, self.project) for place in (os.path.normpath(path), *links))
        if by_project and not inside(real, self.project) and not _holds_python(holder):
            return
        self.links.update(
            dict.fromkeys(link for link in links if not inside(link, self.project) and not is_system(link))
        )
        if "/node_modules/" in real and not is_system(real) and not inside(real, self.project):
            self.shown.add(f"{real.partition('/node_modules/')[0]}/node_modules")
        elif holder == real or inside(real, self.project) or self.is_installation(holder):
            self.pending.append(holder)
        elif os.path.isfile(real) and not is_system(real) and not self.is_secret(real):
            self.shown.add(real)

    def parts(self, name: str, parts: tuple[str, ...]) -> list[str]:
        """Return the parts of a directory in the home directory that commands may see, if it exists. Remember the links to it."""
        found: list[str] = []
        for path in matching_paths(f"{self.home}/{name}"):
            links, real = resolve_links(path)
            is_elsewhere = is_system(real) or inside(path, self.project) or inside(real, self.project)
            if is_elsewhere or inside(self.home, real) or inside(self.project, real) or self.is_secret(real):
                continue
            self.links.update(dict.fromkeys(links))
            found += _existing_parts(real, parts)
        return found

    def behind_links(self, path: str) -> list[str]:
        """Return the real path of a part to show, or nothing if commands see it anyway. A mount point is never a link, as `lib64` may be."""
        links, real = resolve_links(path)
        if not links:
            return [path]
        self.links.update(dict.fromkeys(links))
        is_seen = is_system(real) or inside(real, self.project)
        return (
            [] if is_seen or inside(self.home, real) or inside(self.project, real) or self.is_secret(real) else [real]
        )

    def look(self, directory: str) -> None:
        """Show a directory of programs with the rest of its installation, and follow the paths that these name."""
        if directory in self.seen or is_system(directory) or not os.path.isdir(directory):
            return
        self.seen.add(directory)
        prefix, _, name = directory.rpartition("/")
        base = home_of(directory, self.home)
        if (
            name not in _BIN_NAMES
            or not prefix
            or inside(self.project, prefix)
            or prefix == base
            or inside(self.home, prefix)
        ):
            prefix = directory
        if inside(self.project, prefix) or directory == base or inside(self.home, directory):
            # The home directory itself is on PATH: all of it would be shown.
            return
        is_own = inside(directory, self.project)
        if not is_own:
            self.show(directory, prefix, base)
        for path in _base_interpreters(prefix):
            self.follow(path, by_project=is_own)
        for path in _links_in(directory):
            self.follow(path, prefix)
        if not is_own and os.path.exists(f"{directory}/rustup"):
            self.pending.append(os.path.realpath(os.environ.get("RUSTUP_HOME", f"{self.home}/.rustup")))

    def show(self, directory: str, prefix: str, base: str) -> None:
        """Show a directory of programs, and the parts of its prefix that they need."""
        is_known = _kind(prefix, base) is not None or _is_marked(prefix)
        if not base:
            self.shown.add(prefix)
        elif is_known or prefix != directory:
            self.shown.update(parts_of(prefix, self.home))
        elif _is_dot_directory(directory, base) or inside(directory, f"{base}/.config") or self.is_secret(directory):
            # Programs beside the settings of their tool, such as ~/.tool/tool and ~/.tool/token.
            self.shown.update(path for path in _programs(directory) if not self.is_secret(path))
        else:
            self.shown.add(directory)

    def is_installation(self, directory: str) -> bool:
        """Say whether a directory holds the programs of an installation, which need its other parts."""
        prefix, _, name = directory.rpartition("/")
        base = home_of(directory, self.home)
        if name not in _BIN_NAMES or prefix in ("", base):
            return False
        if not base or _kind(prefix, base) is not None or _is_marked(prefix):
            return True
        return not _is_dot_directory(prefix, base) and any(os.path.isdir(f"{prefix}/{part}") for part in _LIBRARIES)

    def is_secret(self, path: str) -> bool:
        """Say whether the table of secret places names a path."""
        base = home_of(path, self.home)
        return bool(base) and is_secret_in_home(path[len(base) + 1 :])


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(2, len(parts))]


def _links_in(directory: str) -> list[str]:
    """Return the links in a directory of programs."""
    return [entry.path for entry in _entries(directory) if entry.is_symlink()]


def _programs(directory: str) -> list[str]:
    """Return the programs in a directory, without links and other files."""
    files = [entry.path for entry in _entries(directory) if entry.is_file(follow_symlinks=False)]
    return [path for path in files if os.access(path, os.X_OK)]


def _entries(directory: str) -> list[os.DirEntry[str]]:
    found: list[os.DirEntry[str]] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if len(found) >= MAX_PROGRAMS:
                    break
                found.append(entry)
    except OSError:
        return []
    return found


def _base_interpreters(prefix: str) -> list[str]:
    """Return the directory of the interpreter that a virtual environment was made from."""
    settings = (line.partition("=") for line in _read_lines(f"{prefix}/pyvenv.cfg"))
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


def _read_lines(path: str) -> list[str]:
    """Return the lines at the start of a regular file, or none if there is no such file."""
    try:
        # Without blocking: a command may have put a pipe there.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return []
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        data = os.read(descriptor, MAX_SETTINGS_BYTES) if is_file else b""
    finally:
        os.close(descriptor)
    return os.fsdecode(data).splitlines()
