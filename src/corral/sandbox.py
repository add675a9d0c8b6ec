"""Check a call, run it, read and write files: the whole of corral from the caller's side. Read this first.

Nothing is started unless the guard allows it. What a command or its arguments do is a result, never an exception.
"""

from __future__ import annotations

import os
import time

from corral import files, handle
from corral.config import SandboxConfig
from corral.containment.holding import Holding, unmet
from corral.containment.limits import unenforceable
from corral.environment import HostEnvironment
from corral.errors import ContainmentError, PolicyError
from corral.launch import Failure, plan
from corral.machine import Machine
from corral.model import DENIED_EXIT_CODE, NOT_EXECUTABLE_EXIT_CODE, Call, Decision, Launch, Verdict
from corral.outcome import facts_of
from corral.recall import Recall
from corral.result import SandboxResult
from corral.spawn import Pool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Self

    from corral.handle import Handle

    OnAsk = Callable[[Call, Verdict], bool]

ID_BYTES = 16


class Sandbox:
    """Runs commands under one config. Any thread may use it; a fork of the process gets processes of its own."""

    def __init__(self, config: SandboxConfig | None = None, *, on_ask: OnAsk | None = None) -> None:
        self.config = config or SandboxConfig()
        self.on_ask = on_ask
        unkept = unenforceable(self.config.limits, self.config.containment.backend)
        if unkept:
            raise PolicyError(f"limits.{unkept[0]} cannot be kept without a kernel layer for it; leave it out")
        self._environment = HostEnvironment(self.config.env_allowlist)
        self._seen: tuple[dict[str, str], Machine] = ({}, Machine.of(self.config))
        self._recall = Recall(self.config)
        self._holding = Holding(self.config)
        self._pool = Pool(self._holding.plan, self._holding.violations)
        self._admitted_in = 0

    def check(
        self,
        argv: Sequence[object] | str,
        *,
        shell: bool = False,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Verdict:
        """Judge a call; run nothing."""
        return self._recall.vet(_call(argv, shell, cwd, env), self._look()[1])

    def run(
        self,
        argv: Sequence[object] | str,
        *,
        shell: bool = False,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout_seconds: float | None = None,
    ) -> SandboxResult:
        """Run a call to its end."""
        running = self.start(argv, shell=shell, cwd=cwd, env=env, stdin=stdin, timeout_seconds=timeout_seconds)
        try:
            return running.wait()
        except BaseException:
            running.close()
            raise

    async def arun(
        self,
        argv: Sequence[object] | str,
        *,
        shell: bool = False,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout_seconds: float | None = None,
    ) -> SandboxResult:
        """Run a call to its end in the running event loop; cancelling ends everything it started."""
        running = self.start(argv, shell=shell, cwd=cwd, env=env, stdin=stdin, timeout_seconds=timeout_seconds)
        try:
            return await running
        except BaseException:
            running.close()
            raise

    def start(
        self,
        argv: Sequence[object] | str,
        *,
        shell: bool = False,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout_seconds: float | None = None,
        open_stdin: bool = False,
        inherit_stdin: bool = False,
        inherit_stdio: bool = False,
    ) -> Handle:
        """Start a call and return its handle; a refused one has its result already.

        `open_stdin` lets the handle write input, `inherit_stdin` lets the command read this process's own.
        `inherit_stdio` gives it all three streams: nothing is captured then, and silence is not noticed.
        """
        call = _call(argv, shell, cwd, env)
        environment, machine = self._look()
        verdict = self._recall.vet(call, machine)
        if verdict.findings and (refusal := self._refusal(call, verdict)):
            return handle.Finished(self._denied(call, verdict, refusal))
        if self._admitted_in != os.getpid():
            if not os.path.isdir(self.config.project_root):
                return handle.Finished(self._unstarted(call, verdict, _no_project(self.config.project_root)))
            self._admit()
            environment, _ = self._look()
        planned = plan(call, self.config, environment, stdin=stdin, timeout_seconds=timeout_seconds)
        if isinstance(planned, Launch):
            return handle.start(
                self._pool,
                planned,
                self.config,
                call,
                verdict,
                open_stdin=open_stdin,
                inherit_stdin=inherit_stdin,
                inherit_stdio=inherit_stdio,
            )
        if planned.exit_code == DENIED_EXIT_CODE:
            return handle.Finished(self._denied(call, verdict, planned.message))
        return handle.Finished(self._unstarted(call, verdict, planned))

    def read_bytes(self, path: str | os.PathLike[str]) -> bytes:
        """Return a file's bytes. A path is relative to the project; PermissionError when a command could not read it."""
        return files.read_bytes(os.fspath(path), self.config)

    def write_bytes(self, path: str | os.PathLike[str], data: bytes) -> None:
        """Replace a file's bytes. A path is relative to the project; PermissionError when a command could not write it."""
        files.write_bytes(os.fspath(path), data, self.config)

    def close(self) -> None:
        """End everything that was started, and wait until it is gone. A closed sandbox checks, but runs nothing."""
        self._pool.close()
        self._holding.clean()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _look(self) -> tuple[dict[str, str], Machine]:
        """Return the environment for commands, and the machine as the guard sees it; made anew when something changed."""
        environment = self._environment.scrubbed()
        seen = self._seen
        if environment is not seen[0]:
            self._seen = seen = (environment, Machine.of(self.config))
        return seen

    def _admit(self) -> None:
        """Find out what holds the commands, and refuse to run where that is less than the config demands."""
        status = self._pool.status()
        demand = unmet(self.config, *status)
        if demand:
            self._pool.retire()
            raise ContainmentError(demand)
        self._environment.replace(self._holding.variables(*status))
        self._admitted_in = os.getpid()

    def _refusal(self, call: Call, verdict: Verdict) -> str:
        """Return why a call may not run, or nothing."""
        decision = verdict.decision
        if decision == Decision.ALLOW:
            return ""
        if decision == Decision.ASK and self.on_ask is not None:
            try:
                answer = self.on_ask(call, verdict)
            except Exception as error:  # noqa: BLE001  whoever was asked did not say yes
                return f"{verdict.reason} (asking failed: {type(error).__name__}: {error})"
            # Not any true value: a coroutine that nobody awaited is one.
            if answer is True:
                return ""
        return verdict.reason or "The call was not allowed."

    def _denied(self, call: Call, verdict: Verdict, reason: str) -> SandboxResult:
        return SandboxResult(**self._facts(call, verdict), exit_code=DENIED_EXIT_CODE, denied=True, reason=reason)

    def _unstarted(self, call: Call, verdict: Verdict, why: Failure) -> SandboxResult:
        said = why.message.encode("utf-8", "replace")
        facts = self._facts(call, verdict)
        return SandboxResult(**facts, exit_code=why.exit_code, stderr=said, stderr_bytes=len(said))

    def _facts(self, call: Call, verdict: Verdict) -> dict[str, Any]:
        root = self.config.project_root
        cwd = root if call.cwd is None else os.path.join(root, str(call.cwd))
        return facts_of(call, verdict, cwd, os.urandom(ID_BYTES), time.time())


def _no_project(root: str) -> Failure:
    return Failure(NOT_EXECUTABLE_EXIT_CODE, f"corral: cannot enter {root}: No such file or directory\n")


def _call(
    argv: Sequence[object] | str,
    shell: bool,
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str] | None,
) -> Call:
    # Copies, and plain strings: what was judged must be what runs, although the caller's own may change meanwhile, and
    # although a subclass of str may show the guard another text than the kernel gets.
    if isinstance(argv, (list, tuple)):
        argv = tuple([word if type(word) is str else _plain(word) for word in argv])
    elif isinstance(argv, str):
        argv = _plain(argv)
    if cwd is not None and not isinstance(cwd, str) and isinstance(cwd, os.PathLike):
        try:
            cwd = os.fspath(cwd)
        except Exception:  # noqa: BLE001  the caller's own code; the guard refuses what it leaves
            cwd = "\0"
    if env is not None:
        try:
            env = {_plain(name): _plain(value) for name, value in dict(env).items()}
        except (TypeError, ValueError):
            # No mapping at all; the guard says so.
            return Call(argv, bool(shell), _plain(cwd), env)
    return Call(argv, bool(shell), _plain(cwd), env)


def _plain(value: Any) -> Any:
    return str.__str__(value) if isinstance(value, str) and type(value) is not str else value
