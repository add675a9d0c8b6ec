"""Classifies resolved paths: inside the project, protected, scratch, system, secret, outside. Pure: compares text with places.toml."""

from __future__ import annotations

from corral.guard.rules.loader import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class _Patterns:
    """The patterns of one kind of place, sorted so that most paths need one dictionary look-up."""

    __slots__ = ("exact", "trees", "wild")

    def __init__(self, patterns: Iterable[str]) -> None:
        self.exact: set[str] = set()
        self.trees: tuple[str, ...] = ()
        self.wild: dict[str, list[list[str]]] = {}  # by their first component, so that most paths match against none
        for pattern in patterns:
            if "*" not in pattern:
                self.exact.add(pattern)
            elif pattern.endswith("/**") and "*" not in pattern[:-3]:
                self.trees += (pattern[:-2],)
                self.exact.add(pattern[:-3])
            else:
                first = _first(pattern)
                self.wild.setdefault("*" if "*" in first else first, []).append(pattern.split("/"))

    def match(self, path: str) -> bool:
        """Say whether a path matches one of the patterns."""
        if path in self.exact or path.startswith(self.trees):
            return True
        if not self.wild:
            return False
        parts = path.split("/")
        candidates = (*self.wild.get(_first(path), ()), *self.wild.get("*", ()))
        return any(_fits(parts, pattern) for pattern in candidates)


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


_TABLE = places()
_PROTECTED = _Patterns([*_TABLE["protected"], *_TABLE["repository"]])
_RUNS_LATER = _Patterns(_TABLE["protected"])
_NOT_ENV = frozenset(_TABLE["not_env"])
_SECRET_HOME = _Patterns(_TABLE["secret_home"])
_SECRET = _Patterns(_TABLE["secret"])
_STANDARD = _Patterns(_TABLE["standard"])
_SYSTEM = _Patterns(_TABLE["system"])
_SCRATCH = _Patterns(_TABLE["scratch"])
_PROGRAMS = tuple(p + "/" for p in _TABLE["programs"])
_ENV_PATHS = _Patterns(_TABLE["env_paths"])
_MANIFEST_PATHS = _Patterns(_TABLE["manifest_paths"])
_HEADS = frozenset(p.partition("/")[0] for p in (*_TABLE["protected"], *_TABLE["repository"]))
_NAMED = frozenset(p.partition("/")[0] for key in ("env_paths", "manifest_paths") for p in _TABLE[key])


class _Names:
    """Patterns of file or variable names, with at most one `*` each."""

    __slots__ = ("exact", "heads", "tails", "wild")

    def __init__(self, patterns: Iterable[str]) -> None:
        patterns = list(patterns)
        self.exact = frozenset(p for p in patterns if "*" not in p)
        self.heads = tuple(p[:-1] for p in patterns if p.endswith("*"))
        self.tails = tuple(p[1:] for p in patterns if p.startswith("*"))
        self.wild = [p for p in patterns if "*" in p[1:-1]]

    def match(self, name: str) -> bool:
        """Say whether a name matches one of the patterns."""
        if name in self.exact or name.startswith(self.heads) or name.endswith(self.tails):
            return True
        return any(_part_fits(name, want) for want in self.wild)


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
    """Say whether a glob begins with a dot or two letters and matches a credential's name. `*.json` does not count."""
    from fnmatch import fnmatchcase  # noqa: PLC0415  few calls have globs

    if glob[0] not in ".[" and not glob[:2].replace("_", "a").isalnum():
        return False
    return any(fnmatchcase(name, glob) for name in _ENV.exact if glob[0] != "[" or name[0] != ".")


def may_become_protected(path: str) -> bool:
    """Say whether a path has the name of a directory with protected files. The directory need not exist."""
    return path.rstrip("/").rpartition("/")[2] in _HEADS | _NAMED


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
    return _is_among(_PROTECTED, path, root)


def is_executed_later(path: str, root: str) -> bool:
    """Say the same, but without git's own files: git may write those, and a command that names them may not."""
    return _is_among(_RUNS_LATER, path, root)


def _is_among(patterns: _Patterns, path: str, root: str) -> bool:
    rest = path[len(root) + 1 :]
    if "." not in rest:
        return False
    parts = rest.split("/")
    return any(part in _HEADS and patterns.match("/".join(parts[index:])) for index, part in enumerate(parts))


def _named_place(rest: str) -> str:
    """Return the place of a path inside the root that its directories decide."""
    parts = rest.split("/")
    for index, part in enumerate(parts):
        if part in _NAMED:
            below = "/".join(parts[index:])
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
        if protected(path, root):
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
    for base in (home, "/root"):
        if inside(path, base):
            return "secret" if _SECRET_HOME.match(path[len(base) + 1 :]) else "outside"
    if path.startswith("/home/"):
        below = path.split("/", 3)
        return "secret" if len(below) > 3 and _SECRET_HOME.match(below[3]) else "outside"
    if path.startswith("/dev/"):
        return "device"
    if _SYSTEM.match(path):
        return "system"
    return "outside"
