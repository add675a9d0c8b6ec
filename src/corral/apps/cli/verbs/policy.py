"""`corral policy`: shows the policy in force and the origin of each setting, tests its examples, and prints its schema."""

from __future__ import annotations

import os
import sys

from corral import model
from corral._lib.terminal import Terminal, printable, terminal_of
from corral.apps.cli.arguments import ROOT, profile
from corral.apps.cli.call import kernel_warning, machine_of
from corral.apps.cli.verb import Options, Verb, argument
from corral.model.call import Call, Decision
from corral.model.render_result import json_text
from corral.policy.config import checked_root
from corral.policy.loader import load, project_policy_path, read_policy_file, user_policy_path
from corral.policy.parser import parse
from corral.policy.render_policy import policy_lines, to_dict
from corral.policy.rule_examples import ExampleResult, judge_examples

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.policy.config import SandboxConfig

FAILED_STATUS = 1
ACTIONS = ("show", "test", "schema")
VERB = Verb(
    "policy",
    "Show the policy in force and the origin of each setting; test it; print its schema.",
    examples="""\
corral policy show           show each setting with its file and line
corral policy show --json | jq .waiting
corral policy test           judge every example of every rule
corral policy schema         print the JSON Schema of policy files, for editors
""",
    notes="""\
Your own file is ~/.config/corral/policy.toml. A project's file is corral.toml; it may only tighten yours until you
trust it.
""",
    exit_codes="0; 1 an example does not hold, 125 a policy file is wrong, with its line and column, or corral itself failed",
    arguments=(argument("action", choices=ACTIONS, metavar="|".join(ACTIONS)), profile(), ROOT),
)


def main(options: Options) -> int:
    """Show the policy, test it or print its schema."""
    return {"show": _show, "test": _test, "schema": _schema}[options.action](options)


def _show(options: Options) -> int:
    policy = load(options.root, os.environ, profile=options.profile)
    if options.json:
        print(json_text(to_dict(policy)))
    else:
        print("\n".join(policy_lines(policy, terminal_of(sys.stdout, os.environ))))
    return 0


def _test(options: Options) -> int:
    """Judge every example of both files and print each result. Returns 1 if one does not hold."""
    root = checked_root(options.root)
    terminal = terminal_of(sys.stdout, os.environ)
    results: list[tuple[str, ExampleResult]] = []
    for level, path in (("owner", user_policy_path(os.environ)), ("project", project_policy_path(root))):
        data = read_policy_file(path, root, level)
        if data is not None:
            results += [(path, result) for result in judge_examples(parse(data, path))]
    if options.json:
        print(json_text([_facts(path, result) for path, result in results]))
    for path, result in [] if options.json else results:
        print(_line(path, result, terminal))
    wrong = sum(bool(result.wrong) for _, result in results)
    if not wrong:
        # Some errors show only when the files are merged: grants, contradictions.
        config = load(root, os.environ, profile=options.profile).config
        _warn(config, results)
    if not options.json:
        held = f"{len(results) - wrong} of {len(results)} examples hold" if results else "no policy file has examples"
        print(held, file=sys.stderr)
    return FAILED_STATUS if wrong else 0


def _warn(config: SandboxConfig, results: list[tuple[str, ExampleResult]]) -> None:
    """Print a warning for each example that the policy allows and the sandbox will stop."""
    machine = machine_of(config)
    for path, result in results:
        if result.decision is Decision.ALLOW:
            warning = kernel_warning(Call(result.text, shell=True), config, machine)  # noqa: S604  a record
            if warning:
                place = f"{path}:{result.line}:{result.column}"
                print(f"corral: {printable(place)}: `{printable(result.text)}`: {printable(warning)}", file=sys.stderr)


def _facts(path: str, result: ExampleResult) -> dict[str, object]:
    return {
        "path": path,
        "line": result.line,
        "column": result.column,
        "rule": result.words,
        "example": result.text,
        "wanted": str(result.wanted),
        "decision": str(result.decision),
        "wrong": result.wrong,
    }


def _line(path: str, result: ExampleResult, terminal: Terminal) -> str:
    place = terminal.paint("dim", f"{printable(path)}:{result.line}:{result.column}")
    if result.wrong:
        return f"{terminal.paint('deny', terminal.sign('deny'))} {place} {printable(result.wrong)}"
    return f"{terminal.paint('allow', terminal.sign('allow'))} {place} {result.decision!s:5} {printable(result.text)}"


def _schema(_: Options) -> int:
    with open(f"{os.path.dirname(model.__file__)}/schemas/policy.schema.json", encoding="utf-8") as file:
        sys.stdout.write(file.read())
    return 0
