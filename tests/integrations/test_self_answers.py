"""Attempts of an agent to answer its own question. Nothing may be granted: the push stays refused, and the remote as it was.

Each group has a canary: the same act grants where the user does it, or where the protection is absent.
"""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from granting import END, PUSH, GrantingUser, granting_user
from hosting import PACKAGE, PYTHON, answering
from observe import eventually
from screen import OrphanScreen

from corral.policy.answers.approvals import list_approvals
from corral.policy.answers.family_grants import list_family_grants

GRANT = '[[grant]]\ncommand = "git push"\npush = ["origin refs/heads/fix"]\n'


class Attacked(GrantingUser):
    """A user whose `corral` is in PATH, with one refusal that waits for an answer."""

    def __init__(self, above: Path) -> None:
        super().__init__(above)
        self.program = self.home / "bin" / "corral"
        self.program.parent.mkdir()
        self.program.write_text(f'#!/bin/sh\nexec {self.corral_text()} "$@"\n')
        self.program.chmod(0o755)
        self.environ["PATH"] = f"{self.program.parent}:{self.environ['PATH']}"
        self.id = self.refused(PUSH)

    def attempt(self, text: str) -> None:
        """Run a command as an agent does: only if the hook lets it, and as the hook rewrites it."""
        for host in ("claude", "copilot"):
            reply = self.ask(host, text)
            if reply.decision == "allow":
                self.run(reply.command)

    def grants(self) -> list[str]:
        """Return what was granted, if anything."""
        stored = [each.id for each in (*list_approvals(self.environ), *list_family_grants(self.environ))]
        said = [reply.decision for reply in [self.ask("claude", PUSH)] if reply.decision != "deny"]
        return [*stored, *said, *(["pushed"] if self.pushed() else [])]

    def typed(self, text: str, keys: bytes = b"o\r", **environ: str) -> None:
        """Run shell text in a terminal of the user, and type an answer to its question."""
        env = {**self.environ, "NO_COLOR": "1", "TERM": "xterm", **environ}
        words = ["env", "-i", *(f"{name}={value}" for name, value in env.items()), "bash", "-c", text]
        shown = OrphanScreen(words, self.root)
        try:
            shown.until(END)
            shown.type(keys)
            shown.status()
        finally:
            shown.close()


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> Iterator[Attacked]:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "CI"):
        monkeypatch.delenv(name, raising=False)
    with granting_user(Attacked) as made:
        assert isinstance(made, Attacked)
        monkeypatch.setenv("HOME", str(made.home))
        yield made


# Shell texts with {id}, {corral} and {main}: the refusal, the program, and the words that start it.
COMMANDS = {
    "plain": "corral allow {id}",
    "in a shell": "sh -c 'corral allow {id}'",
    "by env": "env corral allow {id}",
    "as a module": "PYTHONPATH={package} {python} -m corral allow {id}",
    "by its path": "{corral} allow {id}",
    "by a link": "ln -s {corral} x; ./x allow {id}",
    "by a copy": "cp {corral} x; ./x allow {id}",
    "by the interpreter": "{main} allow {id}",
    "in a variable": "c=corral; $c allow {id}",
    "behind the work": "git add -A && corral allow {id}",
}


def text_of(user: Attacked, attempt: str) -> str:
    return attempt.format(
        id=user.id,
        corral=user.program,
        main=user.corral_text(),
        package=shlex.quote(
            ":".join([str(PACKAGE.parent), *[w[7:] for w in user.corral() if w.startswith("--path=")]])
        ),
        python=PYTHON,
    )


@pytest.mark.parametrize("attempt", COMMANDS)
def test_command_cannot_answer(attempt: str, user: Attacked) -> None:
    text = text_of(user, COMMANDS[attempt])
    user.attempt(text)
    user.attempt(f"yes o | {text}")
    user.attempt(f"script -qec {shlex.quote(text)} /dev/null <<< o")
    assert user.grants() == []
    (user.root / "x").unlink(missing_ok=True)
    user.typed(text)  # canary: the same text in the user's terminal
    assert user.grants() != []


