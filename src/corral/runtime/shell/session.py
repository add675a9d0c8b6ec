"""A session: a bash that lasts. Each call is judged before bash gets it, and has its own result, output and time limit."""

from __future__ import annotations

import os
from asyncio import CancelledError, get_running_loop, shield, wait
from threading import Lock, Thread
from time import monotonic, time
from weakref import ref

from corral._lib.fork_lock import ProcessOwner
from corral.containment import protocol
from corral.containment.system_limits import explained
from corral.guard.evaluate import vet
from corral.guard.shell_memory import ShellMemory
from corral.model.call import (
    DENIED_EXIT_CODE,
    NOT_EXECUTABLE_EXIT_CODE,
    TIMED_OUT_EXIT_CODE,
    UNCLEAN_EXIT_CODE,
    Call,
    Usage,
    Verdict,
    Violation,
)
from corral.model.errors import ContainmentError
from corral.model.result import SandboxResult
from corral.runtime import dispatch
from corral.runtime.handle import Handle
from corral.runtime.launch import LaunchFailure, plan_shell
from corral.runtime.observers import ObservedCall
from corral.runtime.outcome import call_fields
from corral.runtime.run_options import RunOptions, call_of
from corral.runtime.shell import channel
from corral.runtime.shell.process import Ended, ShellProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable
    from typing import Any, Self, TypeVar

    from corral.runtime.capture import Capture
    from corral.runtime.runner import CommandRunner
    from corral.runtime.waiters import OnOutput

    T = TypeVar("T")

SETTLE_SECONDS = 1.0  # between two interrupts of a call whose task was cancelled
INTERRUPTED_EXIT_CODE = 130  # what a shell gives a command that SIGINT has ended
FAILED_EXIT_CODE = 1  # of a text that bash gave up, for example at `break` outside a loop
_LOST = "Its directory, variables, functions and jobs are lost"
_ENDED = f"corral: the shell of this session has ended. {_LOST}."


