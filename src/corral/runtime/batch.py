"""Many calls of one sandbox, several at a time: a call each becomes one result, and a lost one is repeated only where that was allowed.

Elsewhere, the calls run in copies of the project; what they change there is not brought back.
"""

from __future__ import annotations

import os
from signal import SIGKILL
from time import time

from corral._lib.records import Record, frozen
from corral.model.call import Call, Verdict, Violation
from corral.model.errors import CorralError
from corral.model.result import SandboxResult
from corral.policy.config import SandboxConfig
from corral.runtime.executor import executor_named, stream_results
from corral.runtime.outcome import call_fields
from corral.runtime.run_options import run_options
from corral.runtime.runner import open_runner
from corral.runtime.tempdirs import ProcessTempDir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any, Self

    from corral.runtime.driver import OnResult
    from corral.runtime.executor import Executor
    from corral.runtime.handle import Handle
    from corral.runtime.runner import CommandRunner

    Start = Callable[..., Handle]

ID_BYTES = 16
MAX_TRIES = 3  # of a call that may be repeated, against one that takes its warden with it each time
KEYS = ("argv", "shell", "cwd", "env", "stdin", "timeout_seconds", "idempotent")


class CallError(CorralError, ValueError):
    """What was given for a call is none; the message names its number and what is wrong."""


@frozen
class BatchCall(Record):
    """One call, with what it runs on, and whether running it twice does no harm."""

    call: Call
    stdin: bytes | None = None
    timeout_seconds: float | None = None
    idempotent: bool = False


def parse_batch_call(given: object, *, idempotent: bool = False) -> BatchCall:
    """Return what was given as an entry; ValueError says what is wrong with it."""
    if isinstance(given, BatchCall):
        return given
    if isinstance(given, Call):
        return BatchCall(given, idempotent=idempotent)
    if hasattr(given, "keys"):
        return _entry(dict(given), idempotent)  # type: ignore[call-overload]  # a mapping
    if isinstance(given, (list, tuple)):
        return BatchCall(Call(given), idempotent=idempotent)
    if isinstance(given, str):
        # map(["rm", "x"]) and map("ls") are one call that was not put into a list; its words, or letters, are none.
        raise ValueError(f"a text is no call: write {[given]!r}, or {{'shell': {given!r}}}")
    raise ValueError(f"a call is a list of words or a mapping with argv or shell, not {given!r}")


def _entry(given: Mapping[str, Any], idempotent: bool) -> BatchCall:
    unknown = [key for key in given if key not in KEYS]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is unknown; a call has {', '.join(KEYS)}")
    if ("argv" in given) == ("shell" in given):
        raise ValueError("give argv or shell, not both" if "argv" in given else "argv or shell is missing")
    stdin = given.get("stdin")
    text = given.get("shell", "")
    if not isinstance(text, str):
        raise ValueError(f"shell must be a string, not {text!r}")
    argv = given.get("argv", text)
    repeats = given.get("idempotent", idempotent)
    if not isinstance(repeats, bool):
        raise ValueError(f"idempotent must be True or False, not {repeats!r}")
    return BatchCall(
        Call(argv, "shell" in given, given.get("cwd"), given.get("env")),
        stdin.encode("utf-8", "surrogateescape") if isinstance(stdin, str) else stdin,
        given.get("timeout_seconds"),
        repeats,
    )


class Batch:
    """The results of many calls, as an iterator. `numbered` gives each with the number of its call, which begins at 0."""

    def __init__(
        self,
        work: LocalWork,
        calls: Iterable[object],
        *,
        workers: int | None = None,
        ordered: bool = True,
        idempotent: bool = False,
        engine: str | Executor = "local",
        on_result: OnResult | None = None,
    ) -> None:
        if workers is not None and (type(workers) is not int or workers < 1):
            raise ValueError(f"workers must be a whole number of at least 1, not {workers!r}")
        hired = executor_named(engine).hire(work, workers)
        self._stream = stream_results(work, hired, _entries(calls, idempotent), ordered=ordered)
        # A local sandbox calls it for each result itself.
        self._on_result = None if engine == "local" else on_result

    def numbered(self) -> Iterator[tuple[int, SandboxResult]]:
        """Yield the results that are still to come, each with the number of its call."""
        for number, result in self._stream:
            self._tell(result)
            yield number, result

    def _tell(self, result: SandboxResult) -> None:
        if self._on_result is not None:
            self._on_result(result)

    def close(self) -> None:
        """End what runs, and wait until it is gone; what was not handed out is lost."""
        self._stream.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SandboxResult:
        result: SandboxResult = next(self._stream)[1]
        self._tell(result)
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _entries(calls: Iterable[object], idempotent: bool) -> Iterator[BatchCall]:
    for number, given in enumerate(calls):
        try:
            yield parse_batch_call(given, idempotent=idempotent)
        except ValueError as error:
            raise CallError(f"call {number}: {error}") from None


