"""Tries the completions in the real shells."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from screen import Screen

from corral.apps.cli.completion_scripts import SCRIPTS, describe_verb
from corral.apps.cli.verb import verb_names
from corral.apps.cli.verbs.completions import SHELLS, WORDS

CORRAL = (sys.executable, "-m", "corral")
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
HOSTS = ["claude", "codex", "copilot", "cursor", "gemini", "opencode", "pi"]


@pytest.fixture(scope="session")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("completions")
    for shell in SHELLS:
        made = subprocess.run([*CORRAL, "completions", shell], capture_output=True, check=True)
        (place / ("_corral" if shell == "zsh" else f"corral.{shell}")).write_bytes(made.stdout)
    return place


def bash(scripts: Path, line: list[str], cwd: Path) -> list[str]:
    code = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); _corral; '
        '(( ${#COMPREPLY[@]} )) && printf "%s\\n" "${COMPREPLY[@]}"; true'
    )
    command = ["bash", "--norc", "-c", code, "bash", str(scripts / "corral.bash"), *line]
    done = subprocess.run(command, cwd=cwd, env=os.environ | {"PATH": PATH}, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def fish(scripts: Path, line: list[str], cwd: Path) -> list[str]:
    code = "source $argv[1]; complete -C $argv[2]"
    command = ["fish", "--no-config", "-c", code, str(scripts / "corral.fish"), " ".join(line)]
    done = subprocess.run(command, cwd=cwd, env=os.environ | {"PATH": PATH}, capture_output=True, text=True, check=True)
    return [found.partition("\t")[0] for found in done.stdout.splitlines()]


CASES = [
    pytest.param(["corral", ""], verb_names(), id="verbs"),
    pytest.param(["corral", "expl"], ["explain"], id="one verb"),
    pytest.param(["corral", "run", "--prof"], ["--profile"], id="an option"),
    pytest.param(["corral", "check", "--profile", ""], ["strict", "workspace"], id="profiles"),
    pytest.param(["corral", "run", "--backend", "b"], ["bubblewrap"], id="a backend"),
    pytest.param(["corral", "rule", "name-visu"], ["name-visudo"], id="a rule"),
    pytest.param(["corral", "log", "--rule", "name-visu"], ["name-visudo"], id="a rule of the log"),
    pytest.param(["corral", "log", "--decision", ""], ["allow", "ask", "deny"], id="decisions of the log"),
    pytest.param(["corral", "log", "--host", "c"], ["claude", "codex", "cursor", "copilot"], id="hosts of the log"),
    pytest.param(["corral", "log", "ver"], ["verify"], id="what the log can do"),
    pytest.param(["corral", "install", ""], HOSTS, id="hosts"),
    pytest.param(["corral", "policy", "sh"], ["show"], id="what policy can do"),
    pytest.param(["corral", "grants", "rev"], ["revoke"], id="what grants can do"),
    pytest.param(["corral", "completions", "z"], ["zsh"], id="shells"),
    pytest.param(["corral", "run", "--grant"], [], id="what is for hooks alone"),
]


@pytest.mark.parametrize("shell", ["bash", "fish"])
@pytest.mark.parametrize(("line", "wanted"), CASES)
def test_line_is_completed(shell: str, line: list[str], wanted: list[str], scripts: Path, tmp_path: Path) -> None:
    found = {"bash": bash, "fish": fish}[shell](scripts, line, tmp_path)
    # Of the command itself each shell offers its own choice of options.
    assert sorted(word for word in found if not (len(line) == 2 and word.startswith("-"))) == sorted(wanted)


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_files_directories_and_commands_are_completed(shell: str, scripts: Path, tmp_path: Path) -> None:
    complete = {"bash": bash, "fish": fish}[shell]
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a file").touch()
    folders = complete(scripts, ["corral", "run", "--root", "a"], tmp_path)
    assert [word.rstrip("/").replace("\\", "") for word in folders] == ["a folder"]
    assert "sha256sum" in complete(scripts, ["corral", "run", "--", "sha256su"], tmp_path)
    behind = complete(scripts, ["corral", "run", "--", "cat", "a"], tmp_path)
    assert {word.rstrip("/").replace("\\", "") for word in behind} >= {"a file"}
    assert complete(scripts, ["corral", "doctor", "--", "sha256su"], tmp_path) == []


def test_bash_completes_a_value_after_an_equals_sign(scripts: Path, tmp_path: Path) -> None:
    assert bash(scripts, ["corral", "run", "--profile", "=", "st"], tmp_path) == ["strict"]
    assert bash(scripts, ["corral", "run", "--profile", "="], tmp_path) == ["strict", "workspace"]


@pytest.mark.parametrize("shell", ["zsh"])
@pytest.mark.parametrize(
    ("typed", "becomes"),
    [
        ("corral expl", "corral explain"),
        ("corral run --prof", "corral run --profile"),
        ("corral run --profile=st", "corral run --profile=strict"),
        ("corral check --profile wor", "corral check --profile workspace"),
        ("corral install gem", "corral install gemini"),
        ("corral log ver", "corral log verify"),
        ("corral log --decision de", "corral log --decision deny"),
        ("corral rule name-visu", "corral rule name-visudo"),
        ("corral run -- sha256su", "corral run -- sha256sum"),
        ("corral run --root fol", "corral run --root folder"),
        ("corral run -- cat fil", "corral run -- cat file.txt"),
    ],
)
def test_zsh_completes_a_line(shell: str, typed: str, becomes: str, scripts: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.txt").touch()
    shown = Screen([shell, "-f", "-i"], tmp_path, columns=120, environ={"PATH": PATH, "PS1": "> ", "TERM": "dumb"})
    try:
        shown.type(f"autoload -U compinit; compinit -u -D; source {scripts}/_corral; print re''ady\r".encode())
        shown.until(b"ready\r\n")
        shown.until(b"> ")
        shown.type(typed.encode() + b"\t\x01print -r -- '[\x05]'\r")
        shown.until(b"\r\n[")
        assert shown.until(b"]").decode() == f"{becomes}]"
    finally:
        shown.close()


def test_hidden_options_are_not_completed() -> None:
    for name in verb_names():
        verb = describe_verb(name)
        shown = {option for one in verb.options for option in one.names}
        assert "--help" in shown
        assert not shown & {"--grant", "--directory-file", "--exports", "--call", "--words"}


def test_words_of_a_script_need_no_quoting() -> None:
    for kind in WORDS:
        done = subprocess.run([*CORRAL, "completions", "--words", kind], capture_output=True, text=True, check=True)
        words = done.stdout.split("\n")[:-1]
        assert ("name-sudo" in words) == (kind == "rules")
        assert all(word.replace("-", "").isalnum() for word in words if word)


def test_every_shell_has_a_script() -> None:
    assert set(SHELLS) == set(SCRIPTS)


def test_shell_defaults_to_the_environment(tmp_path: Path) -> None:
    for shell, status in (("/bin/zsh", 0), ("/bin/tcsh", 125)):
        done = subprocess.run(
            [*CORRAL, "completions"],
            env=os.environ | {"SHELL": shell},
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stdout.startswith(b"#compdef corral")) == (status, status == 0)
