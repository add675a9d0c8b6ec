"""A file that a host's tool writes in /tmp is there for the next command, and the other way round. The user's own /tmp is not."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosting import Owner, payload

from golden import check


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path)


@pytest.fixture
def name() -> Iterator[str]:
    """A name that nothing else uses in /tmp."""
    made = f"/tmp/corral-test-{os.urandom(8).hex()}"
    yield made
    Path(made).unlink(missing_ok=True)


def tool(owner: Owner, tool: str, given: dict[str, str], host: str = "claude") -> "subprocess.CompletedProcess[bytes]":
    event = "PreToolUse" if host == "claude" else "BeforeTool"
    call = {"hook_event_name": event, "cwd": str(owner.root), "tool_name": tool, "tool_input": given}
    return owner.hook(host, json.dumps(call).encode())


def answer(done: "subprocess.CompletedProcess[bytes]") -> dict[str, object]:
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["hookSpecificOutput"]
    assert found["permissionDecision"] == "allow"
    return dict(found["updatedInput"])


def run(owner: Owner, text: str) -> bytes:
    """Run a command as Claude Code does, rewritten by the hook."""
    command = answer(owner.hook("claude", payload("claude", owner, text)))["command"]
    done = subprocess.run(
        ["bash", "-c", str(command)], cwd=owner.root, env=owner.environ, capture_output=True, check=False
    )
    return done.stdout


def test_written_file_is_there_for_the_next_command(owner: Owner, name: str) -> None:
    given = {"file_path": f"{name}.py", "content": f"{name}.py"}
    moved = answer(tool(owner, "Write", given))
    path = Path(str(moved["file_path"]))
    assert (moved["content"], str(path).startswith(str(owner.home))) == (given["content"], True)
    path.write_text("print('from the tool')\n")
    assert run(owner, f"python3 {name}.py") == b"from the tool\n"
    assert not Path(f"{name}.py").exists()
    # The host names the file by its real path from then on.
    assert tool(owner, "Edit", {"file_path": str(path)}).stdout == b""


def test_file_of_a_command_is_there_for_the_tools(owner: Owner, name: str) -> None:
    run(owner, f"echo from the command > {name}")
    for reading in ("Read", "Edit"):
        path = Path(str(answer(tool(owner, reading, {"file_path": name}))["file_path"]))
        assert path.read_text() == "from the command\n"


def test_the_users_own_file_stays_between_host_and_user(owner: Owner, name: str) -> None:
    Path(name).write_text("the user's\n")
    done = tool(owner, "Read", {"file_path": name})
    assert (done.returncode, done.stdout) == (0, b"")
    assert run(owner, f"cat {name}") == b""


@pytest.mark.parametrize("below", ["", "/.bashrc"], ids=["a file", "a directory"])
def test_link_that_a_command_made_is_refused(owner: Owner, name: str, below: str) -> None:
    target = owner.home / ".bashrc"
    target.write_text("")
    (owner.root / "a.py").write_text(f"import os\nos.symlink({str(target.parent if below else target)!r}, {name!r})\n")
    run(owner, "python3 a.py")
    done = tool(owner, "Write", {"file_path": f"{name}{below}", "content": "x"})
    assert done.returncode == 2
    (link,) = (owner.home / ".cache/corral/scratch").glob(f"*{name}")
    assert Path(f"{link}{below}").resolve() == target


def test_refusal_names_the_path_to_use(owner: Owner, name: str) -> None:
    done = tool(owner, "write_file", {"file_path": name, "content": "x"}, "gemini")
    said = json.loads(done.stdout)["reason"]
    path = said.partition(" Use ")[2].partition(" instead")[0]
    check("refusals", "a file tool in the user's /tmp", owner.displaced(said).replace(name, "/tmp/NAME"))
    again = tool(owner, "write_file", {"file_path": path, "content": "x"}, "gemini")
    assert (again.returncode, json.loads(again.stdout or b"{}").get("decision", "allow")) == (0, "allow")
    Path(path).write_text("from the tool\n")
    assert run(owner, f"cat {name}") == b"from the tool\n"


@pytest.mark.parametrize(
    "policy", ['profile = "strict"', '[containment]\nscratch = "sandbox"', '[containment]\nbackend = "none"']
)
def test_without_a_lasting_tmp_nothing_is_moved(owner: Owner, name: str, policy: str) -> None:
    owner.policy(f"{policy}\n")
    done = tool(owner, "Write", {"file_path": name, "content": "x"})
    assert b"updatedInput" not in done.stdout
