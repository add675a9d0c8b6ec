"""Help teaches and tells the truth: every verb has examples, and every example is a command line that corral takes."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from corral.apps.cli.arguments import parse, verb_parser
from corral.apps.cli.help import ABOUT, GROUPS, VERBS

HARMLESS = ("check", "explain", "rule", "completions", "status", "policy")
EXAMPLES = [
    (verb, line.strip())
    for verb, text in (("", ABOUT), *((verb, text) for verb, (_, text) in VERBS.items()))
    for line in text.partition("\n\n")[0 if verb else 2].splitlines()
    if line.startswith("  corral")
]


def words_of(example: str) -> list[str]:
    """Return the words of an example without what the shell would do with the rest of the line, and without its comment."""
    command = re.split(r" {2,}", example)[0]
    words = shlex.split(command)
    ends = [at for at, word in enumerate(words) if word in ("|", "<", ">", ">>", "&&", ";")]
    return words[: min(ends, default=len(words))]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_examples_and_a_place(verb: str) -> None:
    assert VERBS[verb][1].startswith("examples:\n  corral")
    assert sum(verb in verbs for verbs in GROUPS.values()) == 1


@pytest.mark.parametrize(("verb", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_every_example_is_taken(verb: str, example: str) -> None:
    words = words_of(example)
    assert words[0] == "corral"
    options = parse(words[1:])
    assert options.verb in ({verb} if verb and verb != "status" else set(VERBS))


@pytest.mark.parametrize(
    ("verb", "example"),
    [(verb, example) for verb, example in EXAMPLES if verb in HARMLESS],
    ids=[example for verb, example in EXAMPLES if verb in HARMLESS],
)
def test_every_harmless_example_runs(verb: str, example: str, project: Path) -> None:
    (project.parent / "other").mkdir()
    words = [sys.executable, "-m", "corral", *words_of(example)[1:]]
    done = subprocess.run(words, cwd=project, input=b"", capture_output=True, timeout=60, check=False)
    assert done.returncode in (0, 3, 126), done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_fits_the_terminal(verb: str, columns: int, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    if verb:
        text = verb_parser(verb).format_help()
    else:
        words = [sys.executable, "-m", "corral", "--help"]
        text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    usage, _, rest = text.partition("\n\n")
    # Usage lines are commands, which are not broken.
    assert usage.startswith("usage: corral")
    assert [line for line in rest.splitlines() if len(line) > columns] == []
    assert not verb or text.index("examples:") < text.index("options:")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["chekc", "--", "ls"], "there is no command chekc; did you mean check?"),
        (["grant"], "there is no command grant; did you mean grants?"),
        (["ls", "-la"], "there is no command ls; to run a program: corral run ls -la"),
        (["run", "--proflie", "strict", "--", "ls"], "unknown option --proflie; did you mean --profile?"),
        (["run", "--proflie=strict", "--", "ls"], "unknown option --proflie=strict; did you mean --profile?"),
        (["log", "--folow"], "unknown option --folow; did you mean --follow?"),
        (["run", "--exprots", "--", "ls"], "unknown option --exprots\n"),
        (["--", "ls"], "which command? For example: corral run -- ls"),
        (["grants", "list", "x"], "grants list takes no x"),
        (["grants", "revoke", "--shell", "x"], "grants revoke takes no --shell"),
        (["grants", "add"], "Give the command, or --shell STRING"),
        (["grants", "--", "ls"], "grants takes no command"),
    ],
)
def test_a_slip_of_the_pen_is_answered_with_what_was_meant(arguments: list[str], words: str, project: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "corral", *arguments], cwd=project, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (125, b"")
    assert words in done.stderr.decode()
    assert b"Try: corral" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (
            ["--version"],
            {"corral.guard.evaluate", "corral.policy.loader", "corral.sandbox", "subprocess", "asyncio", "dataclasses"},
        ),
        (
            ["check", "--", "ls"],
            {"corral.sandbox", "corral.apps.cli.approver", "subprocess", "asyncio", "dataclasses", "typing"},
        ),
        (
            ["run", "--", "true"],
            {"corral.apps.cli.approval_prompt", "corral.policy.approvals", "subprocess", "asyncio", "dataclasses"},
        ),
        (
            ["status"],
            {"corral.sandbox", "subprocess", "asyncio", "dataclasses", "tempfile", "tomllib", "corral.apps.doctor"},
        ),
        (
            ["completions", "--words", "grants"],
            {"corral.guard.evaluate", "corral.sandbox", "corral.apps.rule_pages", "corral.apps.cli.completion_scripts"},
        ),
    ],
    ids=["--version", "check", "run", "status", "completions"],
)
def test_a_verb_loads_only_what_it_needs(arguments: list[str], unwanted: set[str], project: Path) -> None:
    code = "import sys\nfrom corral.apps.cli import main\ntry:\n main(sys.argv[1:])\nfinally:\n print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, *arguments],
        cwd=project,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert unwanted & set(done.stderr.splitlines()[-1].split()) == set()
