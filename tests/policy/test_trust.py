"""Trust needs a person at a terminal, and covers only the bytes that were shown."""

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from machines import environment, import_path
from screen import Screen

from corral import Sandbox
from corral._lib.sha256 import sha256_hex
from corral.apps.cli.questions.terminal_prompt import AGENT_VARIABLES
from corral.model.errors import PolicyError
from corral.policy.loader import load
from corral.policy.trust import distrust, is_trusted, trust, trusted_files

CORRAL = (sys.executable, "-m", "corral")
LOOSE = 'timeout_seconds = 600\n\n[containment]\nnetwork = "on"\n'
QUESTION = b"[y]es, [N]o > "


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    root = tmp_path / "project"
    root.mkdir()
    (root / "corral.toml").write_text(LOOSE)
    return root


@pytest.fixture
def screen(project: Path) -> Iterator[Callable[..., Screen]]:
    made: list[Screen] = []

    def make(*command: str, **environ: str) -> Screen:
        made.append(Screen(list(command), project, columns=200, environ={"NO_COLOR": "1"} | environ))
        return made[-1]

    yield make
    for one in made:
        one.close()


def is_waiting(project: Path) -> bool:
    return bool(load(str(project), os.environ).waiting)


def test_user_sees_the_file_and_its_loosening_and_trusts_it(screen: Callable[..., Screen], project: Path) -> None:
    shown = screen(*CORRAL, "trust")
    text = shown.until(QUESTION).decode()
    for words in (
        f"{project}/corral.toml",
        "│  timeout_seconds = 600",
        '│  network = "on"',
        "line 1: timeout_seconds = 600",
        'line 4: containment.network = "on"',
        sha256_hex(LOOSE.encode()),
    ):
        assert words in text
    shown.type(b"y\r")
    assert shown.status() == 0
    assert not is_waiting(project)
    again = screen(*CORRAL, "trust")
    again.until(b"already trusted")
    assert again.status() == 0


@pytest.mark.parametrize("answer", [b"\r", b"n\r", b"yess\r", b"\x04", b"\x03", b"p\r", b"true\r"])
def test_every_answer_but_yes_is_no(screen: Callable[..., Screen], project: Path, answer: bytes) -> None:
    shown = screen(*CORRAL, "trust")
    shown.until(QUESTION)
    shown.type(answer)
    assert shown.status() == 1
    assert is_waiting(project)


def test_input_typed_before_the_question_is_discarded(screen: Callable[..., Screen], project: Path) -> None:
    shown = screen("sh", "-c", f"read ready; exec {shlex.join(CORRAL)} trust")
    shown.type(b"go\ry\ry\ry\r")
    shown.until(QUESTION)
    shown.type(b"\r")
    assert shown.status() == 1
    assert is_waiting(project)


def test_only_the_shown_bytes_are_trusted(screen: Callable[..., Screen], project: Path) -> None:
    shown = screen(*CORRAL, "trust")
    shown.until(QUESTION)
    (project / "corral.toml").write_text(LOOSE.replace("600", "6000"))
    shown.type(b"y\r")
    assert shown.status() == 0
    assert is_waiting(project)


def test_file_content_cannot_control_the_terminal(screen: Callable[..., Screen], project: Path) -> None:
    (project / "corral.toml").write_text(LOOSE + "# a\u202eb \u2028 c\n")
    shown = screen(*CORRAL, "trust")
    text = shown.until(QUESTION).decode()
    assert "# a\\u202eb \\u2028 c" in text
    assert "\x1b" not in text


def test_file_that_only_tightens_needs_no_trust(screen: Callable[..., Screen], project: Path) -> None:
    (project / "corral.toml").write_text("timeout_seconds = 5\n")
    shown = screen(*CORRAL, "trust")
    shown.until(b"only tightens, which needs no trust")
    assert shown.status() == 0
    assert trusted_files(os.environ) == []


def test_invalid_file_is_not_trusted(screen: Callable[..., Screen], project: Path) -> None:
    (project / "corral.toml").write_text("timeout = 5\n")
    shown = screen(*CORRAL, "trust")
    shown.until(b"corral.toml:1:1: unknown key 'timeout'")
    assert shown.status() == 125


