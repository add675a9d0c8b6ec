"""Defines the command line and its help. The first word that is no option begins the command, as does what follows `--`."""

from __future__ import annotations

import argparse
import os
import sys

from corral import __version__
from corral._lib.terminal import PIPE_COLUMNS, printable, terminal_of, wrap
from corral._lib.terminal import message as shown
from corral.apps.cli.help import ABOUT, CALLS, EXIT_CODES, GROUPS, USAGE, VERBS
from corral.apps.cli.next_steps import on_path
from corral.apps.cli.spelling import suggestion
from corral.guard.rules.loader import profile_names
from corral.model.render_result import FAILURE_STATUS
from corral.policy.config import DEFAULT_TIMEOUT_SECONDS
from corral.policy.settings import BACKENDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

DEFAULT_PROFILE = "workspace"
MAX_TEXT_COLUMNS = 120  # of a text to read
MIN_COMMENT_COLUMNS = 24  # with less room beside an example, its comment stands below
FULL_LINE = 95  # characters; a line of a text that is longer goes on in the next


class Form(argparse.RawDescriptionHelpFormatter):
    """Help as it is written, as wide as the terminal. argparse would import shutil to learn the width."""

    def __init__(self, prog: str) -> None:
        self._columns = terminal_of(sys.stdout, os.environ).columns
        super().__init__(prog, width=min(self._columns, PIPE_COLUMNS))

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002  argparse's own way to be told
        """Return a text in lines that fit: sentences flow, an example keeps its line and its comment goes below it."""
        lines: list[str] = []
        flows = False
        for line in text.splitlines():
            if flows and line and not line.startswith(" "):
                lines[-1] += f" {line}"
            else:
                lines.append(line)
            flows = len(line) > FULL_LINE and not line.startswith(" ")
        return "\n".join(made for line in lines for made in self._fitted(line))

    def _fitted(self, line: str) -> list[str]:
        width = min(self._columns, MAX_TEXT_COLUMNS)
        if len(line) <= width:
            return [line]
        if not line.startswith("  "):
            return wrap(line, width, "")
        command, blanks, comment = line.strip().partition("  ")
        if not blanks:
            return wrap(command, width, "  ")
        column = line.rindex(comment.strip())
        if width - column < MIN_COMMENT_COLUMNS:
            return [*wrap(command, width, "  "), *wrap(comment.strip(), width, " " * 6)]
        first, *rest = wrap(comment.strip(), width, " " * column)
        return [line[:column] + first[column:], *rest]


