"""Holds the code that `try`, `apply`, `discard`, `undo` and `history` share: refusals, logging and rendering."""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import Terminal, printable, terminal_of, wrap
from corral.apps.cli.questions.terminal_prompt import agent_shell_reason, is_in_sandbox
from corral.apps.cli.verb import argument
from corral.audit.audit_log import Log
from corral.model.errors import AuditError, TransactionError
from corral.model.render_result import FAILURE_STATUS, json_text
from corral.transactions.changes import Change, summary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.policy.config import SandboxConfig
    from corral.transactions.apply import Applied

MAX_LINES = 200  # of a diff, unless the user asks for all of it
UNDO_HINT = "to undo this: corral undo"
TAB = " " * 4
TRANSACTION_ID = argument(
    "id ID", "Use this transaction; the start of its id is enough (default: the only one).", nargs="?", default=""
)
_HEADER_STYLES = (("diff ", "head"), ("@@", "mark"), ("+++", "head"), ("---", "head"), ("#", "ask"))
_HUNK_STYLES = (("@@", "mark"), ("+", "allow"), ("-", "deny"))
_SIGNS = {"added": ("+", "allow"), "deleted": ("-", "deny")}


def refuse_inside_sandbox() -> None:
    """Raise TransactionError inside a sandbox, where a command could apply its own changes."""
    if is_in_sandbox():
        raise TransactionError("transactions are not available inside a sandbox")


def refuse_agent_shell(action: str) -> None:
    """Raise TransactionError inside a sandbox or in an agent's shell: only the user may apply or undo changes."""
    refuse_inside_sandbox()
    if agent := agent_shell_reason(os.environ):
        raise TransactionError(f"only the user can {action} changes, and {agent}")


def log_transaction(config: SandboxConfig, fields: Mapping[str, object]) -> None:
    """Log the outcome of a transaction."""
    try:
        Log(config, event="transaction").note(fields)
    except AuditError as error:
        if config.audit.required:
            raise
        print(f"corral: {printable(str(error))}", file=sys.stderr)


def print_applied(applied: Applied, done: str, hint: str, *, as_json: bool) -> int:
    """Print the outcome of applying or undoing changes, and return the exit code."""
    if as_json:
        print(json_text(applied.to_dict()))
    else:
        print("\n".join(applied_lines(applied, terminal_of(sys.stderr, os.environ), done, hint)), file=sys.stderr)
    return 0 if applied.ok else FAILURE_STATUS


def diff_lines(diff: str, terminal: Terminal) -> list[str]:
    """Return the lines of a diff in colour, with an empty line between files and nothing that controls the terminal."""
    lines: list[str] = []
    styles: tuple[tuple[str, str], ...] = _HEADER_STYLES
    for line in diff.split("\n")[:-1]:
        if line.startswith("diff ") and lines:
            lines.append("")
        # A deleted line may itself begin with two dashes; "---" is a header only before the first hunk.
        styles = _HEADER_STYLES if line.startswith("diff ") else _HUNK_STYLES if line.startswith("@@") else styles
        style = next((style for start, style in styles if line.startswith(start)), "")
        # `printable` would show a tab as \t, which makes code unreadable.
        shown = printable(line.replace("\t", TAB))
        lines.append(terminal.paint(style, shown) if style else shown)
    return lines


def change_line(change: Change, terminal: Terminal) -> str:
    """Return one change as a line."""
    sign, style = _SIGNS.get(change.kind, ("~", "ask"))
    path = printable(change.path or ".") + ("/" if change.what == "directory" else "")
    arrow = "→" if terminal.unicode else "->"
    if change.old_path:
        path = f"{printable(change.old_path)} {arrow} {path}"
    notes = _notes(change, arrow)
    return f"  {terminal.paint(style, sign)} {path}{f' ({notes})' if notes else ''}"


def _notes(change: Change, arrow: str) -> str:
    """Return the parts of a change that its path does not show."""
    notes = ["protected: never applied"] if change.protected else []
    if change.old_what:
        notes.append(f"{change.old_what} {arrow} {change.what}")
    if change.link:
        notes.append(f"link to {printable(change.link)}")
    elif change.mode is not None and change.kind == "added" and change.what == "file" and change.mode & 0o7111:
        notes.append(f"mode {change.mode:o}")
    elif None not in (change.mode, change.old_mode) and change.mode != change.old_mode and not change.old_what:
        notes.append(f"mode {change.old_mode:o} {arrow} {change.mode:o}")
    return ", ".join([*notes, "another owner or group"] if change.new_owner else notes)


def applied_lines(applied: Applied, terminal: Terminal, done: str, hint: str) -> list[str]:
    """Return the outcome as lines: conflicts, changes that were left out, and what was `done`."""
    lines: list[str] = []
    for style, sign, label, found in (
        ("deny", "deny", "", applied.conflicts),
        ("ask", "warn", "left out: ", applied.refused),
    ):
        for each in found:
            text = f"{terminal.sign(sign)} {label}{printable(each.path)}: {printable(each.why)}"
            lines += [terminal.paint(style, line) for line in wrap(text, terminal.columns, "")]
    if not applied.ok or not applied.changes:
        return [*lines, f"corral: nothing was {done.partition(' ')[0]}"]
    return [*lines, terminal.paint("allow", f"{terminal.sign('allow')} {done}, {summary(applied.changes)}; {hint}")]