class Session:
    """A bash whose directory, variables, functions, options and background jobs last between calls.

    Any thread may use it; one call runs at a time. Bash starts with the first call. If it ends, the next call starts another.
    """

    def __init__(self, runner: CommandRunner) -> None:
        self._runner = runner
        self._state = runner.state
        self._shell: ShellProcess | None = None
        self._memory = ShellMemory()
        self._last_exit_code = 0
        self._lock = Lock()  # held while a call runs
        self._owner = ProcessOwner()
        self._is_closed = self._is_running = False
        self._judged_in: ShellProcess | None = None  # the shell in whose state the last call was judged
        self.starts = 0  # how many times bash was started
        self._state.sessions.add(self)

    @property
    def cwd(self) -> str:
        """The shell's working directory, as its commands see it."""
        return self._directory() or self._runner.context.config.project_root

    def check(self, text: str) -> Verdict:
        """Judge a call in the present state of the shell, without running it."""
        return self._judge(self._call(text))

    def run(
        self, text: str, *, timeout_seconds: float | None = None, on_output: OnOutput | None = None
    ) -> SandboxResult:
        """Run bash text in the shell to its end. After the time limit, everything that the text has started ends."""
        with self._lock:
            options = self._options(text, timeout_seconds, on_output)
            with ObservedCall(self._state.observers, options) as observed:
                verdict = self._judge(options.call)
                reason = ""
                if verdict.findings:
                    reason, _ = self._runner.refusal(options.call, verdict, self._judge)
                return self._report(observed, self._run(options, verdict, reason))

    async def arun(
        self, text: str, *, timeout_seconds: float | None = None, on_output: OnOutput | None = None
    ) -> SandboxResult:
        """Run bash text as `run` does, without blocking the running event loop. Cancelling interrupts the text."""
        await self._acquire_in_loop()
        try:
            options = self._options(text, timeout_seconds, on_output)
            with ObservedCall(self._state.observers, options) as observed:
                verdict = self._judge(options.call)
                reason = ""
                if verdict.findings:
                    reason, _ = await self._runner.refusal_in_loop(options.call, verdict, self._judge)
                return self._report(observed, await self._run_in_thread(options, verdict, reason))
        finally:
            self._lock.release()

    async def _acquire_in_loop(self) -> None:
        acquiring = _in_thread(self._lock.acquire)
        try:
            await shield(acquiring)
        except CancelledError:
            acquiring.add_done_callback(lambda _: self._lock.release())
            raise

    async def _run_in_thread(self, options: RunOptions, verdict: Verdict, reason: str) -> SandboxResult:
        running = _in_thread(lambda: self._run(options, verdict, reason))
        try:
            return await shield(running)
        except CancelledError:
            while not running.done():
                self.interrupt()
                await wait((running,), timeout=SETTLE_SECONDS)
            raise

    def interrupt(self) -> bool:
        """End the call that runs now, as Ctrl-C does; what ignores that is killed. Returns whether a call runs."""
        shell = self._shell
        return shell is not None and shell.interrupt()

    def restart(self) -> None:
        """End the shell with everything in it. The next call starts a new one."""
        with self._lock:
            self._end_shell()

    def close(self) -> None:
        """End the shell with everything in it, and wait until it is gone. A closed session runs nothing."""
        self._state.sessions.discard(self)
        self._is_closed = True
        if not self._owner.is_current:
            return
        self.interrupt()
        with self._lock:
            self._end_shell()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await _in_thread(self.close)

    def __del__(self) -> None:
        shell: ShellProcess | None = getattr(self, "_shell", None)
        if shell is not None and self._owner.is_current:
            shell.kill()

    def _options(self, text: str, timeout_seconds: float | None, on_output: OnOutput | None) -> RunOptions:
        if self._is_closed:
            raise ContainmentError("the session is closed; make a new one")
        if not self._owner.is_current:
            raise ContainmentError("this session belongs to the process that made it, of which this one is a fork")
        return RunOptions(self._call(text), None, timeout_seconds, on_output)

    def _call(self, text: str) -> Call:
        return call_of(text, True, self._directory(), None)

    def _directory(self) -> str | None:
        shell = self._living_shell()
        if shell is None:
            return None
        directory = shell.directory()
        # For an unknown directory: the guard refuses a call with a NUL byte.
        return "\0" if directory is None and not shell.has_ended else directory

    def _judge(self, call: Call) -> Verdict:
        self._judged_in = self._living_shell()
        if self._judged_in is None:
            self._memory = ShellMemory()
        return vet(call, self._runner.context.config, self._state.look()[1], self._memory)

    def _living_shell(self) -> ShellProcess | None:
        shell = self._shell
        return None if shell is None or shell.has_ended else shell

    def _run(self, options: RunOptions, verdict: Verdict, reason: str) -> SandboxResult:
        """Run a judged call, unless there is a reason against it."""
        call, runner = options.call, self._runner
        if not reason and verdict.grants:
            targets = ", ".join(f"{grant.kind} {grant.target}" for grant in verdict.grants)
            reason = (
                f"It would need an opening of its own ({targets}), which no shell that lasts can have. "
                "Run it as a call of its own, outside the session."
            )
        if reason:
            return runner.denied(call, verdict, reason)
        note = self._renew()
        error = self._state.renew(in_transaction=False)
        if error:
            return runner.unstarted(call, verdict, LaunchFailure(NOT_EXECUTABLE_EXIT_CODE, f"corral: {error}\n"))
        shell = self._living_shell()
        if shell is not self._judged_in:
            # The call was judged in a state that is gone.
            call = call_of(call.argv, True, None, None)
            verdict = self._judge(call)
            if not verdict.allowed or verdict.grants:
                return runner.denied(call, verdict, f"{note or _ENDED} {verdict.reason}".strip())
            options = options.replace(call=call)
        if shell is None:
            started = self._start()
            if isinstance(started, LaunchFailure):
                failed = runner.denied if started.exit_code == DENIED_EXIT_CODE else runner.unstarted
                return failed(call, verdict, started if failed == runner.unstarted else started.message)  # type: ignore[arg-type]  # each gets its own
            shell = started
        return self._send(shell, options, verdict, note)

    def _renew(self) -> str:
        """End a shell that may see what it must not see by now. Returns a note about that, or ""."""
        shell = self._living_shell()
        if shell is None:
            return ""
        warden, why = shell.warden, ""
        if warden is None or not self._state.pool.hides_all(warden):
            why = "a credential file has appeared, which it would not hide"
        elif self._state.containment.replaced():
            why = f"{self._state.containment.replaced()} was replaced, which it could now write"
        if not why:
            return ""
        self._end_shell()
        return f"corral: the shell was ended, because {why}. {_LOST}."

    def _start(self) -> ShellProcess | LaunchFailure:
        state, runner = self._state, self._runner
        warden = state.pool.acquire()
        try:
            state.admit(warden, runner.context.config)
            launch = plan_shell(channel.ARGV, runner.context.config, state.look()[0])
        except BaseException:
            state.pool.release(warden)
            raise
        if isinstance(launch, LaunchFailure):
            state.pool.release(warden)
            return launch

        own = ref(self)  # a session that is dropped ends its shell

        def report(result: SandboxResult) -> None:
            session = own()
            # A job may plant a file after the last call. During a call, the violations of the shell are the call's.
            if result.violations and not (session and session._is_running) and state.on_result is not None:
                state.on_result(result)

        def start(descriptors: tuple[int, ...]) -> Handle:
            options = RunOptions(Call(channel.ARGV), descriptors=descriptors)
            return dispatch.start(
                state.pool, runner.context, launch, options, Verdict(), warden=warden, on_result=report
            )

        self._last_exit_code = 0
        self.starts += 1
        try:
            self._shell = shell = ShellProcess(start, self._new_capture())
        except OSError as error:
            raise explained(error, "the shell of a session cannot be started") from error
        return shell

    def _new_capture(self) -> Callable[[], Capture]:
        runner = self._runner

        def new_capture() -> Capture:
            return runner.context.new_capture()  # a sandbox may get another context

        return new_capture

    def _send(self, shell: ShellProcess, options: RunOptions, verdict: Verdict, note: str) -> SandboxResult:
        context = self._runner.context
        config, warden = context.config, shell.warden
        assert warden is not None  # noqa: S101  the shell has not ended
        warden.idle_since = 0.0
        began_at, started_at = time(), monotonic()
        limit = config.timeout_seconds if options.timeout_seconds is None else options.timeout_seconds
        memory = self._memory.after(config.rules.effects)
        self._memory = memory
        cwd = self.cwd
        assert isinstance(options.call.argv, str)  # noqa: S101  `call_of` got text
        self._is_running = True
        cpu = shell.cpu_seconds()
        try:
            ended = shell.run(
                options.call.argv,
                self._last_exit_code,
                seconds=limit,
                silence_seconds=config.output.silence_seconds,
                on_output=options.on_output,
            )
        finally:
            self._is_running = False
        fields = call_fields(options.call, verdict, cwd, os.urandom(protocol.NONCE_BYTES), began_at)
        exit_code, number, message = self._ending(ended)
        kept = ended.output
        violations = self._violations(ended, cwd, began_at, number)
        if exit_code == 0 and any(violation.remains for violation in violations):
            exit_code = UNCLEAN_EXIT_CODE
        # An interactive bash says that it exits.
        stderr = kept.stderr if ended.shell is None else kept.stderr.removesuffix(b"exit\n")
        for text in (note, message):
            stderr += f"{text}\n".encode() if text else b""
        self._last_exit_code = exit_code if exit_code >= 0 else FAILED_EXIT_CODE
        if not shell.has_ended and not shell.has_jobs():
            # A shell without jobs does not keep the sandbox busy: its keeper may be replaced.
            warden.idle_since = monotonic()
        return SandboxResult(
            **fields,
            exit_code=exit_code,
            stdout=kept.stdout,
            stderr=stderr,
            stdout_bytes=kept.stdout_bytes,
            stderr_bytes=kept.stderr_bytes + len(stderr) - len(kept.stderr),
            truncated=kept.truncated,
            full_output_path=kept.path,
            timed_out=ended.is_late,
            signal=number,
            duration_ms=(monotonic() - started_at) * 1000,
            backend=warden.backend,
            enforcement=warden.enforcement,
            missing_layers=warden.missing_layers,
            violations=violations,
            usage=_usage(cpu, shell.cpu_seconds()) if ended.shell is None else ended.shell.usage,
            connections=() if context.connections is None else context.connections(began_at),
            killed=ended.killed + (ended.shell.killed if ended.shell is not None else 0),
            network=config.containment.reach,
        )

    def _ending(self, ended: Ended) -> tuple[int, int | None, str]:
        """Return the exit code, the signal and a message for stderr."""
        number, message = None, ""
        exit_code = FAILED_EXIT_CODE if ended.exit_code is None else ended.exit_code
        if ended.shell is not None:
            exit_code, number = ended.shell.exit_code, ended.shell.signal
            message = f"{_ENDED[:-1]}, and the next call starts a new one."
        elif ended.was_interrupted and ended.exit_code is None:
            exit_code = INTERRUPTED_EXIT_CODE
        if ended.is_late:
            exit_code = TIMED_OUT_EXIT_CODE
        return exit_code, number, message

    def _violations(self, ended: Ended, cwd: str, began_at: float, number: int | None) -> tuple[Violation, ...]:
        context = self._runner.context
        if ended.shell is not None:
            return ended.shell.violations
        shell = self._shell
        warden = None if shell is None else shell.warden
        if context.inspect is None or warden is None:
            return ()
        errors = ended.output.stderr
        return context.inspect(errors, cwd, warden.missing_layers, signal=number, began_at=began_at, warden=warden.pid)

    def _report(self, observed: ObservedCall, result: SandboxResult) -> SandboxResult:
        observed.follow(Handle(None, result))
        if self._state.on_result is not None:
            self._state.on_result(result)
        return result

    def _end_shell(self) -> None:
        shell, self._shell = self._shell, None
        self._memory = ShellMemory()
        if shell is not None:
            shell.end()


def _usage(before: tuple[float, float], after: tuple[float, float]) -> Usage:
    return Usage(max(after[0] - before[0], 0.0), max(after[1] - before[1], 0.0))


def _in_thread(call: Callable[[], T]) -> Future[T]:
    """Call a function in a thread of its own: calls that wait for each other would use up the threads of a pool."""
    loop = get_running_loop()
    made: Future[T] = loop.create_future()

    def settle(set_value: Callable[[Any], object], value: object) -> None:
        if not made.done():
            set_value(value)

    def run() -> None:
        try:
            arguments: tuple[Any, Any] = (made.set_result, call())
        except BaseException as error:  # noqa: BLE001  raised where the result is awaited
            arguments = (made.set_exception, error)
        try:
            loop.call_soon_threadsafe(settle, *arguments)
        except RuntimeError:
            # The event loop was closed meanwhile.
            return

    Thread(target=run, name="corral-session", daemon=True).start()
    return made
