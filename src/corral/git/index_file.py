"""Reads git index files, compares them, and writes new ones. Pure: works on bytes alone.

A command's index is only parsed. An index for the user is built from the user's own bytes, and from entries that this module
encodes itself: without file times, flags and extensions of the command's.
"""

from __future__ import annotations

from _bisect import bisect_left, bisect_right
from _hashlib import openssl_sha1
from _struct import pack, unpack_from

from corral._lib.records import Record, frozen
from corral.git.names import is_safe_path, is_settings_of_submodules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Key = tuple[bytes, int]  # path and stage
    Mark = tuple[int, int, int]  # where an entry of an index begins, its number, and where the entry before it begins

MODES = frozenset((0o100644, 0o100755, 0o120000, 0o160000))
GITLINK, LINK = 0o160000, 0o120000
MAX_BYTES = 1 << 28
MAX_PATH_BYTES = 1 << 27  # of all paths of a compressed index
MAX_DIFFERENCES = 200_000
MAX_EXTENSIONS = 64
_HEAD_BYTES, _SUM_BYTES, _FIXED_BYTES, _MODE_AT, _SIZE_AT, _HASH_AT, _FLAGS_AT = 12, 20, 62, 24, 36, 40, 60
_EXTENDED, _INTENT_TO_ADD = 0x4000, 0x2000
_ASSUME_UNCHANGED, _SKIP_WORKTREE = 0x80, 0x40  # in the first byte of the flags, and of the extended flags
_MAX_NAME_LENGTH = 0xFFF  # as the flags can hold it
_FEW = 64  # texts that are searched one by one
_CHUNK = 1 << 14  # bytes that are compared at once
_MARKED = 64  # entries from one mark to the next
_MAX_MARKED = 8  # indexes whose marks are kept
# By the sum of an index of the user's. With them a comparison need not read each entry that did not change.
_known_marks: dict[bytes, list[Mark]] = {}


class IndexFormatError(ValueError):
    """The file is not an index that this module reads."""


@frozen
class Entry(Record):
    """The meaning of one entry of an index: what `git ls-files --stage` prints, and whether it is only intended."""

    path: bytes
    stage: int
    mode: int
    oid: bytes
    is_intended: bool = False

    @property
    def key(self) -> Key:
        """The path and the stage, by which an index is sorted."""
        return self.path, self.stage


@frozen
class Difference(Record):
    """An entry that two indexes do not have in common, and where it lies in the first one."""

    key: Key
    old: Entry | None
    new: Entry | None
    start: int
    end: int


@frozen
class IndexChanges(Record):
    """The differences of two indexes in order, and where the entries of the first one end.

    `hidden` are paths that only the second one marks as unchanged, whatever their files are: by `--skip-worktree` or `--assume-unchanged`.
    """

    differences: tuple[Difference, ...]
    end: int
    hidden: tuple[bytes, ...] = ()


