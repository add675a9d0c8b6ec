"""Runs every command in the documentation, and loads every program, policy and setting, in a throwaway project and home."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import docblocks
import pytest
import yaml
from docblocks import LANGUAGES, REASONS, Block
from docplace import SHOWN_HOME, Place

import corral
from corral.apps.cli.arguments import split_command, verb_parser
from corral.apps.cli.verb import load_verb, verb_names
from corral.apps.evals.task_loader import Loader
from corral.guard.rules.compiler import _row
from corral.policy.parser import parse
from corral.policy.rule_examples import compile_policy

ROOT = Path(corral.__file__).parents[2]
PAGES = docblocks.pages(ROOT)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def run_console(block: Block, place: Place) -> list[str]:
    wrong = []
    for command, shown, printed, status in place.console(block.text):
        if shown.strip():
            if not docblocks.fits(shown, printed):
                wrong.append(f"$ {command}\n--- shown\n{shown}--- printed\n{printed}")
        elif status:
            wrong.append(f"$ {command}\n--- exit code {status}\n{printed}")
    return wrong


def run_python(block: Block, place: Place) -> subprocess.CompletedProcess[str]:
    place.write("~/program.py", block.text)
    return place.run(sys.executable, str(place.home / "program.py"))


def load_toml(block: Block, path: str) -> None:
    title = block.title or "corral.toml"
    if title.endswith(("corral.toml", "policy.toml")):
        compile_policy(parse(block.text.encode(), title), title)
    elif "tasks" in title:
        loader = Loader()
        loader.read(path)
        assert loader.wrong == []
    elif "rules/" in title:
        for row, data in tomllib.loads(block.text).items():
            _row(row, data, title)
    else:
        tomllib.loads(block.text)


def parse_only(block: Block) -> None:
    """Check the syntax of a block that is not run."""
    if block.language == "python":
        ast.parse(block.text)
    elif block.language == "console":
        for command, _ in docblocks.commands(block.text):
            subprocess.run(["bash", "-n", "-c", command], check=True, capture_output=True)
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "yaml":
        yaml.safe_load(block.text)


def replay(block: Block, before: str, place: Place) -> tuple[list[str], str]:
    """Run a block, and return its errors and its output."""
    if block.title and block.language != "text":
        place.write(block.title, block.text)
    if block.language == "console":
        return run_console(block, place), ""
    if block.language == "python" and not block.title:
        done = run_python(block, place)
        return [done.stderr or str(done.returncode)] if done.returncode else [], done.stdout
    if block.language == "toml":
        load_toml(block, str(place.project / block.title))
    elif block.language == "jsonl":
        [json.loads(line) for line in block.text.splitlines()]
    elif block.language == "text":
        if block.is_output and not docblocks.fits(block.text, before.replace(str(place.home), SHOWN_HOME)):
            return [f"--- shown\n{block.text}--- printed\n{before}"], ""
    else:
        parse_only(block)
    return [], before


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_of_a_page_print_what_it_shows(page: Path, place: Place) -> None:
    wrong, printed = [], ""
    for block in docblocks.blocks(page.read_text()):
        if block.reason:
            parse_only(block)
            continue
        found, printed = replay(block, printed, place)
        wrong += [f"{name(page)}:{block.line}\n{text}" for text in found]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_has_a_known_language_and_reason(page: Path) -> None:
    wrong = []
    for block in docblocks.blocks(page.read_text()):
        if block.language not in LANGUAGES:
            wrong.append(f"{name(page)}:{block.line}: language {block.language!r}")
        if block.reason and block.reason not in REASONS:
            wrong.append(f"{name(page)}:{block.line}: reason {block.reason!r}")
        if block.reason == "replayed" and not (ROOT / block.detail).is_file():
            wrong.append(f"{name(page)}:{block.line}: no test {block.detail!r}")
        if (
            block.language == "text"
            and not block.reason
            and re.search(r"^\s*(\$|corral|make|pipx?|uv) ", block.text, re.MULTILINE)
        ):
            wrong.append(f"{name(page)}:{block.line}: a command in a text block")
    assert wrong == []


def spans(page: Path, word: str) -> list[str]:
    return re.findall(rf"(?<!`)`({word} [^`]+)`", docblocks.without_blocks(page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_inline_commands_use_existing_verbs_and_options(page: Path) -> None:
    wrong = []
    for span in spans(page, "corral"):
        verb, _, rest = span.removeprefix("corral ").partition(" ")
        ours = re.sub(r"'[^']*'", "", rest).partition("-- ")[0]
        if verb in verb_names() and load_verb(verb).VERB.command_after == "":
            # The words after the name of the inner command belong to that command.
            ours = " ".join(split_command(verb_parser(verb), ours.split(), None, leading=0)[0])
        options = re.findall(r"(?<!\S)(--?[a-z][\w-]*)", ours)
        if verb in ("--version", "--help", "--json", "COMMAND", "…"):
            continue
        if verb not in verb_names():
            wrong.append(span)
        else:
            known = {option for action in verb_parser(verb)._actions for option in action.option_strings}
            wrong += [span for option in options if option not in known]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_inline_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {span.split()[1] for span in spans(page, "make") if re.fullmatch(r"make [a-z-]+( .*)?", span)}
    assert named - targets == set()


@pytest.mark.parametrize(
    ("shown", "printed", "fit"),
    [
        ("a\n", "a\n", True),
        ("a\n", "b\n", False),
        ("a\n", "a\nb\n", False),
        ("a…c\n", "a b c\n", True),
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n…\n", "a\n", True),
        ("a…\n", "a\nb\n", False),
        ("a.c\n", "abc\n", False),
    ],
)
def test_output_is_matched_loosely_only_at_an_ellipsis(shown: str, printed: str, fit: bool) -> None:
    assert docblocks.fits(shown, printed) is fit


def test_block_with_wrong_output_is_found(place: Place) -> None:
    (lies,) = docblocks.blocks("```console\n$ corral check -- ls\ndeny\n```\n")
    (fails,) = docblocks.blocks("```console\n$ corral check -- sudo ls\n```\n")
    (holds,) = docblocks.blocks("```console\n$ corral check --profile strict -- ls; echo $?\n…\n0\n```\n")
    assert [bool(run_console(block, place)) for block in (lies, fails, holds)] == [True, True, False]
