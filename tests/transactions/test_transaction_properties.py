"""Property test: applied operations equal operations run directly; discarded and undone ones leave no trace."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attempt import must_hold
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from corral import Sandbox

pytestmark = pytest.mark.real

OPERATE = """
import json, os, shutil, sys
os.umask(0o022)
def write(path, text):
    with open(path, "w") as file: file.write(text)
def append(path, text):
    with open(path, "a") as file: file.write(text)
def replace(path, text):
    write(path + ".new", text); os.rename(path + ".new", path)
def remove(path):
    shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
def move(path, to):
    if not os.path.lexists(to): shutil.move(path, to)
def touch(path, seconds):
    os.utime(path, (seconds, seconds), follow_symlinks=False)
def chmod(path, mode):
    if not os.path.islink(path): os.chmod(path, mode)
known = dict(write=write, append=append, replace=replace, remove=remove, mkdir=os.mkdir, move=move, touch=touch,
             chmod=chmod, symlink=lambda path, text: os.symlink(text, path), link=lambda path, to: os.link(path, to, follow_symlinks=False))
for name, *arguments in json.loads(sys.argv[1]):
    try: known[name](*arguments)
    except OSError as error: pass
"""
names = st.sampled_from(
    ["a", "b", "c", "d", "e", "d/a", "d/b", "d/e", "d/e/a", "e/a", "e/d", "sp ace", "new\nline", "\u00e9"]
)
texts = st.sampled_from(["", "one\n", "two\nlines\n", "a long text " * 500, "\0binary"])
operations = st.one_of(
    st.tuples(st.sampled_from(["write", "append", "replace"]), names, texts),
    st.tuples(st.sampled_from(["remove", "mkdir"]), names),
    st.tuples(st.just("move"), names, names),
    st.tuples(st.just("touch"), names, st.integers(1, 2_000_000_000)),
    st.tuples(st.just("chmod"), names, st.sampled_from([0o600, 0o644, 0o700, 0o755, 0o500, 0o400])),
    st.tuples(st.just("symlink"), names, st.sampled_from(["a", "../x", "/etc/passwd", "nowhere"])),
    st.tuples(st.just("link"), names, names),
)


def fill(root: Path) -> None:
    root.mkdir()
    (root / "a").write_text("a\n")
    (root / "b").write_text("b\n" * 1000)
    (root / "d" / "e").mkdir(parents=True)
    (root / "d" / "a").write_text("in d\n")
    (root / "d" / "e" / "a").write_text("in e\n")
    (root / "c").symlink_to("a")
    for path in sorted(root.rglob("*")):
        os.utime(path, (1_000_000_000, 1_000_000_000), follow_symlinks=False)


def tree(root: Path, *, touched: bool) -> dict[str, tuple[object, ...]]:
    """Return everything below a directory, with the times of files. Without `touched`, only times that were set explicitly."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.iterdir()):
        status = path.lstat()
        content: object = None
        if path.is_symlink():
            content = os.readlink(path)
        else:
            # An ordinary user cannot read files without access; give access meanwhile.
            is_closed = not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0))
            if is_closed:
                path.chmod(0o700)
            content = tree(path, touched=touched) if path.is_dir() else path.read_bytes()
            if is_closed:
                path.chmod(status.st_mode & 0o7777)
        is_set = status.st_mtime_ns % 1_000_000_000 == 0
        time = status.st_mtime_ns if not path.is_dir() and (touched or is_set) else 0
        found[path.name] = (status.st_mode, content, time)
    return found


numbers = itertools.count()


@pytest.fixture
def held_over(open_sandbox: Callable[..., Sandbox], project: Path) -> Sandbox:
    """A sandbox shared by all examples, so that each uses a spare."""
    box = open_sandbox()
    if box.run(["true"]).enforcement != "full":
        must_hold()
    return box


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(before=st.lists(operations, max_size=6), rest=st.lists(operations, max_size=6))
@example(before=[("write", "d/e/a", "one\n"), ("remove", "d/a")], rest=[("chmod", "d/e", 0o600), ("chmod", "d", 0o400)])
def test_any_operations_apply_discard_and_undo(
    held_over: Sandbox, tmp_path: Path, before: list[Any], rest: list[Any]
) -> None:
    number = next(numbers)
    root, direct = tmp_path / "project" / str(number), tmp_path / f"direct-{number}"
    fill(root)
    fill(direct)
    program = [sys._base_executable, "-I", "-S", "-c", OPERATE]
    first = tree(root, touched=True)
    with held_over.transaction() as tx:
        tx.run([*program, json.dumps(before)], cwd=str(root))
    assert tree(root, touched=True) == first
    with held_over.transaction() as tx:
        for part in (before, rest):
            result = tx.run([*program, json.dumps(part)], cwd=str(root))
            assert (result.exit_code, result.stderr_text) == (0, "")
            subprocess.run([*program, json.dumps(part)], cwd=direct, check=True)
        assert tree(root, touched=True) == first
        applied = tx.apply()
        assert (applied.conflicts, applied.refused) == ((), ())
    assert tree(root, touched=False) == tree(direct, touched=False)
    if applied.changes:
        assert held_over.undo().conflicts == ()
    assert tree(root, touched=True) == first
