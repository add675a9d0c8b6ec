"""Writes a transaction's changes as a unified diff in git's format. Mentions binary and large files in one line, without their contents.

Nothing that a reader cannot see is left in it: invisible and reordering characters and bytes that are not UTF-8 are escaped.
"""

from __future__ import annotations

import os
import stat

from corral._lib.terminal import glyph, printable
from corral.transactions.line_diff import Budget, differing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from corral._lib.dirfd_tree import DirfdTree
    from corral.transactions.changes import Change
    from corral.transactions.line_diff import Span

MAX_FILE_BYTES = 1 << 20
MAX_DIFF_CHARACTERS = 1 << 24  # of all files together, against a layer that exhausts the host's memory
SAMPLED_BYTES = 8192  # of a file, to tell text from binary data
CONTEXT_LINES = 3
_NOT_IN_TEXT = [bytes((byte,)) for byte in range(32) if byte not in (7, 8, 9, 10, 12, 13, 27)]
_ESCAPED_NOTE = "# bytes that are not UTF-8 and invisible characters are shown as escapes: \\xff, \\u202e"
_KEPT = "\t\f"  # control characters of ordinary source code
_NO_NEWLINE = "\\ No newline at end of file"
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def unified(changes: Iterable[Change], project: DirfdTree, layer: DirfdTree) -> str:
    """Return the diff of all changes."""
    parts: list[str] = []
    size = 0
    budget = Budget()
    listed = list(changes)
    parents = {parent for change in listed for parent in _parents(change.path)}
    for change in listed:
        if change.kind == "added" and change.what == "directory" and change.path in parents and not change.protected:
            # The entries of the directory imply it.
            continue
        for each in _parts(change):
            for line in _file_diff(each, project, layer, budget):
                parts.append(line)
                size += len(line) + 1
        if size > MAX_DIFF_CHARACTERS:
            parts.append("# more changes are not shown")
            break
    return "".join(f"{line}\n" for line in parts)


def _parts(change: Change) -> list[Change]:
    """Return a change of type as a deletion and an addition, as git does, and any other change as it is."""
    if not change.old_what:
        return [change]
    return [
        change.replace(kind="deleted", what=change.old_what, mode=None, size=None, link=""),
        change.replace(kind="added", old_mode=None, old_size=None, old_link="", files=0),
    ]


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:number]) for number in range(1, len(parts))]


def quoted(path: str) -> str:
    """Return a path as git writes it: quoted and escaped if it has unprintable characters."""
    if path == printable(path) and '"' not in path and "\\" not in path:
        return path
    data = path.encode("utf-8", "surrogateescape")
    escaped = "".join(_ESCAPES.get(chr(byte)) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in data)
    return f'"{escaped}"'


def _file_diff(change: Change, project: DirfdTree, layer: DirfdTree, budget: Budget) -> Iterator[str]:
    old_path = change.old_path or change.path
    before, after = quoted(f"a/{old_path}"), quoted(f"b/{change.path}")
    yield f"diff --git {before} {after}"
    yield from _head(change)
    if change.what == "directory" or change.kind in ("renamed", "time", "mode"):
        return
    if change.what not in ("file", "link") or (change.kind == "link" and change.what == "file"):
        if change.kind == "link":
            yield "# hard link to the same file"
        return
    old = b"" if change.kind == "added" else _content(project, old_path, change.old_size)
    new = b"" if change.kind == "deleted" else _content(layer, change.path, change.size)
    before = "/dev/null" if change.kind == "added" else before
    after = "/dev/null" if change.kind == "deleted" else after
    if old is None or new is None:
        sizes = change.old_size or 0, change.size or 0
        kind = "Large" if max(sizes) > MAX_FILE_BYTES else "Binary"
        yield f"{kind} files {before} and {after} differ ({sizes[0]} and {sizes[1]} bytes)"
    elif hunks := _hunks(_lines(old), _lines(new), budget):
        shown = [_visible(line) for line in hunks]
        if shown != hunks:
            yield _ESCAPED_NOTE
        yield f"--- {before}"
        yield f"+++ {after}"
        yield from shown


