"""Answers the guard's questions for `corral run`, `try`, `batch` and `grants`: by a stored approval, else by the user, else no."""

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

ONCE, PROJECT = ("o", "once", "y", "yes"), ("p", "project")


class Approver:
    """Answers for one run. `why_not` says why corral could not ask."""

    def __init__(
        self, config: SandboxConfig, machine: Callable[[SandboxConfig], Machine], *, may_ask: bool, runs: bool = True
    ) -> None:
        self._config = config
        self._machine = machine
        self._may_ask = may_ask
        self._runs = runs  # False if the call is only approved, to run later
        self.why_not = ""
        self.was_asked = False
        self.how = ""  # the kind of yes, for the log: once, project or approved

    def answer(self, call: Call, verdict: Verdict) -> bool:
        """Return whether a call with the verdict `ask` may run."""
        from corral.apps.cli.terminal_prompt import NO_ASK, why_nobody  # noqa: PLC0415  most calls are not asked about
        from corral.policy import approvals  # noqa: PLC0415

        try:
            if approvals.find_approval(call, verdict, self._config, os.environ) is not None:
                self.how = "approved"
                return True
        except PolicyError as error:
            self.why_not = str(error)
        why = why_nobody(os.environ) if self._may_ask else NO_ASK
        if why:
            self.why_not = f"{self.why_not}; {why}" if self.why_not else why
            return False
        return self._ask(call, verdict)

    def _ask(self, call: Call, verdict: Verdict) -> bool:
        from corral._lib.terminal import terminal_of  # noqa: PLC0415
        from corral.apps.cli.approval_prompt import choices, question  # noqa: PLC0415
        from corral.apps.cli.terminal_prompt import SHOW, TerminalPrompt  # noqa: PLC0415
        from corral.policy.approvals import can_be_approved  # noqa: PLC0415

        self.was_asked = True
        about = call, verdict, self._config, self._machine(self._config)
        whole = False
        with TerminalPrompt() as prompt:
            terminal = terminal_of(prompt, os.environ)
            while True:
                text, is_whole = question(*about, terminal, runs=self._runs, whole=whole)
                prompt.write(text)
                # The user must have seen all of a call before approving it for later.
                can_store = is_whole and can_be_approved(call)
                answer = prompt.ask(choices(terminal, runs=self._runs, can_store=can_store, is_whole=is_whole))
                if answer in SHOW and not is_whole:
                    whole = True
                    continue
                if answer in ONCE and self._runs:
                    self.how = "once"
                    self._log(call, verdict, "A person at a terminal said yes, once.")
                    return True
                if answer in PROJECT and can_store:
                    prompt.write(self._store(call, verdict, terminal))
                    return self._runs or self.how == "project"
                return False
        return False  # interrupted

    def _store(self, call: Call, verdict: Verdict, terminal: Terminal) -> str:
        """Store the approval and return the message for the user."""
        from corral._lib.terminal import printable  # noqa: PLC0415
        from corral.apps.cli.approval_prompt import DAYS, kept_text  # noqa: PLC0415
        from corral.policy.approvals import approve  # noqa: PLC0415

        try:
            self._log(call, verdict, f"A person at a terminal said yes, for this project and {DAYS} days.")
            approval = approve(call, verdict, self._config, os.environ)
        except (CorralError, OSError) as error:
            # The user agreed to more than one run, so running it once is covered.
            self.how = "once"
            text = "The command runs, but the approval could not be stored"
            return f"{text if self._runs else 'The approval could not be stored'}: {printable(str(error))}\n"
        self.how = "project"
        return terminal.paint("dim", kept_text(approval)) + "\n"

    def _log(self, call: Call, verdict: Verdict, reason: str) -> None:
        from corral.audit.audit_log import Log  # noqa: PLC0415
        from corral.model.call import Decision  # noqa: PLC0415

        try:
            Log(self._config, event="grant").verdict(call, verdict, decision=Decision.ALLOW, reason=reason)
        except AuditError:
            if self._config.audit.required:
                raise