class _Reader:
    """A position in an index. Version 4 has no fixed lengths, so its paths are decoded one after the other."""

    def __init__(self, data: bytes) -> None:
        if data[:4] != b"DIRC" or not _HEAD_BYTES + _SUM_BYTES <= len(data) <= MAX_BYTES:
            raise IndexFormatError("it is not a git index")
        self.version, self.count = unpack_from(">II", data, 4)
        if self.version not in (2, 3, 4):
            raise IndexFormatError(f"it has version {self.version}")
        if self.count * _FIXED_BYTES > len(data):
            raise IndexFormatError("it is cut off")
        self.data = data
        self.at = _HEAD_BYTES
        self.number = 0
        self.path = b""
        self._decoded = 0  # bytes of paths, which can be many more than the file has
        self.marks: list[Mark] = []

    def peek(self) -> tuple[Entry, int] | None:
        """Return the entry at this position and its end, or None after the last one."""
        if self.number >= self.count:
            return None
        data, at = self.data, self.at
        if at + _FIXED_BYTES > len(data) - _SUM_BYTES:
            raise IndexFormatError("it is cut off")
        mode, flags = unpack_from(">I", data, at + 24)[0], unpack_from(">H", data, at + _FLAGS_AT)[0]
        start = at + _FIXED_BYTES
        is_intended = False
        if flags & _EXTENDED and self.version > 2:
            is_intended = bool(unpack_from(">H", data, start)[0] & _INTENT_TO_ADD)
            start += 2
        if self.version == 4:
            path, end = self._compressed(start)
        else:
            stop = data.find(b"\0", start)
            path, end = data[start:stop], at + ((stop - at + 8) & ~7)
            if stop < 0 or end > len(data) - _SUM_BYTES:
                raise IndexFormatError("it is cut off")
        oid = data[at + _HASH_AT : at + _FLAGS_AT]
        return Entry(path, flags >> 12 & 3, mode, oid, is_intended), end

    def _compressed(self, at: int) -> tuple[bytes, int]:
        end = len(self.data) - _SUM_BYTES
        removed = self.data[at] & 0x7F
        while self.data[at] & 0x80 and at < end and removed <= len(self.path):
            at += 1
            removed = (removed + 1 << 7) | (self.data[at] & 0x7F)
        stop = self.data.find(b"\0", at + 1, end)
        if stop < 0 or removed > len(self.path):
            raise IndexFormatError("a path in it is broken")
        path = self.path[: len(self.path) - removed] + self.data[at + 1 : stop]
        self._decoded += len(path)
        if self._decoded > MAX_PATH_BYTES:
            raise IndexFormatError("its paths are too long")
        return path, stop + 1

    def advance(self, found: tuple[Entry, int]) -> None:
        """Go on to the next entry."""
        self.path, self.at = found[0].path, found[1]
        self.number += 1

    def skip_equal(self, other: _Reader) -> Key | None:
        """Go over the entries that both have in common, byte for byte. Return the key of the last one."""
        if 4 in (self.version, other.version) or self.version != other.version:
            return None
        limit = self.at + _common_length(self.data, self.at, other.data, other.at)
        find, at, version = self.data.find, self.at, self.version
        most = min(self.count - self.number, other.count - other.number)
        number, last = 0, -1
        nearest = bisect_right(self.marks, (limit, self.count, limit)) - 1
        if nearest >= 0 and self.marks[nearest][0] > at and self.marks[nearest][1] - self.number <= most:
            at, number, last = self.marks[nearest]
            number -= self.number
        while number < most:
            start = at + _FIXED_BYTES
            if version == 3 and self.data[at + _FLAGS_AT] & 0x40:
                start += 2
            after = at + ((find(b"\0", start) - at + 8) & ~7)
            if after > limit or after <= at:
                break
            at, last = after, at
            number += 1
            is_last = self.number + number == self.count
            if not (self.number + number) % _MARKED and not is_last and (not self.marks or self.marks[-1][0] < at):
                self.marks.append((at, self.number + number, last))
        other.at += at - self.at
        other.number += number
        self.at = at
        self.number += number
        return self.key_at(last) if number else None

    def key_at(self, at: int) -> Key:
        """Return the key of the entry that begins here, in an index whose paths are not compressed."""
        flags = unpack_from(">H", self.data, at + _FLAGS_AT)[0]
        start = at + _FIXED_BYTES + (2 if flags & _EXTENDED and self.version == 3 else 0)
        return self.data[start : self.data.find(b"\0", start)], flags >> 12 & 3

    def refuse_unknown_extensions(self) -> None:
        """Raise an error for an extension that changes the meaning of the entries: a split or a sparse index."""
        for name in self.extensions():
            if not name[:1].isupper():
                raise IndexFormatError(f"its extension {name!r} is not supported")

    def extensions(self) -> dict[bytes, bytes]:
        """Return the extensions by name, after the last entry."""
        at, end = self.at, len(self.data) - _SUM_BYTES
        found: dict[bytes, bytes] = {}
        for _ in range(MAX_EXTENSIONS):
            if at + 8 > end:
                break
            size: int = unpack_from(">I", self.data, at + 4)[0]
            found[self.data[at : at + 4]] = self.data[at + 8 : at + 8 + size]
            at += 8 + size
        if at != end:
            raise IndexFormatError("it is cut off")
        return found


