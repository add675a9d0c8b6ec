"""Every verb is complete, every example in the help parses, and start-up loads only one verb."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import golden
from corral.apps.cli.arguments import main_parser, parse, verb_parser
from corral.apps.cli.help import ABOUT, overview
from corral.apps.cli.verb import FOLDER, GROUPS, Verb, load_verb, verb_names

HARMLESS = ("check", "explain", "rule", "completions", "status", "policy")
VERBS = verb_names()
EXAMPLES = [
    *(("", line.strip()) for line in ABOUT.splitlines() if line.startswith("  corral")),
    *((verb, line) for verb in VERBS for line in load_verb(verb).VERB.examples.splitlines()),
]


def words_of(example: str) -> list[str]:
    """Return the words of an example without its redirections, pipes and comment."""
    command = re.split(r" {2,}", example)[0]
    words = shlex.split(command)
    ends = [at for at, word in enumerate(words) if word in ("|", "<", ">", ">>", "&&", ";")]
    return words[: min(ends, default=len(words))]


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_is_complete(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    module = load_verb(name)
    verb = module.VERB
    assert isinstance(verb, Verb)
    assert verb.group in GROUPS
    assert verb.summary[0].isupper()
    assert verb.summary.endswith(".")
    assert verb.examples
    assert all(line.startswith("corral") for line in verb.examples.splitlines())
    assert "125" in verb.exit_codes or name == "hook"
    assert [each.names for each in verb.arguments if each.text and not each.text.endswith(".")] == []
    assert (module.__doc__ or "").startswith("`corral` alone" if name == "status" else f"`corral {name}")
    assert callable(module.main)
    _, _, text = verb_parser(name).format_help().partition("\n\n")  # each version of Python breaks usage in another way
    golden.check("cli-help", name, text)


def test_every_file_in_the_folder_is_a_verb() -> None:
    files = {path.stem for path in Path(FOLDER).glob("*.py")} - {"__init__"}
    assert files == {Path(load_verb(name).__file__ or "").stem for name in VERBS}


def test_overview_lists_every_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = main_parser(overview()).format_help()
    assert [name for name in VERBS if f"\n  {name} " not in text] == []
    golden.check("cli-help", "corral", text)


@pytest.mark.parametrize(("verb", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_every_example_parses(verb: str, example: str) -> None:
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
    ("arguments", "unwanted"),
    [
        (
            ["--version"],
            {"corral.guard.evaluate", "corral.policy.loader", "corral.sandbox", "subprocess", "asyncio", "dataclasses"},
        ),
        (
            ["check", "--", "ls"],
            {"corral.sandbox", "corral.apps.cli.questions.approver", "subprocess", "asyncio", "dataclasses", "typing"},
        ),
        (
            ["run", "--", "true"],
            {
                "corral.apps.cli.questions.approval_prompt",
                "corral.policy.answers.approvals",
                "subprocess",
                "asyncio",
                "dataclasses",
            },
        ),
        (
            ["status"],
            {
                "corral.sandbox",
                "subprocess",
                "asyncio",
                "dataclasses",
                "tempfile",
                "tomllib",
                "corral.apps.doctor.facts",
            },
        ),
        (
            ["completions", "--words", "grants"],
            {"corral.guard.evaluate", "corral.sandbox", "corral.apps.rule_pages", "corral.apps.cli.completion_scripts"},
        ),
    ],
    ids=["--version", "check", "run", "status", "completions"],
)
def test_verb_loads_only_its_own_modules(arguments: list[str], unwanted: set[str], project: Path) -> None:
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