SAID = {
    "posture": "corral posture open",
    "a grant beforehand": "corral allow --network index.example:443 --for 'git push'",
    "a watcher": "corral allow --watch",
    "removing a no": "corral grants revoke --all",
    "a hook of its own": "echo '{{}}' | corral hook claude",
    "another home": "HOME=$PWD corral allow {id}",
    "another state": "XDG_STATE_HOME=$PWD/s corral allow {id}",
    "in the background": "corral allow {id} &",
    "in a session of its own": "setsid corral allow {id}",
    "a variable of a yes": "CORRAL_YES=1 CORRAL_ALLOW={id} CORRAL_GRANT={id} git push",
    "a posture in a variable": "CORRAL_POSTURE=open git push",
    "another state for the push": "XDG_STATE_HOME=$PWD/s git push",
    "another policy for the push": "XDG_CONFIG_HOME=$PWD/c HOME=$PWD git push",
    "a policy in a variable": "CORRAL_POLICY=$PWD/c/corral/policy.toml git push",
    "the id as a grant": "corral run --grant {id} --shell 'git push'",
    "run without a hook": "corral run --shell 'git push'",
    "another policy for run": "corral run --config c/corral/policy.toml -- git push",
}


@pytest.mark.parametrize("attempt", SAID)
def test_words_and_variables_are_no_answer(attempt: str, user: Attacked) -> None:
    for folder in ("c/corral", ".config/corral"):
        (user.root / folder).mkdir(parents=True)
        (user.root / folder / "policy.toml").write_text('posture = "open"\n' + GRANT)
    user.attempt(text_of(user, SAID[attempt]))
    assert user.grants() == []
    assert not (user.home / ".config" / "corral" / "policy.toml").exists()


PTY = """
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
seen = b""
while b"> " not in seen:
    try:
        data = os.read(terminal, 4096)
    except OSError:
        break
    if not data:
        break
    seen += data
try:
    os.write(terminal, b"o\\r")
    while os.read(terminal, 4096):
        pass
except OSError:
    pass
os.waitpid(pid, 0)
"""


def test_terminal_made_by_a_command_is_no_person(user: Attacked) -> None:
    (user.root / "answer.py").write_text(PTY)
    words = shlex.join(user.corral("allow", user.id))
    # The words stand in a file, so that the guard sees only `python3 run.py`.
    (user.root / "run.py").write_text(
        f"import subprocess\nsubprocess.run('python3 answer.py ' + {words!r}, shell=True)\n"
    )
    user.attempt(f"python3 answer.py {words}")
    assert user.ask("claude", "python3 run.py").decision == "allow"
    user.attempt("python3 run.py")
    assert user.grants() == []
    user.run_as_user("python3 run.py")  # canary: outside the sandbox, and below no agent
    assert user.grants() != []


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_keys_sent_to_the_users_tmux_do_not_arrive(user: Attacked) -> None:
    sock = user.home / "tmux"
    question = shlex.join(["env", "-i", *(f"{k}={v}" for k, v in user.environ.items()), *user.corral("allow", user.id)])
    tmux = ["tmux", "-f", "/dev/null", "-S", str(sock)]
    user.run_as_user(shlex.join([*tmux, "new-session", "-d", "-x", "100", "-y", "50", f"{question}; cat"]))
    keys = f"tmux -S {sock} send-keys o Enter"
    try:
        screen = [*tmux, "capture-pane", "-p"]
        eventually(lambda: "[N]o >" in subprocess.run(screen, capture_output=True, text=True, check=False).stdout)
        (user.root / "keys.py").write_text(f"import os\nos.system({keys!r})\n")
        user.attempt(keys)
        user.attempt("python3 keys.py")
        assert user.grants() == []
        user.run_as_user(keys)  # canary
        eventually(lambda: list_approvals(user.environ) != [])
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, capture_output=True)


def stolen_answer(user: Attacked, keys: bytes) -> Path:
    """Make a real yes, copy its files into the project, and take the yes back."""
    assert user.allow(user.id, keys)[1] == 0
    copy = user.root / "copy"
    for name in ("approvals", "grants"):
        if (user.state / name).exists():
            shutil.copytree(user.state / name, copy / name)
    done = user.run(user.corral_text("grants", "revoke", "--all"))
    assert (done.returncode, user.grants()) == (0, []), done
    return copy


