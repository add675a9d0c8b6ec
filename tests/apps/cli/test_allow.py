"""`corral allow` and `corral posture`: only a person at a terminal answers, and a yes opens what was shown."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from screen import OrphanScreen

import golden
from corral.apps.cli.own_policy.policy_file import set_user_key
from corral.apps.cli.questions.terminal_prompt import AGENT_VARIABLES, agent_above
from corral.apps.cli.verbs.posture import user_posture
from corral.model.errors import PolicyError
from corral.policy.answers.family_grants import list_answers, list_family_grants
from corral.policy.answers.refusals import open_refusals

CORRAL = (sys.executable, "-m", "corral")
END = b"[N]o > "
CURL = ("curl", "-sS", "https://index.example/x")
Ask = Callable[..., OrphanScreen]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("state", "config", "cache"):
        monkeypatch.setenv(f"XDG_{name.upper()}_HOME", str(tmp_path / name))
    monkeypatch.delenv("CI", raising=False)
    root = tmp_path / "project"
    root.mkdir()
    return root


@pytest.fixture
def screen(project: Path) -> Iterator[Ask]:
    made: list[OrphanScreen] = []

    def make(*command: str, **environ: str) -> OrphanScreen:
        made.append(OrphanScreen([*CORRAL, *command], project, environ={"NO_COLOR": "1"} | environ))
        return made[-1]

    yield make
    for one in made:
        one.close()


def run(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CORRAL, *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=os.environ | environ,
        start_new_session=True,
        timeout=120,
        check=False,
    )


def refused(project: Path, *command: str) -> str:
    """Run a command that nobody can be asked about, and return the id of its refusal."""
    done = run("run", "--", *(command or CURL), cwd=project)
    assert done.returncode == 126
    (newest, *_) = open_refusals(os.environ)
    assert f"corral allow {newest.id}" in done.stderr
    return newest.id


def answer(shown: OrphanScreen, keys: bytes) -> int:
    shown.until(END)
    shown.type(keys)
    return shown.status()


def test_refusal_and_question_have_the_golden_wording(screen: Ask, project: Path) -> None:
    done = run("run", "--shell", "curl https://index.example/x; make", cwd=project)
    id_ = open_refusals(os.environ)[0].id
    golden.check("cli-messages", "run: a refusal with grants", done.stderr.replace(id_, "ID"))
    for name, command in (("with another command", None), ("of one command", CURL)):
        if command:
            refused(project, *command)
        shown = screen("allow")
        text = shown.until(END).decode().replace("\r\n", "\n")
        # A long path takes lines of its own.
        text = re.sub(r"(?s)run this in\s.*?\n\n", "run this in PROJECT\n\n", text)
        golden.check("cli-messages", f"allow: the question {name}", text)
        shown.type(b"\r")
        assert shown.status() == 1


@pytest.mark.parametrize(
    ("key", "kind"), [(b"o\r", "once"), (b"p\r", "call"), (b"d\r", "family")], ids=["once", "call", "family"]
)
def test_yes_from_another_terminal_lets_the_call_run(screen: Ask, project: Path, key: bytes, kind: str) -> None:
    shown = screen("allow", refused(project))
    assert answer(shown, key) == 0
    assert open_refusals(os.environ) == []
    assert run("run", "--", *CURL, cwd=project).returncode != 126
    assert (run("run", "--", *CURL, cwd=project).returncode == 126) == (kind == "once")
    assert (run("run", "--", *CURL[:2], f"{CURL[2]}/other", cwd=project).returncode == 126) == (kind != "family")
    assert run("run", "--", "curl", "https://evil.example/", cwd=project).returncode == 126
    assert run("run", "--shell", f"{' '.join(CURL)}; python3 x.py", cwd=project).returncode == 126


def test_no_is_silent_for_a_time_and_allow_asks_again(screen: Ask, project: Path) -> None:
    assert answer(screen("allow", refused(project)), b"\r") == 1
    done = run("run", "--", *CURL, cwd=project)
    assert done.returncode == 126
    assert open_refusals(os.environ) == []
    (no,) = list_answers(os.environ)
    golden.check("cli-messages", "run: after a no", done.stderr.replace(no.id, "ID"))
    assert run("grants", "revoke", no.id, cwd=project).returncode == 0
    refused(project)


def test_fourth_question_of_a_day_says_so(screen: Ask, project: Path) -> None:
    told = []
    for host in ("a", "b", "c", "d"):
        shown = screen("allow", refused(project, "curl", f"http://{host}.example/"))
        told.append(b"Question 4 of the last 24 hours. `corral posture` sets what is asked." in shown.until(END))
        shown.type(b"\r")
        assert shown.status() == 1
    assert told == [False, False, False, True]


def test_never_is_listed_and_refuses_without_a_question(screen: Ask, project: Path) -> None:
    assert answer(screen("allow", refused(project)), b"x\r") == 1
    assert run("run", "--", "curl", f"{CURL[2]}/other", cwd=project).returncode == 126
    assert open_refusals(os.environ) == []
    (listed,) = json.loads(run("grants", "--json", cwd=project).stdout)
    assert (listed["answer"], listed["about"]) == ("never", "curl")


def test_call_that_can_only_be_allowed_once_offers_no_more(screen: Ask, project: Path) -> None:
    for keys in (b"d\r", b"p\r"):
        refused(project, "curl", "-d", "@x", "https://index.example/")
        assert answer(screen("allow"), keys) == 1
        run("grants", "revoke", "--all", cwd=project)
    assert list_family_grants(os.environ) == []


def test_delicate_opening_needs_its_word(screen: Ask, project: Path) -> None:
    git = ["git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (
        ["init", "-qb", "main"],
        ["commit", "-qm", "x", "--allow-empty"],
        ["remote", "add", "origin", "git@forge.example:me/app.git"],
    ):
        subprocess.run([*git, *words], check=True)
    for keys, status in ((b"o\r", 1), (b"yes\r", 1), (b"push\r", 0)):
        refused(project, "git", "push", "origin", "main")
        assert answer(screen("allow"), keys) == status
        run("grants", "revoke", "--all", cwd=project)


def test_refusal_is_answered_by_its_id(screen: Ask, project: Path) -> None:
    first = refused(project)
    refused(project, "curl", "https://other.example/")
    shown = screen("allow", first)
    assert b"index.example" in shown.until(END)
    shown.type(b"d\r")
    assert shown.status() == 0
    assert [grant.target for made in list_family_grants(os.environ) for grant in made.grants] == ["index.example:443"]


@pytest.mark.parametrize("id_", ["", "ffff", "../x", "\x1b[2J"], ids=["none", "unknown", "path", "control characters"])
def test_nothing_open_is_exit_code_2(screen: Ask, id_: str) -> None:
    shown = screen("allow", *([id_] if id_ else []))
    assert shown.status() == 2
    assert b"\x1b[2J" not in shown.seen


def test_open_refusals_are_listed(project: Path) -> None:
    id_ = refused(project)
    text = run("allow", "--list", cwd=project).stdout
    golden.check("cli-messages", "allow: the list", text.replace(id_, "ID").replace(str(project), "PROJECT"))
    (listed,) = json.loads(run("allow", "--list", "--json", cwd=project).stdout)
    assert (listed["id"], listed["call"]) == (id_, list(CURL))


def test_watch_asks_about_each_refusal(screen: Ask, project: Path) -> None:
    shown = screen("allow", "--watch")
    shown.until(b"waiting for refusals")
    for host in ("index.example", "other.example"):
        refused(project, "curl", f"https://{host}/")
        assert host.encode() in shown.until(END)
        shown.type(b"d\r")
        shown.until(b"Tell the agent")
    shown.type(b"\x03")
    assert shown.status() == 0
    assert len(list_family_grants(os.environ)) == 2


def test_destination_can_be_allowed_beforehand(screen: Ask, project: Path) -> None:
    words = ("allow", "--network", "index.example:443", "--for", "curl")
    shown = screen(*words)
    text = shown.until(END).decode().replace("\r\n", "\n").replace(str(project), "PROJECT")
    golden.check("cli-messages", "allow: beforehand", text)
    shown.type(b"y\r")
    assert shown.status() == 0
    assert run("run", "--", *CURL, cwd=project).returncode != 126
    assert run(*words, cwd=project).returncode == 126


def test_changed_call_is_not_what_was_allowed(screen: Ask, project: Path) -> None:
    """The policy denies the call between refusal and answer."""
    id_ = refused(project)
    (project / "corral.toml").write_text('posture = "locked"\n')
    shown = screen("allow", id_)
    assert shown.status() == 1
    assert list_family_grants(os.environ) == []


@pytest.mark.parametrize("name", ["CLAUDECODE", "GEMINI_CLI", "AGENT"])
def test_shell_of_an_agent_cannot_allow(screen: Ask, project: Path, name: str) -> None:
    refused(project)
    shown = screen("allow", **{name: "1"})
    assert shown.status() == 126
    assert name.encode() in shown.seen


def test_pipe_and_background_cannot_allow(project: Path) -> None:
    refused(project)
    assert run("allow", cwd=project).returncode == 126
    piped = subprocess.run([*CORRAL, "allow"], cwd=project, input=b"o\n", capture_output=True, check=False)
    assert piped.returncode == 126
    assert len(open_refusals(os.environ)) == 1


@pytest.mark.parametrize("stream", ["<../answers", ">../out"], ids=["stdin", "stdout"])
def test_standard_streams_must_be_the_terminal(screen: Ask, project: Path, stream: str) -> None:
    refused(project)
    (project.parent / "answers").write_text("o\n")
    shown = OrphanScreen(["sh", "-c", f"{' '.join(CORRAL)} allow {stream}"], project)
    try:
        assert shown.status() == 126
    finally:
        shown.close()


def test_child_of_an_agent_cannot_allow(project: Path, tmp_path: Path) -> None:
    """Canary: the same shell under another name is asked."""
    refused(project)
    for name, expected in (("claude", b"an agent started this terminal"), ("another", b"Allow?")):
        program = tmp_path / name
        shutil.copy("/bin/sh", program)
        shown = OrphanScreen([str(program), "-c", f"{' '.join(CORRAL)} allow; true"], project)
        try:
            shown.until(expected)
        finally:
            shown.close()


def test_variable_of_a_process_above_is_seen(project: Path) -> None:
    """The agent removes its variable for the command; the shell above still has it."""
    refused(project)
    command = f"unset CLAUDECODE; {' '.join(CORRAL)} allow; true"
    shown = OrphanScreen(["sh", "-c", command], project, environ={"CLAUDECODE": "1"})
    try:
        shown.until(b"has the variable CLAUDECODE")
    finally:
        shown.close()


def test_terminal_of_the_tests_has_no_agent_above() -> None:
    code = "from corral.apps.cli.questions.terminal_prompt import agent_above; print(repr(agent_above()))"
    shown = OrphanScreen([sys.executable, "-c", code], Path("/"))
    try:
        shown.until(b"''")
    finally:
        shown.close()
    assert isinstance(agent_above(), str)


@pytest.mark.parametrize("name", AGENT_VARIABLES[:2])
def test_agent_cannot_loosen_the_posture(screen: Ask, name: str) -> None:
    assert screen("posture", "open", **{name: "1"}).status() == 125
    assert user_posture(os.environ) == ""


def test_posture_is_loosened_only_after_a_yes(screen: Ask, project: Path) -> None:
    assert answer(screen("posture", "open"), b"\r") == 1
    assert user_posture(os.environ) == ""
    assert answer(screen("posture", "open"), b"y\r") == 0
    assert user_posture(os.environ) == "open"
    assert run("posture", "locked", cwd=project).returncode == 0
    assert json.loads(run("posture", "--json", cwd=project).stdout)["posture"] == "locked"
    assert run("posture", "balanced", cwd=project).returncode == 125


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", 'posture = "locked"  # c\n'),
        ('profile = "strict"\n', 'posture = "locked"  # c\nprofile = "strict"\n'),
        ('# x\nposture="open"   # mine\n[limits]\nprocesses = 5\n', '# x\nposture = "locked"  # mine\n[limits]\nprocesses = 5\n'),
        ('[[rule]]\ncommand = "x"\ndecision = "deny"\ndeny = ["x"]\nreason = """\nposture = "open"\n"""\n', None),
    ],
    ids=["empty", "without", "with a comment", "in a text"],
)  # fmt: skip
def test_only_the_line_of_the_key_changes(project: Path, before: str, after: str | None) -> None:
    path = Path(os.environ["XDG_CONFIG_HOME"]) / "corral" / "policy.toml"
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_text(before)
    set_user_key("posture", "locked", os.environ, comment="c")
    assert path.read_text() == (after if after is not None else f'posture = "locked"  # c\n{before}')


def test_line_that_cannot_be_changed_safely_is_left(project: Path) -> None:
    path = Path(os.environ["XDG_CONFIG_HOME"]) / "corral" / "policy.toml"
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_text('host_questions = [\n  "claude",\n]\n')
    with pytest.raises(PolicyError, match="host_questions"):
        set_user_key("host_questions", [], os.environ)
    assert "claude" in path.read_text()


def test_posture_is_asked_once_with_the_golden_wording(screen: Ask) -> None:
    shown = screen("init", "--user")
    text = shown.until(b"> ").decode().replace("\r\n", "\n").partition("policy show\n")[2]
    golden.check("cli-messages", "init: the posture", text)
    shown.type(b"o\r")
    assert shown.status() == 0
    assert user_posture(os.environ) == "open"


def test_adding_an_approval_beforehand_points_to_allow(project: Path) -> None:
    done = run("grants", "add", "--", "git", "reset", "--hard", cwd=project)
    assert done.returncode == 125
    assert "corral allow" in done.stderr


def test_approvals_of_the_old_format_are_reported(project: Path) -> None:
    place = Path(os.environ["XDG_STATE_HOME"]) / "corral" / "approvals"
    place.mkdir(parents=True, mode=0o700)
    place.parent.chmod(0o700)
    (place / ("a" * 64)).write_text(json.dumps({"schema": "corral.approval/1", "expires_at": 1e12}))
    done = run("grants", cwd=project)
    golden.check("cli-messages", "grants: the old format", done.stderr)
    assert run("grants", cwd=project).stderr == ""
