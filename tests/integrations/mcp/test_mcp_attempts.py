"""Attempts of an agent, through the tools, to read the log, trust a file, approve its own calls or change the policy.

Each attempt is made twice: in the call itself, which the guard checks, and in a script of the project, which only the kernel
stops. The canary runs the same text outside the sandbox on a copy, where it succeeds.
"""

import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from mcp_client_ways import Home, connected, served, told

from corral._lib.sha256 import sha256_hex

MARK = "only-the-user-reads-this"
LOOSE = '[containment]\nnetwork = "on"\n'
READ = {
    "by its path": "cat {log}",
    "by another program": "python3 -c 'print(open(\"{log}\").read())'",
    "by a link to its directory": "ln -s {state} peek; cat peek/audit/*.jsonl",
    "by a hard link": "ln {log} hard; cat hard",
    "by its own root": "cat /proc/self/root{log}",
    "by the root of the first process": "cat /proc/1/root{log} || cat {log}",
    "by the root of any process": "cat /proc/[0-9]*/root{log}",
    "by the working directory of any process": "cat /proc/[0-9]*/cwd/../home/.local/state/corral/audit/*.jsonl",
    "by a copy": "cp -r {state} copy && cat copy/audit/*.jsonl",
    "by an archive": "tar cf all.tar {state} && grep -a o all.tar",
    "by a search": "find {top} -name '*.jsonl' -exec cat '{{}}' +",
    "by going there": "cd {state}/audit && cat *.jsonl",
    "by a way out of the project": "cat ../home/.local/state/corral/audit/*.jsonl",
    "by a descriptor that a shell opens": "exec 9<{log}; cat <&9",
    "by a background process": "(sleep 0.1; cat {log}) & wait",
    "by the variable HOME": "HOME={home}; cat ~/.local/state/corral/audit/*.jsonl",
}
WRITE = {
    "another line in the log": "echo '{{}}' >> {log}",
    "an empty log": ": > {log}",
    "no log": "rm -rf {state}",
    "a log elsewhere": "mv {state} aside",
    "a policy of its own": "printf '[containment]\\nnetwork = \"on\"\\n' > {config}/policy.toml",
    "a rule taken out": "sed -i /denylist/d {config}/policy.toml",
    "another policy in its place": "touch mine && mv mine {config}/policy.toml",
    "no policy": "rm -rf {config}",
    "another directory in its place": "mv {config} {config}.old && mkdir {config}",
    "another project file": "echo >> corral.toml",
    "the project file gone": "rm corral.toml",
    "the project file renamed": "mv corral.toml other.toml",
    "trust in the project's file": "echo '{digest} {project}/corral.toml' >> {state}/trust",
    "a grant": "mkdir -p {state}/approvals && echo '{{}}' > {state}/approvals/{digest}",
    "a call that seems approved": "mkdir -p {state}/pending && echo x > {state}/pending/00000000000000000000000000000000",
    "a compiled policy": "mkdir -p {cache}/policy && echo x > {cache}/policy/{digest}-2",
    "rights for others": "chmod -R a+rwX {home}",
}
BY_CORRAL = {
    "trusting the file": "yes y | {corral} trust",
    "trusting the file on a terminal of its own": "script -qec '{corral} trust' /dev/null <<< y",
    "approving a call": "yes o | {corral} allow",
    "approving a call on a terminal of its own": 'script -qec "{corral} allow" /dev/null <<< p',
    "a policy by variables": "mkdir -p mine/corral; echo > mine/corral/policy.toml; XDG_CONFIG_HOME=$PWD/mine XDG_STATE_HOME=$PWD/mine {corral} run -- cat {log}",
    "writing a policy for all projects": "{corral} init --user",
    "installing itself elsewhere": "{corral} uninstall claude --yes",
    "reading the log by its own program": "{corral} log --json",
}


class Owner(Home):
    """A home directory with all of corral's files, and a project."""

    def __init__(self, top: Path) -> None:
        super().__init__(top)
        self.cache = self.home / ".cache" / "corral"
        self.log = self.state / "audit" / "log.jsonl"
        self.policy('denylist = ["shred"]\n')
        for path in (self.state, self.state / "audit", self.state / "approvals", self.cache):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.project / "corral.toml").write_text(LOOSE)
        (self.state / "trust").write_text(f"{'0' * 64} /nowhere\n")

    def words(self) -> dict[str, object]:
        """Return the values of the placeholders in attempts."""
        named = ("top", "home", "project", "state", "config", "cache", "log")
        corral = f"{shlex.quote(sys.executable)} -m corral"
        return {name: getattr(self, name) for name in named} | {"digest": sha256_hex(LOOSE.encode()), "corral": corral}

    def kept(self) -> dict[str, tuple[int, bytes]]:
        """Return all of the user's files, except corral's log and cache."""
        tops = (self.home, self.project / "corral.toml")
        found = {path for top in tops for path in (top, *top.rglob("*")) if path.exists()}
        own = {path for path in found if not {"audit", ".cache"} & set(path.parts)}
        return {str(path): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"") for path in own}

    def all(self) -> object:
        """Return all of the user's files, with corral's log and cache."""
        return self.kept(), self.audit(), sorted(map(str, self.cache.rglob("*")))


@pytest.fixture(scope="module")
def owner() -> Iterator[Owner]:
    """A user whose files are not below /tmp, because every sandbox has its own /tmp."""
    with tempfile.TemporaryDirectory(prefix="corral-mcp-", dir="/var/tmp") as top:
        made = Owner(Path(top))
        made.home.chmod(0o700)
        yield made


