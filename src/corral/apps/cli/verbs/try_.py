"""`corral try`: runs a call on an overlay of the project, shows the changes, and asks whether to keep them.

If corral cannot ask, it applies nothing and loses nothing: the changes stay pending.
"""

from __future__ import annotations

import os
import sys

from corral._lib.quoting import shell_quote
from corral._lib.terminal import printable, terminal_of, terminal_reset
from corral.apps.cli.arguments import BACKEND, call_arguments, call_usage, check_call
from corral.apps.cli.call import call_of, config_of, machine_of
from corral.apps.cli.questions.approver import Approver
from corral.apps.cli.questions.terminal_prompt import SHOW, YES, TerminalPrompt, why_nobody, without_middle
from corral.apps.cli.run_command import run_command
from corral.apps.cli.run_log import RunLog, print_violations
from corral.apps.cli.transactions import (
    MAX_LINES,
    UNDO_HINT,
    applied_lines,
    diff_lines,
    log_transaction,
    refuse_inside_sandbox,
)
from corral.apps.cli.verb import Options, Verb, argument
from corral.audit.audit_log import Log
from corral.model.errors import AuditError, CorralError
from corral.model.render_result import FAILURE_STATUS, denial_text, exit_status, json_text, timeout_text
from corral.sandbox import Sandbox
from corral.transactions.changes import summary
from corral.transactions.transaction import Transaction, log_fields
from corral.transactions.workspace import refuse_more

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.model.call import Call
    from corral.model.result import SandboxResult
    from corral.policy.config import SandboxConfig
    from corral.transactions.apply import Applied

KEEP = ("k", "keep")
VERB = Verb(
    "review",
    "Run a command without changing the project, show what it changed, and ask whether to keep it.",
    examples="""\
corral try -- npm run codemod               run it, read the diff, answer yes or no
corral try --yes -- make format             apply the changes without a question if the command succeeds
corral try --json --shell 'rm -rf build'    print the changes as JSON and apply nothing
""",
    notes="""\
The command sees the project and may change it; the changes go to an overlay. corral then shows them as a diff and asks
you. If corral cannot ask you, the changes wait 7 days for `corral apply` or `corral discard`. corral never applies changes
to protected paths, and never overwrites a file that you changed in the meantime.
""",
    exit_codes="the command's own; 126 denied, 124 timed out, 125 corral itself failed or found a conflict",
    usage=call_usage("try"),
    command_after="",
    arguments=(
        *call_arguments(on_terminal=True),
        argument("-y --yes", "Apply the changes without a question if the command exits with 0."),
        argument("-T --no-tty", "Give the command no pseudo-terminal.", dest="tty", action="store_false", default=None),
        BACKEND,
    ),
)


check_arguments = check_call


def main(options: Options) -> int:
    """Try the call. The exit code is the command's, or 125 if its changes could not be applied."""
    refuse_inside_sandbox()
    config, call = config_of(options), call_of(options)
    log = RunLog(Log(config, event="try"), required=config.audit.required)
    if not options.yes and (options.json or why_nobody(os.environ)):
        refuse_more(config.project_root, os.environ)
    approver = Approver(config, machine_of, may_ask=not options.json)
    with Sandbox(config=config, on_ask=approver.answer, on_result=log.result) as box:
        try:
            with box.transaction() as tx:
                return _try(tx, call, config, options)
        except AuditError:
            raise
        except CorralError as error:
            log.failure(call, error)
            raise


class Trial:
    """A run in a transaction: its result, its changes and their outcome."""

    def __init__(self, tx: Transaction, result: SandboxResult) -> None:
        self.tx = tx
        self.result = result
        self.changes = tx.changes()
        self.diff = tx.diff() if self.changes else ""
        self.outcome = "discarded" if self.changes else "nothing"
        self.applied: Applied | None = None

    def settle(self, outcome: str) -> None:
        """Apply, keep or discard the changes."""
        self.outcome = outcome
        if outcome == "applied":
            self.applied = self.tx.apply()
            self.outcome = "applied" if self.applied.ok else "conflict"
        if self.outcome in ("kept", "conflict"):
            self.tx.keep()

    def log_fields(self) -> dict[str, object]:
        """Return the fields for the audit log."""
        changes = self.changes if self.applied is None or not self.applied.ok else self.applied.changes
        return log_fields(self.tx.id, self.outcome, changes, self.applied)

    def to_dict(self) -> dict[str, object]:
        """Return the trial as JSON-ready data."""
        return {
            "result": self.result.to_dict(),
            "transaction": self.tx.id,
            "how": self.tx.how,
            "changes": [change.to_dict() for change in self.changes],
            "diff": self.diff,
            "outcome": self.outcome,
            "applied": None if self.applied is None else self.applied.to_dict(),
        }


