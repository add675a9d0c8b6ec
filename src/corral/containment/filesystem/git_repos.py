"""Recognises git directories, and finds the paths in the project that their configuration names. Reads the disk, changes nothing."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Protocol

    from corral.model.call import Violation

    Setting = tuple[str, str, str, str]  # section, key, value, and the directory of the file
    Changes = Callable[[tuple[str, ...]], int | None]

    class GitDirectories(Protocol):
        """Copies of git directories that commands see in place of the user's: see the room git."""

        is_outdated: bool
        pointers: dict[str, str]

        def open(self, repositories: Iterable[str], programs: Iterable[str]) -> dict[str, tuple[str, str]]: ...
        def home_files(self, programs: Iterable[str], home: str) -> Mapping[str, bytes]: ...
        def before(self, changes: Changes | None = None) -> None: ...
        def after(self, changes: Changes | None = None) -> tuple[Violation, ...]: ...
        def take_over(
            self, made: Iterable[str], pointers: Iterable[str], originals: Mapping[str, str]
        ) -> tuple[Violation, ...]: ...
        def prepare_transaction(self, place: str) -> None: ...
        def adopted(self) -> list[str]: ...
        def close(self) -> None: ...


GIT = ".git"
MAX_INCLUDED = 5  # files that include each other
_INCLUDES = ("include", "includeif")
_FILES = (("core", "hookspath"), ("core", "attributesfile"))
# Keys whose program git starts by itself. Those of tools and aliases are started by name.
_PROGRAMS = frozenset(
    {"fsmonitor", "sshcommand", "editor", "pager", "askpass", "gitproxy", "alternaterefscommand", "program", "defaultkeycommand",
     "helper", "command", "textconv", "driver", "clean", "smudge", "process", "external", "difffilter", "packobjectshook",
     "uploadpack", "receivepack"}
)  # fmt: skip
MAX_CONFIG_BYTES = 1 << 18  # against a configuration that takes long to read


def is_repository(directory: str, listed: Iterable[os.DirEntry[str]]) -> bool:
    """Say whether git takes a directory for a repository, whatever its name is."""
    if not any(entry.name == "HEAD" for entry in listed):
        return False
    # lexists: a later command can create the target of a dangling link.
    own = all(os.path.lexists(f"{directory}/{name}") for name in ("objects", "refs"))
    return own or os.path.lexists(f"{directory}/commondir")


def configured_paths(directory: str, others: Iterable[Setting], top: str = "") -> Iterator[str]:
    """Yield the paths of hooks, programs and included files that git uses for a repository without being told to.

    `others` are the settings of the user's for all repositories. Relative paths count from the top of the working tree.
    """
    top = top or (os.path.dirname(directory) if os.path.basename(directory) == GIT else directory)
    home = os.environ.get("HOME", "")
    own = (each for name in ("config", "config.worktree") for each in _settings(f"{directory}/{name}", home, 0))
    for section, key, value, folder in (*own, *others):
        if section in _INCLUDES and key == "path":
            yield os.path.join(folder, value)
        elif (section, key) in _FILES:
            yield os.path.join(top, value)
        elif key in _PROGRAMS or section == "pager":
            for number, word in enumerate(value.split()):
                path = os.path.join(top, _expanded(word.strip("'\"!();&|"), home))
                # A word without a slash is looked for on PATH. Also `python3 tools/x.py`, but not `sed s/x/y/`.
                if "/" in word and (not number or os.path.isfile(path)):
                    yield path
    yield from _linked_hooks(f"{directory}/hooks")


def user_settings() -> tuple[Setting, ...]:
    """Return the settings of the user's and the machine's git configuration, also of files that it includes on a condition."""
    home = os.environ.get("HOME", "")
    folder = os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    own = os.environ.get("GIT_CONFIG_GLOBAL", "")
    files = dict.fromkeys(("/etc/gitconfig", f"{folder}/git/config", f"{home}/.gitconfig", own))
    return tuple(each for path in files if path.startswith("/") for each in _settings(path, home, 0, follows=True))


def _linked_hooks(folder: str) -> Iterator[str]:
    if os.path.islink(folder):
        yield folder
    try:
        with os.scandir(folder) as entries:
            yield from [entry.path for entry in entries if entry.is_symlink()]
    except OSError:
        return


def _settings(path: str, home: str, depth: int, *, follows: bool = False) -> Iterator[Setting]:
    """Yield section, key and value of each setting in a file and in those that it includes, and the directory of the file."""
    section, folder = "", os.path.dirname(path)
    for line in _read(path, follows=follows).split("\n"):
        words = line.strip()
        if words.startswith("["):
            head, _, words = words[1:].partition("]")
            section = head.partition(" ")[0].partition(".")[0].lower()
            words = words.strip()
        key, _, text = words.partition("=")
        value = _expanded(text.strip().strip('"'), home)
        if not value or words.startswith(("#", ";")):
            continue
        yield section, key.strip().lower(), value, folder
        if section in _INCLUDES and key.strip().lower() == "path" and depth < MAX_INCLUDED:
            yield from _settings(os.path.join(folder, value), home, depth + 1, follows=True)


def _expanded(path: str, home: str) -> str:
    return f"{home}{path[1:]}" if path.startswith("~/") else path


def _read(path: str, *, follows: bool) -> str:
    """Return the text of a regular file that is not too long, or ""."""
    from corral.policy.user_dirs import read_regular_file  # noqa: PLC0415  the keeper imports this module, and reads nothing

    try:
        data, _ = read_regular_file(path, MAX_CONFIG_BYTES, follows=follows)
    except OSError:
        return ""
    return data.decode("utf-8", "surrogateescape") if len(data) <= MAX_CONFIG_BYTES else ""