Call = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def call(owner: Owner) -> Iterator[Call]:
    """A function that calls a tool over one connection. The log contains a line with MARK."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(connected(owner, "stdio", "auto")) as client,
    ):

        def run(tool: str, **arguments: Any) -> dict[str, Any]:
            result = portal.call(lambda: client.call_tool(tool, arguments))
            return {"error": result.content[0].text} if result.is_error else told(result)

        assert run("run_command", argv=["true", MARK])["ok"]
        assert MARK in owner.audit()
        yield run


def forms(text: str, owner: Owner, call: Call) -> list[dict[str, Any]]:
    """Make an attempt in the call itself and in a script of the project; return both results."""
    text = text.format(**owner.words())
    script = owner.project / "attempt.sh"
    script.write_text(text + "\n")
    return [call("run_command", shell=text), call("run_command", argv=["bash", "attempt.sh"])]


def uncontained(text: str, owner: Owner, tmp_path: Path) -> tuple[str, bool]:
    """Make an attempt outside the sandbox on a copy of the user's files; return its output and whether it changed anything."""
    shutil.copytree(owner.top, tmp_path / "copy", symlinks=True)
    copy = Owner(tmp_path / "copy")
    before = copy.all()
    words = ["bash", "-c", text.format(**copy.words())]
    done = subprocess.run(words, cwd=copy.project, env=copy.env, capture_output=True, timeout=60, check=False)
    return done.stdout.decode("utf-8", "replace"), copy.all() != before


@pytest.mark.parametrize("text", READ.values(), ids=READ)
def test_agent_cannot_read_the_log(owner: Owner, call: Call, tmp_path: Path, text: str) -> None:
    for result in forms(text, owner, call):
        assert "error" not in result
        assert MARK not in result["stdout"] + result["stderr"]
    assert MARK in uncontained(text, owner, tmp_path)[0]


@pytest.mark.parametrize("text", WRITE.values(), ids=WRITE)
def test_agent_cannot_change_the_users_files(owner: Owner, call: Call, tmp_path: Path, text: str) -> None:
    before, lines = owner.kept(), owner.audit()
    for result in forms(text, owner, call):
        assert "error" not in result
    assert owner.kept() == before
    # The log has grown by the entries about the attempts.
    assert owner.audit().startswith(lines)
    assert len(owner.audit()) > len(lines)
    assert call("run_command", argv=["shred", "x"])["denied"]
    assert uncontained(text, owner, tmp_path)[1]


@pytest.mark.parametrize("text", BY_CORRAL.values(), ids=BY_CORRAL)
def test_corral_commands_do_not_help_an_agent(owner: Owner, call: Call, text: str) -> None:
    before, lines = owner.kept(), owner.audit()
    for result in forms(text, owner, call):
        assert "error" not in result
        assert MARK not in result["stdout"] + result["stderr"]
    assert owner.kept() == before
    assert owner.audit().startswith(lines)


def test_tool_arguments_cannot_reach_the_users_files(owner: Owner, call: Call) -> None:
    before = owner.kept()
    for cwd in (owner.state, owner.state / "audit", "../home/.local/state/corral/audit", owner.home, "/proc/self/root"):
        result = call("run_command", shell="cat *.jsonl; pwd", cwd=str(cwd))
        assert MARK not in str(result)
        assert result.get("denied") or result["exit_code"] != 0
    for name in (str(owner.log), "../audit/log.jsonl", "file://" + str(owner.log)):
        for tool in ("read_output", "stop_process"):
            assert MARK not in call(tool, process_id=name)["error"]
    assert owner.kept() == before


def test_output_file_cannot_be_replaced_by_a_link(owner: Owner, call: Call) -> None:
    before, lines = owner.kept(), owner.audit()
    long = "seq 1 100000"
    path = call("run_command", shell=long)["full_output_path"]
    assert path.startswith("/tmp/")
    # corral writes new output files and removes old ones in a directory that commands can write.
    script = owner.project / "lead.sh"
    script.write_text(f"rm {path}; ln -s {owner.log} {path}; ln -s {owner.state} /tmp/state")
    assert call("run_command", argv=["bash", "lead.sh"])["exit_code"] == 0
    for _ in range(20):
        assert call("run_command", shell=long)["full_output_path"]
    assert MARK not in call("run_command", argv=["cat", path])["stdout"]
    assert owner.kept() == before
    assert owner.audit().startswith(lines)


def test_command_cannot_kill_or_inspect_the_server(owner: Owner, call: Call) -> None:
    text = (
        "kill -9 $PPID; kill -9 -1; pkill -9 -f corral; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'"
    )
    for result in forms(text, owner, call):
        # The server has that variable, commands do not.
        assert "PYTHONPATH" not in result["stdout"]
    assert call("run_command", argv=["echo", "here"])["stdout"] == "here\n"


def test_command_cannot_connect_to_the_http_server(owner: Owner) -> None:
    ask = "import urllib.request; urllib.request.urlopen('{url}', timeout=5)"
    with served(owner) as server:
        outside = subprocess.run(
            [sys.executable, "-c", ask.format(url=server.url)], capture_output=True, text=True, check=False
        )
        # The canary: outside the sandbox, the server answers and requires the token.
        assert "401" in outside.stderr
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(connected(owner, "http", "auto", server)) as client,
        ):
            words = {"argv": ["python3", "-c", ask.format(url=server.url)]}
            result = told(portal.call(lambda: client.call_tool("run_command", words)))
            found = told(portal.call(lambda: client.call_tool("run_command", {"shell": "env; cat /proc/self/environ"})))
    assert "401" not in result["stderr"]
    assert "Errno" in result["stderr"] or result["denied"]
    assert server.token not in found["stdout"]
