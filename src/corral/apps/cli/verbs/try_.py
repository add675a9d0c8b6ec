"""`corral try`: runs a call against an overlay of the project, shows what it did, and asks whether that is to stay.

Where nobody can be asked nothing is applied and nothing is lost: the changes wait for `corral apply` or `corral discard`.
"""

from __future__ import annotations

import os
import sys

from corral._lib.quoting import shell_quote
from corral._lib.terminal import printable, terminal_of, terminal_reset
from corral.apps.cli import terminal_session
from corral.apps.cli.approver import Approver
from corral.apps.cli.render_changes import MAX_LINES, applied_lines, bounded, diff_lines
from corral.apps.cli.terminal_prompt import TerminalPrompt, agent_shell_reason, inside_sandbox_reason, why_nobody
from corral.apps.cli.verbs.check import call_of, config_of, machine_of
from corral.apps.cli.verbs.run import Record, drive, tell_violations
from corral.audit.audit_log import Log
from corral.model.errors import AuditError, CorralError, TransactionError
from corral.model.render_result import FAILURE_STATUS, denial_text, exit_status, json_text, timeout_text
from corral.sandbox import Sandbox
from corral.transactions.changes import summary
from corral.transactions.transaction import log_fields
from corral.transactions.workspace import refuse_more

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from corral.model.call import Call
    from corral.model.result import SandboxResult
    from corral.policy.config import SandboxConfig
    from corral.transactions.apply import Applied
    from corral.transactions.transaction import Transaction

TAKE_BACK = "to take it back: corral undo"
YES, KEEP, SHOW = ("y", "yes"), ("k", "keep"), ("s", "show")


def main(options: argparse.Namespace) -> int:
    """Try what the command line names; the exit code is the command's, or 125 where what was to be applied could not be."""
    refuse_inside()
    config, call = config_of(options), call_of(options)
    record = Record(Log(config, event="try"), required=config.audit.required)
    record.check()
    if not options.yes and (options.json or why_nobody(os.environ)):
        refuse_more(config.project_root, os.environ)
    asking = Approver(config, machine_of, may_ask=not options.json)
    with Sandbox(config=config, on_ask=asking.answer, on_result=record.result) as box:
        try:
            with box.transaction() as tx:
                return _tried(tx, call, config, options)
        except AuditError:
            raise
        except CorralError as error:
            record.failure(call, error)
            raise


def refuse_inside() -> None:
    """Raise inside a sandbox: what a command may do to the project is not its own to decide."""
    why = inside_sandbox_reason()
    if why:
        raise TransactionError(f"transactions are the owner's to begin, apply and undo, and {why}")


def refuse_agents(why: str) -> None:
    """Raise inside a sandbox, and in the shell of an agent: whose command it was has no say in what becomes of it."""
    refuse_inside()
    if agent := agent_shell_reason(os.environ):
        raise TransactionError(f"{why}, and {agent}")


def told(applied: Applied, done: str, then: str, *, as_json: bool) -> int:
    """Print what became of an application, and return the exit code."""
    if as_json:
        print(json_text(applied.to_dict()))
    else:
        print("\n".join(applied_lines(applied, terminal_of(sys.stderr, os.environ), done, then)), file=sys.stderr)
    return 0 if applied.ok else FAILURE_STATUS


