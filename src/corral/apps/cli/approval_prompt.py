"""What a person is shown when they are asked: what would run, why it is asked about, what it would do, and what they can answer.

Nothing of the call reaches the terminal but as text: it cannot forge a line of ours, hide itself, or be approved unseen.
"""

from __future__ import annotations

import os

from corral._lib.terminal import printable
from corral.guard.evaluate import trace
from corral.model.call_excerpt import quoted_lines
from corral.model.render_result import finding_lines, labelled, step_lines
from corral.policy.approvals import APPROVAL_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral._lib.terminal import Terminal
    from corral.guard.machine import Machine
    from corral.model.call import Call, Verdict
    from corral.policy.approvals import Approval
    from corral.policy.config import Containment, SandboxConfig

DAYS = int(APPROVAL_SECONDS // 86400)
MAX_LINES = 24  # of the call, of its findings, of its effects: more is shown when it is asked for
MAX_STRANGE = 5  # characters that are named because they may look like others


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
    """Return the question without its last line, and whether it shows all that there is."""
    findings: list[str] = []
    for finding in verdict.findings:
        findings += [*finding_lines(call, finding, terminal, _bar(terminal)), ""]
    steps = step_lines(call, trace(call, config, machine), terminal)
    most = 0 if whole else MAX_LINES
    blocks = [_bounded(lines, most, terminal) for lines in (_call_lines(call, terminal), findings, steps)]
    (shown, _), (found, _), (effects, _) = blocks
    asks = "corral is asked to run this, and asks you" if runs else "an agent could run this without being asked"
    lines = ["", terminal.paint("ask", f"{terminal.sign('ask')} {asks}"), "", *shown, "", *_strange(call, terminal)]
    lines += [*found, terminal.paint("head", "What would run"), *effects, ""]
    where = os.path.realpath(os.path.join(config.project_root, call.cwd or ""))
    lines += [*labelled("where", where, terminal), *labelled("held", _held(config), terminal)]
    return "\n".join([*lines, "", ""]), all(is_whole for _, is_whole in blocks)


def _bounded(lines: list[str], most: int, terminal: Terminal) -> tuple[list[str], bool]:
    if not most or len(lines) <= most:
        return lines, True
    # Both ends: what matters is often put last.
    ahead, behind = lines[: most // 2], lines[-(most // 2) :]
    omitted = f"{terminal.sign('cut')} {len(lines) - len(ahead) - len(behind)} lines are not shown here"
    return [*ahead, f"  {terminal.paint('ask', omitted)}", *behind], False


def kept_text(approval: Approval) -> str:
    """Return what a person is told when a call was approved for the project."""
    return f"Approved in this project for {DAYS} days. To be asked again: corral grants revoke {approval.id}"


def _call_lines(call: Call, terminal: Terminal) -> list[str]:
    """Return the call behind a bar that it cannot write itself."""
    return [f"{_bar(terminal)}{line}" for line in quoted_lines(call, max(terminal.columns - 4, 8))]


def _bar(terminal: Terminal) -> str:
    return terminal.paint("dim", f"  {terminal.sign('bar')[0]} ")


def _strange(call: Call, terminal: Terminal) -> list[str]:
    text = call.argv if isinstance(call.argv, str) else " ".join(map(str, call.argv))
    if text.isascii():
        return []
    found = list(dict.fromkeys(char for char in text if not char.isascii()))
    named = [f"{printable(char)} U+{ord(char):04X}" if printable(char) == char else printable(char) for char in found]
    more = ", …" if len(named) > MAX_STRANGE else ""
    said = f"letters that are not ASCII may look like others: {', '.join(named[:MAX_STRANGE])}{more}"
    return [*labelled("note", said, terminal), ""]


def _held(config: SandboxConfig) -> str:
    containment = config.containment
    if containment.backend == "none":
        return f"profile {config.rules.name}, by nothing: it runs with all your rights"
    network = _network(containment)
    project = "the project read-only" if containment.project == "read-only" else "in the project"
    return f"profile {config.rules.name}, {project}, {network}"


def choices(terminal: Terminal, *, runs: bool, keeps: bool, is_whole: bool) -> str:
    """Return what can be answered. For the project only what was seen whole."""
    offered = ["[o]nce"] if runs else []
    if keeps:
        offered.append(f"for this [p]roject ({DAYS} days)")
    if not is_whole:
        offered.append("[s]how all of it")
    return terminal.paint("head", f"{'Run' if runs else 'Approve'} it? {', '.join([*offered, '[N]o'])}") + " > "


def _network(containment: Containment) -> str:
    if containment.destinations:
        return f"network to {', '.join(containment.destinations)}"
    return "no network" if containment.network == "off" else "with network"