@pytest.mark.parametrize("keys", [b"o\r", b"p\r", b"d\r"], ids=["once", "call", "family"])
def test_command_cannot_write_an_answer(keys: bytes, user: Attacked) -> None:
    copy = stolen_answer(user, keys)
    put = f"cp -rp {copy}/. {user.state}/"
    (user.root / "put.py").write_text(f"import os\nos.system({put!r})\n")
    user.attempt(put)
    user.attempt("python3 put.py")
    assert user.grants() == []
    subprocess.run(["bash", "-c", put], check=True)  # canary: the files are good
    assert user.grants() != []


WRITTEN = ("approvals/{key}", "grants/{key}", "answers/{key}", "refusals/{id}", "pending/{key}")


@pytest.mark.parametrize("path", [*WRITTEN, "policy"])
@pytest.mark.parametrize("tool", ["Write", "Edit"])
def test_file_tool_cannot_write_an_answer(tool: str, path: str, user: Attacked) -> None:
    policy = user.home / ".config" / "corral" / "policy.toml"
    file = policy if path == "policy" else user.state / path.format(key="a" * 64, id=user.id)
    given = {"file_path": str(file), "content": GRANT, "old_string": "a", "new_string": "b"}
    call = {"hook_event_name": "PreToolUse", "cwd": str(user.root), "tool_name": tool, "tool_input": given}
    call["permission_mode"] = "acceptEdits"
    assert user.hook("claude", json.dumps(call).encode()).returncode == 2
    assert user.grants() == []


def test_policy_of_the_user_cannot_be_written(user: Attacked) -> None:
    policy = user.home / ".config" / "corral" / "policy.toml"
    put = f"mkdir -p {policy.parent} && printf %s {shlex.quote(GRANT)} > {policy}"
    (user.root / "put.py").write_text(f"import os\nos.system({put!r})\n")
    user.attempt(put)
    user.attempt("python3 put.py")
    assert user.grants() == []
    subprocess.run(["bash", "-c", put], check=True)  # canary
    assert user.ask("claude", "git push").decision == "allow"


@pytest.mark.parametrize("text", ['posture = "open"\n', GRANT, 'host_questions = ["claude"]\n'])
def test_policy_of_the_project_opens_nothing(text: str, user: Attacked) -> None:
    (user.root / "corral.toml").write_text(text)
    for mode in ("default", "bypassPermissions"):
        assert user.ask("claude", "git push", permission_mode=mode).decision == "deny"
    assert user.grants() == []


MODES = ["auto", "dontAsk", "bypassPermissions", "yolo", "Default", "", 1, True, None, ["default"], {"default": 1}]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_mode_in_which_nobody_answers_is_no_yes(mode: object, user: Attacked) -> None:
    user.policy('host_questions = ["claude"]\n')
    assert user.ask("claude", PUSH, permission_mode=mode).decision == "deny"
    assert user.ask("claude", PUSH, permission_mode="default").decision == "ask"  # canary


def test_once_is_one_run_also_for_two_at_the_same_time(user: Attacked) -> None:
    assert user.allow(user.id)[1] == 0
    *texts, later = [user.ask("claude", PUSH).command for _ in range(3)]
    both = [
        subprocess.Popen(["bash", "-c", text], env=user.environ, cwd=user.root, stdin=subprocess.DEVNULL)
        for text in texts
    ]
    codes = [process.wait(60) for process in both]
    assert codes.count(126) == 1, codes
    assert user.pushed()
    assert user.run(later).returncode == 126


def test_id_is_answered_once(user: Attacked) -> None:
    assert user.allow(user.id)[1] == 0
    with user.terminal("allow", user.id) as shown:
        assert shown.status() == 2


@pytest.mark.parametrize("text", [f"{PUSH} ", f" {PUSH}", PUSH.replace("-qm x", "-qm y"), f"{PUSH} -q"])
def test_call_that_differs_was_not_allowed(text: str, user: Attacked) -> None:
    assert user.allow(user.id)[1] == 0
    user.refused(text)
    assert user.ask("claude", PUSH).decision == "allow"  # canary