def _common_length(one: bytes, at: int, other: bytes, start: int) -> int:
    """Return how many bytes are equal from two positions on."""
    most = min(len(one) - at, len(other) - start)
    low = 0
    # Slices of bytes are compared many times faster than those of a memoryview.
    while low < most and one[at + low : at + low + _CHUNK] == other[start + low : start + low + _CHUNK]:
        low += _CHUNK
    if low >= most:
        return most
    high = min(low + _CHUNK, most)
    while low < high:
        middle = (low + high + 1) // 2
        if one[at + low : at + middle] == other[start + low : start + middle]:
            low = middle
        else:
            high = middle - 1
    return low


def entries(data: bytes) -> Iterator[Entry]:
    """Yield the entries of an index."""
    reader = _Reader(data)
    while (found := reader.peek()) is not None:
        yield found[0]
        reader.advance(found)
    reader.refuse_unknown_extensions()


def compare(old: bytes, new: bytes) -> IndexChanges:
    """Return the entries in which two indexes differ. `old` is the user's own, `new` can be a command's."""
    one, two = _Reader(old), _Reader(new)
    one.marks = _known_marks.get(old[-_SUM_BYTES:], [])
    found: list[Difference] = []
    hidden: list[bytes] = []
    last: Key | None = None
    while True:
        if one.number < one.count and two.number < two.count:
            last = one.skip_equal(two) or last
        left, right = one.peek(), two.peek()
        if left is None and right is None:
            break
        if right is not None and last is not None and right[0].key <= last:
            raise IndexFormatError("its entries are not sorted")
        start = end = one.at
        if left is not None and (right is None or left[0].key < right[0].key):
            found.append(Difference(left[0].key, left[0], None, start, left[1]))
            one.advance(left)
            continue
        assert right is not None  # noqa: S101  both are None only at the end
        if left is not None and left[0].key == right[0].key:
            end = left[1]
            if left[0] != right[0] or _has_other_size(old, start, new, two.at):
                found.append(Difference(right[0].key, left[0], right[0], start, end))
            one.advance(left)
        else:
            found.append(Difference(right[0].key, None, right[0], start, end))
        if _is_hidden(new, two.at, two.version) and not (end > start and _is_hidden(old, start, one.version)):
            hidden.append(right[0].path)
        last = right[0].key
        two.advance(right)
        if len(found) > MAX_DIFFERENCES:
            raise IndexFormatError(f"more than {MAX_DIFFERENCES} of its entries were changed")
    one.refuse_unknown_extensions()
    two.refuse_unknown_extensions()
    _keep_marks(old[-_SUM_BYTES:], one.marks)
    return IndexChanges(tuple(found), one.at, tuple(hidden))


def _is_hidden(data: bytes, at: int, version: int) -> bool:
    """Say whether git never looks at the file of the entry that begins here."""
    flags = data[at + _FLAGS_AT]
    is_extended = flags & 0x40 and version > 2
    return bool(flags & _ASSUME_UNCHANGED or (is_extended and data[at + _FIXED_BYTES] & _SKIP_WORKTREE))


def _keep_marks(of_sum: bytes, marks: list[Mark]) -> None:
    if not any(of_sum):
        # Git can be told to write no sum.
        return
    _known_marks.pop(of_sum, None)
    _known_marks[of_sum] = marks
    for oldest in list(_known_marks)[:-_MAX_MARKED]:
        del _known_marks[oldest]


def _has_other_size(old: bytes, at: int, new: bytes, start: int) -> bool:
    """Say whether the file of an entry got another size. Git takes it for changed then, without reading it.

    That is wrong where a filter or line endings make the difference. The entry is written without a size, so git reads the file.
    """
    size = old[at + _SIZE_AT : at + _SIZE_AT + 4]
    return size not in (new[start + _SIZE_AT : start + _SIZE_AT + 4], bytes(4))