def _head(change: Change) -> Iterator[str]:
    if change.protected:
        yield "# protected: never applied"
    old, new = _mode(change, change.old_mode, change.old_link), _mode(change, change.mode, change.link)
    if change.kind == "added":
        yield f"new file mode {new}" if change.what != "directory" else "# new directory"
    elif change.kind == "deleted":
        files = f" with {change.files} files" if change.what == "directory" else ""
        yield f"deleted file mode {old}" if change.what != "directory" else f"# deleted directory{files}"
    elif change.kind == "renamed":
        yield f"rename from {quoted(change.old_path)}"
        yield f"rename to {quoted(change.path)}"
    elif change.kind == "time":
        yield "# only its time changed"
    elif change.old_mode != change.mode:
        yield f"old mode {old}"
        yield f"new mode {new}"
    if change.new_owner:
        yield "# its owner or group changed"
    if change.what in ("pipe", "socket"):
        yield f"# {change.what}"


def _mode(change: Change, mode: int | None, link: str) -> str:
    if change.what == "directory":
        return f"{stat.S_IFDIR | (mode or 0):06o}"
    return f"{stat.S_IFLNK:06o}" if link else f"{stat.S_IFREG | (mode or 0):06o}"


def _content(tree: DirfdTree, path: str, size: int | None) -> bytes | None:
    """Return the content of a small text file or the target of a link. None if the diff does not show it."""
    found = tree.status(path)
    if found is None:
        return None
    if stat.S_ISLNK(found.st_mode):
        return os.fsencode(tree.link(path))
    if not stat.S_ISREG(found.st_mode) or max(size or 0, found.st_size) > MAX_FILE_BYTES:
        return None
    try:
        descriptor = tree.open(path)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    return None if len(data) > MAX_FILE_BYTES or _is_binary(data) else data


def _is_binary(data: bytes) -> bool:
    """Return whether data has a NUL, as git decides, or more than a tenth of bytes that text does not have."""
    if b"\0" in data:
        return True
    start = data[:SAMPLED_BYTES]
    strange = sum(start.count(byte) for byte in _NOT_IN_TEXT) + start.decode("utf-8", "replace").count("\ufffd")
    return strange * 10 > len(start)


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8", "surrogateescape")
    lines = text.split("\n")
    last = lines.pop()
    return [f"{line}\n" for line in lines] + ([last] if last else [])


def _visible(line: str) -> str:
    """Return a line in which everything can be seen. A carriage return at its end stays, as part of the line's end."""
    if line.isascii() and line.isprintable():
        return line
    body = line.removesuffix("\r")
    return "".join(c if c in _KEPT else glyph(c) for c in body) + line[len(body) :]


def _hunks(old: list[str], new: list[str], budget: Budget) -> list[str]:
    lines: list[str] = []
    for group in _grouped(differing(old, new, budget)):
        start, end = max(group[0][0] - CONTEXT_LINES, 0), min(group[-1][1] + CONTEXT_LINES, len(old))
        # The context has the same number of lines in both texts.
        new_start, new_end = group[0][2] - (group[0][0] - start), group[-1][3] + (end - group[-1][1])
        lines.append(f"@@ -{_range(start, end)} +{_range(new_start, new_end)} @@")
        for from_old, to_old, from_new, to_new in group:
            lines += _marked(" ", old[start:from_old])
            lines += _marked("-", old[from_old:to_old])
            lines += _marked("+", new[from_new:to_new])
            start = to_old
        lines += _marked(" ", old[start:end])
    return lines


def _grouped(spans: list[Span]) -> list[list[Span]]:
    """Return the spans in groups: two spans share a hunk if their context lines meet."""
    groups: list[list[Span]] = []
    for span in spans:
        if groups and span[0] - groups[-1][-1][1] <= 2 * CONTEXT_LINES:
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups


def _marked(mark: str, lines: list[str]) -> list[str]:
    found = []
    for line in lines:
        found.append(mark + line.removesuffix("\n"))
        if not line.endswith("\n"):
            found.append(_NO_NEWLINE)
    return found


def _range(start: int, stop: int) -> str:
    length = stop - start
    if length == 1:
        return f"{start + 1}"
    return f"{start if length == 0 else start + 1},{length}"
