"""Reads the index of a worktree as a whole, also if git has split it: then most entries are in a second file."""

from __future__ import annotations

from _struct import unpack_from

from corral.git import index_file
from corral.git.host_git import path_in
from corral.git.index_file import IndexFormatError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.git.safe_files import SafeTree

_SHARED = "sharedindex."
_LINK = b"link"
_NAME_BYTES, _WORD_BITS = 20, 64
_BROKEN = "its link to the shared index is broken"


def read_index(tree: SafeTree, unit: str) -> bytes | None:
    """Return the index of a worktree with all entries, or None. One that is broken is returned as it is."""
    data = tree.read(path_in(unit, "index"), index_file.MAX_BYTES)
    if data is None or not has_shared(tree, unit):
        return data
    try:
        return _whole(data, tree, unit)
    except IndexFormatError:
        return data


def tracks(tree: SafeTree, path: str, *, is_folder: bool = False) -> bool:
    """Say whether the main worktree has a tracked file of this path, or files in this directory."""
    try:
        return index_file.has_path(
            read_index(tree, "") or b"", path.encode("utf-8", "surrogateescape"), is_folder=is_folder
        )
    except IndexFormatError:
        return False


def has_shared(tree: SafeTree, unit: str) -> bool:
    """Say whether an index of a worktree may be split."""
    try:
        return any(name.startswith(_SHARED) for name in tree.names(unit))
    except OSError:
        return False


def _whole(data: bytes, tree: SafeTree, unit: str) -> bytes:
    own, extensions = index_file.parts(data)
    link = extensions.get(_LINK)
    if link is None or len(link) < _NAME_BYTES:
        return data
    shared = tree.read(path_in(unit, f"{_SHARED}{link[:_NAME_BYTES].hex()}"), index_file.MAX_BYTES)
    if shared is None:
        raise IndexFormatError("its shared index is missing")
    entries, _ = index_file.parts(shared)
    deleted: set[int] = set()
    replaced: list[int] = []
    if len(link) > _NAME_BYTES:
        end, found = _bits(link, _NAME_BYTES, len(entries))
        deleted = set(found)
        _, replaced = _bits(link, end, len(entries))
    if len(replaced) > len(own):
        raise IndexFormatError(_BROKEN)
    for number, (entry, facts) in zip(replaced, own, strict=False):
        # It has no path, because it has that of the entry in the shared index.
        old = entries[number][0]
        if entry.path:
            raise IndexFormatError(_BROKEN)
        entries[number] = (entry.replace(path=old.path), facts)
    found_entries = {each[0].key: each for number, each in enumerate(entries) if number not in deleted}
    found_entries |= {each[0].key: each for each in own[len(replaced) :]}
    return index_file.build_with_facts(found_entries[key] for key in sorted(found_entries))


def _bits(data: bytes, at: int, count: int) -> tuple[int, list[int]]:
    """Return the end of a compressed bitmap, and the numbers of its bits that are set. All must be below `count`."""
    if at + 8 > len(data):
        raise IndexFormatError(_BROKEN)
    words: int = unpack_from(">I", data, at + 4)[0]
    end = at + 8 + 8 * words
    if end > len(data):
        raise IndexFormatError(_BROKEN)
    return end + 4, list(_set_bits(unpack_from(f">{words}Q", data, at + 8), count))


def _set_bits(words: tuple[int, ...], count: int) -> Iterator[int]:
    """Yield the bits of words in git's EWAH format: a marker with a run of equal words, and how many literal words follow."""
    position, at = 0, 0
    while at < len(words):
        is_set, run, literals = words[at] & 1, words[at] >> 1 & 0xFFFFFFFF, words[at] >> 33
        if is_set:
            if position + run * _WORD_BITS > count:
                raise IndexFormatError(_BROKEN)
            yield from range(position, position + run * _WORD_BITS)
        position += run * _WORD_BITS
        for word in words[at + 1 : at + 1 + literals]:
            if word and position + word.bit_length() > count:
                raise IndexFormatError(_BROKEN)
            yield from (position + bit for bit in range(word.bit_length()) if word >> bit & 1)
            position += _WORD_BITS
        at += 1 + literals