def locate(data: bytes, differences: Iterable[Difference]) -> IndexChanges:
    """Return differences with their places in another index. Those whose entry is not the old one there are left out."""
    wanted = {each.key: each for each in differences}
    places: dict[Key, tuple[Entry, int, int]] = {}
    reader = _Reader(data)
    positions: list[tuple[Key, int]] = []
    pending = sorted(wanted, reverse=True)
    while (found := reader.peek()) is not None:
        key = found[0].key
        while pending and pending[-1] <= key:
            positions.append((pending.pop(), reader.at))
        if key in wanted:
            places[key] = (found[0], reader.at, found[1])
        reader.advance(found)
    positions += [(key, reader.at) for key in reversed(pending)]
    reader.refuse_unknown_extensions()
    result = []
    for key, at in positions:
        each = wanted[key]
        own, start, end = places.get(key, (None, at, at))
        if own == each.old:
            result.append(each.replace(start=start, end=end))
    return IndexChanges(tuple(result), reader.at)


def first_unsafe(data: bytes, differences: Iterable[Difference]) -> str:
    """Return why an index must not get these entries, or ""."""
    added = [each.new for each in differences if each.new is not None]
    for each in differences:
        if each.new is not None and each.old is not None and each.new.is_intended and not each.old.is_intended:
            # The next commit would leave the file out.
            return f"{_shown(each.new.path)}, which is tracked and now only intended to be"
    gone = {each.key for each in differences if each.new is None}
    for entry in added:
        if entry.mode not in MODES:
            return f"mode {entry.mode:o} of {_shown(entry.path)}"
        if not any(entry.oid):
            return f"{_shown(entry.path)}, which has no object"
        if not is_safe_path(entry.path):
            return f"the path {_shown(entry.path)}"
        if entry.mode == LINK and is_settings_of_submodules(entry.path):
            # Git adds no such link, because it would read its target.
            return f"{_shown(entry.path)}, which is a link"
    new = {entry.path for entry in added if not entry.stage}
    # A file and a directory of one name: git would write through the one, if it is a link, into the other.
    folders = {above for path in new for above in _above(path)}
    if clash := next(iter(sorted(new & folders)), b""):
        return f"{_shown(clash)} beside a directory of its name"
    if not new:
        return ""
    for path in _paths_beside(data, new, folders):
        if (path, 0) in gone:
            continue
        if path in folders:
            return f"{_shown(path)}, a file, beside a directory of its name"
        if clash := next((above for above in _above(path) if above in new), b""):
            return f"{_shown(clash)} beside a directory of its name"
    return ""


def _above(path: bytes) -> list[bytes]:
    """Return the directories above a path."""
    parts = path.split(b"/")
    return [b"/".join(parts[:number]) for number in range(1, len(parts))]


def _paths_beside(data: bytes, new: set[bytes], folders: set[bytes]) -> Iterator[bytes]:
    """Yield the paths of an index that can clash with new files or directories: all paths, or more quickly only these."""
    marks = _known_marks.get(data[-_SUM_BYTES:], [])
    if len(new) + len(folders) > _FEW or not marks:
        yield from (entry.path for entry in entries(data) if not entry.stage)
        return
    for path in folders:
        yield from (entry.path for entry in _entries_from(data, marks, path) if entry.path == path and not entry.stage)
    for path in new:
        inner = path + b"/"
        for entry in _entries_from(data, marks, inner):
            if entry.path.startswith(inner) and not entry.stage:
                yield entry.path


def _entries_from(data: bytes, marks: list[Mark], path: bytes) -> Iterator[Entry]:
    """Yield the entries whose paths begin with this one, and some others before it."""
    reader = _Reader(data)
    nearest = bisect_left(marks, path, key=lambda mark: reader.key_at(mark[0])[0]) - 1
    if nearest >= 0:
        reader.at, reader.number, _ = marks[nearest]
    while (found := reader.peek()) is not None and (found[0].path < path or found[0].path.startswith(path)):
        yield found[0]
        reader.advance(found)


