"""`corral run`: one call through the guard, then live here, on a terminal of its own or with our streams, or captured."""

from __future__ import annotations

import os
import sys
from signal import SIG_IGN, SIGHUP, SIGINT, SIGTERM, getsignal, signal

from corral._lib.terminal import printable, terminal_of
from corral.apps.cli import terminal_session
from corral.apps.cli.approver import Approver
from corral.apps.cli.shell_state import ShellState, exported_names
from corral.apps.cli.verbs.check import call_of, config_of, machine_of
from corral.audit.audit_log import Log
from corral.model.call import NOT_EXECUTABLE_EXIT_CODE, Call
from corral.model.errors import AuditError, CorralError, PolicyError
from corral.model.render_result import denial_text, exit_status, json_text, timeout_text, violation_text
from corral.policy.pending_calls import take_pending_call
from corral.sandbox import Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from corral.model.call import Verdict
    from corral.model.result import SandboxResult
    from corral.policy.config import SandboxConfig
    from corral.policy.pending_calls import PendingCall
    from corral.transactions.transaction import Transaction


def main(options: argparse.Namespace) -> int:
    """Run what the command line names; the exit code is the command's, or says why there is none."""
    config = judged = config_of(options)
    if _asks_for_more(options, config):
        granted = _granted(options, config)
        if granted is None:
            print("corral: not run: the answer was no", file=sys.stderr)
            return NOT_EXECUTABLE_EXIT_CODE
        config = judged = granted
    pending = _taken(options, config)
    call = call_of(options) if pending is None else Call(pending.text, shell=True, cwd=options.cwd)  # noqa: S604  a record
    if options.exports:
        config = config.replace(env_allowlist={*config.env_allowlist, *exported_names(os.environ)})
    record = Record(Log(config, call=options.call), required=config.audit.required)
    record.check()
    # What a hook let through was asked about by its host, or by nobody: in the host's terminal an agent may have the keys.
    asking = Approver(judged, machine_of, may_ask=options.ask and not options.call and pending is None)
    with Sandbox(
        config=config, on_ask=asking.answer if pending is None else _approval(pending), on_result=record.result
    ) as box:
        try:
            result, telling = (_tried if options.tries else _driven)(box, call, options)
        except AuditError:
            raise
        except CorralError as error:
            record.failure(call, error)
            raise
        if telling is not None and not result.denied:
            telling.leave(options.directory_file, os.environ)
    if options.json:
        print(json_text(result.to_dict()))
    elif result.denied:
        print(_denied(call, result, asking), file=sys.stderr)
    elif result.timed_out:
        print(timeout_text(config.timeout_seconds), file=sys.stderr)
    else:
        # Empty where it was shown already; why it could not be started where it could not.
        sys.stderr.buffer.write(result.stderr)
    if not options.json:
        tell_violations(result)
    return exit_status(result)


def tell_violations(result: SandboxResult) -> None:
    """Print what the kernel stopped. Lines break on a terminal alone: a log is searched line by line."""
    width = terminal_of(sys.stderr, os.environ).columns if sys.stderr.isatty() else 0
    for violation in result.violations:
        print(violation_text(violation, width), file=sys.stderr)


def _asks_for_more(options: argparse.Namespace, config: SandboxConfig) -> bool:
    """Say whether a run may have more than the policy gives it: by its options, or because it is a known agent."""
    if options.network or options.publish or options.agent is not None:
        return True
    if not options.command or options.call or options.grant:
        return False
    return bool(config.containment.agents) or (not options.json and terminal_session.is_wanted(options.tty))


def _granted(options: argparse.Namespace, config: SandboxConfig) -> SandboxConfig | None:
    from corral.apps.cli import run_agent  # noqa: PLC0415  most runs have what the policy gives them

    agent = run_agent.agent_of(options, config)
    granted = run_agent.config_with_grants(options, config, agent)
    if granted is None or agent is None:
        return granted
    own = run_agent.variables_of(agent, os.environ)
    os.environ.update(own)
    return granted.replace(env_allowlist={*granted.env_allowlist, *own})


