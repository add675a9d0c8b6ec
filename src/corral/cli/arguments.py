"""What the command line accepts, and the help that teaches it. After the first `--` all is the command, untouched."""

from __future__ import annotations

import argparse
import os
import sys

from corral import __version__
from corral.config import BACKENDS, DEFAULT_TIMEOUT_SECONDS
from corral.record import FAILURE_STATUS
from corral.rulebook import profile_names
from corral.terminal import PIPE_COLUMNS, terminal_of, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

ABOUT = """\
Run the commands of a coding agent: a guard says yes, ask or no before anything runs, and says why; the kernel holds
what runs inside the project.

  corral check -- rm -rf build          is this allowed? nothing runs
  corral explain --shell 'cat x | sh'   why, part by part
  corral run -- pytest -q               run it contained, if it is allowed
  corral demo                           see it at work in a temporary project
  corral install claude                 hook it into Claude Code, Codex, Gemini CLI, Cursor, OpenCode or Copilot CLI
  corral doctor                         what this machine gives to hold commands with
  corral selftest                       attack the sandbox, harmlessly, and see what holds
"""
EXIT_CODES = """\
exit codes:
  run        the command's own; 126 denied, 124 timed out
  check      0 allow, 3 ask, 126 deny
  explain    as check
  doctor     0 full, 1 partial, 2 none
  selftest   0 all held, 1 something did not, 3 something could not be shown
  any        125 corral itself failed, wrong arguments included
"""
RUN = """\
examples:
  corral run -- pytest -q
  corral run --profile strict --shell 'pytest -q | tail -5'
  corral run --json --timeout 5 -- make | jq .exit_code
  corral run --tty -- bash

workspace runs only where the kernel gives every layer of containment; strict runs with those that there are. The JSON
says which held: "enforcement" and "missing_layers".
Output is passed on as it comes. From a terminal the command gets one of its own, shown in yours: colours, job
control, Ctrl-C and Ctrl-Z are the command's. -t gives it one in any case, and all the time it takes unless --timeout
says otherwise; -T gives it none. Elsewhere stdin, stdout and stderr are the command's own. With --json what it prints
is captured and bounded instead, and one JSON object is printed when the command has ended.
Exit code: the command's own; 126 denied, 124 timed out, 125 corral itself failed.
"""
CHECK = """\
examples:
  corral check -- rm -rf build
  corral check --profile strict --shell 'cat notes.txt | head -3'
  corral check --json -- git push --force
  corral check --jsonl < calls.jsonl

With --jsonl, each line of stdin is {"id": "1", "argv": ["ls"]} or {"id": "1", "shell": "ls | wc -l"}, with "cwd" if
it matters, and each gives one line {"id", "decision", "findings"}, in order and at once. A line that cannot be
read gives "deny" and an "error". The exit code is then 0.
Exit code otherwise: 0 allow, 3 ask, 126 deny, 125 corral itself failed.
"""
EXPLAIN = """\
examples:
  corral explain -- python3 -c 'print(1)'
  corral explain --profile strict --shell 'cd src && cat ../../secret'
  corral explain --json -- git clean -fdx

Exit code: 0 allow, 3 ask, 126 deny, 125 corral itself failed.
"""
RULE = """\
examples:
  corral rule name-rm          what it refuses, why, and what to do instead
  corral rule                  the ids of all rules, one a line

Rule ids stand in every finding.
"""
DEMO = """\
The table goes to stderr and the outcomes as JSON to stdout. Exit code: 0 only if every outcome is as expected.
"""
DOCTOR = """\
examples:
  corral doctor
  corral doctor --json | jq -r '.checks[] | select(.status != "ok") | .name'

Every layer is entered by a throwaway process, and a command looks around in a sandbox that is started for it. Settings
of the machine are read only to explain what did not hold.
Exit code: 0 every layer holds (full), 1 some do (partial), 2 none does, 125 corral itself failed.
"""
SELFTEST = """\
examples:
  corral selftest
  corral selftest --profile strict --json

Each attempt is made twice: in a sandbox as `run` would make it, where it must fail, and uncontained on a victim of its
own, where it must succeed. Victims are made for it and removed. Where the second fails too, nothing was shown.
Exit code: 0 all held, 1 something did not, 3 nothing got out but something could not be shown, 125 corral failed.
"""
INSTALL = """\
examples:
  corral install claude              for all projects of yours
  corral install codex --project     for this project alone
  corral install gemini --dry-run    show the change, write nothing

The change is shown first, and written when you say so; --yes is for scripts. Everything else in the file stays as it
is. The hook is tried at once, and corral doctor tries it again whenever you like.
Exit code: 0 installed, or there already; 1 you said no; 125 corral itself failed, and nothing was written, or the hook
does not do what it should.
"""
UNINSTALL = """\
examples:
  corral uninstall claude
  corral uninstall codex --project

The file becomes what it was before corral; where it changed since, only corral's entry is taken out.
Exit code: 0 gone, or never there; 1 you said no; 125 corral itself failed.
"""
HOOK = """\
corral hook claude|codex|gemini|cursor|opencode|copilot reads one call from stdin, in the words of that host, and answers
in them: an allowed command is rewritten to run through `corral run` where the host can do that. `corral install HOST`
enters it, in a form that starts faster, into the settings of the host.
Exit code: 0 with the answer on stdout, or 2 where the call is refused, whatever the reason.
"""
LOG = """\
examples:
  corral log                             the last calls, the newest last
  corral log --decision deny --since 1d  what was refused since yesterday
  corral log -f                          live
  corral log show 3f2a91c0               one again: all of it, and what the guard says of it today
  corral log verify                      whether a line was removed or changed

Times are 10m, 2h, 3d, today, yesterday, or as 2026-11-15T09:30. A rule is an id, or how ids begin: name, path-outside.
Exit code: 0; verify 1 where the log is not whole; 125 corral itself failed.
"""
GRANTS = """\
examples:
  corral grants                                      what is approved, and until when
  corral grants revoke 63b542dc1322                  to be asked about that call again
  corral grants revoke --all
  corral grants add --shell 'git push --force'       approve it without running it, after the question

An approval is for one exact call: its text, its directory, the project, the policy as it was, and all that the guard said of
it. It lasts 7 days. What is denied cannot be approved, and only a person at a terminal can approve.
Exit code: 0; add 1 you said no or nobody could be asked, 126 it is denied; 125 corral itself failed.
"""
POLICY = """\
examples:
  corral policy show           what holds here, and the file and line of each setting
  corral policy show --json | jq .waiting
  corral policy test           judge every example of every rule
  corral policy schema         the JSON Schema of the files, for editors

The files are ~/.config/corral/policy.toml, the owner's, and corral.toml in the project, which may only tighten until
the owner trusts it.
Exit code: 0; test 1 where an example does not hold; 125 a file is wrong, with its line and column.
"""
TRUST = """\
examples:
  corral trust                 show this project's corral.toml and what it would loosen, and ask
  corral trust --list          what is trusted

A file that is not trusted can only tighten. Trust holds for the exact bytes: a file that changes is untrusted again.
Only a person at a terminal can trust: not a pipe, a hook or an agent, and nothing inside a sandbox.
Exit code: 0 trusted, or it needs no trust; 1 you said no; 125 corral itself failed, or there is nobody to ask.
"""
DISTRUST = """\
examples:
  corral distrust              this project's corral.toml can only tighten from now on

Exit code: 0; 125 corral itself failed.
"""
INIT = """\
examples:
  corral init                  write a corral.toml that fits this project
  corral init --user           write ~/.config/corral/policy.toml, for all projects
  corral init --print          show it and write nothing

A file that is there stays as it is. What is written only tightens; what would loosen stands in it as a comment.
Exit code: 0 written; 125 corral itself failed, or there is a file already.
"""
DEFAULT_PROFILE = "workspace"
VERBS = {
    "run": ("run a command, if the guard allows it", RUN),
    "check": ("say whether a command would be allowed; run nothing", CHECK),
    "explain": ("show how a command is judged, part by part; run nothing", EXPLAIN),
    "grants": ("show, revoke or add what you approved for a project", GRANTS),
    "log": ("show what was tried, what was said of it, and what became of it", LOG),
    "rule": ("show a rule's page, or the ids of all rules", RULE),
    "policy": ("show what holds here and where it comes from; test it; print its schema", POLICY),
    "init": ("write a policy file that fits this project", INIT),
    "trust": ("let this project's policy file loosen, as it is now", TRUST),
    "distrust": ("let this project's policy file only tighten again", DISTRUST),
    "hook": ("answer one call of a coding agent, in its own protocol", HOOK),
    "demo": ("run legal and adversarial calls in a temporary project", DEMO),
    "doctor": ("show what this machine gives to hold commands with, and what would give more", DOCTOR),
    "install": ("put corral between a coding agent and this machine", INSTALL),
    "uninstall": ("take corral out of a coding agent's settings", UNINSTALL),
    "selftest": ("attack the sandbox harmlessly, and show what held", SELFTEST),
}
CALLS = {
    verb: f"corral {verb} [options] -- CMD [ARG ...]\n       corral {verb} [options] --shell STRING"
    for verb in ("run", "check", "explain")
}
CALLS["check"] += "\n       corral check [--profile NAME] [--root DIR] --jsonl"
USAGE = CALLS | {
    "grants": "corral grants [list]\n       corral grants revoke ID ... | --all\n       corral grants add [options] -- CMD [ARG ...]",
    "log": "corral log [options]\n       corral log show ID\n       corral log verify",
}