def _shown(path: bytes) -> str:
    return repr(path.decode("utf-8", "surrogateescape"))


def splice(data: bytes, found: IndexChanges) -> bytes:
    """Return the user's index with other entries. Its extensions are left out, because they describe the old entries."""
    reader = _Reader(data)
    if reader.version == 4:
        changed = {each.key: each.new for each in found.differences}
        kept = [entry for entry in entries(data) if entry.key not in changed]
        return build([*kept, *(entry for entry in changed.values() if entry is not None)])
    pieces: list[bytes] = []
    version, count, at = reader.version, reader.count, _HEAD_BYTES
    marks: list[Mark] = []
    known = _known_marks.get(data[-_SUM_BYTES:], [])
    moved = 0  # bytes
    for each in (*found.differences, None):
        start = each.start if each is not None else found.end
        pieces.append(data[at:start])
        added = count - reader.count
        here = slice(bisect_left(known, (at, 0, at)), bisect_right(known, (start, reader.count, start)))
        marks += [
            (mark + moved, number + added, before + moved) for mark, number, before in known[here] if before >= at
        ]
        if each is None:
            break
        at = each.end
        moved -= each.end - each.start
        count -= each.old is not None
        if each.new is not None:
            pieces.append(_encoded(each.new))
            moved += len(pieces[-1])
            count += 1
            version = max(version, 3 if each.new.is_intended else 2)
    result = _finished(version, count, pieces)
    _keep_marks(result[-_SUM_BYTES:], [mark for mark in marks if mark[1] < count])
    return result


def build(found: Iterable[Entry]) -> bytes:
    """Return an index with these entries and nothing else."""
    ordered = sorted(found, key=lambda entry: entry.key)
    version = 3 if any(entry.is_intended for entry in ordered) else 2
    return _finished(version, len(ordered), [_encoded(entry) for entry in ordered])


def has_path(data: bytes, path: bytes, *, is_folder: bool) -> bool:
    """Say whether an index has a file of this path, or files in this directory."""
    # Much faster than to read each entry. The paths of version 4 are compressed.
    if path not in data and data[7:8] != b"\4":
        return False
    return any(entry.path.startswith(path + b"/") if is_folder else entry.path == path for entry in entries(data))


def parts(data: bytes) -> tuple[list[tuple[Entry, bytes]], dict[bytes, bytes]]:
    """Return the entries of an index with the facts about their files, which only git interprets, and the extensions by name."""
    reader = _Reader(data)
    found: list[tuple[Entry, bytes]] = []
    while (entry := reader.peek()) is not None:
        at = reader.at
        found.append((entry[0], data[at : at + _MODE_AT] + data[at + _MODE_AT + 4 : at + _HASH_AT]))
        reader.advance(entry)
    return found, reader.extensions()


def build_with_facts(found: Iterable[tuple[Entry, bytes]]) -> bytes:
    """Return an index with these entries, which are in order, and facts about their files."""
    listed = list(found)
    version = 3 if any(entry.is_intended for entry, _ in listed) else 2
    return _finished(version, len(listed), [_encoded(entry, facts) for entry, facts in listed])


def _encoded(entry: Entry, facts: bytes = bytes(36)) -> bytes:
    flags = entry.stage << 12 | min(len(entry.path), _MAX_NAME_LENGTH)
    extended = pack(">H", _INTENT_TO_ADD) if entry.is_intended else b""
    flags |= _EXTENDED if entry.is_intended else 0
    body = facts[:_MODE_AT] + pack(">I", entry.mode) + facts[_MODE_AT:] + entry.oid + pack(">H", flags) + extended
    body += entry.path
    return body + bytes(8 - len(body) % 8)


def _finished(version: int, count: int, pieces: list[bytes]) -> bytes:
    body = b"".join((b"DIRC" + pack(">II", version, count), *pieces))
    return body + openssl_sha1(body, usedforsecurity=False).digest()
