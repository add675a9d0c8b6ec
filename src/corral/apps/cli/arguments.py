"""Parses the command line, and defines the arguments that several verbs share.

The first word that is not an option begins the command to run, as does everything after `--`.
"""

from __future__ import annotations

import argparse
import os
import sys

from corral import __version__
from corral._lib.spelling import suggestion
from corral._lib.terminal import message as fit_message
from corral._lib.terminal import printable
from corral.apps.cli.help import EXIT_CODES, HelpFormatter, overview
from corral.apps.cli.next_steps import on_path
from corral.apps.cli.reports.workflow_commands import WHEN
from corral.apps.cli.verb import Argument, Options, UsageError, argument, load_verb, verb_names
from corral.guard.rules.loader import profile_names
from corral.model.render_result import FAILURE_STATUS
from corral.policy.config import DEFAULT_TIMEOUT_SECONDS
from corral.policy.settings import BACKENDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

DEFAULT_PROFILE = "workspace"
MAX_PORT = 65535
OTHER_SOURCES = ("--shell", "--jsonl")  # with one of these, no command follows on the command line

REPORT = argument(
    "--report WHEN",
    f"Write annotations and a job summary for GitHub Actions: {', '.join(WHEN)} (default: auto, in a job of it).",
    choices=WHEN,
    completes=WHEN,
    default="auto",
)


