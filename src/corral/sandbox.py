"""Check a call, run it, read and write files: the whole of corral from the caller's side. Read this first.

Nothing is started unless the guard allows it. What a command or its arguments do is a result, never an exception.
"""

from __future__ import annotations

import os
import time

from corral._lib.process_identity import ProcessIdentity
from corral.containment.state import ContainmentState, unmet_requirement
from corral.guard.cache import VerdictCache
from corral.guard.machine import Machine
from corral.model.call import DENIED_EXIT_CODE, NOT_EXECUTABLE_EXIT_CODE, Call, Decision, Launch, Verdict
from corral.model.errors import ContainmentError
from corral.model.result import SandboxResult
from corral.policy.config import SandboxConfig
from corral.runtime import dispatch, files
from corral.runtime.environment import HostEnvironment
from corral.runtime.handle import Handle
from corral.runtime.launch import LaunchFailure, plan_launch
from corral.runtime.outcome import call_fields
from corral.runtime.pool import Pool
from corral.runtime.run_options import RunContext, RunOptions, call_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from typing import Any, Self

    from corral.guard.machine import Shown
    from corral.runtime.batch import Batch
    from corral.runtime.capture import Capture
    from corral.runtime.driver import OnResult
    from corral.runtime.executor import Executor
    from corral.runtime.processes import WardenClient
    from corral.runtime.waiters import OnOutput
    from corral.transactions.apply import Applied
    from corral.transactions.spares import Workshop
    from corral.transactions.transaction import Transaction
    from corral.transactions.undo_store import Entry

    OnAsk = Callable[[Call, Verdict], bool | Awaitable[bool]]

ID_BYTES = 16
_SHARED = (
    "on_ask",
    "on_result",
    "_environment",
    "_seen",
    "_holding",
    "_workshop",
    "_admitted",
)  # with a transaction