def refused(done: subprocess.CompletedProcess[str], why: str, project: Path) -> None:
    assert (done.returncode, done.stdout) == (125, "")
    assert f"only a person at a terminal can trust a file, and {why}" in done.stderr
    assert is_waiting(project)


def piped(project: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in environment().items() if name not in AGENT_VARIABLES} | environ
    return subprocess.run(
        [*CORRAL, "trust"], cwd=project, env=env, input="y\ny\n", capture_output=True, text=True, start_new_session=True, check=False
    )  # fmt: skip


def test_pipe_cannot_trust(project: Path) -> None:
    refused(piped(project), "there is no terminal", project)


@pytest.mark.parametrize("name", AGENT_VARIABLES)
def test_agent_shell_cannot_trust(screen: Callable[..., Screen], project: Path, name: str) -> None:
    shown = screen(*CORRAL, "trust", **{name: "1"})
    shown.until(b"this is the shell of a coding agent")
    assert shown.status() == 125
    assert is_waiting(project)


@pytest.mark.parametrize(
    ("redirect", "why"),
    [
        ("< answers", b"standard input is not the terminal"),
        ("< /dev/null", b"standard input is not the terminal"),
        ("< /dev/tty", b"standard input is not the terminal"),  # a different device number than the terminal itself
        ("<&-", b"standard input is not the terminal"),
        ("> out", b"standard output is not the terminal"),
        ("| cat", b"standard output is not the terminal"),
    ],
)
def test_stdin_and_stdout_must_be_the_controlling_terminal(
    screen: Callable[..., Screen], project: Path, redirect: str, why: bytes
) -> None:
    (project / "answers").write_text("y\n" * 9)
    shown = screen("sh", "-c", f"{shlex.join(CORRAL)} trust {redirect}")
    shown.until(why)
    shown.status()
    assert is_waiting(project)


def test_terminal_that_is_not_controlling_cannot_trust(screen: Callable[..., Screen], project: Path) -> None:
    code = (
        "import os, subprocess, sys; outer, inner = os.openpty(); os.write(outer, b'y\\ny\\n');"
        f"sys.exit(subprocess.run({list(CORRAL)!r} + ['trust'], stdin=inner, stdout=inner).returncode)"
    )
    shown = screen(sys.executable, "-c", code)
    shown.until(b"standard input is not the terminal")
    assert shown.status() == 125
    assert is_waiting(project)


def test_background_process_cannot_trust(screen: Callable[..., Screen], project: Path) -> None:
    shown = screen("bash", "-c", f"set -m; {shlex.join(CORRAL)} trust & wait $!; echo ended $?")
    shown.until(b"corral is in the background of the terminal")
    assert is_waiting(project)


# An agent in the sandbox could create a terminal, become the leader of its session, and answer.
IN_A_TERMINAL = """
import os, pty, sys
pid, outer = pty.fork()
if pid == 0:
    os.environ["XDG_STATE_HOME"] = sys.argv[2]
    os.execv(sys.executable, [sys.executable, "-m", "corral", "trust", "--root", sys.argv[1]])
said = b""
while True:
    try:
        part = os.read(outer, 4096)
    except OSError:
        break
    if not part:
        break
    said += part
    if said.endswith(b"> "):
        os.write(outer, b"y\\n")
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(status, said.decode())
"""


def attempt(run: Callable[..., object], project: Path, state: Path) -> str:
    (project / "attempt.py").write_text(IN_A_TERMINAL)
    done = run([sys.executable, "attempt.py", str(project), str(state)])
    return str(getattr(done, "stdout_text", None) or getattr(done, "stdout", ""))


def test_terminal_created_in_the_sandbox_cannot_trust(
    open_sandbox: Callable[..., Sandbox], project: Path, tmp_path: Path
) -> None:
    box = open_sandbox(env_allowlist={"PATH", "HOME", "PYTHONPATH"}, timeout_seconds=60)
    said = attempt(lambda argv: box.run(argv, env={"PYTHONPATH": import_path()}), project, Path("/tmp/state"))
    assert said.startswith("125 ")
    assert "this is inside a sandbox" in said
    assert is_waiting(project)


