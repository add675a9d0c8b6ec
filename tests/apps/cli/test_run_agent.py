"""A coding agent in the sandbox: its terminal, its settings, its hosts, and the question before it starts."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hosting import answering
from observe import free_port
from screen import Screen

from corral import Containment, PolicyError, Sandbox, SandboxConfig
from corral.policy.agent_profiles import (
    AgentProfile,
    agent_for_program,
    agent_for_settings,
    agent_names,
    load_agent,
    parse_agent,
)

CORRAL = (sys.executable, "-m", "corral", "run")
ASKED = b"Grant it for this run? [y]es, [N]o > "
# Not a model, but all an agent does besides: it keeps settings, talks to hosts, starts programs, and sits at a terminal.
STAND_IN = f"""#!{os.path.realpath(sys.executable)}
import os, subprocess, sys, urllib.request
def do(words):
    if words[0] == "keep":
        folder = os.path.join(os.environ.get("CLAUDE_CONFIG_DIR", "/nonexistent"), words[1])
        open(folder, "w").write(words[2])
        return "kept"
    if words[0] == "get":
        return urllib.request.urlopen(words[1], timeout=10).read().decode()
    if words[0] == "start":
        done = subprocess.run(words[1:], capture_output=True, text=True)
        return (done.stdout + done.stderr).strip()
    return os.environ.get(words[1], "unset")
interactive = sys.stdin.isatty()
if interactive:
    print("stand-in on", os.get_terminal_size().columns, "columns")
while True:
    if interactive:
        print("you> ", end="", flush=True)
    line = sys.stdin.readline().split()
    if not line or line == ["quit"]:
        break
    try:
        print("=", do(line), flush=True)
    except OSError as error:
        print("!", error, flush=True)
