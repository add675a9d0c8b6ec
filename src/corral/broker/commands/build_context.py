"""Runs inside a sandbox: prints a directory as a tar archive for `docker build -`, without what its .dockerignore excludes.

The stub starts it, so it stands alone: it is copied into the broker's directory, and imports nothing of corral.
"""

import os
import posixpath
import re
import sys
import tarfile
from collections.abc import Iterator

IGNORE_FILE = ".dockerignore"
MAX_IGNORE_BYTES = 1 << 20
_ALWAYS_SENT = frozenset({"Dockerfile", IGNORE_FILE})  # docker sends them too, whatever is excluded
_PIECES = re.compile(r"\*\*/|\*\*|\*|\?|\[\^?[^\]]+\]|\\.|.", re.DOTALL)
_MEANINGS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


class IgnoreRules:
    """The lines of a .dockerignore. The last one that matches a path, or a directory above it, decides."""

    def __init__(self, text: str) -> None:
        self._rules: list[tuple[bool, re.Pattern[str]]] = []
        for line in map(str.strip, text.removeprefix("\ufeff").splitlines()):
            wanted = line.removeprefix("!").strip()
            if wanted and not line.startswith("#"):
                self._rules.append((line.startswith("!"), _pattern(posixpath.normpath(wanted).lstrip("/"))))
        self.has_exceptions = any(is_exception for is_exception, _ in self._rules)

    def excludes(self, path: str) -> bool:
        """Say whether a path, relative to the directory, stays out of the archive."""
        if path in _ALWAYS_SENT:
            return False
        decisions = [not is_exception for is_exception, rule in self._rules if rule.fullmatch(path)]
        return bool(decisions) and decisions[-1]


def _pattern(text: str) -> re.Pattern[str]:
    found = [_MEANINGS.get(piece) or _literal(piece) for piece in _PIECES.findall(text)]
    return re.compile("".join(found) + "(?:/.*)?", re.DOTALL)


def _literal(piece: str) -> str:
    if piece[0] == "[" and len(piece) > 1:
        return piece.replace("\\", "\\\\").replace("[", "\\[").replace("\\[", "[", 1)
    return re.escape(piece[-1] if piece[0] == "\\" else piece)


def members(rules: IgnoreRules, directory: str = ".") -> Iterator[str]:
    """Yield every path of a directory that belongs into the archive, a directory before what it contains."""
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        path = entry.path.removeprefix("./")
        is_excluded = rules.excludes(path)
        if not is_excluded:
            yield path
        if entry.is_dir(follow_symlinks=False) and (not is_excluded or rules.has_exceptions):
            yield from members(rules, entry.path)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def main(directory: str) -> None:
    """Print the archive."""
    os.chdir(directory)
    text = ""
    if os.path.isfile(IGNORE_FILE):
        with open(IGNORE_FILE, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read(MAX_IGNORE_BYTES)
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        for path in members(IgnoreRules(text)):
            archive.add(path, recursive=False, filter=_anonymous)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except (OSError, re.error) as error:
        sys.exit(f"corral: {sys.argv[1]} cannot be packed: {error}")