class Parser(argparse.ArgumentParser):
    """A parser whose failures are corral's own: 2 would look like the command's exit code."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and how to see what is right."""
        told = shown(f"corral: {message}", sys.stderr, os.environ)
        self.exit(FAILURE_STATUS, f"{told}\nTry: {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(each) for each in action.choices]
            hint = suggestion(str(value), choices) or f"choose one of {', '.join(choices)}"
            what = f"{action.option_strings[0]} cannot be" if action.option_strings else f"{self.prog} has no"
            self.error(f"{what} {printable(str(value))}; {hint}")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line; prints and exits for --help, --version and what is wrong."""
    ours, command = arguments, None
    if "--" in arguments:
        ours, command = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    if command is None and (not ours or ours[0].partition("=")[0] in ("--json", "--root")):
        ours = ["status", *ours]
    if ours[:1] == ["help"]:
        ours = [*(ours[1:2] if ours[1:2] and ours[1] in VERBS else ()), "--help"]
    if not ours or ours[0] not in VERBS:
        _no_verb(ours)
    verb = ours[0]
    # One parser a verb, and only the one that is needed: argparse takes longer to make than the guard to judge.
    parser = verb_parser(verb)
    if verb in CALLS or (verb == "grants" and "add" in ours):
        from corral.apps.cli.command_words import split  # noqa: PLC0415  for the verbs that take a command

        ours, command = split(parser, ours, command, leading=2 if verb == "grants" else 1)
    # Words may stand on both sides of options: log show --json ID.
    options, loose = (parser.parse_known_intermixed_args if verb == "log" else parser.parse_known_args)(ours[1:])
    options.verb, options.command = verb, command
    _check(options, loose, parser)
    return options


def _no_verb(ours: list[str]) -> NoReturn:
    parser = _parser(
        "corral", f"{ABOUT}\n{_listed()}", EXIT_CODES, "corral [COMMAND] [options]\n       corral COMMAND --help"
    )
    parser.add_argument("-V", "--version", action="version", version=f"corral {__version__}")
    verb = ours[0] if ours else "--"
    if not verb.startswith("-"):
        hint = suggestion(verb, VERBS)
        if not hint and verb.isascii() and on_path(verb, os.environ):
            hint = f"to run a program: corral run {printable(' '.join(ours))}"
        parser.error(f"there is no command {printable(verb)}; {hint or 'choose one of ' + ', '.join(VERBS)}")
    _, loose = parser.parse_known_args(ours)
    if loose:
        parser.error(f"unknown option {printable(loose[0])}; the options of a command stand after its name")
    parser.error("which command? For example: corral run -- ls")


def _listed() -> str:
    """Return the verbs in groups; one that is in none stands last."""
    grouped = {verb for verbs in GROUPS.values() for verb in verbs}
    groups = GROUPS | {"and": tuple(verb for verb in VERBS if verb not in grouped)}
    lines = []
    for title, verbs in groups.items():
        known = [verb for verb in verbs if verb in VERBS]
        if known:
            lines += [f"{title}:", *(f"  {verb:11} {VERBS[verb][0]}" for verb in known), ""]
    return "\n".join(lines[:-1])


def _check(options: argparse.Namespace, loose: list[str], parser: Parser) -> None:
    """Refuse what contradicts itself: exactly one of a command, a shell string and a batch is wanted."""
    if loose and loose[0].startswith("-"):
        shown = [
            name for action in parser._actions if action.help != argparse.SUPPRESS for name in action.option_strings
        ]
        # Of one letter any other is near.
        meant = suggestion(loose[0].partition("=")[0], shown) if loose[0].startswith("--") else ""
        if not meant and getattr(options, "shell", None) is not None:
            meant = _whole_text(options, loose, parser)
        parser.error(f"unknown option {printable(loose[0])}{f'; {meant}' if meant else ''}")
    command = options.command
    if options.verb == "grants":
        _check_grants(options, parser)
    if options.verb not in CALLS and getattr(options, "action", None) != "add":
        if loose and options.verb == "batch":
            parser.error(f"calls are read from stdin: corral batch < {printable(loose[0])}")
        if loose:
            parser.error(f"{options.verb} has no place for {printable(loose[0])}")
        if command is not None:
            parser.error(f"{options.verb} takes no command")
        if getattr(options, "token_file", None) and not options.http:
            parser.error("--token-file is for --http")
        if options.verb == "batch":
            _settle_timeout(options, DEFAULT_TIMEOUT_SECONDS)
        if options.verb == "demo" and options.model and not options.what:
            parser.error("--model is for: corral demo agent")
        if options.verb == "eval":
            _check_eval(options, parser)
        return
    if getattr(options, "tty", None) and options.json:
        parser.error("--tty shows the command live, --json captures it; give one of them")
    # A person at a terminal ends the command when it is enough.
    _settle_timeout(options, None if _gets_terminal(options) else DEFAULT_TIMEOUT_SECONDS)
    batch = getattr(options, "jsonl", False)
    given = (command is not None) + (options.shell is not None) + batch
    if given == 0 and getattr(options, "grant", None) is not None:
        return  # the text lies with the grant
    if loose and batch:
        parser.error(f"calls are read from stdin: {parser.prog} --jsonl < {printable(loose[0])}")
    if loose and options.shell is not None:
        parser.error(_whole_text(options, loose, parser))
    if given > 1:
        parser.error("give one of: -- CMD, --shell STRING" + (", --jsonl" if options.verb == "check" else ""))
    if given == 0:
        does = "approve" if options.verb == "grants" else options.verb
        parser.error(f"what should it {does}? Give the command, or --shell STRING")
    if batch and (options.cwd is not None or options.json):
        parser.error("with --jsonl every line has its own cwd and is JSON already")


def _gets_terminal(options: argparse.Namespace) -> bool:
    from corral.apps.cli.terminal_session import is_wanted  # noqa: PLC0415  only for calls

    return "tty" in options and not options.json and is_wanted(options.tty)


def _whole_text(options: argparse.Namespace, loose: list[str], parser: Parser) -> str:
    whole = printable(" ".join((options.shell, *loose)))
    return f"a shell text is one argument, in quotes, as in: {parser.prog} --shell '{whole}'"


def _settle_timeout(options: argparse.Namespace, default: float | None) -> None:
    options.timeout_is_given = "timeout" in options
    if not options.timeout_is_given:
        options.timeout = default


def _check_grants(options: argparse.Namespace, parser: Parser) -> None:
    given = {"list": (), "revoke": ("ids", "all"), "add": ("shell", "cwd", "profile")}
    extra = [name for name in ("ids", "all", "shell", "cwd", "profile") if getattr(options, name)]
    for name in extra:
        if name not in given[options.action]:
            said = f"--{name}" if name != "ids" else printable(options.ids[0])
            parser.error(f"grants {options.action} takes no {said}")


def _check_eval(options: argparse.Namespace, parser: Parser) -> None:
    tasks = options.tasks or options.fixtures
    if options.compare and tasks:
        parser.error("--compare looks at two runs, and runs no tasks")
    if not options.compare and not tasks:
        parser.error(
            "which tasks? Give task files or directories of them, or --fixtures for those that come with corral"
        )


def _parser(name: str, about: str, epilog: str, usage: str | None) -> Parser:
    return Parser(name, usage, about, epilog, formatter_class=Form, allow_abbrev=False)


def verb_parser(verb: str) -> Parser:
    """Return the parser of one verb."""
    what, text = VERBS[verb]
    # Examples stand before the options: most people need no more.
    examples, _, notes = text.partition("\n\n") if text.startswith("examples:") else ("", "", text)
    about = f"{what[0].upper()}{what[1:]}."
    parser = _parser(f"corral {verb}", f"{about}\n\n{examples}".rstrip(), notes, USAGE.get(verb))
    if verb in CALLS:
        _call_arguments(parser, ", or none on a terminal" if verb in ("run", "try") else "")
    if verb == "grants":
        parser.add_argument(
            "action", nargs="?", choices=("list", "revoke", "add"), default="list", help=argparse.SUPPRESS
        )
        parser.add_argument("ids", nargs="*", metavar="ID", help=argparse.SUPPRESS)
        parser.add_argument("--all", action="store_true", help="revoke all")
        _call_arguments(parser)
    if verb == "try":
        parser.add_argument(
            "-y", "--yes", action="store_true", help="apply without a question, if the command ends with 0"
        )
        parser.add_argument(
            "-T", "--no-tty", dest="tty", action="store_false", default=None, help="without a terminal of its own"
        )
    if verb in ("apply", "discard", "undo"):
        parser.add_argument("id", nargs="?", default="", metavar="ID", help="of the transaction, or how it begins")
    if verb == "discard":
        parser.add_argument("--all", action="store_true", help="everything that waits here")
    if verb == "apply":
        parser.add_argument("paths", nargs="*", metavar="PATH", help="only what lies there")
    if verb == "history":
        parser.add_argument(
            "id", nargs="?", default="", metavar="ID", help="only this one, with its diff while it waits"
        )
        parser.add_argument("-v", "--verbose", action="store_true", help="with every path")
    if verb == "run":
        own = "on a terminal of its own (default: where corral is on one)"
        parser.add_argument("-t", "--tty", action="store_true", default=None, help=own)
        parser.add_argument("-T", "--no-tty", dest="tty", action="store_false", help="without one")
        never = "ask nobody: what would be asked about is refused"
        parser.add_argument("--no-ask", dest="ask", action="store_false", help=never)
        reach = "grant a destination for this run; asked of you at the terminal"
        parser.add_argument("--network", action="append", default=[], metavar="HOST:PORT", help=reach)
        shown = "let this machine's loopback reach a port of the sandbox's, for this run; asked of you too"
        parser.add_argument("--publish", action="append", type=_own_port, default=[], metavar="PORT", help=shown)
        whole = "grant what this agent needs (default: by the program's name), or none"
        parser.add_argument("--agent", metavar="NAME", help=whole)
        parser.add_argument("--call", default="", metavar="ID", help=argparse.SUPPRESS)
        # What a rewritten command of a hook needs; the guard refuses them in the text of an agent.
        parser.add_argument("--grant", metavar="ID", help=argparse.SUPPRESS)
        parser.add_argument("--directory-file", metavar="FILE", help=argparse.SUPPRESS)
        parser.add_argument("--exports", action="store_true", help=argparse.SUPPRESS)
        parser.add_argument("--try", dest="tries", action="store_true", help=argparse.SUPPRESS)
    if verb == "completions":
        parser.add_argument("shell", nargs="?", choices=("bash", "zsh", "fish"), metavar="bash|zsh|fish")
        parser.add_argument("--words", choices=("rules", "grants"), help=argparse.SUPPRESS)
    if verb == "hook":
        from corral.integrations.hooks.registry import HOSTS  # noqa: PLC0415  the hook itself is not parsed here

        parser.add_argument("host", choices=tuple(HOSTS), metavar="HOST", help=", ".join(HOSTS))
    if verb == "check":
        parser.add_argument("--jsonl", action="store_true", help="judge one call per line of stdin")
    if verb == "selftest":
        _profile_argument(parser)
        parser.set_defaults(profile=DEFAULT_PROFILE)
    if verb in ("doctor", "selftest", "status"):
        _root_argument(parser)
    if verb == "mcp":
        _mcp_arguments(parser)
        return parser
    if verb in ("run", "try", "doctor", "selftest"):
        what = "what holds commands: auto (default), warden, bubblewrap, or none"
        parser.add_argument("--backend", default="auto", choices=BACKENDS, metavar="NAME", help=what)
    if verb in ("install", "uninstall"):
        _host_arguments(parser)
    if verb == "log":
        _log_arguments(parser)
    if verb == "view":
        _view_arguments(parser)
    if verb == "policy":
        parser.add_argument("action", choices=("show", "test", "schema"), metavar="show|test|schema")
        _profile_argument(parser)
    if verb in ("policy", "init", "trust", "distrust", "rule", "apply", "discard", "undo", "history"):
        _root_argument(parser)
    if verb == "trust":
        parser.add_argument("--list", action="store_true", help="show what is trusted")
    if verb == "init":
        parser.add_argument("--user", action="store_true", help="for all projects of yours")
        parser.add_argument("--print", dest="shown", action="store_true", help="show it and write nothing")
    if verb == "rule":
        parser.add_argument("id", nargs="?", metavar="ID", help="a rule's id, as in a finding")
    if verb == "demo":
        parser.add_argument("what", nargs="?", choices=("agent",), metavar="agent", help="a coding agent at work")
        model = "with agent: deterministic, or a name as litellm has them (default: one that a key in the environment is for)"
        parser.add_argument("--model", default="", metavar="NAME", help=model)
    if verb == "batch":
        _batch_arguments(parser)
    if verb == "eval":
        _eval_arguments(parser)
    if verb not in ("hook", "completions", "batch"):
        parser.add_argument("--json", action="store_true", help="print JSON on stdout")
    return parser


def _batch_arguments(parser: Parser) -> None:
    _profile_argument(parser)
    _root_argument(parser)
    _timeout_argument(parser)
    _worker_arguments(parser)
    unordered = "answer as calls end; by default in the order of the lines"
    parser.add_argument("--unordered", dest="ordered", action="store_false", help=unordered)
    repeat = "run a call again when the process that ran it was lost, unless its line says otherwise"
    parser.add_argument("--idempotent", action="store_true", help=repeat)


def _eval_arguments(parser: Parser) -> None:
    parser.add_argument("tasks", nargs="*", metavar="TASKS", help="task files (.toml, .jsonl), or directories of them")
    parser.add_argument("--fixtures", action="store_true", help="the tasks that come with corral")
    out = "where the results are (default: corral-eval)"
    parser.add_argument("--out", default="corral-eval", metavar="DIR", help=out)
    parser.add_argument("--fresh", action="store_true", help="begin anew, though a run in DIR was broken off")
    parser.add_argument(
        "--tag", dest="tags", action="append", default=[], metavar="TAG", help="only tasks with this tag"
    )
    parser.add_argument("--list", action="store_true", help="show the tasks' ids and run nothing")
    parser.add_argument("--compare", nargs=2, metavar=("A", "B"), help="show what changed between two runs")
    _worker_arguments(parser)


def _worker_arguments(parser: Parser) -> None:
    from corral.runtime.executor import EXECUTORS  # noqa: PLC0415  for two verbs

    parser.add_argument("--workers", type=_count, metavar="N", help="how many at a time (default: one for each core)")
    where = f"where they run: {' or '.join(EXECUTORS)} (default: local)"
    parser.add_argument("--engine", default="local", choices=tuple(EXECUTORS), metavar="NAME", help=where)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{printable(text)} is not a whole number of at least 1")
    return int(text)


def _host_arguments(parser: Parser) -> None:
    from corral.integrations.hooks.registry import HOSTS  # noqa: PLC0415  for two verbs

    parser.add_argument("hosts", nargs="*", type=_host, metavar="HOST", help=", ".join(HOSTS))
    level = parser.add_mutually_exclusive_group()
    level.add_argument("--user", dest="project", action="store_false", default=False, help="for all projects (default)")
    level.add_argument("--project", action="store_true", help="for this project alone")
    where = "the project's directory (default: the one that the working directory lies in)"
    parser.add_argument("--root", metavar="DIR", help=where)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask; for scripts")
    parser.add_argument("-n", "--dry-run", action="store_true", help="show the change and write nothing")


def _host(text: str) -> str:
    from corral.integrations.hooks.registry import HOSTS  # noqa: PLC0415  as above

    if text not in HOSTS:
        raise argparse.ArgumentTypeError(f"there is no host {printable(text)}; choose one of {', '.join(HOSTS)}")
    return text


def _log_arguments(parser: Parser) -> None:
    parser.add_argument("action", nargs="?", choices=("show", "verify"), help=argparse.SUPPRESS)
    parser.add_argument("id", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("-f", "--follow", action="store_true", help="go on as new ones come")
    parser.add_argument(
        "-n", dest="number", type=_number, default=50, metavar="N", help="the last N (default: 50), 0 for all"
    )
    _wish_arguments(parser)


def _view_arguments(parser: Parser) -> None:
    what = "a run of corral eval (two of them are compared), or results of corral run --json or batch"
    parser.add_argument("sources", nargs="*", metavar="FILE", help=f"{what}; default: the log")
    parser.add_argument("--out", metavar="FILE", help="write one file that holds everything, and serve nothing")
    parser.add_argument(
        "--port", type=_port, default=0, metavar="PORT", help="of 127.0.0.1 (default: any that is free)"
    )
    parser.add_argument("--spans", metavar="FILE", help="OTLP's JSON, line by line, as a collector writes it")
    where = "the project of calls that do not say theirs (default: .)"
    parser.add_argument("--root", default=".", metavar="DIR", help=where)
    parser.add_argument(
        "-n", dest="number", type=_number, default=0, metavar="N", help="the log's last N entries (default: all)"
    )
    _wish_arguments(parser)


def _port(text: str) -> int:
    if not text.isdecimal() or not text.isascii() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{printable(text)} is no port")
    return int(text)


def _own_port(text: str) -> int:
    if not _port(text):
        raise argparse.ArgumentTypeError("0 is no port")
    return int(text)


def _wish_arguments(parser: Parser) -> None:
    for name, what in (("since", "from then on"), ("until", "up to then")):
        parser.add_argument(f"--{name}", type=_moment, metavar="TIME", help=what)
    parser.add_argument("--decision", choices=("allow", "ask", "deny"), default="", help="with this verdict")
    for name, metavar, what in (
        ("rule", "ID", "with a finding of this rule"),
        ("project", "DIR", "of this project"),
        ("text", "TEXT", "commands that contain TEXT"),
        ("host", "NAME", "that this agent asked for"),
        ("event", "NAME", "of this kind: hook, run, check, …"),
    ):
        parser.add_argument(f"--{name}", default="", metavar=metavar, help=what)
    parser.add_argument("--trials", action="store_true", help="also the calls by which corral tries its own hooks")


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{printable(text)} is not a number of entries")
    return int(text)


def _moment(text: str) -> str:
    from corral.apps.cli.verbs.log import moment  # noqa: PLC0415  other verbs know no times

    try:
        return moment(text)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{printable(text)} is no time, such as 2h, today or 2026-11-15T09:30"
        ) from None


def _profile_argument(parser: Parser) -> None:
    names = profile_names()
    known = f"{' or '.join(names)} (default: {DEFAULT_PROFILE})"
    parser.add_argument("--profile", default=None, choices=names, metavar="NAME", help=known)


def _root_argument(parser: Parser) -> None:
    parser.add_argument("--root", default=".", metavar="DIR", help="the project's directory (default: .)")


def _mcp_arguments(parser: Parser) -> None:
    bound = "the project's directory, or one above those that the client may name (default: .)"
    parser.add_argument("--root", default=".", metavar="DIR", help=bound)
    names = profile_names()
    tighter = f"{' or '.join(names)}, where the policy says nothing tighter"
    parser.add_argument("--profile", choices=names, metavar="NAME", help=tighter)
    parser.add_argument("--http", metavar="[HOST:]PORT", help="listen on this machine's loopback, not on stdin")
    parser.add_argument("--token-file", metavar="FILE", help="take the token from a file of mode 600, and print none")


def _call_arguments(parser: Parser, unlimited: str = "") -> None:
    parser.add_argument("--shell", metavar="STRING", help="a shell command line instead of a program and its arguments")
    _profile_argument(parser)
    _root_argument(parser)
    parser.add_argument("--cwd", metavar="DIR", help="where the command starts, in the project (default: its root)")
    _timeout_argument(parser, unlimited)


def _timeout_argument(parser: Parser, unlimited: str = "") -> None:
    limit = f"wall-clock seconds, 0 for no limit (default: {DEFAULT_TIMEOUT_SECONDS:g}{unlimited})"
    parser.add_argument("--timeout", type=_seconds, default=argparse.SUPPRESS, metavar="S", help=limit)


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{printable(text)} is not a number of seconds, such as 5 or 0.5")
    return value or None
