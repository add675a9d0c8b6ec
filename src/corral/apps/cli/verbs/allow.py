"""`corral allow`: answers a refusal from another terminal. Shows what the call needs, and asks the user."""

from __future__ import annotations

import os
import sys
from time import sleep, time

from corral._lib.network.network_grants import parse_grant
from corral._lib.terminal import Terminal, clip, printable, terminal_of
from corral.apps.cli.arguments import port_number
from corral.apps.cli.call import machine_of
from corral.apps.cli.questions.approval_prompt import DAYS, kept_text
from corral.apps.cli.questions.approver import Approver
from corral.apps.cli.questions.terminal_prompt import YES, TerminalPrompt, why_not_owner
from corral.apps.cli.verb import Options, UsageError, Verb, argument
from corral.audit.audit_log import Log
from corral.guard.evaluate import vet
from corral.model.call import Decision
from corral.model.call_excerpt import one_line
from corral.model.errors import PolicyError
from corral.model.grant import LOCAL, NETWORK, PUBLISH, READ, Grant
from corral.model.render_grant import meanings, needs_text, scope_text
from corral.model.render_result import json_text, labelled
from corral.policy.answers.approvals import approve
from corral.policy.answers.family_grants import find_answer, revoke_answer, store_family_grant
from corral.policy.answers.refusals import Refusal, find_refusal, open_refusals, remove_refusal
from corral.policy.answers.unforeseen import destinations_of, with_destinations
from corral.policy.answers.watchers import Watcher
from corral.policy.config import checked_root
from corral.policy.loader import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.policy.config import SandboxConfig

DECLINED_STATUS, NOTHING_STATUS, NOBODY_STATUS = 1, 2, 126
WATCH_SECONDS = 0.5
TYPED = "typed by the user"
VERB = Verb(
    "policy",
    "Answer a refusal: see what an agent's command needs, and allow it or not.",
    examples="""\
corral allow                 show the newest refusal, of any project, and ask
corral allow 7f3a            show this one
corral allow --list          list the refusals of the last hour
corral allow --watch         wait, and show each refusal as it comes; a command that waits to connect comes first
corral allow --network index.example:443 --for 'npm install'      allow a destination beforehand, for 7 days
""",
    notes="""\
A refusal names its id. corral judges the command again, shows exactly what would be opened, and asks: once, this very
command, this destination for this kind of command, or never. The command stays in the sandbox in every case.
Afterwards, tell the agent to run it again.

Only a person at a terminal can answer: not a pipe, a background job, a sandbox, or a terminal that an agent started.
""",
    exit_codes="0 allowed, 1 you said no, 2 there is no such refusal, 126 corral cannot ask here, 125 corral itself failed",
    usage=("allow [ID]", "allow --list | --watch", "allow --network HOST:PORT --for COMMAND [--project DIR]"),
    arguments=(
        argument("id ID", nargs="?", default=""),
        argument("--list", "List the refusals that can be answered."),
        argument("--watch", "Wait for refusals, and ask about each."),
        argument("--for COMMAND", "The kind of command that a grant is for, such as 'npm install'.", dest="family"),
        argument("--network HOST:PORT", "Allow a network destination.", action="append", default=[]),
        argument("--read PATH", "Allow reading a path.", action="append", default=[]),
        argument("--local PORT", "Allow a port of this machine's loopback.", action="append", type=port_number, default=[]),
        argument("--publish PORT", "Allow publishing a port.", action="append", type=port_number, default=[]),
        argument("--project DIR", "The project that the grant is for (default: the current directory)."),
    ),
)  # fmt: skip


def check_arguments(options: Options, _: list[str]) -> None:
    """Refuse arguments that contradict each other."""
    grants = options.network or options.read or options.local or options.publish
    if bool(grants) != bool(options.family):
        raise UsageError("a grant beforehand needs --for COMMAND and one of --network, --read, --local, --publish")
    if (options.project is not None) > bool(grants):
        raise UsageError("--project belongs to --for COMMAND")
    if sum(map(bool, (options.id, options.list, options.watch, grants))) > 1:
        raise UsageError("give an id, --list, --watch or a grant beforehand; only one of them")


def main(options: Options) -> int:
    """Answer a refusal, list them, or allow a destination beforehand."""
    if options.list:
        return _list(options)
    if why := why_not_owner(os.environ):
        print(f"corral: only a person at a terminal can allow something, and {printable(why)}", file=sys.stderr)
        return NOBODY_STATUS
    if options.family:
        return _allow_beforehand(options)
    if options.watch:
        return _watch()
    found = find_refusal(options.id.lower(), os.environ) if options.id else next(iter(open_refusals(os.environ)), None)
    if found is None:
        about = f"{printable(options.id)} is not an open refusal" if options.id else "nothing waits for your answer"
        print(f"corral: {about}. corral allow --list shows those of the last hour", file=sys.stderr)
        return NOTHING_STATUS
    return _answer(found)


