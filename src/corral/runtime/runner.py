"""Judges calls and starts the allowed ones, for a sandbox or for one of its transactions.

Nothing is started unless the guard allows it. A command that fails or is refused is a result, never an exception.
"""

from __future__ import annotations

import os
import time

from corral.guard.cache import VerdictCache
from corral.model.call import DENIED_EXIT_CODE, NOT_EXECUTABLE_EXIT_CODE, Decision, Launch
from corral.model.errors import PolicyError
from corral.model.grant import POSTURE, PROGRAM, Yes
from corral.model.result import SandboxResult
from corral.runtime import dispatch
from corral.runtime.handle import Handle
from corral.runtime.launch import LaunchFailure, plan_launch
from corral.runtime.observers import ObservedCall
from corral.runtime.outcome import call_fields
from corral.runtime.run_options import RunContext
from corral.runtime.shared_state import GrantedSandbox, SharedState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from typing import Any

    from corral._lib.fork_lock import ProcessOwner
    from corral.containment.network.hold_answers import OnHold
    from corral.model.call import Call, Verdict
    from corral.model.grant import Grant
    from corral.policy.config import SandboxConfig
    from corral.runtime.capture import Capture
    from corral.runtime.driver import OnResult
    from corral.runtime.observers import Observer
    from corral.runtime.pool import Pool
    from corral.runtime.processes import WardenClient
    from corral.runtime.run_options import RunOptions
    from corral.runtime.shared_state import OnAsk, OpenGrants

ID_BYTES = 16


