"""Classifies resolved paths: inside the project, protected, scratch, system, secret, outside. Pure: compares text with places.toml."""

from __future__ import annotations

from corral.guard.rules.loader import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class _Patterns:
    """The patterns of one kind of place, sorted so that most paths need one dictionary look-up."""

    __slots__ = ("depth", "exact", "trees", "wild")

    def __init__(self, patterns: Iterable[str]) -> None:
        patterns = list(patterns)
        self.depth = max((pattern.count("/") for pattern in patterns), default=0)  # no pattern has more slashes
        self.exact: set[str] = set()
        self.trees: set[str] = set()
        self.wild: dict[str, list[list[str]]] = {}  # by their first component, so that most paths match against none
        for pattern in patterns:
            if "*" not in pattern:
                self.exact.add(pattern)
            elif pattern.endswith("/**") and "*" not in pattern[:-3]:
                self.trees.add(pattern[:-3])
            else:
                first = _first(pattern)
                self.wild.setdefault("*" if "*" in first else first, []).append(pattern.split("/"))

    def match(self, path: str) -> bool:
        """Say whether a path matches one of the patterns."""
        if path in self.exact:
            return True
        # Directory by directory: the table of credentials has hundreds of trees. A path may have a hundred thousand directories.
        end = 0
        for _ in range(self.depth + 1):
            end = path.find("/", end)
            if end < 0:
                break
            if path[:end] in self.trees:
                return True
            end += 1
        if path in self.trees:
            return True
        if not self.wild:
            return False
        candidates = (*self.wild.get(_first(path), ()), *self.wild.get("*", ()))
        if not candidates:
            return False
        parts = path.split("/", self.depth + 1)
        return any(_fits(parts, pattern) for pattern in candidates)


def _below(parts: list[str], index: int, *patterns: _Patterns) -> str:
    """Return the path from one of its parts on, as far as the patterns can tell it from a longer one."""
    return "/".join(parts[index : index + max(p.depth for p in patterns) + 2])


def _first(path: str) -> str:
    return path.removeprefix("/").partition("/")[0]


def _fits(parts: list[str], pattern: list[str]) -> bool:
    for index, want in enumerate(pattern):
        if want == "**":
            return True
        if index >= len(parts) or not _part_fits(parts[index], want):
            return False
    return len(parts) == len(pattern)


def _part_fits(part: str, want: str) -> bool:
    head, star, tail = want.partition("*")
    return part == want if not star else part.startswith(head) and part.endswith(tail)


class _NestedPatterns:
    """Patterns that match in every directory of a project."""

    __slots__ = ("heads", "patterns", "tails")

    def __init__(self, patterns: Iterable[str]) -> None:
        patterns = list(patterns)
        first = {pattern.partition("/")[0] for pattern in patterns}
        self.heads = frozenset(first)
        self.tails = tuple(name.rpartition("*")[2] for name in first if "*" in name)
        self.patterns = _Patterns(patterns)

    def match(self, path: str, root: str) -> bool:
        """Say whether a path below the root matches."""
        parts = path[len(root) + 1 :].split("/")
        for index, part in enumerate(parts):
            may_match = part in self.heads or part.endswith(self.tails)
            if may_match and self.patterns.match(_below(parts, index, self.patterns)):
                return True
        return False


_TABLE = places()
_PROTECTED = _NestedPatterns([*_TABLE["protected"], *_TABLE["repository"]])
_FOLDED: list[_NestedPatterns] = []  # made by the first call of `is_executed_later`
_FOLDED_HOME: list[_Patterns] = []
_NOT_ENV = frozenset(_TABLE["not_env"])
_SECRET_HOME = _Patterns(_TABLE["secret_home"])
_NOTES = tuple(_TABLE["host_notes"])
_NOT_NOTES = frozenset(_TABLE["host_secrets"])
_SECRET = _Patterns(_TABLE["secret"])
_PRIVATE = _Patterns(_TABLE["private"])
_STANDARD = _Patterns(_TABLE["standard"])
_SYSTEM = _Patterns(_TABLE["system"])
_SCRATCH = _Patterns(_TABLE["scratch"])
_PROGRAMS = tuple(p + "/" for p in _TABLE["programs"])
_ENV_PATHS = _Patterns(_TABLE["env_paths"])
_MANIFEST_PATHS = _Patterns(_TABLE["manifest_paths"])
_NAMED = frozenset(p.partition("/")[0] for key in ("env_paths", "manifest_paths") for p in _TABLE[key])


