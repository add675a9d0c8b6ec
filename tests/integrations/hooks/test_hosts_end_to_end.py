"""Each released host refuses, runs confined and fails as docs/hooks.md says. `tests/support/real_hosts.py` runs them."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import alone
import pytest
from real_hosts import CODEX, HOSTS, OPENCODE, Session, driven, version_of

from corral.integrations.hooks.registry import HOSTS as INSTALLED
from corral.integrations.hooks.registry import settings_path

PLANT = "echo planted >> ~/.bashrc"
CONTAINED = "readlink /proc/self/ns/pid | tee inside.txt"
KEEPERS = [name for name in HOSTS if HOSTS[name].keeps_directory]


@pytest.fixture(params=HOSTS)
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Session:
    return Session(request.param, tmp_path)


def test_refused_command_does_not_run_and_the_model_reads_why(session: Session) -> None:
    session.install()
    (told,) = session.drive(session.driven.shell(PLANT))
    assert "corral refuses this: `echo` would write" in told
    assert session.bashrc == "# mine\n"


def test_without_the_hook_the_refused_command_runs(session: Session) -> None:
    session.drive(session.driven.shell(PLANT))
    assert session.bashrc == "# mine\nplanted\n"


def test_allowed_command_runs_confined(session: Session) -> None:
    session.install()
    (told,) = session.drive(session.driven.shell(CONTAINED))
    inside = (session.work / "inside.txt").read_text().strip()
    assert inside in told
    assert inside.startswith("pid:[")
    assert inside != os.readlink("/proc/self/ns/pid")


def test_without_the_hook_the_command_is_not_confined(session: Session) -> None:
    session.drive(session.driven.shell(CONTAINED))
    assert (session.work / "inside.txt").read_text().strip() == os.readlink("/proc/self/ns/pid")


def test_host_file_tool_cannot_write_a_git_hook(session: Session) -> None:
    session.install()
    (told,) = session.drive(session.driven.write(str(session.work / ".envrc")))
    assert "corral refuses this: " in told
    assert "[path-write-protected]" in told
    assert not (session.work / ".envrc").exists()


def test_without_the_hook_the_file_tool_writes_it(session: Session) -> None:
    session.drive(session.driven.write(str(session.work / ".envrc")))
    assert (session.work / ".envrc").read_text() == "planted\n"


@pytest.fixture
def temporary_name() -> Iterator[str]:
    """A path in /tmp that nothing else uses."""
    made = f"/tmp/corral-test-{os.urandom(8).hex()}"
    yield made
    Path(made).unlink(missing_ok=True)


@pytest.mark.parametrize("session", ["claude"], indirect=True)
def test_tools_and_commands_have_one_temporary_directory(session: Session, temporary_name: str) -> None:
    session.install()
    shell, written, printed = session.driven.shell, f"{temporary_name}.py", f"{temporary_name}.log"
    write = {"tool": "Write", "input": {"file_path": written, "content": "print('of the tool')\n"}}
    read = {"tool": "Read", "input": {"file_path": printed}}
    told = session.drive(write, shell(f"python3 {written}"), shell(f"echo of the command >{printed}"), read)
    assert (told[1], "of the command" in told[3]) == ("of the tool", True), told
    # Claude Code names the file by the path that its tool wrote, and looks for a file to edit before it asks a hook.
    (path,) = re.findall(r"/\S+\.py", told[0])
    named = {"file_path": path}
    edit = {"tool": "Edit", "input": {**named, "old_string": "tool", "new_string": "edit"}}
    told = session.drive({"tool": "Read", "input": named}, edit, shell(f"python3 {written}"))
    assert told[2] == "of the edit", told
    assert [os.path.exists(path) for path in (written, printed)] == [False, False]


@pytest.mark.parametrize("session", ["claude"], indirect=True)
def test_without_the_hook_they_have_the_users(session: Session, temporary_name: str) -> None:
    write = {"tool": "Write", "input": {"file_path": temporary_name, "content": "print('of the tool')\n"}}
    assert session.drive(write, session.driven.shell(f"python3 {temporary_name}"))[1] == "of the tool"
    assert os.path.exists(temporary_name)


@pytest.mark.parametrize("session", KEEPERS, indirect=True)
def test_host_shell_continues_in_the_commands_directory(session: Session) -> None:
    session.install()
    shell = session.driven.shell
    moved, there, outside = session.drive(shell("mkdir src && cd src"), shell("pwd"), shell("cd /usr; pwd"))
    assert str(session.work / "src") in there, moved
    assert "/usr" in outside


@pytest.mark.parametrize("session", HOSTS, indirect=True)
def test_host_behaviour_when_the_hook_cannot_start(session: Session) -> None:
    session.install()
    for file in session.home.rglob("*"):
        if file.is_file() and alone.PYTHON in file.read_text(errors="replace"):
            file.write_text(file.read_text().replace(alone.PYTHON, "/gone/python3"))
    session.drive(session.driven.shell(PLANT))
    runs = session.name == "claude" and version_of(session.program) == "2.1.197"  # this version does not know onFailure
    assert ("planted" in session.bashrc) == runs


# The behaviour of each host when its hook fails, without corral's fail-closed shell. docs/hooks.md documents it.
FAILURES = {
    "slow": "sleep 60",
    "killed": "kill -9 $$",
    "garbage": "echo '{\"decision\": oops'",
    "exit 1": "exit 1",
    "exit 2": "echo no >&2; exit 2",
    "exit 2, silent": "exit 2",
    "missing": "",
}
RUNS = {
    ("claude", "2.1.327"): {"garbage"},
    ("claude", "2.1.325"): {"garbage"},
    ("claude", "2.1.197"): {"slow", "killed", "garbage", "exit 1", "missing"},
    ("codex", "0.169.0"): {"slow", "killed", "garbage", "exit 1", "exit 2, silent", "missing"},
    ("codex", "0.166.0"): {"slow", "killed", "garbage", "exit 1", "exit 2, silent", "missing"},
    ("gemini", "0.61.0"): {"slow", "killed", "garbage", "exit 1", "exit 2, silent"},
    ("copilot", "1.0.102"): {"slow", "garbage"},
}


def with_hook(value: Any, words: list[str]) -> Any:
    """Return settings in which every hook runs another program, with a timeout of three seconds."""
    if isinstance(value, list):
        return [with_hook(item, words) for item in value]
    if not isinstance(value, dict):
        return value
    changed = {"command": words[0], "bash": words[0], "args": [], "timeoutSec": 3}
    changed["timeout"] = 3000 if value.get("timeout", 0) >= 1000 else 3
    return {key: changed[key] if key in changed else with_hook(item, words) for key, item in value.items()}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in RUNS))
def test_host_behaviour_when_a_hook_fails(name: str, failure: str, tmp_path: Path) -> None:
    session = Session(name, tmp_path)
    session.install()
    hook = tmp_path / "hook.sh"
    if FAILURES[failure]:
        hook.write_text(f"#!/bin/sh\ncat >/dev/null\n{FAILURES[failure]}\n")
        hook.chmod(0o755)
    path = Path(settings_path(INSTALLED[name], "user", str(session.work), {"HOME": str(session.home)}))
    path.write_text(json.dumps(with_hook(json.loads(path.read_text()), [str(hook)])))
    session.drive(session.driven.shell(PLANT))
    assert ("planted" in session.bashrc) == (failure in RUNS[name, version_of(session.program)])


def test_claude_code_runs_an_ask_in_bypass_mode(tmp_path: Path) -> None:
    # This is why corral's hook does not ask in that mode.
    session = Session("claude", tmp_path)
    session.install()
    path = session.home / ".claude" / "settings.json"
    body = {"hookEventName": "PreToolUse", "permissionDecision": "ask", "permissionDecisionReason": "may it?"}
    hook = tmp_path / "hook.sh"
    hook.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{json.dumps({'hookSpecificOutput': body})}'\n")
    hook.chmod(0o755)
    path.write_text(json.dumps(with_hook(json.loads(path.read_text()), [str(hook)])))
    session.drive(session.driven.shell(PLANT))
    assert "planted" in session.bashrc


def test_corral_does_not_ask_in_bypass_mode(tmp_path: Path) -> None:
    session = Session("claude", tmp_path)
    session.install()
    (session.work / "file").write_text("kept")
    (told,) = session.drive(session.driven.shell("git reset --hard; rm file"))
    assert "corral cannot ask the user here" in told
    assert (session.work / "file").read_text() == "kept"


def test_nothing_runs_inside_codexs_own_sandbox() -> None:
    # Not below /tmp, because Codex does not put its sandbox program there.
    with tempfile.TemporaryDirectory(prefix="corral-codex-", dir="/var/tmp") as place:
        session = Session("codex", Path(place))
        session.install()
        session.driven = session.driven._replace(
            command=["codex", "exec", "--dangerously-bypass-hook-trust", "--sandbox", "workspace-write", "go"]
        )
        (told,) = session.drive(session.driven.shell(CONTAINED))
        assert "\ncorral: " in told
        assert "Traceback" not in told
        assert not (session.work / "inside.txt").exists()


INSIDE = "readlink /proc/self/ns/net | tee inside.txt; cat ~/.bashrc; curl -sS http://evil.example/; touch made.txt"


@pytest.fixture(params=HOSTS)
def whole(request: pytest.FixtureRequest) -> Iterator[Session]:
    """A host with a home directory outside /tmp, because the sandbox has its own /tmp."""
    with tempfile.TemporaryDirectory(prefix="corral-whole-", dir="/var/tmp", ignore_cleanup_errors=True) as place:
        yield Session(request.param, Path(place))


def test_agent_in_the_sandbox_reaches_its_model_by_name(whole: Session) -> None:
    model = "http://model.example:{port}"
    own = {name: value.replace("{url}", model) for name, value in whole.driven.env.items()}
    policy = f"environment = {json.dumps(sorted(own))}\n[containment]\nagents = [{whole.name!r}]\n"
    policy += 'network = ["model.example:{port}"]\nhosts = ["model.example=127.0.0.1"]\n'
    files = {file: text.replace("{url}", model) for file, text in whole.driven.configured.items()}
    files[".config/corral/policy.toml"] = policy
    for file in files:
        (whole.home / file).parent.mkdir(parents=True, exist_ok=True)
    environ = alone.environment(whole.home, TERM="xterm-256color", **own)
    environ["PATH"] = f"{os.path.dirname(whole.program)}:{environ['PATH']}"
    told = driven(
        {
            "command": [*alone.command(), "run", "--", whole.name, *whole.driven.command[1:]],
            "env": environ,
            "files": {str(whole.home / file): text for file, text in files.items()},
            "calls": [whole.driven.shell(INSIDE)],
            "cwd": str(whole.work),
        },
        whole.place,
    )
    assert told["status"] == 0, told
    (result,) = told["results"]
    # Its commands run in the same sandbox, and neither sees the home directory or another host.
    assert (whole.work / "inside.txt").read_text().strip() in result
    assert "No such file" in result
    assert "evil.example:80 is not let through" in result
    assert (whole.work / "made.txt").exists()
    assert "model.example:" in told["stderr"]


def test_codex_does_not_start_a_project_file_as_shell(tmp_path: Path) -> None:
    # The hook gets only the command, so only Codex can prevent this. Some older versions did not.
    session = Session("codex", tmp_path)
    session.install()
    shell = session.work / "bash"
    shell.write_text(f"#!/bin/sh\necho planted >>{session.home}/.bashrc\n")
    shell.chmod(0o755)
    (told,) = session.drive({"tool": "exec_command", "input": {"cmd": CONTAINED, "shell": str(shell)}})
    inside = (session.work / "inside.txt").read_text().strip()
    assert (inside in told, inside != os.readlink("/proc/self/ns/pid")) == (True, True)
    assert session.bashrc == "# mine\n"
    subprocess.run([shell], check=True)
    assert session.bashrc == "# mine\nplanted\n"


def test_gemini_refuses_when_env_file_sets_bash_env(tmp_path: Path) -> None:
    session = Session("gemini", tmp_path)
    (session.work / "start.sh").write_text(f"echo planted >>{session.home}/.bashrc\n")
    (session.work / ".env").write_text(f"BASH_ENV={session.work}/start.sh\n")
    session.install()
    (told,) = session.drive(session.driven.shell("echo said"))
    assert "the variable BASH_ENV in the host's environment names a file in the project" in told
    assert session.bashrc == "# mine\n"
    alone.run("uninstall", "gemini", "--yes", home=session.home, cwd=session.work)
    session.drive(session.driven.shell("echo said"))
    assert "planted" in session.bashrc


class McpHost(NamedTuple):
    """The settings that connect a host to `corral mcp`, and its name for run_command."""

    tool: dict[str, str]
    settings: Callable[[list[str]], dict[str, str]]  # files below the home directory, for the server's words
    env: dict[str, str] = {}  # noqa: RUF012


def servers(words: list[str], **more: object) -> dict[str, Any]:
    return {"mcpServers": {"corral": {"command": words[0], "args": words[1:], **more}}}


MCP_HOSTS = {
    "claude": McpHost(
        {"tool": "mcp__corral__run_command"},
        lambda words: {".claude.json": json.dumps(servers(words))},
        {"MCP_CONNECTION_NONBLOCKING": "0"},  # otherwise the first turn may begin before the server's tools are known
    ),
    "codex": McpHost(
        {"namespace": "mcp__corral", "tool": "run_command"},
        lambda words: {
            ".codex/config.toml": f"{CODEX}[mcp_servers.corral]\nrequired = true\n"
            f"command = {json.dumps(words[0])}\nargs = {json.dumps(words[1:])}\n"
        },
    ),
    "gemini": McpHost(
        {"tool": "mcp_corral_run_command"},
        lambda words: {
            ".gemini/settings.json": json.dumps(
                {**json.loads(HOSTS["gemini"].settings[".gemini/settings.json"]), **servers(words)}
            )
        },
    ),
    "opencode": McpHost(
        {"tool": "corral_run_command"},
        lambda words: {
            ".config/opencode/opencode.json": json.dumps(
                {**OPENCODE, "mcp": {"corral": {"type": "local", "command": words, "enabled": True}}}
            )
        },
    ),
    "copilot": McpHost(
        {"tool": "corral-run_command"},
        lambda words: {".copilot/mcp-config.json": json.dumps(servers(words, type="local", tools=["*"]))},
    ),
}


@pytest.mark.parametrize("session", MCP_HOSTS, indirect=True)
def test_model_reads_the_text_of_an_mcp_answer_only(session: Session) -> None:
    host = MCP_HOSTS[session.name]
    words = [sys.executable, "-m", "corral", "mcp", "--root", str(session.work)]
    session.driven = session.driven._replace(configured=host.settings(words), env={**session.driven.env, **host.env})
    (session.work / "only.txt").touch()
    listed, refused = session.drive(
        {**host.tool, "input": {"argv": ["ls"]}}, {**host.tool, "input": {"shell": "sudo ls"}}
    )
    assert "only.txt\n" in listed
    assert "[corral: refused, nothing ran: `sudo` is on the denylist" in refused
    assert "Run the command without it" in refused
    assert [text for text in (listed, refused) if '"exit_code"' in text] == []
