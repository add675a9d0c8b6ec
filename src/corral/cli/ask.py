"""The question that `corral run` asks a person: what would run, why it is asked about, what it would do. The default is no.

Nothing of the call reaches the terminal but as text: it cannot forge a line of ours, hide itself, or be approved unseen.
"""

from __future__ import annotations

import os

from corral import approvals
from corral.audit import Log
from corral.cli.person import Person, why_nobody
from corral.errors import AuditError, CorralError, PolicyError
from corral.excerpt import quoted_lines
from corral.model import Decision
from corral.record import finding_lines, labelled, step_lines
from corral.terminal import terminal_of, visible
from corral.vet import trace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.approvals import Approval
    from corral.config import SandboxConfig
    from corral.machine import Machine
    from corral.model import Call, Verdict
    from corral.terminal import Terminal

ONCE, PROJECT, SHOW = ("o", "once", "y", "yes"), ("p", "project"), ("s", "show")
MAX_LINES = 24  # of the call, before it is asked for
MAX_EFFECT_LINES = 16
MAX_FINDINGS = 6
MAX_STRANGE = 5  # characters that are named because they may look like others
DAYS = int(approvals.APPROVAL_SECONDS // 86400)


class Asking:
    """Answers for one run: what was approved before, else a person. `why_not` says why nobody could be asked."""

    def __init__(
        self, config: SandboxConfig, machine: Callable[[SandboxConfig], Machine], *, may_ask: bool, runs: bool = True
    ) -> None:
        self._config = config
        self._machine = machine
        self._may_ask = may_ask
        self._runs = runs  # else it is approved only, for later
        self.why_not = ""
        self.was_asked = False
        self.how = ""  # how a yes came about: once, project or approved; for the log

    def answer(self, call: Call, verdict: Verdict) -> bool:
        """Say whether a call that is asked about may run."""
        try:
            if approvals.find(call, verdict, self._config, os.environ) is not None:
                self.how = "approved"
                return True
        except PolicyError as error:
            self.why_not = str(error)
        why = "what --no-ask or a hook starts asks nobody" if not self._may_ask else why_nobody(os.environ)
        if why:
            self.why_not = f"{self.why_not}; {why}" if self.why_not else why
            return False
        return self._asked(call, verdict)

    def _asked(self, call: Call, verdict: Verdict) -> bool:
        self.was_asked = True
        with Person() as person:
            terminal = terminal_of(person, os.environ)
            text, is_whole = self._question(call, verdict, terminal)
            person.tell(text)
            while True:
                keeps = is_whole and approvals.can_be_kept(call)
                answer = person.answer(_choices(terminal, runs=self._runs, keeps=keeps, is_whole=is_whole))
                if answer in SHOW and not is_whole:
                    is_whole = True
                    person.tell("\n".join(["", *call_lines(call, terminal, 0)[0], "", ""]))
                    continue
                if answer in ONCE and self._runs:
                    self.how = "once"
                    self._log(call, verdict, "A person in a terminal said yes, once.")
                    return True
                if answer in PROJECT and keeps:
                    person.tell(self._kept(call, verdict, terminal))
                    return self._runs or self.how == "project"
                return False
        return False  # interrupted

    def _kept(self, call: Call, verdict: Verdict, terminal: Terminal) -> str:
        try:
            self._log(call, verdict, f"A person in a terminal said yes, for this project and {DAYS} days.")
            made = approvals.approve(call, verdict, self._config, os.environ)
        except (CorralError, OSError) as error:
            # Once is less than was said.
            self.how, said = (
                "once",
                "It runs this time, but could not be kept" if self._runs else "It could not be kept",
            )
            return f"{said}: {visible(str(error))}\n"
        self.how = "project"
        return terminal.paint("dim", kept_text(made)) + "\n"

    def _log(self, call: Call, verdict: Verdict, said: str) -> None:
        try:
            Log(self._config, event="grant").verdict(call, verdict, decision=Decision.ALLOW, reason=said)
        except AuditError:
            if self._config.audit.required:
                raise

    def _question(self, call: Call, verdict: Verdict, terminal: Terminal) -> tuple[str, bool]:
        shown, is_whole = call_lines(call, terminal, MAX_LINES)
        asks = (
            "corral is asked to run this, and asks you" if self._runs else "an agent could run this without being asked"
        )
        head = f"{terminal.sign('ask')} {asks}"
        lines = ["", terminal.paint("ask", head), "", *shown, ""]
        lines += _strange(call, terminal)
        for finding in verdict.findings[:MAX_FINDINGS]:
            lines += [*finding_lines(call, finding, terminal, _bar(terminal)), ""]
        if len(verdict.findings) > MAX_FINDINGS:
            lines += [f"and {len(verdict.findings) - MAX_FINDINGS} more findings: corral explain shows them", ""]
        steps = step_lines(call, trace(call, self._config, self._machine(self._config)), terminal)
        lines += [terminal.paint("head", "What would run"), *steps[:MAX_EFFECT_LINES]]
        if len(steps) > MAX_EFFECT_LINES:
            lines.append(f"  and {len(steps) - MAX_EFFECT_LINES} more lines: corral explain shows them")
        root = self._config.project_root
        where = os.path.realpath(os.path.join(root, call.cwd or ""))
        lines += ["", *labelled("where", where, terminal)]
        lines += labelled("held", _held(self._config), terminal)
        return "\n".join([*lines, "", ""]), is_whole


def kept_text(approval: Approval) -> str:
    """Return what a person is told when a call was approved for the project."""
    return f"Approved in this project for {DAYS} days. To be asked again: corral grants revoke {approval.id}"


def call_lines(call: Call, terminal: Terminal, most: int) -> tuple[list[str], bool]:
    """Return the call behind a bar that it cannot write itself, and whether that is all of it. No more than `most` lines; 0: all."""
    bar = _bar(terminal)
    lines = quoted_lines(call, max(terminal.columns - 4, 8))
    if not most or len(lines) <= most:
        return [f"{bar}{line}" for line in lines], True
    # Both ends: what matters is often put last.
    ahead, behind = lines[: most // 2], lines[-(most // 2) :]
    omitted = f"{terminal.sign('cut')} {len(lines) - len(ahead) - len(behind)} lines are not shown here"
    marked = f"  {terminal.paint('ask', omitted)}"
    return [*(f"{bar}{line}" for line in ahead), marked, *(f"{bar}{line}" for line in behind)], False


def _bar(terminal: Terminal) -> str:
    return terminal.paint("dim", f"  {terminal.sign('bar')[0]} ")


def _strange(call: Call, terminal: Terminal) -> list[str]:
    text = call.argv if isinstance(call.argv, str) else " ".join(map(str, call.argv))
    if text.isascii():
        return []
    found = list(dict.fromkeys(char for char in text if not char.isascii()))
    named = [f"{visible(char)} U+{ord(char):04X}" if visible(char) == char else visible(char) for char in found]
    more = ", …" if len(named) > MAX_STRANGE else ""
    said = f"letters that are not ASCII may look like others: {', '.join(named[:MAX_STRANGE])}{more}"
    return [*labelled("note", said, terminal), ""]


def _held(config: SandboxConfig) -> str:
    containment = config.containment
    if containment.backend == "none":
        return f"profile {config.rules.name}, by nothing: it runs with all your rights"
    network = "no network" if containment.network == "off" else "with network"
    project = "the project read-only" if containment.project == "read-only" else "in the project"
    return f"profile {config.rules.name}, {project}, {network}"


def _choices(terminal: Terminal, *, runs: bool, keeps: bool, is_whole: bool) -> str:
    offered = ["[o]nce"] if runs else []
    if keeps:
        offered.append(f"for this [p]roject ({DAYS} days)")
    if not is_whole:
        offered.append("[s]how all of it")
    return terminal.paint("head", f"{'Run' if runs else 'Approve'} it? {', '.join([*offered, '[N]o'])}") + " > "