class Parser(argparse.ArgumentParser):
    """A parser that exits with 125 on errors. argparse's 2 would look like the exit code of the command."""

    def error(self, message: str) -> NoReturn:
        """Print the error and how to get help, then exit."""
        text = fit_message(f"corral: {message}", sys.stderr, os.environ)
        self.exit(FAILURE_STATUS, f"{text}\nTry: {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(each) for each in action.choices]
            hint = suggestion(str(value), choices) or f"choose one of {', '.join(choices)}"
            what = f"{action.option_strings[0]} cannot be" if action.option_strings else f"{self.prog} has no"
            self.error(f"{what} {printable(str(value))}; {hint}")


def parse(arguments: list[str]) -> Options:
    """Parse the command line. Prints and exits for --help, --version and wrong arguments."""
    own, command = arguments, None
    if "--" in arguments:
        own, command = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    if command is None and (not own or own[0].partition("=")[0] in ("--json", "--root")):
        own = ["status", *own]
    names = verb_names()
    if own[:1] == ["help"]:
        own = [*(own[1:2] if own[1:2] and own[1] in names else ()), "--help"]
    if not own or own[0] not in names:
        _exit_without_verb(own, names)
    name = own[0]
    # Building a parser takes argparse longer than the guard takes to judge a call, so only this verb's is built.
    module, parser = load_verb(name), verb_parser(name)
    after = module.VERB.command_after
    if after is not None and (not after or after in own):
        own, command = split_command(parser, own, command, leading=2 if after else 1)
    # Without a command to run, words may stand between options: log show --json ID.
    parse_known = parser.parse_known_intermixed_args if after is None else parser.parse_known_args
    options, extra = parse_known(own[1:])
    options.verb, options.command = name, command
    _refuse_unknown_option(options, extra, parser)
    try:
        if hasattr(module, "check_arguments"):
            module.check_arguments(options, extra)
        takes_command = after is not None and after in ("", getattr(options, "action", ""))
        if not takes_command:
            if extra:
                raise UsageError(f"`corral {name}` does not take {printable(extra[0])}")
            if command is not None:
                raise UsageError(f"`corral {name}` does not take a command")
    except UsageError as error:
        parser.error(str(error))
    return options


def verb_parser(name: str) -> Parser:
    """Return the parser of one verb."""
    verb = load_verb(name).VERB
    # Examples come before the options: most people need nothing else.
    examples = "".join(f"\n  {line}" for line in verb.examples.splitlines())
    usage = "\n       ".join(f"corral {line}" for line in verb.usage) or None
    notes = f"{verb.notes}\nExit code: {verb.exit_codes}."
    parser = _parser(f"corral {name}", f"{verb.summary}\n\nexamples:{examples}", notes, usage)
    for each in (*verb.arguments, *([argument("--json", "Print JSON on stdout.")] if verb.has_json else [])):
        action = parser.add_argument(*each.names, help=each.text or argparse.SUPPRESS, **each.keywords)
        action.completes = each.completes  # type: ignore[attr-defined]  # read by completion_scripts
    return parser


def _parser(prog: str, about: str, epilog: str, usage: str | None) -> Parser:
    return Parser(prog, usage, about, epilog, formatter_class=HelpFormatter, allow_abbrev=False)


def main_parser(about: str = "") -> Parser:
    """Return the parser of a command line without a verb."""
    parser = _parser("corral", about, EXIT_CODES, "corral [COMMAND] [options]\n       corral COMMAND --help")
    parser.add_argument("-V", "--version", action="version", version=f"corral {__version__}", help="Print the version.")
    return parser


def _exit_without_verb(own: list[str], names: list[str]) -> NoReturn:
    verb = own[0] if own else "--"
    parser = main_parser(overview() if {"-h", "--help"} & {*own} else "")
    if not verb.startswith("-"):
        is_program = verb.isascii() and on_path(verb, os.environ)
        run = f"to run a program: corral run {printable(' '.join(own))}"
        hint = run if is_program else suggestion(verb, names)
        parser.error(f"there is no command {printable(verb)}; {hint or 'choose one of ' + ', '.join(names)}")
    _, extra = parser.parse_known_args(own)
    if extra:
        parser.error(f"unknown option {printable(extra[0])}; write the options of a command after its name")
    parser.error("name a command, for example: corral run -- ls")


def _refuse_unknown_option(options: Options, extra: list[str], parser: Parser) -> None:
    if not extra or not extra[0].startswith("-"):
        return
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    known = [name for action in actions for name in action.option_strings]
    # Every one-letter option is close to every other one, so there is no suggestion for them.
    hint = suggestion(extra[0].partition("=")[0], known) if extra[0].startswith("--") else ""
    if not hint and getattr(options, "shell", None) is not None:
        hint = _unquoted_shell(options, extra)
    parser.error(f"unknown option {printable(extra[0])}{f'; {hint}' if hint else ''}")


def _unquoted_shell(options: Options, extra: list[str]) -> str:
    whole = printable(" ".join((options.shell, *extra)))
    return f"put the whole shell text in quotes: corral {options.verb} --shell '{whole}'"


def split_command(
    parser: argparse.ArgumentParser, words: list[str], behind: list[str] | None, *, leading: int
) -> tuple[list[str], list[str] | None]:
    """Return corral's own words and the command, as sudo and env separate them.

    `words` stand before the first `--` and `behind` stands after it. The first `leading` words that are not options are
    corral's: its verb. An option that the parser does not know stays with corral's words, so that the
    parser's error names it.
    """
    at = 0
    while at < len(words):
        name, given, _ = words[at].partition("=")
        if name in OTHER_SOURCES:
            break
        if not name.startswith("-") or name == "-":
            if not leading:
                # Options behind the name of a command belong to the command.
                return words[:at], [*words[at:], *([] if behind is None else ["--", *behind])]
            leading -= 1
        action = parser._option_string_actions.get(name)
        at += 2 if action is not None and action.nargs != 0 and not given else 1
    return words, behind


def call_usage(verb: str) -> tuple[str, ...]:
    """Return the usage of a verb that takes a command."""
    return (f"{verb} [options] [--] CMD [ARG ...]", f"{verb} [options] --shell STRING")


def call_arguments(*, on_terminal: bool = False) -> tuple[Argument, ...]:
    """Return the arguments that describe a command to judge or run. `on_terminal` if it may get a pseudo-terminal."""
    return (
        argument("--shell STRING", "Take this shell command line instead of a program and its arguments."),
        profile(),
        ROOT,
        argument("--cwd DIR", "Start the command in this directory of the project (default: its root)."),
        _timeout(", or none on a terminal") if on_terminal else TIMEOUT,
    )


def check_call(options: Options, extra: list[str]) -> None:
    """Require exactly one of a command and a shell text."""
    if extra and options.shell is not None:
        raise UsageError(_unquoted_shell(options, extra))
    if options.command is not None and options.shell is not None:
        raise UsageError("give only one of: -- CMD, --shell STRING")
    if options.command is None and options.shell is None:
        raise UsageError("give a command, or --shell STRING")


def profile() -> Argument:
    """Return --profile."""
    names = profile_names()
    text = f"Judge by this profile: {' or '.join(names)} (default: {DEFAULT_PROFILE})."
    return argument("--profile NAME", text, choices=names)


def _timeout(otherwise: str = "") -> Argument:
    text = f"Kill the command after S seconds, 0 for never (default: {DEFAULT_TIMEOUT_SECONDS:g}{otherwise})."
    return argument("--timeout S", text, type=_seconds)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{printable(text)} is not a number of seconds, such as 5 or 0.5")
    return value


def worker_arguments() -> tuple[Argument, ...]:
    """Return --workers and --engine."""
    from corral.runtime.executor import EXECUTORS  # noqa: PLC0415  two verbs need it

    engines = f"Run them on this engine: {' or '.join(EXECUTORS)} (default: local)."
    return (
        argument("--workers N", "Run this many at a time (default: one for each core).", type=_count),
        argument("--engine NAME", engines, default="local", choices=tuple(EXECUTORS)),
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{printable(text)} is not a whole number of at least 1")
    return int(text)


def port_number(text: str) -> int:
    """Parse a TCP port. 0 means any free one."""
    if not text.isdecimal() or not text.isascii() or int(text) > MAX_PORT:
        raise argparse.ArgumentTypeError(f"{printable(text)} is not a port")
    return int(text)


def own_port(text: str) -> int:
    """Parse a TCP port that a program chose, so not 0."""
    if not port_number(text):
        raise argparse.ArgumentTypeError("0 is not a port")
    return int(text)


ROOT = argument("--root DIR", "Use this project (default: .).", default=".")
BACKEND = argument(
    "--backend NAME",
    f"Contain commands with this backend: {', '.join(BACKENDS)} (default: auto).",
    default="auto",
    choices=BACKENDS,
)
TIMEOUT = _timeout()