class Form(argparse.RawDescriptionHelpFormatter):
    """Help as it is written, as wide as the terminal. argparse would import shutil to learn the width."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(terminal_of(sys.stdout, os.environ).columns, PIPE_COLUMNS))


class Parser(argparse.ArgumentParser):
    """A parser whose failures are corral's own: 2 would look like the command's exit code."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and how to see what is right."""
        self.exit(FAILURE_STATUS, f"corral: {message}\nTry: {self.prog} --help\n")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line; prints and exits for --help, --version and what is wrong."""
    ours, command = arguments, None
    if "--" in arguments:
        ours, command = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    if not ours or ours[0] not in VERBS:
        _no_verb(ours)
    verb = ours[0]
    # One parser a verb, and only the one that is needed: argparse takes longer to make than the guard to judge.
    parser = _verb_parser(verb)
    options, loose = parser.parse_known_args(ours[1:])
    options.verb, options.command = verb, command
    _check(options, loose, parser)
    return options


def _no_verb(ours: list[str]) -> NoReturn:
    listed = "\n".join(f"  {verb:9} {what}" for verb, (what, _) in VERBS.items())
    usage = "corral COMMAND [options]\n       corral COMMAND --help"
    parser = _parser("corral", f"{ABOUT}\ncommands:\n{listed}", EXIT_CODES, usage)
    parser.add_argument("--version", action="version", version=f"corral {__version__}")
    parser.add_argument("verb", nargs="?", help=argparse.SUPPRESS)
    options, loose = parser.parse_known_args(ours)
    if loose and loose[0].startswith("-"):
        parser.error(f"unknown option {visible(loose[0])}; the options of a command stand after its name")
    verb = options.verb
    if verb is None:
        parser.print_help(sys.stderr)
        sys.exit(FAILURE_STATUS)
    parser.error(f"there is no command {visible(verb)}; choose one of {', '.join(VERBS)}")


def _check(options: argparse.Namespace, loose: list[str], parser: Parser) -> None:
    """Refuse what contradicts itself: exactly one of a command, a shell string and a batch is wanted."""
    if loose and loose[0].startswith("-"):
        parser.error(f"unknown option {visible(loose[0])}")
    command = options.command
    if options.verb == "grants":
        _check_grants(options, parser)
    if options.verb not in CALLS and getattr(options, "action", None) != "add":
        if loose or command is not None:
            parser.error(f"{options.verb} takes no command")
        return
    wants_terminal = getattr(options, "tty", None)
    if wants_terminal and options.json:
        parser.error("--tty shows the command live, --json captures it; give one of them")
    options.timeout_is_given = "timeout" in options
    if not options.timeout_is_given:
        # Somebody sits there.
        options.timeout = None if wants_terminal else DEFAULT_TIMEOUT_SECONDS
    batch = getattr(options, "jsonl", False)
    given = (command is not None) + (options.shell is not None) + batch
    if given == 0 and getattr(options, "grant", None) is not None:
        return  # the text lies with the grant
    if loose:
        parser.error(f"put the command after --, as in: {parser.prog} -- {visible(' '.join(loose))}")
    if given > 1:
        parser.error("give one of: -- CMD, --shell STRING" + (", --jsonl" if options.verb == "check" else ""))
    if given == 0:
        parser.error(f"what should it {options.verb}? Give the command after --, or --shell STRING")
    if batch and (options.cwd is not None or options.json):
        parser.error("with --jsonl every line has its own cwd and is JSON already")


def _check_grants(options: argparse.Namespace, parser: Parser) -> None:
    given = {"list": (), "revoke": ("ids", "all"), "add": ("shell", "cwd", "profile")}
    extra = [name for name in ("ids", "all", "shell", "cwd", "profile") if getattr(options, name)]
    for name in extra:
        if name not in given[options.action]:
            said = f"--{name}" if name != "ids" else visible(options.ids[0])
            parser.error(f"grants {options.action} takes no {said}")


def _parser(name: str, about: str, epilog: str, usage: str | None) -> Parser:
    return Parser(name, usage, about, epilog, formatter_class=Form, allow_abbrev=False)


def _verb_parser(verb: str) -> Parser:
    what, epilog = VERBS[verb]
    parser = _parser(f"corral {verb}", f"{what[0].upper()}{what[1:]}.", epilog, USAGE.get(verb))
    if verb in CALLS:
        _call_arguments(parser)
    if verb == "grants":
        parser.add_argument(
            "action", nargs="?", choices=("list", "revoke", "add"), default="list", help=argparse.SUPPRESS
        )
        parser.add_argument("ids", nargs="*", metavar="ID", help=argparse.SUPPRESS)
        parser.add_argument("--all", action="store_true", help="revoke all")
        _call_arguments(parser)
    if verb == "run":
        own = "on a terminal of its own (default: where corral is on one)"
        parser.add_argument("-t", "--tty", action="store_true", default=None, help=own)
        parser.add_argument("-T", "--no-tty", dest="tty", action="store_false", help="without one")
        never = "ask nobody: what would be asked about is refused"
        parser.add_argument("--no-ask", dest="ask", action="store_false", help=never)
        parser.add_argument("--call", default="", metavar="ID", help=argparse.SUPPRESS)
        # What a rewritten command of a hook needs; the guard refuses them in the text of an agent.
        parser.add_argument("--grant", metavar="ID", help=argparse.SUPPRESS)
        parser.add_argument("--directory-file", metavar="FILE", help=argparse.SUPPRESS)
        parser.add_argument("--exports", action="store_true", help=argparse.SUPPRESS)
    if verb == "check":
        parser.add_argument("--jsonl", action="store_true", help="judge one call per line of stdin")
    if verb == "selftest":
        _profile_argument(parser)
        parser.set_defaults(profile=DEFAULT_PROFILE)
    if verb in ("doctor", "selftest"):
        _root_argument(parser)
    if verb in ("run", "doctor", "selftest"):
        what = "what holds commands: auto (default), warden, bubblewrap, or none"
        parser.add_argument("--backend", default="auto", choices=BACKENDS, metavar="NAME", help=what)
    if verb in ("install", "uninstall"):
        _host_arguments(parser)
    if verb == "log":
        _log_arguments(parser)
    if verb == "policy":
        parser.add_argument("action", choices=("show", "test", "schema"), metavar="show|test|schema")
        _profile_argument(parser)
    if verb in ("policy", "init", "trust", "distrust", "rule"):
        _root_argument(parser)
    if verb == "trust":
        parser.add_argument("--list", action="store_true", help="show what is trusted")
    if verb == "init":
        parser.add_argument("--user", action="store_true", help="for all projects of yours")
        parser.add_argument("--print", dest="shown", action="store_true", help="show it and write nothing")
    if verb == "rule":
        parser.add_argument("id", nargs="?", metavar="ID", help="a rule's id, as in a finding")
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")
    return parser


def _host_arguments(parser: Parser) -> None:
    from corral.integrations.hosts import HOSTS  # noqa: PLC0415  for two verbs

    parser.add_argument("hosts", nargs="*", type=_host, metavar="HOST", help=", ".join(HOSTS))
    level = parser.add_mutually_exclusive_group()
    level.add_argument("--user", dest="project", action="store_false", default=False, help="for all projects (default)")
    level.add_argument("--project", action="store_true", help="for this project alone")
    where = "the project's directory (default: the one that the working directory lies in)"
    parser.add_argument("--root", metavar="DIR", help=where)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask; for scripts")
    parser.add_argument("-n", "--dry-run", action="store_true", help="show the change and write nothing")


def _host(text: str) -> str:
    from corral.integrations.hosts import HOSTS  # noqa: PLC0415  as above

    if text not in HOSTS:
        raise argparse.ArgumentTypeError(f"there is no host {visible(text)}; choose one of {', '.join(HOSTS)}")
    return text


def _log_arguments(parser: Parser) -> None:
    parser.add_argument("action", nargs="?", choices=("show", "verify"), help=argparse.SUPPRESS)
    parser.add_argument("id", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("-f", "--follow", action="store_true", help="go on as new ones come")
    parser.add_argument(
        "-n", dest="number", type=_number, default=50, metavar="N", help="the last N (default: 50), 0 for all"
    )
    for name, what in (("since", "from then on"), ("until", "up to then")):
        parser.add_argument(f"--{name}", type=_moment, metavar="TIME", help=what)
    parser.add_argument("--decision", choices=("allow", "ask", "deny"), default="", help="with this verdict")
    for name, metavar, what in (
        ("rule", "ID", "with a finding of this rule"),
        ("project", "DIR", "of this project"),
        ("text", "TEXT", "whose command holds this"),
        ("host", "NAME", "that this agent asked for"),
        ("event", "NAME", "of this kind: hook, run, check, …"),
    ):
        parser.add_argument(f"--{name}", default="", metavar=metavar, help=what)


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{visible(text)} is not a number of entries")
    return int(text)


def _moment(text: str) -> str:
    from corral.cli.log import moment  # noqa: PLC0415  other verbs know no times

    try:
        return moment(text)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{visible(text)} is no time, such as 2h, today or 2026-11-15T09:30") from None


def _profile_argument(parser: Parser) -> None:
    names = profile_names()
    known = f"{' or '.join(names)} (default: {DEFAULT_PROFILE})"
    parser.add_argument("--profile", default=None, choices=names, metavar="NAME", help=known)


def _root_argument(parser: Parser) -> None:
    parser.add_argument("--root", default=".", metavar="DIR", help="the project's directory (default: .)")


def _call_arguments(parser: Parser) -> None:
    parser.add_argument("--shell", metavar="STRING", help="a shell command line instead of a program and its arguments")
    _profile_argument(parser)
    _root_argument(parser)
    parser.add_argument("--cwd", metavar="DIR", help="where the command starts, in the project (default: its root)")
    limit = f"wall-clock seconds, 0 for no limit (default: {DEFAULT_TIMEOUT_SECONDS:g})"
    parser.add_argument("--timeout", type=_seconds, default=argparse.SUPPRESS, metavar="S", help=limit)


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{visible(text)} is not a number of seconds, such as 5 or 0.5")
    return value or None
