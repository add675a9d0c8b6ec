"""`corral grants`: the calls that a person has approved for a project. Anyone may list and revoke; only a person adds."""

from __future__ import annotations

import os
import sys
from time import time

from corral._lib.terminal import printable, terminal_of
from corral.apps.cli.approval_prompt import kept_text
from corral.apps.cli.approver import Approver
from corral.apps.cli.verbs.check import call_of, config_of, machine_of
from corral.audit.audit_log import Log
from corral.guard.evaluate import vet
from corral.model.call import Call, Decision
from corral.model.call_excerpt import one_line
from corral.model.errors import AuditError, PolicyError
from corral.model.render_result import CHECK_STATUS, json_text, labelled, verdict_text
from corral.policy import approvals

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from corral._lib.terminal import Terminal
    from corral.policy.approvals import Approval

MIN_ID = 4  # letters of an id; fewer are a slip
DECLINED_STATUS = 1


def main(options: argparse.Namespace) -> int:
    """List, revoke or add."""
    return {"list": _list, "revoke": _revoke, "add": _add}[options.action](options)


def _list(options: argparse.Namespace) -> int:
    known = approvals.list_approvals(os.environ)
    if options.json:
        print(json_text([approval.to_dict() for approval in known]))
        return 0
    terminal = terminal_of(sys.stdout, os.environ)
    lines = [line for approval in known for line in approval_lines(approval, time(), terminal)]
    if not known:
        lines = ["Nothing is approved. `corral run` asks, and [p] keeps the answer."]
    print("\n".join(lines))
    return 0


def approval_lines(approval: Approval, now: float, terminal: Terminal) -> Iterator[str]:
    """Yield an approval for people."""
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


def _revoke(options: argparse.Namespace) -> int:
    known = approvals.list_approvals(os.environ)
    gone = known if options.all else [found for start in options.ids for found in _named(start, known)]
    if not options.all and not options.ids:
        raise PolicyError("which one? Give an id as `corral grants` lists it, or --all")
    for approval in gone:
        approvals.revoke(approval, os.environ)
        _note(approval)
    if options.json:
        print(json_text([approval.id for approval in gone]))
    else:
        print("\n".join(f"revoked {approval.id}" for approval in gone) or "nothing was approved", file=sys.stderr)
    return 0


def _named(start: str, known: list[Approval]) -> list[Approval]:
    found = [approval for approval in known if len(start) >= MIN_ID and approval.key.startswith(start.lower())]
    if len(found) != 1:
        many = "more than one approval begins" if found else "there is no approval that begins"
        raise PolicyError(f"{many} with {printable(start)}; corral grants lists them")
    return found


def _add(options: argparse.Namespace) -> int:
    config, call = config_of(options), call_of(options)
    verdict = vet(call, config, machine_of(config))
    terminal = terminal_of(sys.stderr, os.environ)
    if verdict.decision is not Decision.ASK:
        print(verdict_text(call, verdict, terminal), file=sys.stderr)
        why = "it runs without being asked about" if verdict.allowed else "what is denied cannot be approved"
        print(f"corral: nothing to approve: {why}", file=sys.stderr)
        return CHECK_STATUS[verdict.decision]
    asking = Approver(config, machine_of, may_ask=True, runs=False)
    if not asking.answer(call, verdict):
        print(f"corral: not approved: {printable(asking.why_not) or 'the answer was no'}", file=sys.stderr)
        return DECLINED_STATUS
    made = approvals.find_approval(call, verdict, config, os.environ)
    if made is None:
        raise PolicyError("the approval could not be kept")
    if options.json:
        print(json_text(made.to_dict()))
    elif asking.how == "approved":
        print(kept_text(made), file=sys.stderr)
    return 0


def _note(gone: Approval) -> None:
    call = {"shell": gone.call[0]} if gone.shell else {"argv": gone.call}
    fields = {"root": gone.root, "profile": gone.profile, "cwd": gone.cwd, **call, "decision": "ask"}
    try:
        Log(event="grant").note({**fields, "reason": "The approval was revoked; it is asked about again."})
    except AuditError as error:
        # Nothing is loosened by it.
        print(f"corral: {printable(str(error))}", file=sys.stderr)