class _Names:
    """Patterns of file or variable names, with at most one `*` each."""

    __slots__ = ("exact", "heads", "tails", "wild", "wild_heads")

    def __init__(self, patterns: Iterable[str]) -> None:
        patterns = list(patterns)
        self.exact = frozenset(p for p in patterns if "*" not in p)
        self.heads = tuple(p[:-1] for p in patterns if p.endswith("*"))
        self.tails = tuple(p[1:] for p in patterns if p.startswith("*"))
        self.wild = [p for p in patterns if "*" in p[1:-1]]
        self.wild_heads = tuple(p.partition("*")[0] for p in self.wild)

    def match(self, name: str) -> bool:
        """Say whether a name matches one of the patterns."""
        if name in self.exact or name.startswith(self.heads) or name.endswith(self.tails):
            return True
        return name.startswith(self.wild_heads) and any(_part_fits(name, want) for want in self.wild)


_ENV = _Names(_TABLE["env"])
_MANIFEST = _Names(_TABLE["manifest"])
_SECRET_VARIABLES = _Names(_TABLE["secret_variables"])


def is_secret_variable(name: str) -> bool:
    """Say whether an environment variable of this name holds a credential."""
    return _SECRET_VARIABLES.match(name)


def is_credential_file(name: str) -> bool:
    """Say whether a file of this name in a project holds credentials, or whether a glob is written to match such a name."""
    if name in _NOT_ENV:
        return False
    return _ENV.match(name) or (("*" in name or "?" in name or "[" in name) and _glob_fits(name))


def _glob_fits(glob: str) -> bool:
    """Say whether a glob begins with a dot or two letters, or is `*` and a credential's name, and matches one. `*.json` does not count."""
    from corral.guard.globs import glob_matches  # noqa: PLC0415  few calls have globs

    if glob[0] == "*" and glob[1:] in _ENV.exact:
        return True
    if glob[0] not in ".[" and not glob[:2].replace("_", "a").isalnum():
        return False
    return any(glob_matches(name, glob) for name in _ENV.exact if glob[0] != "[" or name[0] != ".")


def is_secret_in_home(path: str) -> bool:
    """Say whether a path, relative to a home directory, holds credentials or private data."""
    return _SECRET_HOME.match(path)


def is_note_in_home(path: str) -> bool:
    """Say whether a path, relative to a home directory, is in a directory of notes and plugins of an agent host.

    Files beside these directories, and files and directories with a dot before or in their names, hold settings and credentials.
    """
    for place in _NOTES:
        if path.startswith(place):
            parts = path[len(place) :].split("/")
            is_own = parts[0] == "hooks" or parts[-1].startswith(
                "corral."
            )  # the host's hooks, and corral's among its plugins
            is_private = is_own or not _NOT_NOTES.isdisjoint(parts) or is_credential_file(parts[-1])
            return "." not in parts[0] and not is_private
    return False


def contains_secret(path: str) -> bool:
    """Say whether a table of the machine's credentials names something below a directory."""
    return any(pattern.startswith(f"{path}/") for pattern in _TABLE["secret"])


def _place_in_home(path: str) -> str:
    if not _SECRET_HOME.match(path):
        return "outside"
    return "notes" if is_note_in_home(path) else "secret"


def may_become_protected(path: str) -> bool:
    """Say whether a path has the name of a directory with protected files. The directory need not exist."""
    return path.rstrip("/").rpartition("/")[2] in _PROTECTED.heads | _NAMED


