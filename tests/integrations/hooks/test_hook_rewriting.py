"""A rewritten command has the same output, status, directory and exports as the original, in every shell that hosts use."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hosting import DEADLINE_SECONDS, Owner
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

SHELLS = ("bash", "sh", "zsh")
# Claude Code runs a command by eval, and then asks the shell for its directory.
TRAIL = 'eval "$TEXT"; code=$?; pwd >"$PLACE"; exit $code'
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cf", "Zl", "Zp", "Co"]), max_size=12)


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return fresh(tmp_path)


def fresh(above: Path) -> Owner:
    owner = Owner(above)
    for name in ("sub", "sub/deep er", "ünïcode"):
        (owner.root / name).mkdir()
    (owner.root / "data.txt").write_text("one\ntwo\nthree\n")
    return owner


def rewritten(owner: Owner, text: str, host: str = "claude", cwd: Path | None = None, **given: object) -> str:
    """Return the rewritten command; empty if the command is not allowed."""
    call: dict[str, object] = {"command": text, **given}
    where = str(cwd or owner.root)
    envelope: dict[str, object] = {
        "hook_event_name": "PreToolUse",
        "cwd": where,
        "tool_name": "Bash",
        "tool_input": call,
    }
    if host == "copilot":
        envelope = {"cwd": where, "toolName": "bash", "toolArgs": json.dumps(call)}
    done = owner.hook(host, json.dumps(envelope).encode())
    answer = json.loads(done.stdout) if done.returncode == 0 else {}
    answer = answer.get("hookSpecificOutput", answer)
    changed = answer.get("updatedInput", answer.get("modifiedArgs", {}))
    return str(changed.get("command", ""))


def ran(
    owner: Owner, shell: str, text: str, *, stdin: bytes = b"", cwd: Path | None = None
) -> tuple[bytes, bytes, int, str]:
    """Run text in a shell as a host does; return stdout, stderr, status, and the shell's directory afterwards."""
    place = owner.home / "place"
    place.unlink(missing_ok=True)
    options = {"bash": ["--noprofile", "--norc"], "zsh": ["-f"]}.get(shell, [])
    done = subprocess.run(
        [shell, *options, "-c", TRAIL],
        env=owner.environ | {"TEXT": text, "PLACE": str(place), "LC_ALL": "C.UTF-8"},
        cwd=cwd or owner.root,
        input=stdin,
        capture_output=True,
        check=False,
        timeout=DEADLINE_SECONDS,
    )
    where = os.path.relpath(place.read_text().removesuffix("\n"), owner.root) if place.exists() else "."
    return done.stdout, done.stderr, done.returncode, where


PLAIN = [
    "cd sub", "cd 'sub/deep er'", "cd ..", "cd ünïcode", "cd nowhere", "cd -", "pwd", "true", "false", "(exit 7)", "exit 4",
    "for i in 1 2 3; do echo $i; done", "cat data.txt | tr a-z A-Z | head -2", "echo a && echo b || echo c", "! true", "echo 'it''s' \"a 'b' c\"",
    "cat", "read line; echo \"<$line>\"", "set -- a b; echo $# \"$2\"", "echo one \\\n  two", "# only a comment", "echo {a,b}{1,2}", "echo $# \"$@\"",
    "wc -l < data.txt", "grep -c nothing data.txt", "(cd sub; pwd | tail -c 4)", "echo x > made.txt; cat made.txt", "{ echo out; echo err >&2; }",
    "case a in a) echo yes;; *) echo no;; esac", "trap 'echo bye' EXIT", "set -e", "nosuchcommand_", "echo $((6 * 7))", "echo ${#PWD} >/dev/null",
]  # fmt: skip


def statement() -> st.SearchStrategy[str]:
    quoted = TEXTS.map(lambda text: "'" + text.replace("'", "'\\''") + "'")
    return st.one_of(
        quoted.map(lambda word: f"printf '%s\\n' {word}"),
        quoted.map(lambda word: f"printf '%s\\n' {word} >&2"),
        quoted.map(lambda word: f'x={word}; echo "[$x]"'),
        quoted.map(lambda word: f"cat <<'END OF TEXT'\n{word}\nEND OF TEXT"),
        quoted.map(lambda word: f'echo "$(printf %s {word})"'),
        quoted.map(lambda word: f"f() {{ echo {word}; return 3; }}; f"),
        st.sampled_from(PLAIN),
    )


SCRIPTS = st.lists(st.tuples(statement(), st.sampled_from(["\n", "; ", "\n\n"])), min_size=1, max_size=5).map(
    lambda parts: "".join(text + ("\n" if "<<" in text or text.startswith("#") else end) for text, end in parts)
)


