"""Approvals: only a person at a real terminal can answer the guard's questions."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tree_sitter
from screen import OrphanScreen, Screen

import corral
import golden
from corral import Containment, PolicyError, Sandbox, SandboxConfig
from corral._lib.terminal import DECEIVING, Terminal
from corral.apps.cli.questions.approval_prompt import question
from corral.apps.cli.questions.approver import Approver
from corral.apps.cli.questions.terminal_prompt import AGENT_VARIABLES
from corral.guard.evaluate import vet
from corral.guard.machine import Machine
from corral.model.call import Call
from corral.model.grant import Yes
from corral.policy.answers.approvals import approve
from corral.policy.answers.family_grants import PolicyGrant, store_family_grant

CORRAL = (sys.executable, "-m", "corral")
RESET = ("git", "reset", "--hard")
SHELL_RESET = "git reset --hard; echo ran"
END = b"[N]o > "


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with an uncommitted change, and a private state directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    root = tmp_path / "project"
    root.mkdir()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(root)]
    (root / "notes.txt").write_text("kept\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    (root / "notes.txt").write_text("changed\n")
    return root


@pytest.fixture
def screen(project: Path) -> Iterator[Callable[..., Screen]]:
    made: list[Screen] = []

    def make(*command: str, columns: int = 80, **environ: str) -> Screen:
        made.append(Screen(list(command), project, columns=columns, environ={"NO_COLOR": "1"} | environ))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_answer_says_where_the_yes_comes_from(project: Path) -> None:
    config = SandboxConfig(str(project), profile="workspace", posture="balanced")
    call = Call(("curl", "https://own.example/"))
    verdict = vet(call, config)
    given = PolicyGrant(("curl",), tuple(grant.opening for grant in verdict.grants), source="policy.toml:1")

    def answer(config: SandboxConfig = config) -> bool | Yes:
        return Approver(config, Machine.of, may_ask=False).answer(call, verdict)

    assert answer() is False
    assert answer(config.replace(policy_grants=(given,))) == Yes("policy")
    approve(call, verdict, config, os.environ, once=True)
    assert [answer(), answer()] == [Yes("once"), False]
    store_family_grant("curl", verdict.grants, config, os.environ, channel="allow")
    assert answer() == Yes("family")
    approve(call, verdict, config, os.environ)
    assert answer() == Yes("project")


def is_reset(project: Path) -> bool:
    return (project / "notes.txt").read_text() == "kept\n"


def without_terminal(
    *arguments: str, cwd: Path, stdin: bytes = b"", **environ: str
) -> subprocess.CompletedProcess[bytes]:
    env = {name: value for name, value in os.environ.items() if name not in AGENT_VARIABLES}
    return subprocess.run(
        [*CORRAL, *arguments],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        env=env | environ,
        start_new_session=True,
        timeout=60,
        check=False,
    )


def test_prompt_shows_call_findings_and_effects(screen: Callable[..., Screen], project: Path) -> None:
    shown = screen(*CORRAL, "run", "--", *RESET, columns=300)
    text = shown.until(END).decode()
    for words in ("│ git reset --hard", "argv-git-discard", str(project), "[o]nce", "[p]roject"):
        assert words in text
    golden.check("cli-messages", "run: the prompt", text.replace("\r\n", "\n").replace(str(project), "PROJECT"))
    shown.type(b"\r")
    assert shown.status() == 126


@pytest.mark.parametrize("answer", [b"o\r", b"once\r", b"Y\r", b" yes \r"])
def test_once_runs_the_call_and_asks_again_next_time(
    screen: Callable[..., Screen], project: Path, answer: bytes
) -> None:
    shown = screen(*CORRAL, "run", "--", *RESET)
    shown.until(END)
    shown.type(answer)
    assert shown.status() == 0
    assert is_reset(project)
    again = screen(*CORRAL, "run", "--", *RESET)
    again.until(END)


def test_project_approval_holds_until_revoked(screen: Callable[..., Screen], project: Path) -> None:
    shown = screen(*CORRAL, "run", "--", *RESET)
    shown.until(END)
    shown.type(b"p\r")
    shown.until(b"Approved in this project for 7 days.")
    assert shown.status() == 0
    assert is_reset(project)
    (project / "notes.txt").write_text("changed\n")
    done = without_terminal("run", "--", *RESET, cwd=project)
    assert (done.returncode, is_reset(project)) == (0, True)
    (known,) = json.loads(without_terminal("grants", "--json", cwd=project).stdout)
    assert (known["call"], known["root"]) == (list(RESET), str(project))
    assert without_terminal("grants", "revoke", known["id"][:6], cwd=project).returncode == 0
    assert without_terminal("run", "--", *RESET, cwd=project).returncode == 126


def test_answers_are_logged(screen: Callable[..., Screen], project: Path) -> None:
    for answer in (b"o\r", b"p\r"):
        shown = screen(*CORRAL, "run", "--", *RESET)
        shown.until(END)
        shown.type(answer)
        shown.status()
    without_terminal("grants", "revoke", "--all", cwd=project)
    log = without_terminal("log", "--json", "--event", "grant", cwd=project).stdout.decode()
    said = re.findall(r'"reason": "((?:A person|The approval)[^"]+)"', log)
    assert len(said) == 3
    golden.check("cli-messages", "log: answers of a person", "\n".join(said))


@pytest.mark.parametrize(
    "answer",
    [b"\r", b"n\r", b"N\r", b"no\r", b"maybe\r", b"oo\r", b"yes please\r", b"once\x04\x04", b"\x03", b"\x04", b"\x1a"],
    ids=["enter", "n", "N", "no", "maybe", "oo", "more words", "no end of line", "Ctrl-C", "Ctrl-D", "Ctrl-Z"],
)
def test_any_other_answer_refuses_the_call(screen: Callable[..., Screen], project: Path, answer: bytes) -> None:
    shown = screen(*CORRAL, "run", "--", *RESET)
    shown.until(END)
    shown.type(answer)
    assert shown.status() == 126
    assert b"corral: not run" in shown.seen
    assert not is_reset(project)
    assert shown.settings() == shown.before


def test_keys_pressed_before_the_prompt_are_ignored(screen: Callable[..., Screen], project: Path) -> None:
    shown = screen(
        "sh", "-c", 'until [ -e ../typed ]; do sleep 0.01; done; exec "$@"', "sh", *CORRAL, "run", "--", *RESET
    )
    shown.type(b"o\ro\ro\r")
    (project.parent / "typed").touch()
    shown.until(END)
    shown.type(b"\r")
    assert shown.status() == 126
    assert not is_reset(project)


def test_prompt_never_reads_stdin(screen: Callable[..., Screen], project: Path) -> None:
    line = f"yes o | {shlex.join(CORRAL)} run -T -- git reset --hard; echo status $?"
    shown = screen("bash", "-c", line)
    shown.until(END)
    shown.type(b"n\r")
    shown.until(b"status 126")
    assert not is_reset(project)


def test_prompt_is_written_only_to_the_terminal(screen: Callable[..., Screen], project: Path) -> None:
    shown = screen("bash", "-c", f"{shlex.join(CORRAL)} run --json -- git reset --hard >out 2>err; echo status $?")
    shown.until(END)
    shown.type(b"n\r")
    shown.until(b"status 126")
    assert json.loads((project / "out").read_text())["denied"] is True
    assert (project / "err").read_text() == ""


def test_denied_call_is_not_asked_about(screen: Callable[..., Screen]) -> None:
    shown = screen(*CORRAL, "run", "--", "sudo", "id")
    assert shown.status() == 126
    assert b"Run it?" not in shown.seen


def test_unanswered_prompt_refuses_the_call(screen: Callable[..., Screen], project: Path) -> None:
    code = "import sys; from corral.apps.cli import main; from corral.apps.cli.questions import terminal_prompt as person; person.ANSWER_SECONDS = 0.05; sys.exit(main(sys.argv[1:]))"
    shown = screen(sys.executable, "-c", code, "run", "--", *RESET)
    shown.until(b"corral: not run")
    assert shown.status() == 126
    assert not is_reset(project)


def test_sigterm_ends_the_prompt_and_restores_the_terminal(screen: Callable[..., Screen], project: Path) -> None:
    shown = screen(*CORRAL, "run", "--", *RESET)
    shown.until(END)
    os.kill(shown.pid, signal.SIGTERM)
    assert shown.status() == 128 + signal.SIGTERM
    assert not is_reset(project)
    assert shown.settings() == shown.before


def test_background_process_does_not_ask(screen: Callable[..., Screen], project: Path) -> None:
    shown = screen("bash", "-mc", f"{shlex.join(CORRAL)} run -- git reset --hard & wait $!; echo status $?")
    shown.until(b"in the background of the terminal")
    shown.until(b"status 126")
    assert not is_reset(project)


@pytest.mark.parametrize("name", AGENT_VARIABLES)
def test_agent_shell_does_not_ask(screen: Callable[..., Screen], project: Path, name: str) -> None:
    shown = screen(*CORRAL, "run", "--", *RESET, **{name: "1"})
    shown.until(b"this is the shell of a coding agent")
    assert shown.status() == 126
    assert not is_reset(project)


@pytest.mark.parametrize("option", [("--no-ask",), ("--call", "00ff")], ids=["--no-ask", "what a hook rewrote"])
def test_no_ask_and_hook_calls_do_not_ask(
    screen: Callable[..., Screen], project: Path, option: tuple[str, ...]
) -> None:
    shown = screen(*CORRAL, "run", *option, "--", *RESET)
    assert shown.status() == 126
    assert b"Run it?" not in shown.seen
    assert not is_reset(project)


@pytest.mark.parametrize(
    "environ",
    [
        {"CORRAL_BYPASS": "1"},
        {"CORRAL_YES": "1"},
        {"CORRAL_ASK": "allow"},
        {"CORRAL_PROFILE": "open"},
        {"CI": "1"},
        {"DEBIAN_FRONTEND": "noninteractive"},
        {"TERM": "dumb"},
    ],
    ids=lambda environ: next(iter(environ)),
)
def test_no_environment_variable_approves(project: Path, environ: dict[str, str]) -> None:
    done = without_terminal("run", "--", *RESET, cwd=project, stdin=b"o\np\nyes\n", **environ)
    assert (done.returncode, is_reset(project)) == (126, False)
    assert b"there is no terminal" in done.stderr


@pytest.mark.parametrize("option", ["--yes", "-y", "--force", "-f", "--approve", "--no-guard", "--ask=yes", "--allow"])
def test_no_option_approves(project: Path, option: str) -> None:
    assert without_terminal("run", option, "--", *RESET, cwd=project).returncode == 125
    assert not is_reset(project)


def allow(project: Path, key: bytes) -> None:
    """Answer the newest refusal in another terminal."""
    shown = OrphanScreen([*CORRAL, "allow"], project, environ={"NO_COLOR": "1"})
    try:
        shown.until(END)
        shown.type(key)
        assert shown.status() == 0
    finally:
        shown.close()


def test_allow_answers_a_plain_question_and_runs_nothing(project: Path) -> None:
    assert without_terminal("run", "--shell", SHELL_RESET, cwd=project).returncode == 126
    allow(project, b"p\r")
    assert not is_reset(project)
    done = without_terminal("run", "--shell", SHELL_RESET, cwd=project)
    assert (done.returncode, done.stdout.splitlines()[-1], is_reset(project)) == (0, b"ran", True)


@pytest.mark.parametrize("call", [("sudo", "id"), ("ls",)], ids=["denied", "allowed"])
def test_denied_and_allowed_calls_leave_no_refusal(project: Path, call: tuple[str, ...]) -> None:
    done = without_terminal("run", "--", *call, cwd=project)
    assert b"corral allow" not in done.stderr
    assert json.loads(without_terminal("allow", "--list", "--json", cwd=project).stdout) == []


HOSTILE = {
    "a forged prompt": "git reset --hard # \n\nRun it? [o]nce, [N]o > n\ncorral: not run\n",
    "a return": "git reset --hard #\rls -la                              ",
    "colours and erasing": "git reset --hard # \x1b[2J\x1b[1;1H\x1b[32m✓ allow  ls",
    "a title": "git reset --hard # \x1b]0;ls\x07",
    "backspaces": "git reset --hard\x08\x08\x08\x08",
    "an eight-bit escape": "git reset --hard # \x9b2J",
    "the other direction": "git reset --hard # \u202eslr\u202c",
    "nothing wide": "git reset --hard # \u200b\u2060\ufeff\u00ad",
    "line separators": "git reset --hard # \u2028\u2029\x85\x0b\x0cls",
    "a bar of its own": "git reset --hard #\n  │  ls\n\nWhat would run\n  └─ ls\n",
    "many blanks": "git reset --hard #" + " " * 500 + "ls",
    "a null": "git reset --hard # $'\\x00'",
    "tabs": "git reset --hard #\t\t\t\t\t\tls",
    "tags": "git reset --hard # \U000e0061\U000e0062",
    "combining": "git reset --hard # e" + "\u0301" * 40,
}


@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize("columns", [24, 60, 100])
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_cannot_forge_the_prompt(project: Path, text: str, columns: int, unicode: bool) -> None:
    config = SandboxConfig(str(project), profile="workspace")
    terminal = Terminal(columns, unicode=unicode)
    for call in (Call(text, shell=True), Call(("git", "reset", "--hard", text))):
        machine = Machine.of(config)
        shown, _ = question(call, vet(call, config), config, machine, terminal, runs=True, whole=True)
        assert all(char == "\n" or (char.isprintable() and char not in DECEIVING) for char in shown)
        bar = "  │ " if unicode else "  | "
        # Every line that holds the text's own words is marked as the text's.
        ours = [line for line in shown.split("\n") if not line.startswith(bar)]
        assert not any(line.startswith(("Run it?", "corral:", "  └─ ls (forged)")) for line in ours)
        assert [line for line in ours if line.strip() == "What would run"] == ["What would run"]
        quoted = "".join(line.removeprefix(bar) for line in shown.split("\n") if line.startswith(bar))
        assert "reset" in quoted


def test_hostile_text_is_harmless_on_a_real_terminal(screen: Callable[..., Screen], project: Path) -> None:
    shown = screen(*CORRAL, "run", "--shell", HOSTILE["a forged prompt"])
    seen = shown.until(b"(7 days), " + END)
    assert seen.count(b"\r\nRun it?") == 1
    assert b"\x1b" not in seen
    shown.type(b"\r")
    assert shown.status() == 126


def test_non_ascii_characters_are_named(project: Path) -> None:
    call = Call("git reset --hard; echo п\u0430ypal", shell=True)
    config = SandboxConfig(str(project), profile="workspace")
    verdict = vet(call, config)
    shown, _ = question(call, verdict, config, Machine.of(config), Terminal(), runs=True, whole=False)
    assert "п U+043F, а U+0430" in shown


def test_call_shown_in_part_cannot_be_approved_for_the_project(screen: Callable[..., Screen], project: Path) -> None:
    text = "git reset --hard\n" + "\n".join(f"echo {i}" for i in range(100))
    shown = screen(*CORRAL, "run", "--shell", text)
    seen = shown.until(END)
    assert b"77 lines are not shown here" in seen
    assert b"echo 50" not in seen
    assert b"[o]nce, [s]how all, [N]o" in seen
    shown.type(b"p\r")
    assert shown.status() == 126
    shown = screen(*CORRAL, "run", "--shell", text)
    shown.until(END)
    shown.type(b"s\r")
    seen = shown.until(END)
    assert all(f"echo {i}\r\n".encode() in seen for i in range(100))
    assert b"not shown" not in seen
    shown.type(b"p\r")
    assert shown.status() == 0
    assert is_reset(project)


ATTEMPTS = {
    "write it": "open(place + '/' + 'a' * 64, 'w').write('{}')",
    "make the directory": "os.makedirs(place)",
    "through a link": "os.symlink(place, 'link'); open('link/' + 'a' * 64, 'w').write('{}')",
    "read what is approved": "os.listdir(place)",
    "remove what is approved": "os.rename(place, place + '2')",
    "change who may write": "os.chmod(place, 0o777)",
}


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
def test_command_cannot_reach_stored_approvals(
    open_sandbox: Callable[..., Sandbox], tmp_path: Path, attempt: str
) -> None:
    place = tmp_path / "state" / "corral" / "approvals"
    if "makedirs" not in attempt:
        place.mkdir(parents=True)

    def stored() -> list[str]:
        # Beside the copies of git directories, and the link itself, which is moved away.
        others = {"git", "corral-quarantine"}
        return sorted(path.name for path in (tmp_path / "state").rglob("*/*") if others.isdisjoint(path.parts))

    before = stored()
    code = f"import os; place = {str(place)!r}; {attempt}"
    box = open_sandbox()
    result = box.run(["python3", "-c", code])
    # A directory of that name in a /tmp of its own is no attack.
    assert (result.enforcement, result.exit_code) == ("full", 0 if "makedirs" in attempt else 1)
    assert stored() == before
    # Without the layers it works, so it is an attack.
    with Sandbox(box.config.replace(containment=Containment(backend="none"))) as bare:
        (Path(box.config.project_root) / "link").unlink(missing_ok=True)
        assert bare.run(["python3", "-c", code]).exit_code == 0


def test_path_grant_cannot_open_approvals(open_sandbox: Callable[..., Sandbox], tmp_path: Path) -> None:
    (tmp_path / "state" / "corral" / "approvals").mkdir(parents=True)
    for path in ("state", "state/corral", "state/corral/approvals"):
        with pytest.raises(PolicyError, match=str(tmp_path / path)):
            open_sandbox(containment=Containment(write=(str(tmp_path / path),))).run(["true"])


def test_inside_a_sandbox_nobody_is_asked(open_sandbox: Callable[..., Sandbox], project: Path) -> None:
    paths = [str(Path(module.__file__ or "").parents[1]) for module in (corral, tree_sitter)]
    code = f"import sys; sys.path[:0] = {paths}; from corral.apps.cli import main; sys.exit(main(sys.argv[1:]))"
    box = open_sandbox(containment=Containment(read=(*paths, sys.prefix)))
    running = box.start([sys.executable, "-c", code, "allow"], pty=True)
    result = running.wait(60)
    assert (result.exit_code, result.enforcement) == (126, "full")
    assert b"this is inside a sandbox" in result.stdout


@pytest.mark.parametrize(("host", "decision"), [("claude", "allow"), ("codex", "allow"), ("cursor", "deny")])
def test_hook_uses_approvals_if_the_host_contains_commands(project: Path, host: str, decision: str) -> None:
    asks = {"cwd": str(project), "session_id": "s", "hook_event_name": "PreToolUse", "tool_name": "Bash"}
    payload: dict[str, object] = {**asks, "tool_input": {"command": SHELL_RESET}}
    payload |= {"turn_id": "t"} if host == "codex" else {"permission_mode": "default"}  # where a person answers
    if host == "cursor":
        named = {"cwd": str(project), "command": SHELL_RESET, "workspace_roots": [str(project)]}
        payload = {**named, "hook_event_name": "beforeShellExecution", "conversation_id": "c"}

    def asked() -> tuple[str, str]:
        done = without_terminal("hook", host, cwd=project, stdin=json.dumps(payload).encode())
        said = json.loads(done.stdout)
        inner = said.get("hookSpecificOutput", said)
        command = inner.get("updatedInput", {}).get("command", "")
        return inner.get("permissionDecision") or inner["permission"], command

    assert asked()[0] == ("ask" if host == "claude" else "deny")
    without_terminal("run", "--shell", SHELL_RESET, cwd=project)
    allow(project, b"p\r")
    now, command = asked()
    assert now == decision
    if command:
        where = ("--root", str(project), "--cwd", str(project), "--call", "00ff")
        done = without_terminal("run", *where, "--shell", SHELL_RESET, cwd=project)
        assert (done.returncode, done.stdout.splitlines()[-1], is_reset(project)) == (0, b"ran", True)