class CommandRunner:
    """Runs calls under one context, with the wardens of one pool."""

    def __init__(
        self,
        state: SharedState,
        context: RunContext,
        pool: Pool,
        verdicts: VerdictCache,
        open_grants: OpenGrants | None = None,
    ) -> None:
        self.state = state
        self._open_grants = (
            open_grants  # None where no call can have grants: in a transaction, and in a granted sandbox
        )
        self.context = context
        self.pool = pool
        self._verdicts = verdicts
        self._admission: ProcessOwner | None = None  # the state's admission that covers this runner's config

    def check(self, call: Call) -> Verdict:
        """Judge a call without running it."""
        return self._verdicts.vet(call, self.state.look()[1])

    def run(self, options: RunOptions, started: Callable[[Handle], object] | None = None) -> SandboxResult:
        """Run a call to its end. `started` gets its handle."""
        if options.open_stdin or options.inherit_stdin or options.inherit_stdio or options.pty:
            raise TypeError("run has no options for open streams or a terminal; use start")
        if not self.state.observers and started is None:
            return _wait(self._start(options))
        with ObservedCall(self.state.observers, options) as call:
            call.handle = handle = self._start(options)
            if started is not None:
                started(handle)
            return _wait(handle)

    async def arun(self, options: RunOptions, started: Callable[[Handle], object] | None = None) -> SandboxResult:
        """Run a call to its end in the running event loop. Cancelling kills the command."""
        if options.open_stdin or options.inherit_stdin or options.inherit_stdio or options.pty:
            raise TypeError("arun has no options for open streams or a terminal; use astart")
        with ObservedCall(self.state.observers, options) as call:
            call.handle = handle = await self._astart(options)
            if started is not None:
                started(handle)
            try:
                return await handle
            except BaseException:
                handle.close()
                raise

    def start(self, options: RunOptions) -> Handle:
        """Start a call and return its handle. The handle of a refused call has its result already."""
        if not self.state.observers:
            return self._start(options)
        with ObservedCall(self.state.observers, options) as call:
            call.handle = handle = self._start(options)
            return handle

    async def astart(self, options: RunOptions) -> Handle:
        """Start a call without blocking the running event loop while a warden is made."""
        if options.inherit_stdin or options.inherit_stdio:
            raise TypeError("astart cannot lend this process's streams; use start")
        with ObservedCall(self.state.observers, options) as call:
            call.handle = handle = await self._astart(options)
            return handle

    def _start(self, options: RunOptions) -> Handle:
        call = options.call
        was_admitted = self._is_admitted()  # read first: `look` then sees the environment that `admit` has set
        environment, machine = self.state.look()
        verdict = self._verdicts.vet(call, machine)
        reason, by = self.refusal(call, verdict) if verdict.findings else ("", "")
        error = self.state.renew(in_transaction=self.context.transaction is not None)
        if reason or error:
            return self._not_started(call, verdict, reason, error)
        grants = (*_given(verdict, by), *self._signature(call))
        if grants:
            return self._start_granted(options, verdict, grants)
        warden = None
        if not was_admitted or not self._is_admitted():
            warden = self.pool.acquire()
            self._admission = self.state.admit(warden, self.context.config)
            environment = self.state.look()[0]
        return self._launch(options, verdict, environment, warden)

    async def _astart(self, options: RunOptions) -> Handle:
        call = options.call
        verdict = self.check(call)
        reason, by = await self.refusal_in_loop(call, verdict) if verdict.findings else ("", "")
        error = self.state.renew(in_transaction=self.context.transaction is not None)
        if reason or error:
            return self._not_started(call, verdict, reason, error)
        grants = (*_given(verdict, by), *self._signature(call))
        if grants:
            return self._start_granted(options, verdict, grants)
        warden = await self.pool.acquire_in_loop()
        if not self._is_admitted():
            self._admission = self.state.admit(warden, self.context.config)
        return self._launch(options, verdict, self.state.look()[0], warden)

    def _signature(self, call: Call) -> tuple[Grant, ...]:
        """Return the grant by which git signs what this call commits, if the user has named a key for that."""
        config = self.context.config
        inside = config.containment
        if not config.signing_keys or self._open_grants is None or inside.broker or inside.backend == "none":
            return ()
        from corral.guard.evaluate import commands_of  # noqa: PLC0415  few users name a key
        from corral.guard.git_signatures import SIGNATURE, is_signed  # noqa: PLC0415

        commands, _ = commands_of(call, self.state.look()[1])
        return (SIGNATURE,) if any(map(is_signed, commands)) else ()

    def _start_granted(self, options: RunOptions, verdict: Verdict, grants: tuple[Grant, ...]) -> Handle:
        """Start a call in a sandbox of its own, with its grants."""
        if self._open_grants is None:
            return self._finished(self.denied(options.call, verdict, "No call can have grants here."))
        try:
            own = GrantedSandbox(self.state, self._open_grants(self.context.config, grants))
        except PolicyError as error:
            return self._finished(self.denied(options.call, verdict, f"Its grants cannot be given: {error}."))
        try:
            context = _context(own.state).replace(grants=grants)
            runner = CommandRunner(own.state, context, own.state.pool, self._verdicts)
            warden = own.state.pool.acquire()
            own.state.admit(warden, own.config)
            own.refuse_partial(warden.enforcement)
            own.state.on_result = own.end
            return runner._launch(options, verdict, own.state.look()[0], warden)
        except BaseException:
            own.close()
            raise

    def _is_admitted(self) -> bool:
        # A transaction's config may require more layers than the sandbox's, so each runner is admitted by itself.
        admission = self._admission
        return admission is not None and admission is self.state.pool.admission and admission.is_current

    def _launch(
        self, options: RunOptions, verdict: Verdict, environment: dict[str, str], warden: WardenClient | None
    ) -> Handle:
        launch = None
        try:
            launch = plan_launch(options, self.context.config, environment)
        finally:
            if warden is not None and not isinstance(launch, Launch):
                self.pool.release(warden)
        if isinstance(launch, Launch):
            on_result = self.state.on_result
            return dispatch.start(self.pool, self.context, launch, options, verdict, warden=warden, on_result=on_result)
        if launch.exit_code == DENIED_EXIT_CODE:
            return self._finished(self.denied(options.call, verdict, launch.message))
        return self._finished(self.unstarted(options.call, verdict, launch))

    def _not_started(self, call: Call, verdict: Verdict, reason: str, error: str) -> Handle:
        if reason:
            return self._finished(self.denied(call, verdict, reason))
        return self._finished(
            self.unstarted(call, verdict, LaunchFailure(NOT_EXECUTABLE_EXIT_CODE, f"corral: {error}\n"))
        )

    def refusal(self, call: Call, verdict: Verdict, check: Callable[[Call], Verdict] | None = None) -> tuple[str, str]:
        """Return the reason why a call may not run, or "" and who allowed it. `check` judges the call again after a yes."""
        answer = self._ask(call, verdict)
        if hasattr(answer, "__await__"):
            _close(answer)
            answer = TypeError("on_ask returned an awaitable, which only arun and astart accept")
        return self._answered(call, verdict, answer, check)

    async def refusal_in_loop(
        self, call: Call, verdict: Verdict, check: Callable[[Call], Verdict] | None = None
    ) -> tuple[str, str]:
        """Return what `_refusal` returns. The event loop goes on while the answer is awaited."""
        answer = self._ask(call, verdict)
        if hasattr(answer, "__await__"):
            awaitable: Awaitable[object] = answer
            try:
                answer = await awaitable
            except Exception as error:  # noqa: BLE001  as in `_ask`
                answer = error
        return self._answered(call, verdict, answer, check)

    def _ask(self, call: Call, verdict: Verdict) -> object:
        """Return the answer of `on_ask`, or its exception. Returns False for a call that is not asked about."""
        if verdict.decision != Decision.ASK or self.state.on_ask is None:
            return False
        try:
            return self.state.on_ask(call, verdict)
        except Exception as error:  # noqa: BLE001  any failure of the callback refuses the call
            return error

    def _answered(
        self, call: Call, verdict: Verdict, answer: object, check: Callable[[Call], Verdict] | None
    ) -> tuple[str, str]:
        if isinstance(answer, Exception):
            return f"{_reason(verdict)} (asking failed: {type(answer).__name__}: {answer})", ""
        # Only these are a yes: a coroutine that was not awaited is a true value too.
        if answer is not True and not isinstance(answer, Yes):
            return _reason(verdict), ""
        # The user may take minutes to answer, and a link may have been changed meanwhile.
        again = (check or self.check)(call)
        if again == verdict:
            return "", PROGRAM if answer is True else answer.by
        changed = "A file or link used by this command changed while the user was asked. The command was not run."
        return f"{changed} {_reason(again)}".rstrip(), ""

    def _finished(self, result: SandboxResult) -> Handle:
        if self.state.on_result is not None:
            self.state.on_result(result)
        return Handle(None, result)

    def denied(self, call: Call, verdict: Verdict, reason: str) -> SandboxResult:
        """Return the result of a refused call."""
        return SandboxResult(**self._fields(call, verdict), exit_code=DENIED_EXIT_CODE, denied=True, reason=reason)

    def unstarted(self, call: Call, verdict: Verdict, failure: LaunchFailure) -> SandboxResult:
        """Return the result of a call that cannot start."""
        message = failure.message.encode("utf-8", "replace")
        fields = self._fields(call, verdict)
        return SandboxResult(**fields, exit_code=failure.exit_code, stderr=message, stderr_bytes=len(message))

    def _fields(self, call: Call, verdict: Verdict) -> dict[str, Any]:
        config = self.context.config
        cwd = config.project_root if call.cwd is None else os.path.join(config.project_root, str(call.cwd))
        fields = call_fields(call, verdict, cwd, os.urandom(ID_BYTES), time.time())
        return fields | {"transaction": self.context.transaction, "network": config.containment.reach}