def test_same_terminal_outside_the_sandbox_can_trust(project: Path, tmp_path: Path) -> None:
    env = {name: value for name, value in environment().items() if name not in AGENT_VARIABLES}
    said = attempt(
        lambda argv: subprocess.run(argv, cwd=project, env=env, capture_output=True, text=True, check=False),
        project,
        tmp_path / "state",
    )
    assert said.startswith("0 ")
    assert not is_waiting(project)


def test_sandboxed_command_cannot_write_the_trust_file(
    open_sandbox: Callable[..., Sandbox], project: Path, tmp_path: Path
) -> None:
    box = open_sandbox(timeout_seconds=60)
    line = f"{sha256_hex(LOOSE.encode())} {project}/corral.toml\\n"
    code = f"import os; os.makedirs({str(tmp_path / 'state' / 'corral')!r}, exist_ok=True); open({str(tmp_path / 'state' / 'corral' / 'trust')!r}, 'w').write({line!r})"
    box.run(["python3", "-c", code])
    assert is_waiting(project)


@pytest.mark.parametrize("verb", ["trust", "distrust", "init"])
@pytest.mark.parametrize("profile", ["strict", "workspace"])
def test_guard_refuses_trust_commands(verb: str, profile: str, project: Path) -> None:
    done = subprocess.run(
        [*CORRAL, "check", "--profile", profile, "--shell", f"script -qc 'corral {verb}' x; python -m corral {verb}"],
        cwd=project, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 126


def test_hook_refuses_corral_trust(project: Path) -> None:
    payload = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "yes | corral trust"}, "cwd": str(project)}  # fmt: skip
    done = subprocess.run(
        [*CORRAL, "hook", "claude"], cwd=project, env=environment(), input=json.dumps(payload), capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 2
    assert is_waiting(project)


def test_trusted_file_is_listed_and_distrusted(project: Path) -> None:
    path, digest = str(project / "corral.toml"), sha256_hex(LOOSE.encode())
    trust(path, digest, os.environ, str(project))
    listed = subprocess.run([*CORRAL, "trust", "--list", "--json"], cwd=project, env=environment(), capture_output=True, text=True, check=True)  # fmt: skip
    assert json.loads(listed.stdout) == [{"path": path, "digest": digest}]
    done = subprocess.run([*CORRAL, "distrust"], cwd=project, env=environment(), capture_output=True, text=True, check=True)  # fmt: skip
    assert path in done.stderr
    assert is_waiting(project)
    assert not distrust(path, os.environ, str(project))


def test_path_has_one_hash(project: Path) -> None:
    path = str(project / "corral.toml")
    for digest in ("a" * 64, "b" * 64):
        trust(path, digest, os.environ, str(project))
    assert trusted_files(os.environ) == [("b" * 64, path)]


def test_path_with_a_line_break_is_refused(project: Path) -> None:
    with pytest.raises(PolicyError):
        trust(f"{project}/x\n{'a' * 64} /other", "b" * 64, os.environ, str(project))


def test_truncated_line_is_ignored(project: Path, tmp_path: Path) -> None:
    path = str(project / "corral.toml")
    trust(path, "a" * 64, os.environ, str(project))
    file = tmp_path / "state" / "corral" / "trust"
    file.write_bytes(file.read_bytes()[:-1])
    assert not is_trusted(path, "a" * 64, os.environ, str(project))


@pytest.mark.parametrize("spoil", ["link", "others", "directory", "others' directory", "long"])
def test_unsafe_trust_file_is_an_error(project: Path, tmp_path: Path, spoil: str) -> None:
    path = str(project / "corral.toml")
    trust(path, sha256_hex(LOOSE.encode()), os.environ, str(project))
    file = tmp_path / "state" / "corral" / "trust"
    if spoil == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    elif spoil == "others":
        file.chmod(0o666)
    elif spoil == "directory":
        file.unlink()
        file.mkdir()
    elif spoil == "long":
        file.write_bytes(b"x" * (1 << 21))
    else:
        file.parent.chmod(0o777)
    with pytest.raises(PolicyError):
        load(str(project), os.environ)


def test_concurrent_trust_loses_no_entry(project: Path) -> None:
    threads = [
        threading.Thread(target=trust, args=(f"/p{n}/corral.toml", "a" * 64, os.environ, str(project)))
        for n in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {path for _, path in trusted_files(os.environ)} == {f"/p{n}/corral.toml" for n in range(16)}
