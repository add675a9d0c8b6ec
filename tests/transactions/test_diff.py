"""Tests of the diff: git can read it, and corral loads only the files that it shows."""

import os
import subprocess
import tracemalloc
from pathlib import Path

import pytest
from worlds import World, owner

import golden
from corral._lib.terminal import Terminal
from corral.apps.cli.transactions import change_line
from corral.transactions import changes, diff, scan
from corral.transactions.diff import quoted
from corral.transactions.scan import same_bytes

CASES = {
    "a line changed": ("one\ntwo\nthree\n", "one\n2\nthree\n", "@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"),
    "a line at the end without a newline": (
        "one\n",
        "one\ntwo",
        "@@ -1 +1,2 @@\n one\n+two\n\\ No newline at end of file\n",
    ),
    "a newline taken away": ("one\n", "one", "@@ -1 +1 @@\n-one\n+one\n\\ No newline at end of file\n"),
    "all taken away": ("one\n", "", "@@ -1 +0,0 @@\n-one\n"),
    "far apart": (
        "".join(f"{number}\n" for number in range(40)),
        "".join("x\n" if number in (5, 30) else f"{number}\n" for number in range(40)),
        "@@ -3,7 +3,7 @@\n 2\n 3\n 4\n-5\n+x\n 6\n 7\n 8\n@@ -28,7 +28,7 @@\n 27\n 28\n 29\n-30\n+x\n 31\n 32\n 33\n",
    ),
}


@pytest.mark.parametrize(("old", "new", "hunks"), CASES.values(), ids=CASES)
def test_hunks_have_unified_format(old: str, new: str, hunks: str, tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    (world.root / "file").write_text(old)
    (world.begin() / "file").write_text(new)
    assert world.diff() == f"diff --git a/file b/file\n--- a/file\n+++ b/file\n{hunks}"


def test_git_applies_the_diff(tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    world.fill()
    subprocess.run(["cp", "-a", str(world.root), str(tmp_path / "other")], check=True)
    layer = world.begin()
    (layer / "changed").write_text("by a call\n")
    (layer / "deleted").unlink()
    (layer / "moved").rename(layer / "moved to")
    (layer / "dressed").chmod(0o755)
    (layer / 'na"me\n').write_text("x\n")
    (layer / "link").unlink()
    (layer / "link").symlink_to("changed")
    other = tmp_path / "other"
    subprocess.run(["git", "init", "-q", str(other)], check=True)
    subprocess.run(["git", "-C", str(other), "apply"], input=world.diff(), text=True, check=True)
    assert world.apply().ok
    subprocess.run(["diff", "-r", "--exclude=.git", str(other), str(world.root)], check=True)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"\0\1\2", "Binary files /dev/null and b/new differ (0 and 3 bytes)"),
        (bytes(range(1, 256)) * 2, "Binary files /dev/null and b/new differ (0 and 510 bytes)"),
        (b"x" * 2_000_000, "Large files /dev/null and b/new differ (0 and 2000000 bytes)"),
    ],
    ids=["binary", "binary without a NUL", "large"],
)
def test_binary_and_large_files_take_one_line(data: bytes, line: str, tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    (world.begin() / "new").write_bytes(data)
    assert world.diff() == f"diff --git a/new b/new\nnew file mode 100644\n{line}\n"


def test_huge_file_is_never_loaded(tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    (world.root / "huge").touch()
    layer = world.begin()
    with (layer / "huge").open("wb") as file:
        file.truncate(1 << 36)
    tracemalloc.start()
    text = world.diff()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "Large files" in text
    assert peak < 8 << 20


def test_texts_without_common_lines_are_replaced_whole(tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    (world.root / "file").write_text("".join(f"a{number}\n" for number in range(5000)))
    (world.begin() / "file").write_text("".join(f"b{number}\n" for number in range(5000)))
    lines = world.diff().splitlines()
    assert lines[3] == "@@ -1,5000 +1,5000 @@"
    assert [line[:2] for line in lines[4:]] == ["-a"] * 5000 + ["+b"] * 5000


def test_diff_is_bounded_in_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diff, "MAX_DIFF_CHARACTERS", 1000)
    world = World(tmp_path, owner(tmp_path))
    layer = world.begin()
    for number in range(100):
        (layer / f"{number:03}").write_text("x\n" * 20)
    text = world.diff()
    assert text.endswith("# more changes are not shown\n")
    assert len(text) < 2000


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("plain name", "plain name"),
        ("\u00e9", "\u00e9"),
        ("a\nb", '"a\\nb"'),
        ("\x1b[31m", '"\\033[31m"'),
        ('"', '"\\""'),
        ("\udcff", '"\\377"'),
        ("a\u202eb", '"a\\342\\200\\256b"'),
        ("a\u3164b", '"a\\343\\205\\244b"'),
        ("a\U000e0101b", '"a\\363\\240\\204\\201b"'),
    ],
)
def test_names_are_quoted_as_git_does(path: str, text: str) -> None:
    assert quoted(path) == text