class LocalWork:
    """The work of running calls in one sandbox, by its own wardens. Pickled, it is the same in a copy of its project."""

    def __init__(self, config: SandboxConfig, start: Start) -> None:
        self._config = config
        self._start = start

    def begin(self) -> CallWorker:
        """Return a worker; all share the sandbox."""
        return CallWorker(self._start)

    def may_repeat(self, item: BatchCall) -> bool:
        """Say whether a call may run twice."""
        return item.idempotent

    def lost(self, item: BatchCall, why: str) -> SandboxResult:
        """Return the result of a call of which nobody knows how far it came."""
        call = item.call if isinstance(item.call.argv, str) else item.call.replace(argv=tuple(item.call.argv))
        facts = call_fields(call, Verdict(), self._config.project_root, os.urandom(ID_BYTES), time())
        violation = Violation("worker-lost", detail=f"{why}; whether the command ran is not known")
        return SandboxResult(exit_code=128 + SIGKILL, signal=int(SIGKILL), violations=(violation,), **facts)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        from corral.runtime.project_archive import pack  # noqa: PLC0415  only what runs elsewhere is sent

        config = self._config
        # Not the config itself, which would be looked for in a place where there is no such directory.
        settings = {name: getattr(config, name) for name in config._fields if name != "project_root"}
        return ProjectCopyWork, (settings, config.project_root, pack(config.project_root))


class ProjectCopyWork:
    """The work of running calls in a copy of a project; each worker has one of its own, and nobody there is asked."""

    def __init__(self, settings: Mapping[str, Any], root: str, packed: bytes) -> None:
        self._settings = settings
        self._root = root
        self._packed = packed

    def begin(self) -> CallWorker:
        """Unpack the project and open a sandbox in it."""
        from corral.runtime.project_archive import unpack  # noqa: PLC0415  as above

        place = ProcessTempDir("corral-project-")
        try:
            # Its own name, which commands may print.
            project = os.path.join(place.path, os.path.basename(self._root))
            unpack(self._packed, project)
            return ProjectCopyWorker(open_runner(SandboxConfig(project, **self._settings)), place, self._root)
        except BaseException:
            place.close()
            raise


class CallWorker:
    """Runs calls one after the other; a call whose warden was lost again, where that does no harm."""

    chunk = most = 1

    def __init__(self, start: Start) -> None:
        self._start = start
        self._running: Handle | None = None
        self._is_cancelled = False

    def do_all(self, items: list[BatchCall]) -> list[SandboxResult]:
        """Run calls to their ends."""
        return [self._do(entry) for entry in items]

    def _do(self, entry: BatchCall) -> SandboxResult:
        for _ in range(MAX_TRIES - 1):
            result = self._run(entry)
            if not entry.idempotent or self._is_cancelled or not was_lost(result):
                return result
        return self._run(entry)

    def _run(self, entry: BatchCall) -> SandboxResult:
        call = entry.call
        running = self._start(
            call.argv,
            shell=call.shell,
            cwd=call.cwd,
            env=call.env,
            stdin=entry.stdin,
            timeout_seconds=entry.timeout_seconds,
        )
        self._running = running
        try:
            if self._is_cancelled:
                running.kill()
            return running.wait()
        except BaseException:
            running.close()
            raise
        finally:
            self._running = None

    def cancel(self) -> None:
        """End the call that runs, and let no other begin for long."""
        self._is_cancelled = True
        running = self._running
        if running is not None:
            running.kill()

    def close(self) -> None:
        """Leave the sandbox open: it is its owner's."""

    def ready(self) -> None:
        """Do nothing: wardens are made and replaced by their pool."""


class ProjectCopyWorker(CallWorker):
    """A runner with a sandbox and a project of its own, both gone afterwards."""

    def __init__(self, runner: CommandRunner, place: ProcessTempDir, home: str) -> None:
        super().__init__(lambda argv, **options: runner.start(run_options(argv, **options)))
        self._runner = runner
        self._place = place
        self._home = home

    def _run(self, entry: BatchCall) -> SandboxResult:
        result = super()._run(entry)
        # As whoever reads it knows the project.
        return result.replace(cwd=self._home + result.cwd.removeprefix(self._runner.context.config.project_root))

    def close(self) -> None:
        """End the sandbox, and remove the copy of the project."""
        self._runner.state.close()
        self._place.close()


def was_lost(result: SandboxResult) -> bool:
    """Say whether a command ended only because the process that ran it did: not by a limit, and not by its time."""
    return not result.timed_out and [violation.kind for violation in result.violations] == ["warden-lost"]