"""


class Home:
    """A home directory with an agent in it, and a server that it could talk to."""

    def __init__(self, base: Path, port: int) -> None:
        self.port = port
        self.project = base / "project"
        self.home = base / "home"
        self.config = base / "config" / "corral"
        tools = base / "tools" / "bin"
        for folder in (self.project, self.home / ".claude", tools):
            folder.mkdir(parents=True)
        self.config.mkdir(parents=True, mode=0o700)
        (self.home / ".claude" / "settings.json").write_text("{}")
        (self.home / ".ssh").mkdir()
        (self.home / ".ssh" / "id").write_text("canary")
        (tools / "claude").write_text(STAND_IN)
        (tools / "claude").chmod(0o755)
        self.environ = {
            **{name: os.environ[name] for name in ("LANG", "PYTHONPATH") if name in os.environ},
            "PATH": f"{tools}:/usr/bin:/bin",
            "HOME": str(self.home),
            "ANTHROPIC_API_KEY": "of-the-owner",
            **{f"XDG_{kind}_HOME": str(base / kind.lower()) for kind in ("CACHE", "STATE", "CONFIG")},
        }
        self.policy("")

    def policy(self, text: str) -> None:
        (self.config / "policy.toml").write_text(
            f'{text}\n[containment]\nhosts = ["own.example=127.0.0.1"]\n{self.more}'
        )

    more = ""

    def run(self, *words: str, said: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*CORRAL, *words],
            cwd=self.project,
            env=self.environ,
            input=said,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def home() -> Iterator[Home]:
    # Not in /tmp, which is scratch for the sandbox.
    place = tempfile.TemporaryDirectory(prefix="corral-agents-", dir="/var/tmp", ignore_cleanup_errors=True)
    with answering() as port, place as base:
        yield Home(Path(base), port)


@pytest.fixture
def screen(home: Home) -> Iterator[Callable[..., Screen]]:
    made: list[Screen] = []

    def make(*words: str, **environ: str) -> Screen:
        made.append(Screen([*CORRAL, *words], home.project, environ={**home.environ, "NO_COLOR": "1"} | environ))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_agent_gets_its_terminal_settings_and_hosts(home: Home, screen: Callable[..., Screen]) -> None:
    url = f"own.example:{home.port}"
    one = screen("--network", url, "--", "claude")
    asked = one.until(ASKED).decode()
    for text in ("Claude Code would reach", "api.anthropic.com:443", url, f"{home.home}/.claude", "ANTHROPIC_API_KEY"):
        assert text in asked
    assert ".ssh" not in asked
    one.type(b"y\n")
    assert b"stand-in on 80 columns" in one.until(b"you> ")

    def say(text: str) -> str:
        one.type(f"{text}\n".encode())
        return one.until(b"you> ").decode()

    assert "= kept" in say("keep history.jsonl one")
    assert (home.home / ".claude" / "history.jsonl").read_text() == "one"
    assert "= answered" in say(f"get http://{url}/")
    assert "403" in say("get http://evil.example/")
    assert "= of-the-owner" in say("show ANTHROPIC_API_KEY")
    # Its programs are where it is.
    assert "No such file" in say(f"start cat {home.home}/.ssh/id")
    assert "403" in say("start curl -sS -o /dev/null -w %{http_code} http://evil.example/")
    assert os.readlink("/proc/self/ns/net") not in say("start readlink /proc/self/ns/net")
    # Settings that the agent runs outside the sandbox next time are unchanged.
    assert "!" in say("keep settings.json forged")
    assert (home.home / ".claude" / "settings.json").read_text() == "{}"
    one.type(b"quit\n")
    assert one.status() == 0
    assert b"evil.example:80" in one.seen


def test_declined_agent_does_not_run(home: Home, screen: Callable[..., Screen]) -> None:
    for answer in (b"n\n", b"\n", b"\x04", b"\x03"):
        one = screen("--", "claude")
        one.until(ASKED)
        one.type(answer)
        assert one.status() == 126
        assert b"stand-in" not in one.seen


def test_run_grants_are_logged(home: Home, screen: Callable[..., Screen]) -> None:
    one = screen("--network", "index.example:443", "--", "true")
    one.until(ASKED)
    one.type(b"y\n")
    assert one.status() == 0
    log = Path(home.environ["XDG_STATE_HOME"], "corral", "audit", "log.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (granted,) = [line for line in lines if line["event"] == "grant"]
    assert "network index.example:443" in granted["reason"]


def test_port_is_published_after_a_yes(home: Home, screen: Callable[..., Screen]) -> None:
    port = free_port()
    one = screen(
        "--publish",
        str(port),
        "--timeout",
        "100",
        "--",
        "python3",
        "-m",
        "http.server",
        "--bind",
        "127.0.0.1",
        str(port),
    )
    assert f"publish   {port} ".encode() in one.until(ASKED)
    one.type(b"y\n")
    one.until(b"Serving HTTP")
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert b"200 OK" in sock.makefile("rb").readline()
    one.type(b"\x03")
    one.status()


def test_no_terminal_no_run_grants(home: Home) -> None:
    asked = (["--agent", "claude", "--", "claude"], ["--network", "index.example:443", "--", "true"])
    for words in (*asked, ["--publish", "8888", "--", "true"]):
        done = home.run(*words)
        assert done.returncode == 125
        assert "only a person at a terminal can grant" in done.stderr
    # By its name alone it is a program like any other.
    done = home.run("--", "claude", said="show CLAUDE_CONFIG_DIR\nquit\n")
    assert (done.returncode, done.stdout) == (0, "= unset\n")


@pytest.mark.parametrize("variable", ["CLAUDECODE", "CODEX_SANDBOX"])
def test_agent_cannot_grant_itself_more(variable: str, screen: Callable[..., Screen]) -> None:
    one = screen("--network", "index.example:443", "--", "true", **{variable: "1"})
    assert one.status() == 125
    assert b"this is the shell of a coding agent" in b" ".join(one.seen.split())


def test_no_ask_grants_nothing(screen: Callable[..., Screen]) -> None:
    one = screen("--no-ask", "--network", "index.example:443", "--", "true")
    assert one.status() == 125


def test_agent_in_the_user_policy_needs_no_question(home: Home) -> None:
    home.more = 'agents = ["claude"]\n'
    home.policy("")
    done = home.run("--", "claude", said="show ANTHROPIC_API_KEY\nkeep x y\nget http://evil.example/\nquit\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["= of-the-owner", "= kept"]
    assert "api.anthropic.com:443" in done.stderr
    assert "evil.example:80" in done.stderr
    other = home.run("--agent", "none", "--", "claude", said="show ANTHROPIC_API_KEY\nquit\n")
    assert other.stdout == "= unset\n"


@pytest.mark.parametrize("way", ["by its path", "by a link", "first in PATH"])
def test_writable_program_is_not_a_known_agent(way: str, home: Home) -> None:
    home.more = 'agents = ["claude"]\n'
    home.policy("")
    program = home.project / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    words = {"by its path": "bin/claude", "by a link": str(home.home.parent / "claude"), "first in PATH": "claude"}
    if way == "by a link":
        (home.home.parent / "claude").symlink_to(program)
    elif way == "first in PATH":
        home.environ["PATH"] = f"{program.parent}:{home.environ['PATH']}"
    done = home.run("--", words[way], said="show ANTHROPIC_API_KEY\nquit\n")
    assert "of-the-owner" not in done.stdout
    assert "api.anthropic.com" not in done.stderr


def test_injected_variable_does_not_enter_the_sandbox(home: Home) -> None:
    home.more = 'agents = ["claude"]\n'
    home.policy("")
    asking = "show ANTHROPIC_API_KEY\nquit\n"
    assert "of-the-owner" in home.run("--", "claude", said=asking).stdout
    home.more += 'inject = ["api.anthropic.com:443 X-Api-Key: ${ANTHROPIC_API_KEY}"]\n'
    home.policy("")
    done = home.run("--", "claude", said=asking)
    assert done.returncode == 0, done
    assert "of-the-owner" not in done.stdout + done.stderr


def test_project_policy_cannot_name_an_agent(home: Home) -> None:
    (home.project / "corral.toml").write_text('[containment]\nagents = ["claude"]\n')
    done = home.run("--", "claude", said="show ANTHROPIC_API_KEY\nquit\n")
    assert done.stdout == "= unset\n"


def test_grants_of_the_policy_need_no_question(home: Home) -> None:
    home.more = f'network = ["own.example:{home.port}", "*.example.org:443"]\n'
    home.policy("")
    done = home.run("--network", "a.example.org:443", "--", "curl", "-sS", f"http://own.example:{home.port}/")
    assert (done.returncode, done.stdout) == (0, "answered"), done.stderr


def test_agent_has_no_default_time_limit(home: Home, screen: Callable[..., Screen]) -> None:
    from corral.apps.cli import run_agent
    from corral.apps.cli.arguments import parse

    options = parse(["run", "--agent", "claude", "--", "claude"])
    config = SandboxConfig(str(home.project), containment=Containment(agents=("claude",)))
    made = run_agent.config_with_grants(options, config, load_agent("claude"))
    assert made is not None
    assert made.timeout_seconds is None
    limited = parse(["run", "--timeout", "5", "--agent", "claude", "--", "claude"])
    kept = run_agent.config_with_grants(limited, config, load_agent("claude"))
    assert kept is not None
    assert kept.timeout_seconds == config.timeout_seconds


# The profiles.


@pytest.mark.parametrize("name", agent_names())
def test_agent_profiles_are_valid(name: str) -> None:
    agent = load_agent(name)
    assert agent.title
    assert agent.programs
    assert agent.settings
    assert all(agent_for_program(f"/opt/x/{program}") == agent for program in agent.programs)
    assert all(agent_for_settings(f"/home/u/{path}", "/home/u") == agent for path in agent.settings)
    assert all(any(own.startswith(f"{path}/") for path in agent.settings) for own in agent.session)
    # Nothing that belongs to others.
    assert not {path.split("/")[0] for path in agent.settings} & {".ssh", ".aws", ".gnupg", ".bashrc", ".gitconfig"}
    assert all(port == "443" for port in (text.rpartition(":")[2] for text in agent.network))


def test_unknown_program_is_not_an_agent() -> None:
    assert agent_for_program("ls") is None
    assert agent_for_settings("/home/u/.ssh", "/home/u") is None
    with pytest.raises(PolicyError, match="known: aider, claude"):
        load_agent("clyde")


@pytest.mark.parametrize(
    "data", [{"titel": "x"}, {"settings": ["/etc"]}, {"settings": ["../x"]}, {"settings": ["~/x"]}, {"network": ["x"]}]
)
def test_invalid_agent_profile_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_agent("x", {"title": "x", **data})
    assert parse_agent("x", {"title": "x"}) == AgentProfile("x", "x", ())


def test_only_agent_settings_can_be_settings(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / ".ssh").mkdir()
    config = SandboxConfig(str(tmp_path / "p"), containment=Containment(settings=(str(tmp_path / ".ssh"),)))
    with Sandbox(config) as box, pytest.raises(PolicyError, match="settings directory"):
        box.run(["true"])
