"""Pending calls: exact, taken once, expiring, and stored only where no command can write."""

import marshal
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from corral.model.errors import PolicyError
from corral.policy.pending_calls import (
    PENDING_SECONDS,
    PendingCall,
    pending_directory,
    save_pending_call,
    take_pending_call,
)

RULES = frozenset({"argv-git-discard"})


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "XDG_STATE_HOME": str(tmp_path / "state")}


def waiting(environ: dict[str, str], project: Path) -> Path:
    return Path(pending_directory(environ, str(project)))


def test_pending_call_is_taken_once(environ: dict[str, str], project: Path) -> None:
    root = str(project)
    name = save_pending_call("git reset --hard", root, root, environ, asked=RULES)
    taken = take_pending_call(name, root, root, environ), take_pending_call(name, root, root, environ)
    assert taken == (PendingCall("git reset --hard", root, root, RULES), None)
    assert list(waiting(environ, project).iterdir()) == []


@pytest.mark.parametrize(
    "text",
    ["", "a\nb", "ünï 'x' \"y\"", "\ud800", "x" * 300_000],
    ids=["empty", "lines", "quotes", "surrogate", "long"],
)
def test_any_text_comes_back_as_it_was(text: str, environ: dict[str, str], project: Path) -> None:
    name = save_pending_call(text, str(project), str(project), environ, asked=frozenset())
    taken = take_pending_call(name, str(project), str(project), environ)
    assert taken is not None
    assert (taken.text, taken.asked) == (text, frozenset())


def test_other_project_or_directory_gets_nothing_and_removes_it(
    environ: dict[str, str], project: Path, tmp_path: Path
) -> None:
    root, other = str(project), str(tmp_path / "other")
    names = [save_pending_call("ls", root, root, environ, asked=RULES) for _ in range(2)]
    assert take_pending_call(names[0], other, root, environ) is None
    assert take_pending_call(names[1], root, f"{root}/sub", environ) is None
    assert [take_pending_call(name, root, root, environ) for name in names] == [None, None]


@pytest.mark.parametrize(
    "name", ["", "..", "../trust", "x" * 32, "0" * 31, "0" * 33, "0" * 32, "A" * 32, "/etc/passwd", "0" * 31 + "\n"]
)
def test_invalid_id_gets_nothing(name: str, environ: dict[str, str], project: Path) -> None:
    assert take_pending_call(name, str(project), str(project), environ) is None


@pytest.mark.parametrize(
    "late", [-1.0, -PENDING_SECONDS, 2 * PENDING_SECONDS], ids=["just expired", "long expired", "clock was set back"]
)
def test_expired_call_gets_nothing(late: float, environ: dict[str, str], project: Path) -> None:
    root = str(project)
    name = save_pending_call("ls", root, root, environ, asked=RULES)
    (waiting(environ, project) / name).write_bytes(marshal.dumps((1, time.time() + late, RULES, root, root, "ls")))
    assert take_pending_call(name, root, root, environ) is None


@pytest.mark.parametrize("data", [b"", b"x", marshal.dumps((1, 2)), marshal.dumps("text"), b"\xff" * 100])
def test_damaged_file_gets_nothing(data: bytes, environ: dict[str, str], project: Path) -> None:
    name = save_pending_call("ls", str(project), str(project), environ, asked=RULES)
    (waiting(environ, project) / name).write_bytes(data)
    assert take_pending_call(name, str(project), str(project), environ) is None


def test_one_of_many_processes_gets_the_call(environ: dict[str, str], project: Path) -> None:
    root = str(project)
    name = save_pending_call("ls", root, root, environ, asked=RULES)
    code = f"from corral.policy.pending_calls import take_pending_call as take; print(take({name!r}, {root!r}, {root!r}, {environ!r}) is not None)"
    takers = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(6)]
    said = [taker.communicate()[0] for taker in takers]
    assert sorted(said) == ["False\n"] * 5 + ["True\n"]


def test_expired_files_are_removed(environ: dict[str, str], project: Path) -> None:
    root = str(project)
    old, script = (
        waiting(environ, project) / name
        for name in (save_pending_call("ls", root, root, environ, asked=RULES), "0123456789abcdef.sh")
    )
    script.write_text("cd /")
    for path in (old, script):
        os.utime(path, (0, 0))
    new = save_pending_call("ls", root, root, environ, asked=RULES)
    assert [path.name for path in waiting(environ, project).iterdir()] == [new]


def test_state_directory_in_the_project_is_an_error(project: Path) -> None:
    with pytest.raises(PolicyError, match=re.escape(str(project))):
        save_pending_call("ls", str(project), str(project), {"HOME": str(project)}, asked=RULES)


def test_directory_writable_by_others_is_an_error(environ: dict[str, str], project: Path) -> None:
    waiting(environ, project).chmod(0o777)
    with pytest.raises(PolicyError, match="chmod go-w"):
        take_pending_call("0" * 32, str(project), str(project), environ)
