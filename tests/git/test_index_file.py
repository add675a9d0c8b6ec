"""The index that the host builds for the user is the one that git would have built, and no index of a command's costs much."""

import os
import struct
import subprocess
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.git import index_file
from corral.git.index_file import (
    Entry,
    IndexFormatError,
    build,
    compare,
    entries,
    first_unsafe,
    locate,
    splice,
)

EMPTY = build(())
MODES = (0o100644, 0o100755, 0o120000, 0o160000)
NAMES = st.text(st.sampled_from("abAB.-_ é\n\\"), min_size=1, max_size=4).filter(lambda name: name.strip(". ") == name)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda parts: "/".join(parts).encode())
OIDS = st.binary(min_size=20, max_size=20).filter(any)


def _without_clashes(found: dict[bytes, Entry]) -> list[Entry]:
    paths = set(found)
    clashing = {path for path in paths if any(other.startswith(path + b"/") for other in paths)}
    return [entry for path, entry in found.items() if path not in clashing]


ENTRIES = st.dictionaries(PATHS, st.tuples(st.sampled_from(MODES), OIDS), max_size=8).map(
    lambda found: _without_clashes({path: Entry(path, 0, mode, oid) for path, (mode, oid) in found.items()})
)


def listed(index: Path, repository: Path) -> list[Entry]:
    """Return the entries as git lists them."""
    done = subprocess.run(
        ["git", "ls-files", "--stage", "-z"],
        cwd=repository,
        env={**os.environ, "GIT_INDEX_FILE": str(index)},
        capture_output=True,
        check=True,
    )
    found = []
    for line in done.stdout.split(b"\0")[:-1]:
        head, _, path = line.partition(b"\t")
        mode, oid, stage = head.split()
        found.append(Entry(path, int(stage), int(mode, 8), bytes.fromhex(oid.decode())))
    return found


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty repository."""
    root = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q", root], check=True)
    return root


def by_git(found: list[Entry], repository: Path, version: int) -> bytes:
    """Return the index that git writes for these entries."""
    index = repository / f"index-{version}"
    index.unlink(missing_ok=True)
    lines = [b"%o %s %d\t%s" % (e.mode, e.oid.hex().encode(), e.stage, e.path) for e in found]
    words = ["git", "update-index", "--index-version", str(version), "-z", "--index-info"]
    environ = {**os.environ, "GIT_INDEX_FILE": str(index)}
    given = b"".join(line + b"\0" for line in lines)
    subprocess.run(words, cwd=repository, input=given, env=environ, check=True, capture_output=True)
    return index.read_bytes() if index.exists() else EMPTY


@settings(max_examples=25)
@given(old=ENTRIES, new=ENTRIES, one=st.sampled_from((2, 4)), two=st.sampled_from((2, 4)))
def test_a_spliced_index_has_the_entries_that_git_lists(
    repository: Path, old: list[Entry], new: list[Entry], one: int, two: int
) -> None:
    mine, theirs = by_git(old, repository, one), by_git(new, repository, two)
    assert sorted(entries(theirs), key=lambda entry: entry.key) == sorted(new, key=lambda entry: entry.key)

    result = repository / "result"
    result.write_bytes(splice(mine, compare(mine, theirs)))

    assert listed(result, repository) == sorted(new, key=lambda entry: entry.key)


@settings(max_examples=100)
@given(base=ENTRIES, mine=ENTRIES, theirs=ENTRIES)
def test_a_merge_keeps_what_the_user_changed(base: list[Entry], mine: list[Entry], theirs: list[Entry]) -> None:
    own = build(mine)
    merged = {e.key: e for e in entries(splice(own, locate(own, compare(build(base), build(theirs)).differences)))}
    first, users, commands = ({e.key: e for e in each} for each in (base, mine, theirs))

    for key in {*first, *users, *commands}:
        expected = commands.get(key) if users.get(key) == first.get(key) else users.get(key)
        assert merged.get(key) == expected


@given(st.binary(max_size=300), st.integers(2, 4))
def test_any_bytes_are_an_index_or_refused(body: bytes, version: int) -> None:
    data = b"DIRC" + struct.pack(">II", version, 2) + body + bytes(20)

    try:
        compare(EMPTY, data)
    except IndexFormatError:
        return


def _compressed(path: bytes) -> bytes:
    return bytes(24) + struct.pack(">I", 0o100644) + bytes(12) + bytes(20) + struct.pack(">H", 0) + path


COSTLY = {
    "a number without an end": (1, _compressed(b"\xff" * 20_000_000 + b"\0")),
    "a number that ends the file": (1, _compressed(b"\xff" * 3)),
    "paths that grow": (100_000, _compressed(b"\0a\0") * 100_000),
    "more entries than the file can hold": (0xFFFFFFFF, _compressed(b"\0a\0")),
}


@pytest.mark.parametrize("case", COSTLY)
def test_a_costly_index_is_refused_soon(case: str) -> None:
    count, body = COSTLY[case]
    data = b"DIRC" + struct.pack(">II", 4, count) + body + bytes(20)
    began = monotonic()

    with pytest.raises(IndexFormatError):
        compare(EMPTY, data)

    assert monotonic() - began < 10


FILE, LINK = 0o100644, 0o120000


@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize(
    "case",
    [
        ([b"d/a", b"d/b"], [b"d/a"], [b"d"], True),
        ([b"d/a", b"d/b"], [b"d/a", b"d/b"], [b"d"], False),
        ([b"d"], [], [b"d/x/y"], True),
        ([b"d"], [b"d"], [b"d/x/y"], False),
        ([b"src/lib/x"], [], [b"lib"], False),
        ([b"app/lib/" + b"x" * 43], [], [b"lib"], False),
        ([b"d-e", b"d.e"], [], [b"d/e"], False),
        ([b"z"], [], [b"d", b"d/e"], True),
    ],
)
def test_a_file_never_lies_beside_a_directory_of_its_name(
    repository: Path, version: int, case: tuple[list[bytes], list[bytes], list[bytes], bool]
) -> None:
    old, gone, new, clashes = case
    mine = by_git([Entry(path, 0, FILE, b"1" * 20) for path in old], repository, version)
    kept = [Entry(path, 0, FILE, b"1" * 20) for path in old if path not in gone]
    theirs = build([*kept, *(Entry(path, 0, LINK, b"2" * 20) for path in new)])

    assert bool(first_unsafe(mine, compare(mine, theirs).differences)) is clashes


def test_many_new_files_are_checked_soon() -> None:
    mine = build([Entry(b"a%d/f" % number, 0, FILE, b"1" * 20) for number in range(20_000)])
    theirs = build([*entries(mine), *(Entry(b"v/%d" % number, 0, FILE, b"1" * 20) for number in range(10_000))])
    began = monotonic()

    assert first_unsafe(mine, compare(mine, theirs).differences) == ""
    assert monotonic() - began < 10


PLAIN_PATHS = st.sampled_from([path for name in "abcdefghij" for path in (name, f"{name}-", f"{name}/a", f"{name}/b")])
MANY = st.dictionaries(PLAIN_PATHS, st.integers(1, 3), min_size=8).map(
    lambda found: [Entry(path.encode(), 0, MODES[0], bytes([value] * 20)) for path, value in found.items()]
)


@settings(max_examples=150)
@given(steps=st.lists(MANY, min_size=2, max_size=4), kept=st.integers(0, 40))
def test_marks_of_an_index_change_no_result(steps: list[list[Entry]], kept: int) -> None:
    def results() -> list[object]:
        found: list[object] = []
        index = build(steps[0])
        for step in steps[1:]:
            # Some entries stay, so that both have something in common.
            merged = {entry.path: entry for entry in (*steps[0][:kept], *step)}
            changes = compare(index, build(merged.values()))
            found += [changes, bool(first_unsafe(index, changes.differences))]
            index = splice(index, changes)
            found.append(index)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_file, "_MARKED", 2)
        patch.setattr(index_file, "_known_marks", {})
        with_marks = results()
        patch.setattr(index_file, "_known_marks", _Forgetful())
        assert results() == with_marks


def test_marks_are_kept_for_a_changed_index() -> None:
    found = [Entry(b"%05d" % number, 0, MODES[0], bytes([1] * 20)) for number in range(1000)]
    old = build(found)
    new = splice(old, compare(old, build([found[0].replace(oid=bytes([2] * 20)), *found[1:511], *found[512:]])))
    assert len(index_file._known_marks[old[-20:]]) == 14  # not the one beside the entry that is gone
    assert len(index_file._known_marks[new[-20:]]) == 14


class _Forgetful(dict[bytes, object]):
    """Marks that are never found again."""

    def get(self, key: bytes, default: object = None) -> object:
        return default
