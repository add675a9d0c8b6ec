"""Attempts of an agent to read the log, trust a file, approve its own calls or change the policy, in the sandbox and through a hook.

In the sandbox the guard allows everything, so only the kernel stops an attempt. The canary runs the same text outside the sandbox.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hosting import PACKAGE, PYTHON, Owner, dependencies

from corral import Sandbox
from corral.integrations.hooks.launcher import launcher
from corral.policy.answers.pending_calls import PendingCall, host_session, save_pending_call

SECRET = "what-the-log-says"
DENY = 'profile = "strict"\n'
# Shell texts. $STATE, $CONFIG and $CACHE are the user's directories, $CORRAL is the installed package.
INSIDE = {
    "read the log": "cat $STATE/audit/log.jsonl",
    "read the log by a link": "ln -s $STATE/audit link && cat link/log.jsonl",
    "read the log by a hard link": "ln $STATE/audit/log.jsonl hard && cat hard",
    "read the log through the process that started it": "cat /proc/$HOST/root$STATE/audit/log.jsonl",
    "read the log through the working directory of that process": "cat /proc/$HOST/cwd/../.local/state/corral/audit/log.jsonl",
    "copy all of the user's files": "tar -cf all.tar -C / ${STATE#/} && grep -a 'what-the-log' all.tar",
    "remove the log": "rm -rf $STATE/audit",
    "cut the log": ": > $STATE/audit/log.jsonl",
    "append a line to the log": "echo '{}' >> $STATE/audit/log.jsonl",
    "move the log away": "mv $STATE/audit $STATE/gone",
    "trust a file": 'echo "$(sha256sum corral.toml | cut -c1-64) $PWD/corral.toml" >> $STATE/trust',
    "leave an approval to be taken": "mkdir -p $STATE/pending && echo x > $STATE/pending/00112233445566778899aabbccddeeff",
    "change the user's policy": "echo 'profile = \"workspace\"' > $CONFIG/policy.toml",
    "remove the user's policy": "rm $CONFIG/policy.toml",
    "put a compiled policy into the cache": "mkdir -p $CACHE/policy && echo x > $CACHE/policy/planted",
    "change the project's policy": "echo '' > corral.toml",
    "put another project's policy in its place": "echo '' > other && mv other corral.toml",
    "move the project's policy away": "mv corral.toml away.toml",
    "change the guard's rules": "echo x >> $CORRAL/guard/rules/planted.toml",
    "change corral itself": "echo 'raise SystemExit(0)' > $CORRAL/planted.py",
    "settings of an agent in the project": "mkdir -p .claude && echo '{}' > .claude/settings.json",
}


class Watched(Owner):
    """A user whose files are compared before and after."""

    def __init__(self, above: Path) -> None:
        super().__init__(above)
        self.config = self.home / ".config" / "corral"
        self.cache = self.home / ".cache" / "corral"
        self.package = above / "lib" / "corral"
        self.policy(DENY)
        (self.state / "audit").mkdir(parents=True, mode=0o700)
        (self.state / "audit" / "log.jsonl").write_text(SECRET)
        (self.state / "trust").write_text("")
        (self.root / "corral.toml").write_text(DENY)
        shutil.copytree(PACKAGE / "guard" / "rules", self.package / "guard" / "rules")

    def text(self, attempt: str) -> str:
        """Return an attempt as shell text with its variables."""
        places = {
            "STATE": self.state,
            "CONFIG": self.config,
            "CACHE": self.cache,
            "CORRAL": self.package,
            "HOST": os.getpid(),
        }
        return "".join(f"{name}={value}; " for name, value in places.items()) + attempt

    def seen(self) -> dict[str, bytes]:
        """Return the contents of all files that only the user may change."""
        above = self.home.parent
        folders = (self.state, self.config, self.cache / "policy", self.package)
        files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        # Commands change their copies of git directories.
        files = [path for path in files if not path.is_relative_to(self.state / "git")]
        files += [self.root / "corral.toml", self.root / ".claude" / "settings.json"]
        return {str(path.relative_to(above)): path.read_bytes() for path in files if path.is_file()}


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    # Not below /tmp, because every sandbox has its own /tmp.
    folder = Path(tempfile.mkdtemp(prefix="corral-owner-", dir="/var/tmp"))
    made = Watched(folder)
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(made.home))
    monkeypatch.chdir(made.root)
    yield made
    shutil.rmtree(folder)


@pytest.mark.parametrize("attempt", INSIDE)
def test_sandbox_cannot_read_or_change_the_users_files(
    attempt: str, owner: Watched, open_sandbox: Callable[..., Sandbox]
) -> None:
    text = owner.text(INSIDE[attempt])
    before = owner.seen()
    box = open_sandbox(project_root=str(owner.root))
    result = box.run(text, shell=True)
    box.close()
    if result.enforcement != "full":
        assert "CORRAL_MUST_CONTAIN" not in os.environ, result.missing_layers
        pytest.skip(f"this kernel does not give {result.missing_layers}")
    assert (SECRET in result.stdout_text, owner.seen()) == (False, before)
    bare = subprocess.run(["bash", "-c", text], cwd=owner.root, capture_output=True, text=True, check=False)
    assert SECRET in bare.stdout or owner.seen() != before, "the canary shows nothing"


# Commands sent to the hook of a host that runs allowed commands outside the sandbox. They are never run.
SAID = {
    "trust": "corral trust",
    "trust by another way": "python3 -m corral trust corral.toml",
    "trust on a terminal of its own": "script -qc 'corral trust' /dev/null",
    "trust with typed answers": "yes | corral trust",
    "trust behind something harmless": "git status && corral trust",
    "trust in a substitution": "echo $(corral trust)",
    "trust under another name": "cp $(command -v corral) ./x; ./x trust",
    "trust in a variable": "c=corral; $c trust",
    "grant": "corral allow --network evil.example:443 --for curl",
    "answer": "corral allow 7f3a",
    "posture": "corral posture open",
    "a stored call": "corral go 7f3a 'rm -rf x'",
    "a stored call, by its launcher": "~/.local/state/corral/bin/corral go 7f3a 'rm -rf x'",
    "a stored call, by the interpreter": "python3 -IS ~/.local/state/corral/bin/corral go 7f3a 'rm -rf x'",
    "run without a sandbox": "corral run --backend none -- cat ~/.ssh/id_rsa",
    "run with a directory file": "corral run --directory-file ~/.bashrc -- ls",
    "ask the hook for an approval": "echo '{}' | corral hook claude",
    "take the hook out": "corral uninstall claude --yes",
    "put another hook in": "corral install claude -y --root /tmp",
    "a policy by initialising": "corral init --force",
    "read the log": "corral log",
    "read the log as a file": "cat ~/.local/state/corral/audit/log.jsonl",
    "search for it": "grep -r token ~/.local/state",
    "the user's policy": "echo 'profile = \"workspace\"' > ~/.config/corral/policy.toml",
    "the project's policy": "sed -i s/strict/workspace/ corral.toml",
    "the project's policy by a link": "ln -sf evil.toml corral.toml",
    "the project's policy by a move": "mv evil.toml corral.toml",
    "the project's policy by git": "git checkout evil -- corral.toml",
    "another home": "HOME=$PWD corral run -- ls",
    "another place for policies": "XDG_CONFIG_HOME=$PWD corral run -- ls",
    "a server of its own": "corral mcp --http",
    "settings of the host": "echo '{}' > .claude/settings.json",
    "settings of the host, by a program": "python3 -c \"open('.cursor/hooks.json','w')\"",
    "the log's directory": "rm -rf ~/.local/state/corral",
}


def cursor(owner: Owner, text: str) -> "subprocess.CompletedProcess[bytes]":
    call = {
        "hook_event_name": "beforeShellExecution",
        "command": text,
        "cwd": str(owner.root),
        "workspace_roots": [str(owner.root)],
    }
    return owner.hook("cursor", json.dumps(call).encode())


@pytest.mark.parametrize("attempt", SAID)
def test_hook_allows_no_attempt(attempt: str, owner: Watched) -> None:
    owner.policy('profile = "workspace"\n')
    (owner.root / "corral.toml").unlink()
    answer = json.loads(cursor(owner, SAID[attempt]).stdout)
    assert answer.get("permission") in ("ask", "deny"), answer


def test_read_only_corral_commands_are_allowed(owner: Watched) -> None:
    for text in (
        "corral --version",
        "corral check -- rm -rf /",
        "corral explain --shell 'cat x | sh'",
        "corral rule name-rm",
        "corral doctor",
    ):
        assert cursor(owner, text).stdout == b"{}\n", text


FILES = {
    "read the log": ("Read", "HOME/.local/state/corral/audit/log.jsonl"),
    "search above the log": ("Grep", "HOME/.local"),
    "write an approval": ("Write", "HOME/.local/state/corral/pending/00112233445566778899aabbccddeeff"),
    "write the trust file": ("Edit", "HOME/.local/state/corral/trust"),
    "write the user's policy": ("Write", "HOME/.config/corral/policy.toml"),
    "write the project's policy": ("Write", "ROOT/corral.toml"),
    "write a compiled policy": ("Write", "HOME/.cache/corral/policy/planted"),
    "write the host's settings": ("Write", "HOME/.claude/settings.json"),
    "write the project's settings of the host": ("Write", "ROOT/.claude/settings.local.json"),
    "write through a link in the project": ("Write", "ROOT/link/policy.toml"),
}


@pytest.mark.parametrize("attempt", FILES)
def test_file_tools_cannot_reach_the_users_files(attempt: str, owner: Watched) -> None:
    (owner.root / "link").symlink_to(owner.config)
    tool, path = FILES[attempt]
    given = {"path" if tool == "Grep" else "file_path": owner.placed(path), "content": "x", "pattern": "x"}
    call = {"hook_event_name": "PreToolUse", "cwd": str(owner.root), "tool_name": tool, "tool_input": given}
    assert owner.hook("claude", json.dumps(call).encode()).returncode == 2


def run(owner: Owner, *words: str) -> "subprocess.CompletedProcess[bytes]":
    """Run `corral run` as a rewritten command does."""
    path = [f"--path={folder}" for folder in dependencies()]
    command = [
        PYTHON,
        "-I",
        "-S",
        str(PACKAGE / "__main__.py"),
        *path,
        "run",
        "--root",
        str(owner.root),
        "--cwd",
        str(owner.root),
        *words,
    ]
    return subprocess.run(command, env=owner.environ, cwd=owner.root, capture_output=True, check=False)


def go(owner: Owner, name: str, *text: str) -> "subprocess.CompletedProcess[bytes]":
    """Run `corral go` as a rewritten command does."""
    words = launcher(str(owner.root), owner.environ, dependencies())
    return subprocess.run(
        [*words, "go", name, *text], env=owner.environ, cwd=owner.root, capture_output=True, check=False
    )


def test_approval_runs_its_own_text_once(owner: Watched) -> None:
    owner.policy('profile = "workspace"\n')
    (owner.root / "corral.toml").unlink()
    root, rules = str(owner.root), frozenset({"argv-git-history"})
    text = "git branch -D nothing"
    call = PendingCall(text, root, root, rules, log_id="00", session=host_session())
    names = [save_pending_call(call, owner.environ) for _ in range(2)]
    other = go(owner, names[0], "git reset --hard")
    after_other = go(owner, names[0], text)
    first, again = go(owner, names[1], text), go(owner, names[1], text)
    # The check finds more rules than the person approved.
    more = go(owner, save_pending_call(call.replace(text="git reset --hard"), owner.environ), "git reset --hard")
    # Nobody approved it, and another host's process is above it.
    unasked = go(owner, save_pending_call(call.replace(asked=frozenset()), owner.environ), text)
    elsewhere = go(owner, save_pending_call(call.replace(session=frozenset({(1, 1)})), owner.environ), text)
    without = run(owner, "--shell", text)
    refused = (other, after_other, again, more, unasked, elsewhere, without)
    assert [done.returncode for done in refused] == [125, 125, 125, 126, 126, 125, 126]
    assert (first.returncode in (1, 128, 129), b"'nothing' not found" in first.stderr) == (True, True)


@pytest.mark.parametrize("words", [["go"], ["go", "0000"], ["go", "../trust"], ["go", ""], ["run", "--", "ls"], []])
def test_launcher_runs_nothing_but_a_stored_call(words: list[str], owner: Watched) -> None:
    command = [*launcher(str(owner.root), owner.environ, dependencies()), *words]
    done = subprocess.run(command, env=owner.environ, cwd=owner.root, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (125, b"")


def test_forged_directory_file_changes_only_the_directory(owner: Watched) -> None:
    # A command that opens the pipe waits for a reader until its time limit.
    owner.policy('profile = "workspace"\ntimeout_seconds = 3\n')
    (owner.root / "corral.toml").unlink()
    (owner.root / "sub").mkdir()
    root = str(owner.root)
    # The command knows the path of its directory file, and writes it before and after the shell does.
    forge = (
        "import os, re, time\n"
        "own = open('/proc/%d/cmdline' % os.getppid()).read()\n"
        "for name in re.findall(r'/[^ \\0;>]*\\.(?:directory|exports)', own):\n"
        "    os.path.lexists(name) and os.unlink(name)\n"
        "    os.mkfifo(name) if os.environ.get('PIPE') else os.symlink('/etc/passwd', name)\n"
    )
    (owner.root / "forge.py").write_text(forge)
    told = []
    for text in (
        "python3 forge.py",
        "PIPE=1 python3 forge.py & wait",
        "cd sub; python3 ../forge.py; exec true",
        'cd "/usr"',
        "cd sub; trap 'python3 ../forge.py' EXIT",
    ):
        call = PendingCall(text, root, root, log_id="00", keeps="exports", session=host_session())
        name = save_pending_call(call, owner.environ)
        go(owner, name, text)
        file = owner.state / "pending" / f"{name}.state"
        told.append(file.read_text() if file.exists() else "")
    allowed = {"", f"cd -- {owner.root}/sub\n"}
    assert {*told} <= allowed, told


def test_there_are_more_than_twenty_attempts() -> None:
    assert len(INSIDE) + len(SAID) + len(FILES) > 20