def open_runner(
    config: SandboxConfig,
    *,
    on_ask: OnAsk | None = None,
    on_result: OnResult | None = None,
    observers: Iterable[Observer] = (),
    open_grants: OpenGrants | None = None,
    on_hold: OnHold | None = None,
    hold_seconds: float = 0.0,
) -> CommandRunner:
    """Return the runner of a new sandbox. Closing its state ends everything. `open_grants` opens what a call is granted.

    `on_hold` is asked about a destination that is not granted while a connection to it waits, for up to `hold_seconds`.
    """
    state = SharedState(config, on_ask, on_result, observers, on_hold=on_hold, hold_seconds=hold_seconds)
    return CommandRunner(state, _context(state), state.pool, VerdictCache(config), open_grants)


def _context(state: SharedState) -> RunContext:
    return RunContext(state.config, state.containment.violations, _spill(state), state.containment.connections)


def _given(verdict: Verdict, by: str) -> tuple[Grant, ...]:
    """Return the grants of a call that runs, each with who gave it: the posture, or who answered the question about it."""
    asked = {
        grant.opening for finding in verdict.findings if finding.decision == Decision.ASK for grant in finding.grants
    }
    return tuple(grant.replace(by=by if grant.opening in asked else POSTURE) for grant in verdict.grants)


def _spill(state: SharedState) -> Callable[[], Capture] | None:
    size = state.config.output.spill_bytes
    if size is None:
        return None
    from corral.runtime.spill_file import SpillDirectory  # noqa: PLC0415  most sandboxes save no output

    return SpillDirectory(state.config, size, state.containment.shown).capture


def _wait(handle: Handle) -> SandboxResult:
    try:
        return handle.wait()
    except BaseException:
        handle.close()
        raise


def _reason(verdict: Verdict) -> str:
    return "" if verdict.decision == Decision.ALLOW else verdict.reason or "The call was not allowed."


def _close(answer: object) -> None:
    close = getattr(answer, "close", None)
    if close is not None:
        # A coroutine that is neither awaited nor closed makes Python print a warning.
        close()