def _answer(refusal: Refusal) -> int:
    """Judge a refused call again and ask the user about it."""
    config = load(refusal.root, os.environ).config
    call = refusal.as_call.replace(cwd=None if refusal.cwd == refusal.root else refusal.cwd)
    judged = verdict = vet(call, config, machine_of(config))
    seen = destinations_of(refusal.verdict)
    if seen and judged.decision is not Decision.DENY:
        verdict = with_destinations(judged, seen)
    if verdict.decision is not Decision.ASK:
        state = "allowed now" if verdict.allowed else f"denied now: {printable(verdict.reason)}"
        print(f"corral: nothing to answer: this call is {state}", file=sys.stderr)
        remove_refusal(refusal, os.environ)
        return 0 if verdict.allowed else DECLINED_STATUS
    approver = Approver(config, machine_of, may_ask=True, runs=False)
    if not approver.ask(call, verdict):
        if approver.why_not:
            print(f"corral: not asked: {printable(approver.why_not)}", file=sys.stderr)
        if approver.was_answered:
            remove_refusal(refusal, os.environ)
            print("corral: not allowed", file=sys.stderr)
        return DECLINED_STATUS
    # A yes is newer than an earlier no to the same question.
    if (no := find_answer(call, verdict, config, os.environ)) is not None:
        revoke_answer(no, os.environ)
    if seen and judged.decision is Decision.ASK:
        # The next run asks this question first, and that one about its connections later.
        approve(call, judged, config, os.environ, once=True)
    remove_refusal(refusal, os.environ)
    is_held = time() < refusal.held_until
    print("The command continues." if is_held else "Tell the agent to run it again.", file=sys.stderr)
    return 0


def _watch() -> int:
    print("corral: waiting for refusals; Ctrl-C ends this", file=sys.stderr)
    shown: set[tuple[str, float]] = set()
    watcher = Watcher(os.environ)
    try:
        while True:
            watcher.announce()
            waiting = [each for each in open_refusals(os.environ) if (each.id, each.refused_at) not in shown]
            if waiting:
                # One at a time: while the user reads, a connection may begin to wait.
                first = min(waiting, key=lambda each: (each.held_until <= time(), each.refused_at))
                shown.add((first.id, first.refused_at))
                _answer(first)
            else:
                sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 0
    finally:
        watcher.close()


def _list(options: Options) -> int:
    found = open_refusals(os.environ)
    if options.json:
        print(json_text([refusal.to_dict() for refusal in found]))
        return 0
    terminal = terminal_of(sys.stdout, os.environ)
    lines = [line for refusal in found for line in refusal_lines(refusal, time(), terminal)]
    print("\n".join(lines or ["Nothing waits for your answer."]))
    return 0


def refusal_lines(refusal: Refusal, now: float, terminal: Terminal) -> Iterator[str]:
    """Yield the lines that show an open refusal."""
    width = max(terminal.columns - len(refusal.id) - 2, 8)
    shown = one_line(refusal.as_call, width, terminal.sign("cut"))
    yield f"{terminal.paint('mark', refusal.id)}  {terminal.paint('head', shown)}"
    if refusal.grants:
        yield from labelled("needs", needs_text(refusal.grants), terminal)
    if now < refusal.held_until:
        yield from labelled("held", f"the command waits {int(refusal.held_until - now)} seconds more", terminal)
    yield from labelled("where", refusal.cwd, terminal)
    minutes = max(int((now - refusal.refused_at) // 60), 0)
    age = f"{minutes} minute{'s' * (minutes != 1)} ago, by {refusal.host}"
    yield from labelled("when", clip(age, terminal.columns, terminal.sign("cut")), terminal)


def _allow_beforehand(options: Options) -> int:
    """Store a grant for a kind of command that the user names, after a question."""
    root = checked_root(options.project or os.getcwd())
    config = load(root, os.environ).config
    grants = _given(options, config)
    family = " ".join(options.family.split())
    if not family or not family.isascii() or not family.isprintable():
        raise PolicyError(f"--for takes the first words of a command, such as 'npm install', not {options.family!r}")
    if not _agreed(family, grants, config):
        print("corral: not allowed", file=sys.stderr)
        return DECLINED_STATUS
    # Logged first: if the log cannot be written, nothing is granted.
    reason = f"A person at a terminal allowed {family} in this project for {DAYS} days: {needs_text(grants)}"
    Log(config, event="grant").note({"decision": "allow", "reason": reason})
    made = store_family_grant(family, grants, config, os.environ, channel="allow")
    print(kept_text(made), file=sys.stderr)
    return 0


def _given(options: Options, config: SandboxConfig) -> tuple[Grant, ...]:
    try:
        hosts = [Grant(NETWORK, parse_grant(text), TYPED) for text in options.network]
    except ValueError as error:
        raise PolicyError(f"--network: {error}") from None
    if any(grant.target.startswith("*.") for grant in hosts):
        raise PolicyError("--network names one host; a pattern belongs in a policy file")
    paths = [Grant(READ, os.path.realpath(path), TYPED) for path in options.read]
    local = [Grant(LOCAL, str(port), TYPED) for port in options.local]
    ports = [Grant(PUBLISH, str(port), TYPED) for port in options.publish]
    given = (*hosts, *paths, *local, *ports)
    config.with_grants(given)  # raises for a path that is never opened
    return given


def _agreed(family: str, grants: tuple[Grant, ...], config: SandboxConfig) -> bool:
    with TerminalPrompt() as prompt:
        terminal = terminal_of(prompt, os.environ)
        lines = ["", terminal.paint("head", f"{scope_text(family, grants)} in {printable(config.project_root)}"), ""]
        lines += labelled("opens", needs_text(grants), terminal)
        for sentence in meanings(grants):
            lines += labelled("means", sentence, terminal)
        prompt.write("\n".join([*lines, "", ""]))
        question = terminal.paint("head", f"Allow it for {DAYS} days? [y]es, [N]o")
        return prompt.ask(f"{question} > ") in YES
    return False  # interrupted
