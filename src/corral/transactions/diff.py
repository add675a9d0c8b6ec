"""A transaction's changes as a unified diff, in git's form. Binary and huge files are told of and never loaded whole."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from corral.transactions.beneath import Tree
    from corral.transactions.changes import Change

MAX_FILE_BYTES = 1 << 20
MAX_LINE_PAIRS = 4_000_000  # lines that differ, old times new: the comparison takes that many steps at worst
MAX_DIFF_CHARACTERS = 1 << 24  # of all together, against a layer that takes the host's memory
SAMPLED_BYTES = 8192  # of a file, to tell text from other data
CONTEXT_LINES = 3
_STRANGE = [bytes((byte,)) for byte in range(32) if byte not in (7, 8, 9, 10, 12, 13, 27)]
_LINK, _FILE = 0o120000, 0o100000
_NO_NEWLINE = "\\ No newline at end of file"
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def unified(changes: Iterable[Change], project: Tree, layer: Tree) -> str:
    """Return the diff of all changes."""
    parts: list[str] = []
    size = 0
    listed = list(changes)
    full = {path for change in listed for path in _above(change.path)}
    for change in listed:
        if change.kind == "added" and change.what == "directory" and change.path in full and not change.protected:
            # What lies in it says that it is there.
            continue
        for line in _one(change, project, layer):
            parts.append(line)
            size += len(line) + 1
        if size > MAX_DIFF_CHARACTERS:
            parts.append("# there are more changes than are shown")
            break
    return "".join(f"{line}\n" for line in parts)


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:number]) for number in range(1, len(parts))]


def quoted(path: str) -> str:
    """Return a path as git writes it: in quotes, with escapes, where it holds what is not to be printed."""
    plain = path.encode("utf-8", "surrogateescape")
    if path.isprintable() and '"' not in path and "\\" not in path:
        return path
    found = "".join(_ESCAPES.get(chr(byte)) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in plain)
    return f'"{found}"'


def _one(change: Change, project: Tree, layer: Tree) -> Iterator[str]:
    old_path = change.old_path or change.path
    before, after = quoted(f"a/{old_path}"), quoted(f"b/{change.path}")
    yield f"diff --git {before} {after}"
    yield from _head(change)
    if change.what == "directory" or change.kind in ("renamed", "time", "mode"):
        return
    if change.what not in ("file", "link") or (change.kind == "link" and change.what == "file"):
        if change.kind == "link":
            yield "# another name of the same file"
        return
    old = b"" if change.kind == "added" else _content(project, old_path, change.old_size)
    new = b"" if change.kind == "deleted" else _content(layer, change.path, change.size)
    before = "/dev/null" if change.kind == "added" else before
    after = "/dev/null" if change.kind == "deleted" else after
    yield from _body(old, new, before, after, (change.old_size or 0, change.size or 0))


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
        yield "# another time of change"
    elif change.old_mode != change.mode:
        yield f"old mode {old}"
        yield f"new mode {new}"
    if change.what in ("pipe", "socket"):
        yield f"# {change.what}"


def _mode(change: Change, mode: int | None, link: str) -> str:
    if change.what == "directory":
        return f"{stat.S_IFDIR | (mode or 0):06o}"
    return f"{_LINK:06o}" if link else f"{_FILE | (mode or 0):06o}"


def _content(tree: Tree, path: str, size: int | None) -> bytes | None:
    """Return what a small file or a link holds; None for what is not shown."""
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
    """Say whether data is no text: by a NUL as git says, or by more than a few bytes that no text has."""
    if b"\0" in data:
        return True
    start = data[:SAMPLED_BYTES]
    strange = sum(start.count(byte) for byte in _STRANGE) + start.decode("utf-8", "replace").count("\ufffd")
    return strange * 10 > len(start)


def _body(old: bytes | None, new: bytes | None, before: str, after: str, sizes: tuple[int, int]) -> Iterator[str]:
    hunks = None if old is None or new is None else _hunks(_lines(old), _lines(new))
    if hunks is None:
        kind = "Text" if old is not None and new is not None else "Large" if max(sizes) > MAX_FILE_BYTES else "Binary"
        yield f"{kind} files {before} and {after} differ ({sizes[0]} and {sizes[1]} bytes)"
        return
    if hunks:
        yield f"--- {before}"
        yield f"+++ {after}"
        yield from hunks


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8", "replace")
    lines = text.split("\n")
    last = lines.pop()
    return [f"{line}\n" for line in lines] + ([last] if last else [])


def _hunks(old: list[str], new: list[str]) -> list[str] | None:
    """Return the hunks between two texts; None where they differ in too much to be compared."""
    from difflib import SequenceMatcher  # noqa: PLC0415  for diffs alone

    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    # What is alike at both ends is not compared again, but for what a hunk shows around.
    start = max(head - CONTEXT_LINES, 0)
    end = max(tail - CONTEXT_LINES, 0)
    ours, theirs = old[start : len(old) - end], new[start : len(new) - end]
    if len(ours) * len(theirs) > MAX_LINE_PAIRS:
        return None
    found = []
    for group in SequenceMatcher(None, ours, theirs, autojunk=False).get_grouped_opcodes(CONTEXT_LINES):
        first, last = group[0], group[-1]
        spans = (_span(start + first[1], start + last[2]), _span(start + first[3], start + last[4]))
        found.append(f"@@ -{spans[0]} +{spans[1]} @@")
        for tag, from_old, to_old, from_new, to_new in group:
            if tag == "equal":
                found += _marked(" ", ours[from_old:to_old])
                continue
            found += _marked("-", ours[from_old:to_old])
            found += _marked("+", theirs[from_new:to_new])
    return found


def _marked(mark: str, lines: list[str]) -> list[str]:
    found = []
    for line in lines:
        found.append(mark + line.removesuffix("\n"))
        if not line.endswith("\n"):
            found.append(_NO_NEWLINE)
    return found


def _span(start: int, stop: int) -> str:
    length = stop - start
    if length == 1:
        return f"{start + 1}"
    return f"{start if length == 0 else start + 1},{length}"
