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
from corral.policy.answers.pending_calls import (
    PENDING_SECONDS,
    PendingCall,
    host_session,
    is_of_session,
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
    name = save_pending_call(PendingCall("git reset --hard", root, root, RULES), environ)
    taken = take_pending_call(name, environ), take_pending_call(name, environ)
    assert taken == (PendingCall("git reset --hard", root, root, RULES), None)
    assert list(waiting(environ, project).iterdir()) == []


def test_openings_that_the_prompt_names_come_back(environ: dict[str, str], project: Path) -> None:
    root, grants = str(project), frozenset({("network", "index.example:443")})
    name = save_pending_call(PendingCall("curl x", root, root, RULES, grants), environ)
    assert take_pending_call(name, environ) == PendingCall("curl x", root, root, RULES, grants)


@pytest.mark.parametrize(
    "text",
    ["", "a\nb", "ünï 'x' \"y\"", "\ud800", "x" * 300_000],
    ids=["empty", "lines", "quotes", "surrogate", "long"],
)
def test_any_text_comes_back_as_it_was(text: str, environ: dict[str, str], project: Path) -> None:
    name = save_pending_call(PendingCall(text, str(project), str(project)), environ)
    taken = take_pending_call(name, environ)
    assert taken is not None
    assert (taken.text, taken.asked) == (text, frozenset())


def test_two_calls_have_two_ids(environ: dict[str, str], project: Path) -> None:
    call = PendingCall("ls", str(project), str(project))
    code = f"""if True:
        from corral.policy.answers.pending_calls import PendingCall, save_pending_call
        print(*[save_pending_call(PendingCall({call.text!r}, {call.root!r}, {call.cwd!r}), {environ!r}) for _ in range(300)])
    """
    makers = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    names = [name for maker in makers for name in maker.communicate()[0].split()]
    assert (len(names), len(set(names))) == (1200, 1200)
    assert {take_pending_call(name, environ) for name in names} == {call}


def test_other_session_has_no_ancestor_in_common(environ: dict[str, str], project: Path) -> None:
    root, own = str(project), host_session()
    assert is_of_session(PendingCall("ls", root, root, session=own))
    assert not is_of_session(PendingCall("ls", root, root, session=frozenset((pid, at + 1) for pid, at in own)))
    assert not is_of_session(PendingCall("ls", root, root))


@pytest.mark.parametrize(
    "name", ["", "..", "../trust", "x" * 32, "0" * 3, "0" * 33, "0" * 32, "A" * 32, "/etc/passwd", "0" * 31 + "\n"]
)
def test_invalid_id_gets_nothing(name: str, environ: dict[str, str], project: Path) -> None:
    assert take_pending_call(name, environ) is None


@pytest.mark.parametrize(
    "late", [-1.0, -PENDING_SECONDS, 2 * PENDING_SECONDS], ids=["just expired", "long expired", "clock was set back"]
)
def test_expired_call_gets_nothing(late: float, environ: dict[str, str], project: Path) -> None:
    root = str(project)
    name = save_pending_call(PendingCall("ls", root, root, RULES), environ)
    (waiting(environ, project) / name).write_bytes(
        marshal.dumps((3, time.time() + late, "ls", root, root, RULES, frozenset(), "", "", False, (), frozenset()))
    )
    assert take_pending_call(name, environ) is None


@pytest.mark.parametrize("data", [b"", b"x", marshal.dumps((1, 2)), marshal.dumps("text"), b"\xff" * 100])
def test_damaged_file_gets_nothing(data: bytes, environ: dict[str, str], project: Path) -> None:
    name = save_pending_call(PendingCall("ls", str(project), str(project), RULES), environ)
    (waiting(environ, project) / name).write_bytes(data)
    assert take_pending_call(name, environ) is None


def test_one_of_many_processes_gets_the_call(environ: dict[str, str], project: Path) -> None:
    root = str(project)
    name = save_pending_call(PendingCall("ls", root, root, RULES), environ)
    code = f"from corral.policy.answers.pending_calls import take_pending_call as take; print(take({name!r}, {environ!r}) is not None)"
    takers = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(6)]
    said = [taker.communicate()[0] for taker in takers]
    assert sorted(said) == ["False\n"] * 5 + ["True\n"]


def test_expired_files_are_removed(environ: dict[str, str], project: Path) -> None:
    root = str(project)
    old, script = (
        waiting(environ, project) / name
        for name in (save_pending_call(PendingCall("ls", root, root, RULES), environ), "0123456789abcdef.sh")
    )
    script.write_text("cd /")
    for path in (old, script):
        os.utime(path, (0, 0))
    new = save_pending_call(PendingCall("ls", root, root, RULES), environ)
    assert [path.name for path in waiting(environ, project).iterdir()] == [new]


def test_state_directory_in_the_project_is_an_error(project: Path) -> None:
    with pytest.raises(PolicyError, match=re.escape(str(project))):
        save_pending_call(PendingCall("ls", str(project), str(project)), {"HOME": str(project)})


def test_directory_writable_by_others_is_an_error(environ: dict[str, str], project: Path) -> None:
    waiting(environ, project).chmod(0o777)
    with pytest.raises(PolicyError, match="chmod go-w"):
        take_pending_call("0" * 32, environ)