class Trial:
    """What one try came to."""

    def __init__(self, tx: Transaction, result: SandboxResult) -> None:
        self.tx = tx
        self.result = result
        self.changes = tx.changes()
        self.diff = tx.diff() if self.changes else ""
        self.outcome = "nothing" if not self.changes else "discarded"
        self.applied: Applied | None = None

    def settle(self, outcome: str) -> None:
        """Do what was answered."""
        self.outcome = outcome
        if outcome == "applied":
            self.applied = self.tx.apply()
            self.outcome = "applied" if self.applied.ok else "conflict"
        if self.outcome in ("kept", "conflict"):
            self.tx.keep()

    def noted(self) -> dict[str, object]:
        """Return what the owner's log says of it."""
        changes = self.changes if self.applied is None or not self.applied.ok else self.applied.changes
        return log_fields(self.tx.id, self.outcome, changes, self.applied)

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON-ready data."""
        return {
            "result": self.result.to_dict(),
            "transaction": self.tx.id,
            "how": self.tx.how,
            "changes": [change.to_dict() for change in self.changes],
            "diff": self.diff,
            "outcome": self.outcome,
            "applied": None if self.applied is None else self.applied.to_dict(),
        }


def _tried(tx: Transaction, call: Call, config: SandboxConfig, options: argparse.Namespace) -> int:
    on_terminal = not options.json and terminal_session.is_wanted(options.tty)
    result = terminal_session.drive(tx, call) if on_terminal else drive(tx, call, live=not options.json)
    if not options.json:
        _tell(call, result, config)
    trial = Trial(tx, result)
    if trial.changes:
        trial.settle(_answer(trial, options))
    note(config, trial.noted())
    if options.json:
        print(json_text(trial.to_dict()))
    elif not result.denied:
        _say(trial, _why_kept(trial, options), shows=options.yes or bool(why_nobody(os.environ)))
    return FAILURE_STATUS if trial.outcome == "conflict" else exit_status(result)


def _tell(call: Call, result: SandboxResult, config: SandboxConfig) -> None:
    if result.denied:
        print(denial_text(call, result, terminal_of(sys.stderr, os.environ)), file=sys.stderr)
    elif result.timed_out:
        print(timeout_text(config.timeout_seconds), file=sys.stderr)
    else:
        sys.stderr.buffer.write(result.stderr)
        sys.stderr.flush()
    tell_violations(result)


def _answer(trial: Trial, options: argparse.Namespace) -> str:
    """Return what is to become of the changes: applied, discarded or kept."""
    result, changes, diff = trial.result, trial.changes, trial.diff
    if options.yes:
        # What a command that failed leaves is seldom what anybody said yes to.
        return "applied" if result.ok else "kept"
    if options.json or why_nobody(os.environ):
        return "kept"
    whole = False
    with TerminalPrompt() as person:
        terminal = terminal_of(person, os.environ)
        # The command has written to this terminal: it may have left it hiding what comes.
        person.tell(terminal_reset(os.environ))
        while True:
            lines, is_whole = bounded(diff_lines(diff, terminal), 1 << 62 if whole else MAX_LINES, terminal)
            ended = "" if result.ok else f", and the command ended with {result.exit_code}"
            head = terminal.paint("head", f"{summary(changes)}{ended}")
            person.tell("\n".join(["", *lines, "", head, ""]))
            offered = ["[y]es", "[k]eep for later", *([] if is_whole else ["[s]how all of it"]), "[N]o, discard"]
            answer = person.answer(terminal.paint("head", f"Apply to the project? {', '.join(offered)}") + " > ")
            if answer in SHOW and not is_whole:
                whole = True
                continue
            return "applied" if answer in YES else "kept" if answer in KEEP else "discarded"
    return "kept"  # interrupted: nothing was said


def note(config: SandboxConfig, fields: Mapping[str, object]) -> None:
    """Write to the owner's log what became of a transaction."""
    try:
        Log(config, event="transaction").note(fields)
    except AuditError as error:
        if config.audit.required:
            raise
        print(f"corral: {printable(str(error))}", file=sys.stderr)


def _why_kept(trial: Trial, options: argparse.Namespace) -> str:
    if trial.outcome != "kept":
        return ""
    if options.yes:
        ended = "not ended in time" if trial.result.timed_out else f"ended with {trial.result.exit_code}"
        return f", since the command has {ended}"
    nobody = why_nobody(os.environ)
    return f", since nobody can be asked: {nobody}" if nobody else ""


def _say(trial: Trial, why: str, *, shows: bool) -> None:
    """Tell what became of it; `shows` the diff, where nobody was asked and has seen it."""
    terminal = terminal_of(sys.stderr, os.environ)
    if trial.outcome == "nothing":
        print("corral: nothing was changed", file=sys.stderr)
        return
    if shows:
        print("\n".join(diff_lines(trial.diff, terminal_of(sys.stdout, os.environ))), flush=True)
        if trial.outcome != "applied":
            print(summary(trial.changes), file=sys.stderr)
    if trial.applied is not None:
        print("\n".join(applied_lines(trial.applied, terminal, "applied", TAKE_BACK)), file=sys.stderr)
    elif trial.outcome == "discarded":
        print("corral: discarded; the project is as it was", file=sys.stderr)
    if trial.outcome in ("kept", "conflict"):
        root = "" if os.getcwd() == trial.tx.root else f" --root {shell_quote(trial.tx.root)}"
        apply, discard = (printable(f"corral {verb}{root} {trial.tx.id}") for verb in ("apply", "discard"))
        waits = f"nothing was applied{why}. The changes wait" if trial.outcome == "kept" else "the changes wait"
        print(f"corral: {waits} for 7 days: {apply}, or {discard}", file=sys.stderr)