class Sandbox:
    """Runs commands under one config. Any thread may use it; a fork of the process gets processes of its own."""

    def __init__(
        self, config: SandboxConfig | None = None, *, on_ask: OnAsk | None = None, on_result: OnResult | None = None
    ) -> None:
        if config is not None and not isinstance(config, SandboxConfig):
            raise TypeError(f"config must be a SandboxConfig, not {type(config).__name__}")
        self.config = SandboxConfig() if config is None else config
        self.on_ask = on_ask
        self.on_result = on_result
        self._environment = HostEnvironment(self.config.env_allowlist)
        self._seen: tuple[dict[str, str], Machine] = ({}, Machine.of(self.config))
        self._recall = VerdictCache(self.config)
        self._holding = ContainmentState(self.config)
        traffic = self._holding.traffic
        self._pool = Pool(
            self._holding.plan,
            lend=None if traffic is None else traffic.lend,
            generation=self._holding.generation,
        )
        connections = None if traffic is None else traffic.connections
        self._context = RunContext(self.config, self._holding.violations, self._spill(), connections)
        self._workshop: Workshop | None = None
        self._within: tuple[SandboxConfig, VerdictCache] | None = None  # by what the calls of transactions are judged
        self._admitted: ProcessIdentity | None = None  # the process in which the containment was checked

    def check(
        self,
        argv: Sequence[object] | str | os.PathLike[str],
        *,
        shell: bool = False,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Verdict:
        """Judge a call; run nothing."""
        return self._recall.vet(call_of(argv, shell, cwd, env), self._look()[1])

    def run(
        self,
        argv: Sequence[object] | str | os.PathLike[str],
        *,
        shell: bool = False,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout_seconds: float | None = None,
        on_output: OnOutput | None = None,
    ) -> SandboxResult:
        """Run a call to its end; `on_output` gets what it prints as it comes, the stream's name and bytes."""
        running = self.start(
            argv, shell=shell, cwd=cwd, env=env, stdin=stdin, timeout_seconds=timeout_seconds, on_output=on_output
        )
        try:
            return running.wait()
        except BaseException:
            running.close()
            raise

    async def arun(
        self,
        argv: Sequence[object] | str | os.PathLike[str],
        *,
        shell: bool = False,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout_seconds: float | None = None,
        on_output: OnOutput | None = None,
    ) -> SandboxResult:
        """Run a call to its end in the running event loop; cancelling ends everything it started."""
        running = await self.astart(
            argv, shell=shell, cwd=cwd, env=env, stdin=stdin, timeout_seconds=timeout_seconds, on_output=on_output
        )
        try:
            return await running
        except BaseException:
            running.close()
            raise

    def start(
        self,
        argv: Sequence[object] | str | os.PathLike[str],
        *,
        shell: bool = False,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout_seconds: float | None = None,
        open_stdin: bool = False,
        inherit_stdin: bool = False,
        inherit_stdio: bool = False,
        pty: bool = False,
        rows: int = 24,
        columns: int = 80,
        on_output: OnOutput | None = None,
    ) -> Handle:
        """Start a call and return its handle; a refused one has its result already.

        `open_stdin` lets the handle write input, `inherit_stdin` lets the command read this process's own.
        `inherit_stdio` gives it all three streams: nothing is captured then, and silence is not noticed.
        `pty` puts it on a terminal of its own, which the handle writes and reads, all of it as stdout.
        """
        call = call_of(argv, shell, cwd, env)
        streams = (open_stdin, inherit_stdin, inherit_stdio, pty, rows, columns)
        return self._start(RunOptions(call, stdin, timeout_seconds, on_output, *streams))

    def _start(self, options: RunOptions) -> Handle:
        call = options.call
        is_admitted = self._is_admitted()  # before the look, which then sees what that has changed
        environment, machine = self._look()
        verdict = self._recall.vet(call, machine)
        refusal = self._refusal(call, verdict) if verdict.findings else ""
        why = self._renewed()
        if refusal or why:
            return self._refused(call, verdict, refusal, why)
        warden = None
        if not is_admitted or not self._is_admitted():
            warden = self._pool.acquire()
            self._admit(warden)
            environment = self._look()[0]
        try:
            planned = plan_launch(options, self.config, environment)
        except BaseException:
            if warden is not None:
                self._pool.release(warden)
            raise
        if not isinstance(planned, Launch):
            if warden is not None:
                self._pool.release(warden)
            return self._unplanned(call, verdict, planned)
        return dispatch.start(
            self._pool, self._context, planned, options, verdict, warden=warden, on_result=self.on_result
        )

    async def astart(
        self,
        argv: Sequence[object] | str | os.PathLike[str],
        *,
        shell: bool = False,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout_seconds: float | None = None,
        open_stdin: bool = False,
        pty: bool = False,
        rows: int = 24,
        columns: int = 80,
        on_output: OnOutput | None = None,
    ) -> Handle:
        """Start a call as `start` does, and let the running event loop run on while what holds it is made."""
        call = call_of(argv, shell, cwd, env)
        streams = (open_stdin, False, False, pty, rows, columns)
        return await self._astart(RunOptions(call, stdin, timeout_seconds, on_output, *streams))

    async def _astart(self, options: RunOptions) -> Handle:
        call = options.call
        verdict = self._recall.vet(call, self._look()[1])
        refusal = await self._refusal_in_loop(call, verdict) if verdict.findings else ""
        why = self._renewed()
        if refusal or why:
            return self._refused(call, verdict, refusal, why)
        warden = await self._pool.acquire_in_loop()
        if not self._is_admitted():
            self._admit(warden)
        try:
            planned = plan_launch(options, self.config, self._look()[0])
        except BaseException:
            self._pool.release(warden)
            raise
        if not isinstance(planned, Launch):
            self._pool.release(warden)
            return self._unplanned(call, verdict, planned)
        return dispatch.start(
            self._pool, self._context, planned, options, verdict, warden=warden, on_result=self.on_result
        )

    def map(
        self,
        calls: Iterable[object],
        *,
        workers: int | None = None,
        ordered: bool = True,
        idempotent: bool = False,
        engine: str | Executor = "local",
    ) -> Batch:
        """Run many calls, several at a time, and iterate over their results: in order, or as they are done.

        A call is a list of words, or a mapping with `argv` or `shell` and what `run` takes. Closing the iterator ends what runs.
        """
        from corral.runtime.batch import Batch  # noqa: PLC0415  one call needs no threads

        return Batch(self, calls, workers=workers, ordered=ordered, idempotent=idempotent, engine=engine)

    def transaction(self) -> Transaction:
        """Begin a transaction: what its calls do to the project is kept apart until `apply`, and gone without."""
        from corral.transactions.spares import Workshop  # noqa: PLC0415  as above
        from corral.transactions.transaction import (  # noqa: PLC0415  most sandboxes have none
            Transaction,
            transaction_config,
            with_notice,
        )

        if self._within is None:
            config = transaction_config(self.config)
            self._within = config, VerdictCache(config)

        why = self._holding.project_error()
        if why:
            raise ContainmentError(why)
        with self._holding.renewal:
            workshop = self._workshop = self._workshop or Workshop(self._holding, self._pool)
        branch, copied = workshop.take()
        inner = object.__new__(type(self))
        # By name: a method that somebody put over one of this object's own would lead back to the project itself.
        for name in _SHARED:
            setattr(inner, name, getattr(self, name))
        inner.config, inner._recall = self._within
        inspect = self._holding.denials
        if copied:
            inspect = with_notice(inspect, self.config.project_root, copied)
        inner._context = self._context.replace(config=inner.config, inspect=inspect, transaction=branch.place.id)
        inner._pool = branch
        told = self.__dict__.get("_instrumentation")
        if told is not None:
            told.spread(inner)
        return Transaction(inner, branch, workshop, self._holding)

    def undo(self, id: str = "") -> Applied:  # noqa: A002  what history and results call it
        """Restore what was there before the transaction that was applied last, or the one whose id begins so."""
        from corral.transactions.apply import undo  # noqa: PLC0415  as above

        return undo(self.config.project_root, os.environ, id)

    def history(self) -> list[Entry]:
        """Return the transactions that were applied to the project, the latest first."""
        from corral.transactions.apply import history  # noqa: PLC0415  as above

        return history(self.config.project_root, os.environ)

    def read_bytes(self, path: str | os.PathLike[str]) -> bytes:
        """Return a file's bytes. A path is relative to the project; PermissionError when a command could not read it."""
        return files.read_bytes(os.fspath(path), self.config, self._scratch_for(os.fspath(path)))

    def write_bytes(self, path: str | os.PathLike[str], data: bytes) -> None:
        """Replace a file's bytes. A path is relative to the project; PermissionError when a command could not write it."""
        files.write_bytes(os.fspath(path), data, self.config, self._scratch_for(os.fspath(path)))

    def close(self) -> None:
        """End everything that was started, and wait until it is gone. A closed sandbox checks, but runs nothing."""
        if self._workshop is not None:
            self._workshop.stop()
        self._pool.close()
        if self._workshop is not None:
            self._workshop.clean()
        self._holding.clean()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _spill(self) -> Callable[[], Capture] | None:
        if self.config.output.spill_bytes is None:
            return None
        from corral.runtime.spill_file import SpillDirectory  # noqa: PLC0415  most sandboxes save nothing

        return SpillDirectory(self.config, self.config.output.spill_bytes, self._holding.shown).capture

    def _scratch_for(self, path: str) -> Shown:
        """Return where the commands' own /tmp and home lie; those that a path may need are made."""
        if not self._is_admitted() and files.may_be_scratch(path, self.config):
            warden = self._pool.acquire()
            self._admit(warden)
            self._pool.release(warden)
        return self._holding.shown()

    def _look(self) -> tuple[dict[str, str], Machine]:
        """Return the environment for commands, and the machine as the guard sees it; made anew when something changed."""
        environment = self._environment.scrubbed()
        seen = self._seen
        if environment is not seen[0]:
            self._seen = seen = (environment, Machine.of(self.config, self._holding.temporary()))
        return seen

    def _refused(self, call: Call, verdict: Verdict, refusal: str, why: str) -> Handle:
        """Return the result of a call that may not run, or that has no project to run in."""
        if refusal:
            return self._finished(self._denied(call, verdict, refusal))
        return self._finished(
            self._unstarted(call, verdict, LaunchFailure(NOT_EXECUTABLE_EXIT_CODE, f"corral: {why}\n"))
        )

    def _renewed(self) -> str:
        """Make what holds the commands anew where what it protects was replaced outside; return why that cannot be, or nothing."""
        if not self._holding.replaced():
            return ""
        with self._holding.renewal:
            path = self._holding.replaced()  # once more: another thread may have made it anew meanwhile
            if path == self.config.project_root:
                return self._holding.project_error() or f"{path} was replaced; try again, or make a new sandbox"
            if not path or self._context.transaction is not None:  # what a transaction writes there is never applied
                return ""
            if self._pool.is_busy() or (self._workshop is not None and self._workshop.is_open()):
                return (
                    f"{path} was replaced or removed by somebody outside since the sandbox was made, and commands could write it now; "
                    "let what runs in the sandbox end, or make a new one"
                )
            if self._workshop is not None:
                self._workshop.stop()
            # In one step with the keeper's end: another keeper must not be told of what was seen for this one.
            self._pool.retire(self._holding.renew)
            if self._workshop is not None:
                self._workshop.clean()
                self._workshop = None
            self._admitted = None
            return ""

    def _unplanned(self, call: Call, verdict: Verdict, why: LaunchFailure) -> Handle:
        """Return the result of a call that cannot start."""
        if why.exit_code == DENIED_EXIT_CODE:
            return self._finished(self._denied(call, verdict, why.message))
        return self._finished(self._unstarted(call, verdict, why))

    def _admit(self, warden: WardenClient) -> None:
        """Look at what holds the commands, and refuse to run where that is less than the config demands."""
        status = warden.backend, warden.enforcement, warden.missing_layers
        demand = unmet_requirement(self.config, *status)
        if demand:
            warden.close()
            self._pool.retire()
            raise ContainmentError(demand)
        self._environment.replace(self._holding.variables(*status))
        self._admitted = ProcessIdentity()

    def _is_admitted(self) -> bool:
        return self._admitted is not None and self._admitted.is_current()

    def _refusal(self, call: Call, verdict: Verdict) -> str:
        """Return why a call may not run, or nothing."""
        if not self._is_asked(verdict):
            return _reason(verdict)
        try:
            answer = self.on_ask(call, verdict)  # type: ignore[misc]  # there is one, or it would not be asked
            if hasattr(answer, "__await__"):
                _drop(answer)
                raise TypeError("on_ask gave something to be awaited, which only arun and astart do")
        except Exception as error:  # noqa: BLE001  whoever was asked did not say yes
            return _unanswered(verdict, error)
        return self._answered(call, verdict, answer)

    async def _refusal_in_loop(self, call: Call, verdict: Verdict) -> str:
        """Return why a call may not run, or nothing; the loop runs on while somebody thinks about it."""
        if not self._is_asked(verdict):
            return _reason(verdict)
        try:
            answer = self.on_ask(call, verdict)  # type: ignore[misc]  # as above
            if not isinstance(answer, bool) and hasattr(answer, "__await__"):
                answer = await answer
        except Exception as error:  # noqa: BLE001  as above
            return _unanswered(verdict, error)
        return self._answered(call, verdict, answer)

    def _is_asked(self, verdict: Verdict) -> bool:
        return verdict.decision == Decision.ASK and self.on_ask is not None

    def _answered(self, call: Call, verdict: Verdict, answer: object) -> str:
        # Not any true value: a coroutine that nobody awaited is one.
        if answer is not True:
            return _reason(verdict)
        # A person takes minutes, in which a link may have been changed.
        again = self._recall.vet(call, self._look()[1])
        return "" if again == verdict else f"While it was asked about, it became another call. {_reason(again)}"

    def _finished(self, result: SandboxResult) -> Handle:
        if self.on_result is not None:
            self.on_result(result)
        return Handle(None, result)

    def _denied(self, call: Call, verdict: Verdict, reason: str) -> SandboxResult:
        return SandboxResult(**self._facts(call, verdict), exit_code=DENIED_EXIT_CODE, denied=True, reason=reason)

    def _unstarted(self, call: Call, verdict: Verdict, why: LaunchFailure) -> SandboxResult:
        said = why.message.encode("utf-8", "replace")
        facts = self._facts(call, verdict)
        return SandboxResult(**facts, exit_code=why.exit_code, stderr=said, stderr_bytes=len(said))

    def _facts(self, call: Call, verdict: Verdict) -> dict[str, Any]:
        root = self.config.project_root
        cwd = root if call.cwd is None else os.path.join(root, str(call.cwd))
        facts = call_fields(call, verdict, cwd, os.urandom(ID_BYTES), time.time())
        return facts | {"transaction": self._context.transaction, "network": self.config.containment.reach}


def _reason(verdict: Verdict) -> str:
    return "" if verdict.decision == Decision.ALLOW else verdict.reason or "The call was not allowed."


def _unanswered(verdict: Verdict, error: Exception) -> str:
    return f"{_reason(verdict)} (asking failed: {type(error).__name__}: {error})"


def _drop(answer: object) -> None:
    close = getattr(answer, "close", None)
    if close is not None:
        # Or Python would complain later that nobody awaited it.
        close()