def _denied(call: Call, result: SandboxResult, asking: Approver) -> str:
    if asking.was_asked:
        # All else was on the screen a moment ago.
        why = "the answer was no" if result.reason == result.verdict.reason else printable(result.reason)
        return f"corral: not run: {why}"
    said = denial_text(call, result, terminal_of(sys.stderr, os.environ))
    return f"{said}\ncorral: nobody was asked: {printable(asking.why_not)}" if asking.why_not else said


class Record:
    """The owner's log of a run. Where it cannot be written nothing runs, unless the policy accepts that: then it is said."""

    def __init__(self, log: Log, *, required: bool) -> None:
        self._log = log
        self._required = required

    def check(self) -> None:
        """Look whether the line could be written, before there is a result to lose."""
        self._try(self._log.check)

    def result(self, result: SandboxResult) -> None:
        """Write what became of the call."""
        self._try(self._log.result, result)

    def failure(self, call: Call, error: CorralError) -> None:
        """Write that corral itself failed."""
        self._try(self._log.failure, call, error)

    def _try(self, write: Callable[..., None], *about: object) -> None:
        try:
            write(*about)
        except AuditError as error:
            if self._required:
                raise AuditError(f"{error}; or set audit.required = false in the policy to run without") from None
            print(f"corral: {error}; the policy accepts that", file=sys.stderr)


def _taken(options: argparse.Namespace, config: SandboxConfig) -> PendingCall | None:
    """Return the call that a hook left under the id it put into a rewritten command; it is there once."""
    if options.grant is None:
        return None
    cwd = options.cwd or config.project_root
    pending = take_pending_call(options.grant, config.project_root, cwd, os.environ)
    if pending is None or options.command is not None or options.shell not in (None, pending.text):
        raise PolicyError(
            "no approval waits for this very call in this project; it may be too old. Ask for the call again"
        )
    return pending


def _approval(pending: PendingCall) -> Callable[[Call, Verdict], bool]:
    """Say yes for the person whom the host has asked, but only to what they were told of."""
    return lambda _, verdict: {finding.rule for finding in verdict.findings} <= pending.asked


def _driven(box: Sandbox, call: Call, options: argparse.Namespace) -> tuple[SandboxResult, ShellState | None]:
    telling = None if options.directory_file is None else ShellState(box, call, exports=options.exports)
    on_terminal = not options.json and terminal_session.is_wanted(options.tty)
    result = terminal_session.drive(box, call) if on_terminal else drive(box, call, live=not options.json)
    return result, telling


def _tried(box: Sandbox, call: Call, options: argparse.Namespace) -> tuple[SandboxResult, None]:
    """Run in a transaction whose changes wait for the owner, as a hook wants it for what cannot be taken back."""
    from corral.apps.cli.verbs.try_ import note  # noqa: PLC0415  most calls change the project itself
    from corral.transactions.transaction import keep_for_review  # noqa: PLC0415  as above
    from corral.transactions.workspace import refuse_more  # noqa: PLC0415  as above

    refuse_more(box.config.project_root, os.environ)
    with box.transaction() as tx:
        on_terminal = not options.json and terminal_session.is_wanted(options.tty)
        result = terminal_session.drive(tx, call) if on_terminal else drive(tx, call, live=not options.json)
        if not result.denied:
            fields, said = keep_for_review(tx)
            note(box.config, fields)
            print(f"corral: {printable(said)}", file=sys.stderr)
    return result, None


def drive(box: Sandbox | Transaction, call: Call, *, live: bool) -> SandboxResult:
    """Run to the end. The terminal's Ctrl-C reaches only us, since the command has its own session: it is handed on."""
    noted: list[int] = []
    for number in (SIGINT, SIGTERM, SIGHUP):
        if getsignal(number) is not SIG_IGN:
            # Noted, not raised: an exception in the middle of the handle's work would lose the result.
            signal(number, lambda number, _: noted.append(number))
    interrupts = 0
    with box.start(call.argv, shell=call.shell, cwd=call.cwd, inherit_stdin=not live, inherit_stdio=live) as handle:
        while True:
            try:
                return handle.wait(terminal_session.NOTICE_SECONDS)
            except TimeoutError:
                while noted:
                    came = noted.pop(0)
                    if came != SIGINT:
                        sys.exit(128 + came)
                    interrupts += 1
                    handle.signal(SIGINT)
                if interrupts > 1:
                    handle.kill()  # the second one means it
