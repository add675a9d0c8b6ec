"""Renders the question before a call: the call, why corral asks, its effects, and the possible answers.

Text of the call reaches the terminal only as printable characters behind a bar, so it cannot forge a line of corral's or hide itself.
"""

from __future__ import annotations

import os

from corral._lib.terminal import Terminal, printable
from corral.apps.cli.terminal_prompt import without_middle
from corral.guard.evaluate import trace
from corral.model.call_excerpt import quoted_lines
from corral.model.render_result import finding_lines, labelled, step_lines
from corral.policy.approvals import APPROVAL_SECONDS, Approval

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.machine import Machine
    from corral.model.call import Call, Verdict
    from corral.policy.config import SandboxConfig

DAYS = int(APPROVAL_SECONDS // 86400)
MAX_LINES = 24  # of the call, of its findings and of its effects, unless the user asks for all
MAX_NON_ASCII = 5  # characters named because they may look like others


def question(
    call: Call,
    verdict: Verdict,
    config: SandboxConfig,
    machine: Machine,
    terminal: Terminal,
    *,
    runs: bool,
    whole: bool,
) -> tuple[str, bool]:
    """Return the question without its last line, and whether it shows everything."""
    bar = terminal.paint("dim", f"  {terminal.sign('bar')[0]} ")
    quoted = [f"{bar}{line}" for line in quoted_lines(call, max(terminal.columns - 4, 8))]
    findings: list[str] = []
    for finding in verdict.findings:
        findings += [*finding_lines(call, finding, terminal, bar), ""]
    steps = step_lines(call, trace(call, config, machine), terminal)
    most = 0 if whole else MAX_LINES
    blocks = [without_middle(lines, most, terminal) for lines in (quoted, findings, steps)]
    (shown, _), (found, _), (effects, _) = blocks
    asks = "This command needs your approval" if runs else "With your approval, agents run this without a question"
    lines = ["", terminal.paint("ask", f"{terminal.sign('ask')} {asks}"), "", *shown, "", *_non_ascii(call, terminal)]
    lines += [*found, terminal.paint("head", "What would run"), *effects, ""]
    where = os.path.realpath(os.path.join(config.project_root, call.cwd or ""))
    lines += [*labelled("where", where, terminal), *labelled("held", _confinement(config), terminal)]
    return "\n".join([*lines, "", ""]), all(is_whole for _, is_whole in blocks)


def choices(terminal: Terminal, *, runs: bool, can_store: bool, is_whole: bool) -> str:
    """Return the last line of the question, with the possible answers."""
    offered = ["[o]nce"] if runs else []
    if can_store:
        offered.append(f"for this [p]roject ({DAYS} days)")
    if not is_whole:
        offered.append("[s]how all")
    return terminal.paint("head", f"{'Run' if runs else 'Approve'} it? {', '.join([*offered, '[N]o'])}") + " > "


def kept_text(approval: Approval) -> str:
    """Return the message after a call was approved for the project."""
    return f"Approved in this project for {DAYS} days. To be asked again: corral grants revoke {approval.id}"


def _non_ascii(call: Call, terminal: Terminal) -> list[str]:
    text = call.argv if isinstance(call.argv, str) else " ".join(map(str, call.argv))
    if text.isascii():
        return []
    found = list(dict.fromkeys(char for char in text if not char.isascii()))
    named = [f"{printable(char)} U+{ord(char):04X}" if printable(char) == char else printable(char) for char in found]
    more = ", …" if len(named) > MAX_NON_ASCII else ""
    note = f"characters outside ASCII may look like others: {', '.join(named[:MAX_NON_ASCII])}{more}"
    return [*labelled("note", note, terminal), ""]


def _confinement(config: SandboxConfig) -> str:
    containment = config.containment
    if containment.backend == "none":
        return f"profile {config.rules.name}, not contained: the command runs with all your rights"
    if containment.destinations:
        network = f"network to {', '.join(containment.destinations)}"
    else:
        network = "no network" if containment.network == "off" else "with network"
    project = "the project read-only" if containment.project == "read-only" else "in the project"
    return f"profile {config.rules.name}, {project}, {network}"