def test_new_directory_is_shown_only_if_empty(tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    layer = world.begin()
    (layer / "full").mkdir()
    (layer / "full" / "file").touch()
    (layer / "empty").mkdir()
    heads = [line for line in world.diff().splitlines() if line.startswith("diff ")]
    assert heads == ["diff --git a/empty b/empty", "diff --git a/full/file b/full/file"]


def test_text_in_another_encoding_is_text(tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    (world.begin() / "new").write_bytes(
        "Gr\u00fc\u00dfe aus K\u00f6ln, und noch ein paar Worte dazu\n".encode("latin-1")
    )
    assert "+Gr" in world.diff()


def test_search_for_renames_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def counted(one: int, other: int) -> bool:
        compared.append(os.fstat(one).st_size)
        return same_bytes(one, other)

    monkeypatch.setattr(changes, "MAX_COMPARED_BYTES", 10_000)
    monkeypatch.setattr(scan, "same_bytes", counted)
    world = World(tmp_path, owner(tmp_path))
    (world.root / "old").write_bytes(b"x" * 1000)
    layer = world.begin()
    (layer / "old").unlink()
    # Hard links to one file that differs only in its last byte: they take no space.
    (layer / "0").write_bytes(b"x" * 999 + b"y")
    for number in range(1, 100):
        (layer / f"{number}").hardlink_to(layer / "0")
    assert len(world.changes()) == 101
    assert compared == [1000] * 10


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        (b"caf\xe9\n", b"caf\xe8\n", ["-caf\\xe9", "+caf\\xe8"]),
        (b"x = 1\n", b"x = 1\xff\n", ["-x = 1", "+x = 1\\xff"]),
        (b"x\xc3\n", b"x\xc3\xa9\n", ["-x\\xc3", "+x\u00e9"]),
        (b"x\xef\xbf\xbd\n", b"x\xff\n", ["-x\ufffd", "+x\\xff"]),
        (b"if a:\n", "if a\u202e:\n".encode(), ["-if a:", "+if a\\u202e:"]),
        (b"a b\n", "a\u00a0b\n".encode(), ["-a b", "+a\\u00a0b"]),
        (b"ab\n", "a\u200bb\n".encode(), ["-ab", "+a\\u200bb"]),
        (b"ab\n", "a\u3164b\n".encode(), ["-ab", "+a\\u3164b"]),
        (b"ab\n", "a\u2028b\n".encode(), ["-ab", "+a\\u2028b"]),
        (b"ab\n", "a\U000e0041b\n".encode(), ["-ab", "+a\\U000e0041b"]),
        (b"ab\n", "a\U000e0101b\n".encode(), ["-ab", "+a\\U000e0101b"]),
        (b"a\n", b"a\x1b[2K\x1b[1Ab\n", ["-a", "+a\\x1b[2K\\x1b[1Ab"]),
        (b"a\n", b"evil\rnice\n", ["-a", "+evil\\rnice"]),
        (b"a\n", b"a\x08b\n", ["-a", "+a\\x08b"]),
    ],
)
def test_nothing_invisible_is_in_a_hunk(old: bytes, new: bytes, lines: list[str], tmp_path: Path) -> None:
    filler = b"some ordinary lines of text\n" * 5
    world = World(tmp_path, owner(tmp_path))
    (world.root / "file").write_bytes(old + filler)
    (world.begin() / "file").write_bytes(new + filler)
    shown = world.diff().split("\n")
    assert shown[1] == diff._ESCAPED_NOTE
    assert shown[4:7] == ["@@ -1,4 +1,4 @@", *lines]
    world.diff().encode()  # no surrogate is left


@pytest.mark.parametrize("text", ["a\tb\n", "a\r\n", "a\fb\n", "Gr\u00fc\u00dfe \U0001f980\n", "\u26a0\ufe0f\n"])
def test_ordinary_text_is_not_escaped(text: str, tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    (world.begin() / "new").write_bytes(text.encode())
    assert world.diff().endswith(f"+++ b/new\n@@ -0,0 +1 @@\n+{text}")


def test_change_of_type_is_a_deletion_and_an_addition(tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    for name in ("file", "to-folder"):
        (world.root / name).write_text("text\n")
    (world.root / "file").chmod(0o777)  # as the mode of a link
    (world.root / "link").symlink_to("file")
    (world.root / "folder").mkdir()
    (world.root / "folder" / "a").touch()
    layer = world.begin()
    (layer / "file").unlink()
    (layer / "file").symlink_to("/etc/passwd")
    (layer / "link").unlink()
    (layer / "link").write_text("text\n")
    (layer / "link").chmod(0o777)
    (layer / "to-folder").unlink()
    (layer / "to-folder").mkdir()
    (layer / "folder" / "a").unlink()
    (layer / "folder").rmdir()
    (layer / "folder").write_text("text\n")
    golden.check("transactions", "diff of changes of type", world.diff())
    with world.look() as look:
        lines = [change_line(change, Terminal(80, color=False, unicode=False)) for change in look.changes()]
    golden.check("transactions", "list of changes of type", "\n".join(lines))


def test_list_of_changes_names_modes_and_targets(tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    world.fill()
    layer = world.begin()
    (layer / "changed").write_text("other\n")
    (layer / "changed").chmod(0o755)
    (layer / "dressed").chmod(0o4755)
    (layer / "run").write_text("#!/bin/sh\n")
    (layer / "run").chmod(0o755)
    (layer / "link").unlink()
    (layer / "link").symlink_to("/etc/\u202epasswd")
    with world.look() as look:
        lines = [change_line(change, Terminal(80, color=False, unicode=False)) for change in look.changes()]
    golden.check("transactions", "list of changes with modes and links", "\n".join(lines))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes owners")
def test_changed_owner_is_shown(tmp_path: Path) -> None:
    world = World(tmp_path, owner(tmp_path))
    (world.root / "file").write_text("text\n")
    os.chown(world.begin() / "file", 1, 1)
    assert world.diff() == "diff --git a/file b/file\n# its owner or group changed\n"