@pytest.mark.parametrize("moment", ["before the hook", "before the run"])
def test_remote_that_changed_gets_nothing(moment: str, user: Attacked) -> None:
    evil = user.home / "evil.git"
    user.git("init", "-q", "--bare", str(evil))
    assert user.allow(user.id)[1] == 0
    command = user.ask("claude", PUSH).command
    user.git("-C", str(user.root), "remote", "set-url", "origin", str(evil))
    if moment == "before the hook":
        user.refused(PUSH)
    else:
        assert user.run(command).returncode == 126
    assert list((evil / "refs" / "heads").iterdir()) == []


def test_link_that_changed_opens_nothing(user: Attacked) -> None:
    for name in ("one", "two"):
        (user.home / name).mkdir()
        (user.home / name / "x").write_text(f"text of {name}")
    link = user.root / "link"
    link.symlink_to("../one")
    assert user.allow(user.refused("cat link/x"))[1] == 0
    command, later = (user.ask("claude", "cat link/x").command for _ in range(2))
    link.unlink()
    link.symlink_to("../two")
    done = user.run(command)
    assert (done.returncode, "text of" in done.stdout) == (126, False), done
    link.unlink()
    link.symlink_to("../one")
    assert user.run(later).stdout == "text of one"  # canary


@pytest.mark.parametrize(
    "text",
    [
        "echo o | {allow}",
        "{allow} < answers",
        "setsid -w {allow}",
        "CLAUDECODE=1 {allow}",
        "{allow} & wait",
        "./claude",
    ],
    ids=["pipe", "file", "no terminal", "variable of an agent", "background", "below a host"],
)
def test_place_where_no_person_sits_is_not_asked(text: str, user: Attacked) -> None:
    allow = shlex.join(user.corral("allow", user.id))
    (user.root / "answers").write_text("o\n")
    (user.root / "claude").write_text(f"#!/bin/bash\n{allow}\ntrue\n")
    (user.root / "claude").chmod(0o755)
    words = ["env", "-i", "TERM=xterm", *(f"{name}={value}" for name, value in user.environ.items())]
    shown = OrphanScreen([*words, "bash", "-mc", f"{text.format(allow=allow)}; echo ended"], user.root)
    try:
        assert END not in shown.until(b"ended")
    finally:
        shown.close()
    assert user.grants() == []
    user.typed(allow)  # canary
    assert user.grants() != []


def test_sandbox_sees_no_question_of_a_held_connection(user: Attacked) -> None:
    """A command connects to a host that nobody allowed, and answers itself in the stores that it can reach."""
    user.policy('[containment]\nhosts = ["own.example=127.0.0.1"]\n')
    with answering() as port:
        code = (
            "import os, urllib.request\n"
            f"state = {str(user.state)!r}\n"
            "for name in ('watchers', 'held', 'approvals', 'grants', 'answers'):\n"
            "    try:\n"
            "        os.makedirs(f'{state}/{name}', exist_ok=True)\n"
            "        open(f'{state}/{name}/' + 'a' * 64, 'w').write('yes')\n"
            "    except OSError:\n"
            "        pass\n"
            f"print(urllib.request.urlopen('http://own.example:{port}/').read())\n"
        )
        (user.root / "reach.py").write_text(code)
        reply = user.ask("claude", "python3 reach.py")
        done = user.run(reply.command)
        assert (reply.decision, "answered" in done.stdout) == ("allow", False), done
        user.policy(f'[containment]\nhosts = ["own.example=127.0.0.1"]\nnetwork = ["own.example:{port}"]\n')
        assert "answered" in user.run(user.ask("claude", "python3 reach.py").command).stdout  # canary


def test_there_are_at_least_25_attempts() -> None:
    tests = Path(__file__).read_text()
    assert len(COMMANDS) + len(SAID) + len(WRITTEN) + len(MODES) >= 25
    assert len(re.findall(r"# canary", tests)) >= 8
