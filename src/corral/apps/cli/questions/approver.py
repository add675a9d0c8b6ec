"""Answers the guard's questions for `corral run`, `try`, `batch` and `allow`: by a stored answer, else by the user, else no."""

from __future__ import annotations

import os
from time import time

from corral.model.errors import AuditError, CorralError, PolicyError
from corral.model.grant import FAMILY, ONCE, POLICY, PROJECT, Yes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral._lib.terminal import Terminal
    from corral.apps.cli.questions.terminal_prompt import TerminalPrompt
    from corral.guard.machine import Machine
    from corral.model.call import Call, Verdict
    from corral.model.grant import Grant
    from corral.policy.config import SandboxConfig


class Approver:
    """Answers for one run. `why_not` says why corral could not ask."""

    def __init__(
        self,
        config: SandboxConfig,
        machine: Callable[[SandboxConfig], Machine],
        *,
        may_ask: bool,
        runs: bool = True,
        host: str = "run",
        seconds: float | None = None,
    ) -> None:
        self._config = config
        self._machine = machine
        self._may_ask = may_ask
        self._runs = runs  # False if the call is only approved, to run later
        self.host = host  # names the refusal, if there is one
        self._seconds = seconds  # for the answer; None is the prompt's own limit
        self.before = ""  # is written to the terminal before the question
        self.why_not = ""
        self.was_asked = False
        self.was_answered = False  # False also if the question was interrupted, or the time was over
        self.how = ""  # who said yes: once, project, family or policy, as in a result
        self.declined = ""  # the message, if the user said no to the same question before
        self.refusal = ""  # the id by which `corral allow` can answer later

    def answer(self, call: Call, verdict: Verdict) -> bool | Yes:
        """Return whether a call with the verdict `ask` may run. What it opens is the verdict's grants, and nothing more."""
        return Yes(self.how) if self._says_yes(call, verdict) else False

    def _says_yes(self, call: Call, verdict: Verdict) -> bool:
        from corral.apps.cli.questions.terminal_prompt import NO_ASK, why_nobody  # noqa: PLC0415  most calls are not asked about

        try:
            if self._is_allowed(call, verdict):
                return True
            self.declined = _declined_text(call, verdict, self._config)
            if self.declined:
                return False
        except PolicyError as error:
            self.why_not = str(error)
        why = why_nobody(os.environ) if self._may_ask else NO_ASK
        if why:
            self.why_not = f"{self.why_not}; {why}" if self.why_not else why
            self._save_refusal(call, verdict)
            return False
        return self.ask(call, verdict)

    def _is_allowed(self, call: Call, verdict: Verdict) -> bool:
        """Return whether a stored answer of the user allows the call, and count its use."""
        from corral.policy.answers import approvals, family_grants  # noqa: PLC0415  most calls are not asked about

        approval = approvals.take_approval(call, verdict, self._config, os.environ)
        if approval is not None:
            self.how = PROJECT if approval.uses is None else ONCE
            return True
        given = family_grants.covering(verdict, self._config, os.environ)
        if given is None:
            return False
        family_grants.use_family_grant(given, self._config, os.environ)
        self.how = POLICY if given.channel == family_grants.POLICY else FAMILY
        return True

    def _save_refusal(self, call: Call, verdict: Verdict) -> None:
        from corral.policy.answers.refusals import save_refusal  # noqa: PLC0415  most calls are not asked about

        try:
            self.refusal = save_refusal(call, verdict, self._config.project_root, os.environ, host=self.host)
        except (PolicyError, OSError):
            # The call is refused in any case; only the line for the user is missing.
            self.refusal = ""

    def ask(self, call: Call, verdict: Verdict) -> bool:
        """Ask the user at the terminal, whatever is stored, and return whether the call may run."""
        from corral._lib.terminal import terminal_of  # noqa: PLC0415
        from corral.apps.cli.questions import approval_prompt as text  # noqa: PLC0415
        from corral.apps.cli.questions.terminal_prompt import SHOW, TerminalPrompt  # noqa: PLC0415

        self.was_asked = True
        about = call, verdict, self._config, self._machine(self._config)
        whole = False
        hosts = _registry_hosts(verdict, self._config)
        if unknown := [tool for tool, found in hosts.items() if not any(host.certain for host in found)]:
            # A yes would not help: the call cannot be opened.
            self.was_asked = False
            self.why_not = f"corral cannot find out which hosts {', '.join(unknown)} is configured for"
            return False
        asked = _count_question(self._config) if verdict.grants else 0
        with TerminalPrompt() as prompt:
            terminal = terminal_of(prompt, os.environ)
            prompt.write(self.before)
            while True:
                shown, is_whole = text.question(*about, terminal, runs=self._runs, whole=whole, hosts=hosts)
                prompt.write(shown + text.many_questions(asked, terminal))
                offered = text.answers(call, verdict, runs=self._runs, is_whole=is_whole)
                can_show = not whole and (not is_whole or bool(verdict.grants))
                line = text.choices(verdict, offered, terminal, runs=self._runs, can_show=can_show)
                said = prompt.ask(line, self._seconds)
                if said in SHOW and can_show:
                    whole = True
                    continue
                if prompt.has_timed_out:
                    return False
                self.was_answered = True
                chosen = next((name for name, texts in offered.items() if said in texts), "")
                return self._act(chosen, call, verdict, prompt, terminal)
        return False  # interrupted

    def _act(self, chosen: str, call: Call, verdict: Verdict, prompt: TerminalPrompt, terminal: Terminal) -> bool:
        from corral.apps.cli.questions import approval_prompt as text  # noqa: PLC0415

        if chosen == text.ONCE and self._runs:
            self.how = ONCE
            self._log(call, verdict, "A person at a terminal said yes, once.")
            return True
        if chosen in (text.ONCE, text.PROJECT, text.DESTINATION):
            prompt.write(self._store(chosen, call, verdict, terminal))
            return self._runs or bool(self.how)
        if verdict.grants:
            prompt.write(self._decline(chosen == text.NEVER, call, verdict, terminal))
        return False

    def _store(self, chosen: str, call: Call, verdict: Verdict, terminal: Terminal) -> str:
        """Store the yes and return the message for the user."""
        from corral._lib.terminal import printable  # noqa: PLC0415
        from corral.apps.cli.questions import approval_prompt as text  # noqa: PLC0415
        from corral.policy.answers.approvals import approve  # noqa: PLC0415
        from corral.policy.answers.family_grants import family_of, store_family_grant  # noqa: PLC0415

        scope = {
            text.ONCE: "once, within 10 minutes",
            text.PROJECT: f"for this project and {text.DAYS} days",
            text.DESTINATION: f"for this destination, for {family_of(verdict)} in this project and {text.DAYS} days",
        }[chosen]
        try:
            self._log(call, verdict, f"A person at a terminal said yes, {scope}.")
            if chosen == text.DESTINATION:
                family, channel = family_of(verdict), "terminal" if self._runs else "allow"
                made = text.kept_text(
                    store_family_grant(family, verdict.grants, self._config, os.environ, channel=channel)
                )
            else:
                approval = approve(call, verdict, self._config, os.environ, once=chosen == text.ONCE)
                made = "Allowed once." if chosen == text.ONCE else text.kept_text(approval)
        except (CorralError, OSError) as error:
            if not self._runs:
                return f"The approval could not be stored: {printable(str(error))}\n"
            # The user agreed to more than one run, so running it once is covered.
            self.how = ONCE
            return f"The command runs, but the approval could not be stored: {printable(str(error))}\n"
        self.how = {text.ONCE: ONCE, text.PROJECT: PROJECT, text.DESTINATION: FAMILY}[chosen]
        return terminal.paint("dim", made) + "\n"

    def _decline(self, never: bool, call: Call, verdict: Verdict, terminal: Terminal) -> str:
        """Remember the no, so that an agent that repeats the call does not repeat the question."""
        from corral._lib.terminal import printable  # noqa: PLC0415
        from corral.apps.cli.questions.approval_prompt import DAYS  # noqa: PLC0415
        from corral.policy.answers.family_grants import NEVER, NO, store_answer  # noqa: PLC0415

        try:
            made = store_answer(NEVER if never else NO, call, verdict, self._config, os.environ)
        except (CorralError, OSError) as error:
            return f"The answer could not be stored: {printable(str(error))}\n"
        if not never:
            return ""
        kept = f"corral refuses this in this project for {DAYS} days. To be asked again: corral grants revoke {made.id}"
        return terminal.paint("dim", kept) + "\n"

    def _log(self, call: Call, verdict: Verdict, reason: str) -> None:
        from corral.audit.audit_log import Log  # noqa: PLC0415
        from corral.model.call import Decision  # noqa: PLC0415

        try:
            Log(self._config, event="grant").verdict(call, verdict, decision=Decision.ALLOW, reason=reason)
        except AuditError:
            if self._config.audit.required:
                raise


