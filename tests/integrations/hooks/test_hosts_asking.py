"""The user answers while a released host runs: a push is refused or asked about, allowed, and reaches an sshd on loopback.

`tests/support/real_hosts.py` says where the hosts come from.
"""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import alone
import pytest
from observe import eventually
from real_hosts import Session, driven, missing, unshared
from screen import OrphanScreen
from ssh_server import SSHD, SshServer, make_server, ssh_agent
from tmux import TMUX, Tmux

PUSH = "git add -A && git commit -qm x && git push"
PORT = 2222  # in a network namespace of its own
SEEN = ("❯ 1. Yes", "2. No")  # the answers in Claude Code's prompt


class PushingSession(Session):
    """A host in a project whose remote is reached by ssh, on the branch `fix`."""

    def __init__(self, name: str, place: Path) -> None:
        super().__init__(name, place)
        if SSHD is None:
            missing("openssh-server is not installed")
        self._keys = place / "keys"
        self._server = make_server(self._keys, PORT)
        server = SshServer(self._keys, PORT, {})
        self.remote = place / "remote.git"
        subprocess.run(["git", "init", "-q", "--bare", self.remote], check=True)
        (self.home / ".gitconfig").write_text(f"[core]\nsshCommand = {server.command}\n")
        for words in (
            ["remote", "add", "origin", server.url(self.remote)],
            ["config", "user.name", "a"],
            ["config", "user.email", "a@example.com"],
            ["config", "push.autoSetupRemote", "true"],
            ["switch", "-qc", "fix"],
        ):
            subprocess.run(["git", "-C", str(self.work), *words], check=True)
        (self.work / "work.txt").write_text("work\n")

    def plan(self, *calls: dict[str, object], **more: object) -> dict[str, object]:
        """Return the plan in which the server runs beside the model."""
        made = super().plan(*calls, servers=[(self._server, PORT)], **more)
        environ: dict[str, str] = made["env"]  # type: ignore[assignment]
        return {**made, "env": {**environ, "SSH_AUTH_SOCK": str(self._keys / "agent")}}

    @property
    def branches(self) -> list[str]:
        """The branches that the remote has."""
        return sorted(path.name for path in (self.remote / "refs" / "heads").iterdir())

    @contextmanager
    def terminal(self, *words: str) -> Iterator[OrphanScreen]:
        """Run corral in a terminal of the user."""
        environ = {**alone.environment(self.home, TERM="xterm"), "COLUMNS": "80"}
        command = ["env", "-i", *(f"{key}={value}" for key, value in environ.items()), *alone.command(), *words]
        shown = OrphanScreen(command, self.work)
        try:
            yield shown
        finally:
            shown.close()

    def opt_in(self) -> None:
        """Install the hook as a person does, and let the host's prompt answer."""
        with self.terminal("install", self.name) as shown:
            shown.until(b"[y/N] ")
            shown.type(b"y\r")
            shown.until(b"corral posture NAME) > ")
            shown.type(b"b\r")
            shown.until(b"May Claude Code's prompt answer for you? [y]es, [N]o > ")
            shown.type(b"y\r")
            assert shown.status() == 0


@pytest.fixture
def pushing(request: pytest.FixtureRequest) -> Iterator[PushingSession]:
    """A host with its project outside /tmp, because the sandbox has its own /tmp."""
    with tempfile.TemporaryDirectory(prefix="corral-push-", dir="/var/tmp", ignore_cleanup_errors=True) as place:
        session = PushingSession(getattr(request, "param", "claude"), Path(os.path.realpath(place)))
        with ssh_agent(session.place / "keys"):
            yield session


@pytest.mark.parametrize("pushing", ["claude", "codex", "gemini"], indirect=True)
def test_refused_push_is_allowed_elsewhere_and_retried(pushing: PushingSession) -> None:
    """None of these hosts can ask here: Claude Code is in print mode, and the others never can."""
    pushing.install()
    call, answered = pushing.driven.shell(PUSH), pushing.place / "answered"
    plan = pushing.plan(call, {**call, "after": str(answered)}, call)
    command, report = unshared(plan, pushing.place)
    host = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: report.exists() or host.poll() is not None)
        (refused,) = json.loads(report.read_text())["results"]
        found = re.search(r"corral allow ([0-9a-f]{4,})", refused)
        assert (bool(found), pushing.branches) == (True, []), refused
        with pushing.terminal("allow", found[1] if found else "") as shown:
            question = shown.until(b"[N]o > ")
            assert str(pushing.remote).encode() in question.replace(b"\r\n", b"").replace(b" ", b"")
            shown.type(b"o\r")
            assert shown.status() == 0
        answered.touch()
        assert host.wait() == 0
    finally:
        host.kill()
        host.wait()
    _, again, once_more = json.loads(report.read_text())["results"]
    assert pushing.branches == ["fix"], again
    assert "corral allow " in once_more


@contextmanager
def claude_on_a_terminal(session: PushingSession, *words: str, calls: list[str]) -> Iterator[Tmux]:
    """Run Claude Code as its user does."""
    if TMUX is None:
        missing("tmux is not installed")
    known = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
    state = {
        "hasCompletedOnboarding": True,
        "theme": "dark",
        "customApiKeyResponses": {"approved": ["x"], "rejected": []},
        "projects": {str(session.work): known},
    }
    (session.home / ".claude.json").write_text(json.dumps(state))
    plan = session.plan(*map(session.driven.shell, calls), on_terminal=True, command=[session.program, *words, "go"])
    shown = Tmux(unshared(plan, session.place)[0], session.place / "tmux")
    try:
        yield shown
    finally:
        shown.close()


def test_yes_in_claude_codes_prompt_pushes(pushing: PushingSession) -> None:
    pushing.opt_in()
    calls = [PUSH, "git push origin fix:other", "touch end.txt"]
    with claude_on_a_terminal(pushing, "--permission-mode", "default", calls=calls) as shown:
        question = shown.until(SEEN[0])
        assert "corral asks about this: `git push`" in question
        assert "It stays in the sandbox." in question
        assert pushing.branches == []
        shown.type("1")
        # The yes was for one call. The next one is asked about again, and this time the user says no.
        shown.until("(refs/heads/other)")
        assert pushing.branches == ["fix"], shown.screen
        shown.until(SEEN[1])
        shown.type("2")
        shown.until("Interrupted")
        assert pushing.branches == ["fix"]


@pytest.mark.parametrize("mode", ["auto", "dontAsk", "bypassPermissions"])
def test_claude_code_is_not_asked_in_a_mode_that_answers_by_itself(mode: str, pushing: PushingSession) -> None:
    pushing.opt_in()
    with claude_on_a_terminal(pushing, "--permission-mode", mode, calls=[PUSH]) as shown:
        if mode == "bypassPermissions":
            shown.until("Yes, I accept")
            shown.type("Down")
            shown.until("❯ Yes, I accept")
            shown.type("Enter")
        shown.until("Not run")
        shown.until("The script is at its end.")
        assert [text for text in SEEN if text in shown.screen] == []
    (told,) = json.loads((pushing.place / "report.json").read_text())["results"]
    assert ("corral allow " in told, pushing.branches) == (True, [])


def test_print_mode_refuses_the_question(pushing: PushingSession) -> None:
    pushing.opt_in()
    plan = pushing.plan(
        pushing.driven.shell(PUSH), command=[pushing.program, "-p", "go", "--permission-mode", "default"]
    )
    (told,) = driven(plan, pushing.place)["results"]
    assert pushing.branches == [], told