@pytest.mark.real
@settings(max_examples=30, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(SCRIPTS)
@example("cd sub; false")
@example("cd 'sub/deep er'\nprintf '%s' \"it's\" '\"' '\\\\' '$HOME' '`x`' '!!'")
@example("cat <<A; cat <<'B'\n$((1 + 1))\nA\n$x `y`\nB\n")
@example("cd sub && cd .. && cd ünïcode; (exit 9)")
@example("cat; echo; cd sub")
@example("nosuchcommand_; cd sub; nosuchcommand_ 2>&1")
@example("echo first\n\n\nnosuchcommand_")
@example("trap 'echo bye' EXIT; cd sub")
def test_rewritten_script_behaves_the_same_in_every_shell(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    plain = fresh(tmp_path_factory.mktemp("plain"))
    contained = fresh(tmp_path_factory.mktemp("contained"))
    command = rewritten(contained, text)
    assume(command)
    expected = ran(plain, "bash", text, stdin=b"given\nmore\n")
    # The host's shell must not follow a `cd` out of the project.
    assume(not expected[3].startswith(".."))
    for shell in filter(shutil.which, SHELLS):
        (contained.root / "made.txt").unlink(missing_ok=True)
        assert ran(contained, shell, rewritten(contained, text), stdin=b"given\nmore\n") == expected


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("size", [20_000, 130_000, 250_000])
def test_command_longer_than_an_argument_runs(size: int, shell: str, owner: Owner) -> None:
    body = 'it\'s $HOME \\ "x"\n' * (size // 18)
    text = f"cat > long.txt <<'END'\n{body}END\ncd sub; false"
    command = rewritten(owner, text)
    assert len(command) < 4096
    out = ran(owner, shell, command)
    assert (out, (owner.root / "long.txt").read_text()) == ((b"", b"", 1, "sub"), body)


@pytest.mark.parametrize(
    "text", ["exit 3", "kill -TERM $$", "exec false", "nosuchcommand_", "./data.txt", "set -e; false; true"]
)
def test_exit_status_is_the_commands_own(text: str, owner: Owner) -> None:
    plain = subprocess.run(["bash", "-c", f"({text})"], cwd=owner.root, capture_output=True, check=False).returncode
    status = {-15: 143}.get(plain, plain)
    assert ran(owner, "bash", rewritten(owner, text))[2] == status


def test_rewritten_command_leaves_no_files(owner: Owner) -> None:
    for text in ("cd sub", "echo " + "x" * 20_000, "exit 1"):
        ran(owner, "bash", rewritten(owner, text))
    assert list((owner.state / "pending").iterdir()) == []
    assert list(owner.home.glob(".cache/corral/scratch/*/tmp/.corral*")) == []


def test_next_command_starts_in_the_last_directory(owner: Owner) -> None:
    where = owner.root / ran(owner, "bash", rewritten(owner, "cd sub"))[3]
    assert ran(owner, "bash", rewritten(owner, "cd 'deep er'; pwd | tail -c 8", cwd=where), cwd=where) == (
        b"deep er\n",
        b"",
        0,
        "sub/deep er",
    )


@pytest.mark.parametrize(
    "text",
    [
        "cd /usr",
        "cd /tmp",
        "mkdir -p gone; cd gone; rmdir ../gone",
        "cd sub; exit 0",
        "cd ../..",
        "mkdir 'a\nb'; cd 'a\nb'",
    ],
)
def test_host_shell_never_leaves_the_project(text: str, owner: Owner) -> None:
    assert ran(owner, "bash", rewritten(owner, text) or "false")[3] == "."


def test_host_shell_keeps_its_symlinked_directory(owner: Owner) -> None:
    link = owner.home / "link"
    link.symlink_to(owner.root)
    command = rewritten(owner, "true", cwd=link)
    done = subprocess.run(
        ["bash", "-c", f'cd "$0"; {command}; echo "$PWD"', str(link)],
        env=owner.environ,
        capture_output=True,
        check=True,
    )
    assert done.stdout == f"{link}\n".encode()


def test_background_command_is_confined_and_changes_no_directory(owner: Owner) -> None:
    command = rewritten(owner, "cd sub; echo done", run_in_background=True)
    done = ran(owner, "bash", f"{command} & wait $!")
    assert (done[0], done[2], done[3]) == (b"done\n", 0, ".")


def test_rewritten_command_is_confined(owner: Owner) -> None:
    victim = owner.home / "victim.txt"
    text = f"python3 -c \"open('{victim}', 'w')\""
    ran(owner, "bash", rewritten(owner, text))
    contained = victim.exists()
    subprocess.run(["bash", "-c", text], check=True)
    assert (contained, victim.exists()) == (False, True)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("host", ["claude", "copilot"])
def test_host_shell_runs_no_program_of_the_project(shell: str, host: str, owner: Owner) -> None:
    # This happens when the user activates the project's virtual environment before starting the host.
    folder, mark = owner.root / ".venv" / "bin", owner.home / "mark"
    folder.mkdir(parents=True)
    for name in ("rm", "env", "cat", "pwd", "test", "[", "cd", "true", "python3", "unset", "eval", "exit", "export"):
        (folder / name).write_text(f"#!/bin/sh\necho {name} >>{mark}\n")
        (folder / name).chmod(0o755)
    owner.environ["PATH"] = f"{folder}:{owner.environ['PATH']}"
    done = ran(owner, shell, rewritten(owner, "cd sub; export COLOUR=green", host))
    assert (done[1:], mark.exists()) == ((b"", 0, "sub"), False)
    ran(owner, shell, "rm x")
    assert mark.read_text() == "rm\n"


def test_project_policy_applies_when_the_command_runs(owner: Owner) -> None:
    owner.policy("timeout_seconds = 0.5\n")
    status = ran(owner, "bash", rewritten(owner, "sleep 30"))[2]
    (owner.root / "corral.toml").write_text('[[rule]]\ncommand = "make"\ndecision = "deny"\ndeny = ["make"]\n')
    assert (status, rewritten(owner, "make"), bool(rewritten(owner, "ls"))) == (124, "", True)


def test_policy_change_refuses_an_allowed_command(owner: Owner) -> None:
    command = rewritten(owner, "make --version")
    (owner.root / "corral.toml").write_text('[[rule]]\ncommand = "make"\ndecision = "deny"\ndeny = ["make"]\n')
    assert ran(owner, "bash", command)[2] == 126


class Session:
    """A shell session of a host such as Copilot CLI, whose state lasts from command to command."""

    def __init__(self, owner: Owner, shell: str) -> None:
        self._owner = owner
        options = {"bash": ["--noprofile", "--norc"], "zsh": ["-f"]}.get(shell, [])
        env = owner.environ | {"PLAIN": "host's", "LC_ALL": "C.UTF-8"}
        self._process = subprocess.Popen(
            [shell, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=owner.root
        )

    def run(self, text: str) -> str:
        """Type one line, and return the output until the next prompt."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{text}\necho; echo END\n".encode())
        self._process.stdin.flush()
        lines = iter(self._process.stdout.readline, b"END\n")
        return b"".join(lines).decode().removesuffix("\n").removesuffix("\n")

    def command(self, text: str) -> str:
        """Run a command in its rewritten form."""
        made = rewritten(self._owner, text, "copilot", Path(self.run("pwd")))
        assert made, text
        return self.run(made)

    def close(self) -> None:
        self._process.communicate(timeout=DEADLINE_SECONDS)


@pytest.mark.parametrize("shell", SHELLS)
def test_session_keeps_exports_and_directory(shell: str, owner: Owner) -> None:
    session = Session(owner, shell)
    session.command("export COLOUR=green WORDS='it'\"'\"'s $HOME' DEBUG=1; cd sub; LOCAL=1")
    seen = session.command('echo "$COLOUR|$WORDS|$DEBUG|$LOCAL"; pwd | tail -c 4')
    session.command("unset DEBUG; export COLOUR=red; cd ..")
    then = session.command('echo "$COLOUR|$WORDS|$DEBUG"; pwd | tail -c 8')
    outside = session.run('echo "$COLOUR|$WORDS|$DEBUG"')
    session.close()
    assert (seen, then, outside) == (
        "green|it's $HOME|1|\nsub",
        "red|it's $HOME|\nproject",
        "red|it's $HOME|",
    )


STEERING = [
    *(
        "PATH",
        "HOME",
        "SHELL",
        "IFS",
        "ENV",
        "BASH_ENV",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "PROMPT_COMMAND",
        "PS1",
        "PYTHONPATH",
        "GIT_SSH_COMMAND",
    ),
    *(
        "EDITOR",
        "PAGER",
        "NODE_OPTIONS",
        "GLIBC_TUNABLES",
        "GCONV_PATH",
        "LOCPATH",
        "XDG_STATE_HOME",
        "XDG_CONFIG_HOME",
        "HTTPS_PROXY",
        "CDPATH",
    ),
    *(
        "CORRAL_EXPORTED",
        "CLAUDE_PROJECT_DIR",
        "TMPDIR",
        "ZDOTDIR",
        "GITHUB_TOKEN",
        "MY_API_KEY",
        "SSH_AUTH_SOCK",
        "TMOUT",
        "MALLOC_CHECK_",
        "HISTFILE",
    ),
]


@pytest.mark.parametrize("shell", SHELLS)
def test_dangerous_exports_do_not_reach_the_host_shell(shell: str, owner: Owner) -> None:
    show = "; ".join(f'echo "{name}=${name}"' for name in STEERING)
    session = Session(owner, shell)
    before = session.run(show)
    # From a script: the shell refuses to set some of these names, and the guard refuses others.
    names = " ".join(f"'{name}'" for name in STEERING)
    script = owner.root / "steer.sh"
    script.write_text(f'for name in {names}; do export "$name=/evil"; done\n')
    session.command(". ./steer.sh; export PATH=/usr/bin:/bin HARMLESS=1")
    after, harmless = session.run(show), session.run("echo $HARMLESS")
    session.close()
    assert (after.replace("CORRAL_EXPORTED=HARMLESS", "CORRAL_EXPORTED="), harmless) == (before, "1")


def test_host_variable_does_not_reach_a_command(owner: Owner) -> None:
    owner.environ |= {"TEAM": "a secret of the host's"}
    session = Session(owner, "bash")
    seen = session.command('echo "<$TEAM>"')
    session.command("export OTHER=1")
    again = session.command('echo "<$TEAM>$OTHER"')
    session.close()
    assert (seen, again) == ("<>", "<>1")
