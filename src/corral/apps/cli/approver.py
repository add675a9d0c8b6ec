"""Who answers what the guard asks of `corral run`: what was approved before, else a person, else nobody, which is a no."""

from __future__ import annotations

import os

from corral.model.errors import AuditError, CorralError, PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral._lib.terminal import Terminal
    from corral.guard.machine import Machine
    from corral.model.call import Call, Verdict
    from corral.policy.config import SandboxConfig

ONCE, PROJECT, SHOW = ("o", "once", "y", "yes"), ("p", "project"), ("s", "show")


class Approver:
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
        from corral.apps.cli.terminal_prompt import why_nobody  # noqa: PLC0415
        from corral.policy import approvals  # noqa: PLC0415  most calls are not asked about

        try:
            if approvals.find_approval(call, verdict, self._config, os.environ) is not None:
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
        from corral._lib.terminal import terminal_of  # noqa: PLC0415
        from corral.apps.cli.approval_prompt import choices, question  # noqa: PLC0415
        from corral.apps.cli.terminal_prompt import TerminalPrompt  # noqa: PLC0415
        from corral.policy.approvals import can_be_approved  # noqa: PLC0415

        self.was_asked = True
        about = call, verdict, self._config, self._machine(self._config)
        whole = False
        with TerminalPrompt() as person:
            terminal = terminal_of(person, os.environ)
            while True:
                text, is_whole = question(*about, terminal, runs=self._runs, whole=whole)
                person.tell(text)
                keeps = is_whole and can_be_approved(call)
                answer = person.answer(choices(terminal, runs=self._runs, keeps=keeps, is_whole=is_whole))
                if answer in SHOW and not is_whole:
                    whole = True
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
        from corral._lib.terminal import printable  # noqa: PLC0415
        from corral.apps.cli.approval_prompt import DAYS, kept_text  # noqa: PLC0415
        from corral.policy.approvals import approve  # noqa: PLC0415

        try:
            self._log(call, verdict, f"A person in a terminal said yes, for this project and {DAYS} days.")
            made = approve(call, verdict, self._config, os.environ)
        except (CorralError, OSError) as error:
            # Once is less than was said.
            self.how = "once"
            said = "It runs this time, but could not be kept" if self._runs else "It could not be kept"
            return f"{said}: {printable(str(error))}\n"
        self.how = "project"
        return terminal.paint("dim", kept_text(made)) + "\n"

    def _log(self, call: Call, verdict: Verdict, said: str) -> None:
        from corral.audit.audit_log import Log  # noqa: PLC0415
        from corral.model.call import Decision  # noqa: PLC0415

        try:
            Log(self._config, event="grant").verdict(call, verdict, decision=Decision.ALLOW, reason=said)
        except AuditError:
            if self._config.audit.required:
                raise