def _try(tx: Transaction, call: Call, config: SandboxConfig, options: Options) -> int:
    result = run_command(tx, call, options)
    if not options.json:
        _print_result(call, result, config)
    trial = Trial(tx, result)
    if trial.changes:
        trial.settle(_decide(trial, options))
    log_transaction(config, trial.log_fields())
    if options.json:
        print(json_text(trial.to_dict()))
    elif not result.denied:
        _print_outcome(trial, _why_kept(trial, options), with_diff=options.yes or bool(why_nobody(os.environ)))
    return FAILURE_STATUS if trial.outcome == "conflict" else exit_status(result)


def _print_result(call: Call, result: SandboxResult, config: SandboxConfig) -> None:
    if result.denied:
        print(denial_text(call, result, terminal_of(sys.stderr, os.environ)), file=sys.stderr)
    elif result.timed_out:
        print(timeout_text(config.timeout_seconds), file=sys.stderr)
    else:
        sys.stderr.buffer.write(result.stderr)
        sys.stderr.flush()
    print_violations(result)


def _decide(trial: Trial, options: Options) -> str:
    """Return what to do with the changes: applied, discarded or kept."""
    result = trial.result
    if options.yes:
        # --yes is meant for the changes of a command that succeeds.
        return "applied" if result.ok else "kept"
    if options.json or why_nobody(os.environ):
        return "kept"
    most = MAX_LINES
    with TerminalPrompt() as prompt:
        terminal = terminal_of(prompt, os.environ)
        # The command's output may have left the terminal in a state that hides text.
        prompt.write(terminal_reset(os.environ))
        while True:
            lines, is_whole = without_middle(diff_lines(trial.diff, terminal), most, terminal)
            ended = "" if result.ok else f", and the command exited with {result.exit_code}"
            head = terminal.paint("head", f"{summary(trial.changes)}{ended}")
            prompt.write("\n".join(["", *lines, "", head, ""]))
            offered = ["[y]es", "[k]eep for later", *([] if is_whole else ["[s]how all"]), "[N]o, discard"]
            answer = prompt.ask(terminal.paint("head", f"Apply to the project? {', '.join(offered)}") + " > ")
            if answer in SHOW and not is_whole:
                most = 0
                continue
            return "applied" if answer in YES else "kept" if answer in KEEP else "discarded"
    return "kept"  # interrupted


def _why_kept(trial: Trial, options: Options) -> str:
    if trial.outcome != "kept":
        return ""
    if options.yes:
        ended = "timed out" if trial.result.timed_out else f"exited with {trial.result.exit_code}"
        return f", because the command {ended}"
    why = why_nobody(os.environ)
    return f", because corral cannot ask you: {why}" if why else ""


def _print_outcome(trial: Trial, why: str, *, with_diff: bool) -> None:
    """Print the outcome of the changes, and the diff if no prompt has shown it."""
    terminal = terminal_of(sys.stderr, os.environ)
    if trial.outcome == "nothing":
        print("corral: the command changed nothing", file=sys.stderr)
        return
    if with_diff:
        print("\n".join(diff_lines(trial.diff, terminal_of(sys.stdout, os.environ))), flush=True)
        if trial.outcome != "applied":
            print(summary(trial.changes), file=sys.stderr)
    if trial.applied is not None:
        print("\n".join(applied_lines(trial.applied, terminal, "applied", UNDO_HINT)), file=sys.stderr)
    elif trial.outcome == "discarded":
        print("corral: discarded; the project is unchanged", file=sys.stderr)
    if trial.outcome in ("kept", "conflict"):
        root = "" if os.getcwd() == trial.tx.root else f" --root {shell_quote(trial.tx.root)}"
        apply, discard = (printable(f"corral {verb}{root} {trial.tx.id}") for verb in ("apply", "discard"))
        pending = f"nothing was applied{why}. The changes are" if trial.outcome == "kept" else "the changes are"
        print(f"corral: {pending} pending for 7 days: {apply}, or {discard}", file=sys.stderr)