def _count_question(config: SandboxConfig) -> int:
    from corral.policy.answers.question_count import count_question  # noqa: PLC0415  most calls are not asked about

    try:
        return count_question(os.environ, config.project_root)
    except (PolicyError, OSError):
        return 0  # the question is asked in any case


def _registry_hosts(verdict: Verdict, config: SandboxConfig) -> dict[str, tuple[Grant, ...]]:
    """Return every host that a yes opens for each package manager of a call. This may start the tool, so no hook does it.

    Reads a page of the user's own index, which names the hosts of its files. The request contains nothing of the call.
    """
    tools = [grant.target for grant in verdict.grants if grant.kind == "registry"]
    if not tools:
        return {}
    from corral.broker.package_managers.registries import resolve, second_hosts  # noqa: PLC0415  few calls install packages

    found = {tool: resolve(tool, "", os.environ, config=config) for tool in tools}
    return {tool: (*hosts, *second_hosts(tool, "", os.environ, hosts, config=config)) for tool, hosts in found.items()}


def _declined_text(call: Call, verdict: Verdict, config: SandboxConfig) -> str:
    """Return the user's stored no to this question, or "" if the user may be asked."""
    from corral.model.render_grant import declined_text  # noqa: PLC0415  most calls are not asked about
    from corral.policy.answers.family_grants import NEVER, find_answer  # noqa: PLC0415

    found = find_answer(call, verdict, config, os.environ)
    if found is None:
        return ""
    said = declined_text(found.answered_at, time(), never=found.answer == NEVER)
    return f"{said} To be asked again: corral grants revoke {found.id}"
