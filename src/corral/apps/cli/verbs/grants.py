"""`corral grants`: lists and revokes the user's stored answers: approvals, grants for a kind of command, and refusals. Anyone may."""

from __future__ import annotations

import os
import sys
from time import time

from corral._lib.terminal import Terminal, printable, terminal_of
from corral.apps.cli.verb import Options, UsageError, Verb, argument
from corral.audit.audit_log import Log
from corral.model.call import Call
from corral.model.call_excerpt import one_line
from corral.model.errors import AuditError, PolicyError
from corral.model.render_grant import needs_text
from corral.model.render_result import json_text, labelled
from corral.policy.answers import approvals, family_grants
from corral.policy.answers.approvals import Approval
from corral.policy.answers.family_grants import FamilyGrant, StoredAnswer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Stored = Approval | FamilyGrant | StoredAnswer

MIN_ID = 4  # fewer characters of an id are taken for a typing error
VERB = Verb(
    "policy",
    "List or revoke what you have allowed: commands and destinations that agents get without a question.",
    examples="""\
corral grants                                      list your stored answers and when they expire
corral grants revoke 63b542dc1322                  ask about this again
corral grants revoke --all
""",
    notes="""\
An approval is for one exact command: its text, its directory, the project, the policy at that time and the guard's
findings. A grant is for a kind of command and a destination, in one project. Both expire after 7 days. Answers of the
kind "never" and "no" are listed too. To allow something: corral allow.
""",
    exit_codes="0; 125 corral itself failed",
    usage=("grants [list]", "grants revoke ID ... | --all"),
    arguments=(
        argument("action", nargs="?", choices=("list", "revoke", "add"), metavar="list|revoke", default="list"),
        argument("ids ID", nargs="*", completes="grants"),
        argument("--all", "Revoke everything."),
    ),
)


def check_arguments(options: Options, extra: list[str]) -> None:
    """Refuse arguments that belong to another action."""
    if options.action == "add":
        raise UsageError("approvals are no longer added beforehand; run `corral allow` after a refusal instead")
    if extra:
        raise UsageError(f"`corral grants` does not take {printable(extra[0])}")
    for name in ("ids", "all"):
        if getattr(options, name) and options.action != "revoke":
            given = printable(options.ids[0]) if name == "ids" else f"--{name}"
            raise UsageError(f"`corral grants {options.action}` does not take {given}")


def main(options: Options) -> int:
    """List or revoke stored answers."""
    old = approvals.remove_old_approvals(os.environ)
    if old:
        many = f"{old} approval{'s' * (old != 1)} of an earlier version of corral"
        text = f"{many} {'were' if old != 1 else 'was'} removed: it does not say what a command may open. corral asks again."
        print(f"corral: {text}", file=sys.stderr)
    return {"list": _list, "revoke": _revoke}[options.action](options)


def _known() -> list[Stored]:
    found: list[Stored] = [*approvals.list_approvals(os.environ), *family_grants.list_family_grants(os.environ)]
    return [*found, *family_grants.list_answers(os.environ)]


def _list(options: Options) -> int:
    known = _known()
    if options.json:
        print(json_text([each.to_dict() for each in known]))
        return 0
    terminal = terminal_of(sys.stdout, os.environ)
    lines = [line for each in known for line in stored_lines(each, time(), terminal)]
    print("\n".join(lines or ["Nothing is stored. corral asks about everything that needs your answer."]))
    return 0


def stored_lines(stored: Stored, now: float, terminal: Terminal) -> Iterator[str]:
    """Yield the lines that show a stored answer."""
    if isinstance(stored, Approval):
        yield from approval_lines(stored, now, terminal)
        return
    title = stored.family if isinstance(stored, FamilyGrant) else f"{stored.answer}: {stored.about}"
    yield f"{terminal.paint('mark', stored.id)}  {terminal.paint('head', printable(title))}"
    if stored.grants:
        yield from labelled("opens" if isinstance(stored, FamilyGrant) else "not", needs_text(stored.grants), terminal)
    yield from labelled("where", stored.root, terminal)
    until = left_text(stored.expires_at - now)
    if isinstance(stored, FamilyGrant):
        until += f", used {stored.uses} time{'s' * (stored.uses != 1)}"
    yield from labelled("until", until, terminal)


def approval_lines(approval: Approval, now: float, terminal: Terminal) -> Iterator[str]:
    """Yield the lines that show an approval."""
    argv = approval.call[0] if approval.shell and len(approval.call) == 1 else approval.call
    shown = one_line(Call(argv, approval.shell), terminal.columns - approvals.SHORT_ID - 2, terminal.sign("cut"))
    yield f"{terminal.paint('mark', approval.id)}  {terminal.paint('head', shown)}"
    if approval.grants:
        yield from labelled("opens", needs_text(approval.grants), terminal)
    yield from labelled("where", approval.cwd, terminal)
    yield from labelled("rules", ", ".join(approval.rules), terminal)
    uses = ", for one run" if approval.uses == 1 else ""
    until = f"{left_text(approval.expires_at - now)}{uses}, under the profile {approval.profile}"
    yield from labelled("until", until, terminal)


def left_text(seconds: float) -> str:
    """Return how long something still holds."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            number = int(seconds // size)
            return f"{number} {unit}{'s' * (number != 1)} from now"
    return "less than a minute from now"


def _revoke(options: Options) -> int:
    if not options.all and not options.ids:
        raise PolicyError("name an entry by an id that `corral grants` lists, or pass --all")
    known = _known()
    gone = known if options.all else [_named(start, known) for start in options.ids]
    for stored in gone:
        if isinstance(stored, Approval):
            approvals.revoke(stored, os.environ)
        elif isinstance(stored, FamilyGrant):
            family_grants.revoke_family_grant(stored, os.environ)
        else:
            family_grants.revoke_answer(stored, os.environ)
        _log_revoked(stored)
    if options.json:
        print(json_text([stored.id for stored in gone]))
    else:
        print("\n".join(f"revoked {stored.id}" for stored in gone) or "nothing is stored", file=sys.stderr)
    return 0


def _named(start: str, known: list[Stored]) -> Stored:
    found = [stored for stored in known if len(start) >= MIN_ID and stored.key.startswith(start.lower())]
    if len(found) != 1:
        many = "more than one entry has" if found else "no entry has"
        raise PolicyError(f"{many} an id that begins with {printable(start)}; run `corral grants` to list them")
    return found[0]


def _log_revoked(gone: Stored) -> None:
    if isinstance(gone, Approval):
        call = {"shell": gone.call[0]} if gone.shell else {"argv": gone.call}
        fields: dict[str, object] = {"root": gone.root, "profile": gone.profile, "cwd": gone.cwd, **call}
        reason = "The approval was revoked; corral asks about this call again."
    else:
        fields = {"root": gone.root}
        about = gone.family if isinstance(gone, FamilyGrant) else gone.about
        reason = f"The answer about {about} was revoked; corral asks again."
    try:
        Log(event="grant").note({**fields, "decision": "ask", "reason": reason})
    except AuditError as error:
        # This loosens nothing, so a log that cannot be written is only reported.
        print(f"corral: {printable(str(error))}", file=sys.stderr)
