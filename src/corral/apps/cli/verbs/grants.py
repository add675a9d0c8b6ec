"""`corral grants`: lists, revokes and adds approvals. Anyone may list and revoke; only a person at a terminal may add."""

from __future__ import annotations

import os
import sys
from time import time

from corral._lib.terminal import Terminal, printable, terminal_of
from corral.apps.cli.approval_prompt import kept_text
from corral.apps.cli.approver import Approver
from corral.apps.cli.arguments import call_arguments, check_call
from corral.apps.cli.call import call_of, config_of, machine_of
from corral.apps.cli.verb import Options, UsageError, Verb, argument
from corral.audit.audit_log import Log
from corral.guard.evaluate import vet
from corral.model.call import Call, Decision
from corral.model.call_excerpt import one_line
from corral.model.errors import AuditError, PolicyError
from corral.model.render_result import CHECK_STATUS, json_text, labelled, verdict_text
from corral.policy import approvals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.policy.approvals import Approval

MIN_ID = 4  # fewer characters of an id are taken for a typing error
DECLINED_STATUS = 1
_TAKES = {"list": (), "revoke": ("ids", "all"), "add": ("shell", "cwd", "profile")}  # the arguments of each action
VERB = Verb(
    "policy",
    "List, revoke or add approvals: commands that run in a project without being asked about.",
    examples="""\
corral grants                                      list the approvals and when they expire
corral grants revoke 63b542dc1322                  ask about this command again
corral grants revoke --all
corral grants add --shell 'git push --force'       approve a command without running it, after a question
""",
    notes="""\
An approval is for one exact command: its text, its directory, the project, the policy at that time and the guard's
findings. It expires after 7 days. A denied command cannot be approved, and only a person at a terminal can approve.
""",
    exit_codes="0; add: 1 you said no or corral could not ask, 126 denied; 125 corral itself failed",
    usage=("grants [list]", "grants revoke ID ... | --all", "grants add [options] [--] CMD [ARG ...]"),
    command_after="add",
    arguments=(
        argument("action", nargs="?", choices=tuple(_TAKES), default="list"),
        argument("ids ID", nargs="*", completes="grants"),
        argument("--all", "Revoke all approvals."),
        *call_arguments(),
    ),
)


def check_arguments(options: Options, extra: list[str]) -> None:
    """Refuse arguments that belong to another action."""
    for name in ("ids", "all", "shell", "cwd", "profile"):
        if getattr(options, name) and name not in _TAKES[options.action]:
            given = printable(options.ids[0]) if name == "ids" else f"--{name}"
            raise UsageError(f"`corral grants {options.action}` does not take {given}")
    if options.action == "add":
        check_call(options, extra)


def main(options: Options) -> int:
    """List, revoke or add approvals."""
    return {"list": _list, "revoke": _revoke, "add": _add}[options.action](options)


def _list(options: Options) -> int:
    known = approvals.list_approvals(os.environ)
    if options.json:
        print(json_text([approval.to_dict() for approval in known]))
        return 0
    terminal = terminal_of(sys.stdout, os.environ)
    lines = [line for approval in known for line in approval_lines(approval, time(), terminal)]
    print("\n".join(lines or ["There are no approvals. Answer [p] when `corral run` asks, to make one."]))
    return 0


def approval_lines(approval: Approval, now: float, terminal: Terminal) -> Iterator[str]:
    """Yield the lines that show an approval."""
    argv = approval.call[0] if approval.shell and len(approval.call) == 1 else approval.call
    shown = one_line(Call(argv, approval.shell), terminal.columns - approvals.SHORT_ID - 2, terminal.sign("cut"))
    yield f"{terminal.paint('mark', approval.id)}  {terminal.paint('head', shown)}"
    yield from labelled("where", approval.cwd, terminal)
    yield from labelled("rules", ", ".join(approval.rules), terminal)
    yield from labelled("until", f"{_left(approval.expires_at - now)}, under the profile {approval.profile}", terminal)


def _left(seconds: float) -> str:
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            number = int(seconds // size)
            return f"{number} {unit}{'s' * (number != 1)} from now"
    return "less than a minute from now"


def _revoke(options: Options) -> int:
    if not options.all and not options.ids:
        raise PolicyError("name an approval by an id that `corral grants` lists, or pass --all")
    known = approvals.list_approvals(os.environ)
    gone = known if options.all else [_named(start, known) for start in options.ids]
    for approval in gone:
        approvals.revoke(approval, os.environ)
        _log_revoked(approval)
    if options.json:
        print(json_text([approval.id for approval in gone]))
    else:
        print("\n".join(f"revoked {approval.id}" for approval in gone) or "there are no approvals", file=sys.stderr)
    return 0


def _named(start: str, known: list[Approval]) -> Approval:
    found = [approval for approval in known if len(start) >= MIN_ID and approval.key.startswith(start.lower())]
    if len(found) != 1:
        many = "more than one approval has" if found else "no approval has"
        raise PolicyError(f"{many} an id that begins with {printable(start)}; run `corral grants` to list them")
    return found[0]


def _add(options: Options) -> int:
    config, call = config_of(options), call_of(options)
    verdict = vet(call, config, machine_of(config))
    if verdict.decision is not Decision.ASK:
        print(verdict_text(call, verdict, terminal_of(sys.stderr, os.environ)), file=sys.stderr)
        why = "corral does not ask about this command" if verdict.allowed else "a denied command cannot be approved"
        print(f"corral: nothing to approve: {why}", file=sys.stderr)
        return CHECK_STATUS[verdict.decision]
    approver = Approver(config, machine_of, may_ask=True, runs=False)
    if not approver.answer(call, verdict):
        print(f"corral: not approved: {printable(approver.why_not) or 'you said no'}", file=sys.stderr)
        return DECLINED_STATUS
    made = approvals.find_approval(call, verdict, config, os.environ)
    if made is None:
        raise PolicyError("the approval could not be stored")
    if options.json:
        print(json_text(made.to_dict()))
    elif approver.how == "approved":
        print(kept_text(made), file=sys.stderr)
    return 0


def _log_revoked(gone: Approval) -> None:
    call = {"shell": gone.call[0]} if gone.shell else {"argv": gone.call}
    fields = {"root": gone.root, "profile": gone.profile, "cwd": gone.cwd, **call, "decision": "ask"}
    try:
        Log(event="grant").note({**fields, "reason": "The approval was revoked; corral asks about this call again."})
    except AuditError as error:
        # This loosens nothing, so a log that cannot be written is only reported.
        print(f"corral: {printable(str(error))}", file=sys.stderr)