def path_work(text: str) -> int:
    """Return the work, in microseconds, that it takes to classify a word as a path. Only a word with many directories takes any."""
    return 25 * max(0, text.count("/") - 100) if len(text) > 256 else 0


def inside(path: str, root: str) -> bool:
    """Say whether a path is the root or below it."""
    # A bare prefix test would let /work-evil pass for /work.
    return path == root or path.startswith(root + "/")


def is_standard_device(text: str) -> bool:
    """Say whether a path as written is the null device or a similar one."""
    return text.startswith(("/dev/", "/proc/self/fd/")) and ".." not in text and _STANDARD.match(text)


def is_program(path: str) -> bool:
    """Say whether a path is in a directory of system programs."""
    return path.startswith(_PROGRAMS)


def protected(path: str, root: str) -> bool:
    """Say whether programs outside the sandbox would later run or trust this file of the project. Includes nested repositories."""
    return _PROTECTED.match(path, root)


def is_executed_later(path: str, root: str) -> bool:
    """Say the same, but without git's own files, and in every spelling that a file system which ignores case takes for one name."""
    from corral._lib.case_folding import folded  # noqa: PLC0415  the guard does not need it

    if not _FOLDED:
        _FOLDED.append(_NestedPatterns(map(folded, _TABLE["protected"])))
    return _FOLDED[0].match(folded(path), folded(root))


def is_executed_at_home(path: str, root: str, home: str) -> bool:
    """Say whether a path is a start-up file or a credential of the home directory, and the project is not itself such a place."""
    if not inside(path, home):
        return False
    from corral._lib.case_folding import folded  # noqa: PLC0415  the guard does not need it
    from corral.guard.rules.loader import startup_home  # noqa: PLC0415  as above

    if not _FOLDED_HOME:
        _FOLDED_HOME.append(_Patterns(map(folded, (*_TABLE["secret_home"], *startup_home()))))
    is_place, begin = _FOLDED_HOME[0].match, len(home) + 1
    return is_place(folded(path[begin:])) and not (inside(root, home) and is_place(folded(root[begin:])))


def _named_place(rest: str) -> str:
    """Return the place of a path inside the root that its directories decide."""
    parts = rest.split("/")
    if _NAMED.isdisjoint(parts):
        return "inside"
    for index, part in enumerate(parts):
        if part in _NAMED:
            below = _below(parts, index, _ENV_PATHS, _MANIFEST_PATHS)
            if _ENV_PATHS.match(below):
                return "env"
            if _MANIFEST_PATHS.match(below):
                return "manifest"
    return "inside"


def classify_path(path: str, root: str, home: str) -> str:
    """Return the kind of place that an absolute, resolved path is in."""
    if path.startswith(root) and inside(path, root):
        if home.startswith(root) and inside(path, home) and _SECRET_HOME.match(path[len(home) + 1 :]):
            return "secret"  # the project contains the home directory
        if _PROTECTED.match(path, root):
            return "protected"
        name = path.rpartition("/")[2]
        if is_credential_file(name):
            return "env"
        return "manifest" if _MANIFEST.match(name) else _named_place(path[len(root) + 1 :])
    if _STANDARD.match(path):
        return "standard"
    if _SCRATCH.match(path):
        # A home directory below /tmp is not the sandbox's scratch.
        return "secret" if inside(path, home) and _SECRET_HOME.match(path[len(home) + 1 :]) else "scratch"
    if root.startswith(path.rstrip("/") + "/") or path == home:
        return "ancestor"
    if _SECRET.match(path):
        return "secret"
    if _PRIVATE.match(path):
        return "private"
    for base in (home, "/root"):
        if inside(path, base):
            return _place_in_home(path[len(base) + 1 :])
    if path.startswith("/home/"):
        below = path.split("/", 3)
        return _place_in_home(below[3]) if len(below) > 3 else "outside"
    if path.startswith("/dev/"):
        return "device"
    if _SYSTEM.match(path):
        return "system"
    return "outside"
