"""Reads the user's git settings: asks the user's git, and remembers its answer until a file that it read has changed."""

from __future__ import annotations

import marshal
import os
from _blake2 import blake2b

from corral._lib.records import Record, frozen
from corral.git.configuration.carried_settings import split_key
from corral.git.host_git import HostGit, find_program
from corral.guard.unpushed_commits import git_directories
from corral.model.errors import PolicyError
from corral.policy.path_grants import home_directory
from corral.policy.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from corral.git.configuration.carried_settings import Setting

    Status = tuple[int, ...]

MAX_SETTINGS = 5000
MAX_CACHE_BYTES = 1 << 20
MAX_CACHED = 64  # projects
_FORMAT = 1
_STORE = "git-settings"
# They name the user's configuration files. Other variables of git's would steer it.
_VARIABLES = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")
_NOWHERE = "/proc/self/fdinfo"  # exists always, and is no git directory


@frozen
class Asked(Record):
    """The program to ask, its variables, and the project whose git directory decides which conditional files count."""

    program: str
    root: str
    environ: Mapping[str, str]

    @property
    def home(self) -> str:
        """The user's home directory."""
        return home_directory(self.environ)

    @property
    def config_home(self) -> str:
        """The directory in which git looks for `git/config` and `git/ignore`."""
        return self.environ.get("XDG_CONFIG_HOME") or f"{self.home}/.config"

    def variables(self) -> dict[str, str]:
        """Return the variables that git is asked with: its files, and the git directory of the project."""
        found = {name: self.environ[name] for name in _VARIABLES if name in self.environ}
        try:
            directories = git_directories(self.root, self.root)
        except (OSError, ValueError):
            directories = None
        # Without one, git would search from the host's working directory.
        private, common = directories or (_NOWHERE, "")
        found |= {"GIT_DIR": private, "GIT_WORK_TREE": _NOWHERE}
        return found | ({"GIT_COMMON_DIR": common} if common and common != private else {})


def read_settings(root: str, environ: Mapping[str, str], programs: Iterable[str]) -> tuple[tuple[Setting, ...], str]:
    """Return the settings that the user's git has in a project, and why git cannot read them, or "".

    `programs` are the directories to find git in.
    """
    program = find_program(programs)
    if not program:
        return (), ""
    asked = Asked(program, root, environ)
    variables = asked.variables()
    key = _key(asked, variables)
    known = _cached(key, asked)
    if known is not None:
        return known, ""
    # The files may change while git reads them: then the older status does not fit, and git is asked again.
    before = {path: _status(path) for path in _first_files(asked, variables)}
    words = ("config", "--list", "--show-scope", "--show-origin", "--includes", "-z")
    try:
        answer = HostGit(program, environ).run(variables, *words)
    except OSError as error:
        return (), str(error)
    if answer.code:
        return (), answer.errors or f"git ended with {answer.code}"
    settings = parse_listed(answer.output)[:MAX_SETTINGS]
    _cache(key, asked, before | {path: _status(path) for path in _further_files(asked, settings)}, settings)
    return settings, ""


def parse_listed(output: bytes) -> tuple[Setting, ...]:
    """Parse the output of `git config --list --show-scope --show-origin -z`. Settings that are in no file are left out."""
    fields = output.decode("utf-8", "surrogateescape").split("\0")
    found: list[Setting] = []
    for scope, origin, text in zip(fields[::3], fields[1::3], fields[2::3], strict=False):
        key, newline, value = text.partition("\n")
        if origin.startswith("file:"):
            found.append((scope, origin[5:], key, value if newline else None))
    return tuple(found)


def expanded(path: str, origin: str, home: str) -> str:
    """Return the file that a setting names, as git finds it from the file with the setting."""
    if path.startswith("~/"):
        return f"{home}/{path[2:]}"
    return os.path.join(os.path.dirname(origin), path)


def _first_files(asked: Asked, variables: Mapping[str, str]) -> list[str]:
    own = [f"{asked.config_home}/git/config", f"{asked.home}/.gitconfig"]
    git_dir = variables.get("GIT_COMMON_DIR") or variables["GIT_DIR"]
    # A branch, or the address of a remote, can be the condition for a file.
    return [asked.program, *(variables[name] for name in _VARIABLES[:2] if name in variables), *own,
            f"{git_dir}/config", f"{variables['GIT_DIR']}/HEAD"]  # fmt: skip


def _further_files(asked: Asked, settings: Iterable[Setting]) -> list[str]:
    """Return the files that git read, and those that it would read if they existed or if their condition were true."""
    found: dict[str, None] = {}
    for _, origin, key, value in settings:
        found[origin] = None
        if split_key(key)[0] in ("include", "includeif") and value:
            found[expanded(value, origin, asked.home)] = None
    return [*found]


def _key(asked: Asked, variables: Mapping[str, str]) -> str:
    parts = (_FORMAT, asked.program, asked.home, asked.config_home, sorted(variables.items()))
    return blake2b(repr(parts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _status(path: str) -> Status:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _cached(key: str, asked: Asked) -> tuple[Setting, ...] | None:
    try:
        store = Store("cache", _STORE, asked.environ, asked.root)
        data = store.read(key, MAX_CACHE_BYTES, allows_hard_links=False) if store.exists() else None
        if data is None:
            return None
        files, settings = marshal.loads(data)  # noqa: S302  only the user can write the store
        return settings if all(_status(path) == status for path, status in files) else None
    except (OSError, PolicyError, ValueError, EOFError, TypeError):
        return None


def _cache(key: str, asked: Asked, files: Mapping[str, Status], settings: tuple[Setting, ...]) -> None:
    try:
        store = Store("cache", _STORE, asked.environ, asked.root)
        store.create()
        store.remove_oldest(MAX_CACHED)
        store.write(key, marshal.dumps((tuple(files.items()), settings)))
    except (OSError, PolicyError):
        # Git is asked again the next time.
        return
