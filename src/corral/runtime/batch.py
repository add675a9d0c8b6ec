"""Runs many calls, several at a time. Each call gives one result. A call that was lost is repeated only if it is idempotent.

On other machines the calls run in copies of the project, and their changes are not copied back.
"""

from __future__ import annotations

import io
import os
from signal import SIGKILL
from time import time

from corral._lib.records import Record, frozen
from corral.containment.filesystem.process_temp_dir import ProcessTempDir
from corral.guard.path_zones import inside
from corral.model.call import Call, Verdict, Violation
from corral.model.errors import CorralError
from corral.model.result import SandboxResult
from corral.policy.config import SandboxConfig
from corral.runtime.executor import executor_named, stream_results
from corral.runtime.outcome import call_fields
from corral.runtime.run_options import run_options
from corral.runtime.runner import open_runner

MAX_ARCHIVE_BYTES = 1024**3  # the archive is held in memory; a larger project belongs on a shared disk
TYPE_CHECKING = False
if TYPE_CHECKING:
    import tarfile
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any, Self

    from corral.runtime.driver import OnResult
    from corral.runtime.executor import Executor
    from corral.runtime.handle import Handle
    from corral.runtime.runner import CommandRunner

    Start = Callable[..., Handle]

ID_BYTES = 16
MAX_TRIES = 3  # of an idempotent call, against a call that kills its warden each time
KEYS = ("argv", "shell", "cwd", "env", "stdin", "timeout_seconds", "idempotent")


class CallError(CorralError, ValueError):
    """An item of a batch is not a call. The message names its number and the error."""


@frozen
class BatchCall(Record):
    """A call of a batch, its input and its time limit. An idempotent call may run twice."""

    call: Call
    stdin: bytes | None = None
    timeout_seconds: float | None = None
    idempotent: bool = False


def parse_batch_call(given: object, *, idempotent: bool = False) -> BatchCall:
    """Parse an item of a batch; ValueError if it is not a call."""
    if isinstance(given, BatchCall):
        return given
    if isinstance(given, Call):
        return BatchCall(given, idempotent=idempotent)
    if hasattr(given, "keys"):
        return _parse_mapping(dict(given), idempotent)  # type: ignore[call-overload]  # a mapping
    if isinstance(given, (list, tuple)):
        return BatchCall(Call(given), idempotent=idempotent)
    if isinstance(given, str):
        # map(["rm", "x"]) and map("ls") pass one call where a list of calls is expected.
        raise ValueError(f"a string is not a call: write {[given]!r}, or {{'shell': {given!r}}}")
    raise ValueError(f"a call is a list of words or a mapping with argv or shell, not {given!r}")


def _parse_mapping(given: Mapping[str, Any], idempotent: bool) -> BatchCall:
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
    """Iterates over the results of many calls. `numbered` adds the number of each call, starting at 0."""

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
        self._stream = stream_results(work, hired, _parse_all(calls, idempotent), ordered=ordered)
        # A local sandbox calls it for each result itself.
        self._on_result = None if engine == "local" else on_result

    def numbered(self) -> Iterator[tuple[int, SandboxResult]]:
        """Yield the remaining results, each with the number of its call."""
        for number, result in self._stream:
            self._report(result)
            yield number, result

    def _report(self, result: SandboxResult) -> None:
        if self._on_result is not None:
            self._on_result(result)

    def close(self) -> None:
        """Kill the running commands and wait until they are gone. Their results are lost."""
        self._stream.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SandboxResult:
        result: SandboxResult = next(self._stream)[1]
        self._report(result)
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _parse_all(calls: Iterable[object], idempotent: bool) -> Iterator[BatchCall]:
    for number, given in enumerate(calls):
        try:
            yield parse_batch_call(given, idempotent=idempotent)
        except ValueError as error:
            raise CallError(f"call {number}: {error}") from None


class LocalWork:
    """Runs calls in one sandbox of this process. Pickling turns it into work on a copy of the project."""

    def __init__(self, config: SandboxConfig, start: Start) -> None:
        self._config = config
        self._start = start

    def begin(self) -> CallWorker:
        """Return a worker. All workers share the sandbox."""
        return CallWorker(self._start)

    def may_repeat(self, item: BatchCall) -> bool:
        """Return whether a call may run twice."""
        return item.idempotent

    def lost(self, item: BatchCall, why: str) -> SandboxResult:
        """Return the result of a call whose worker died."""
        call = item.call if isinstance(item.call.argv, str) else item.call.replace(argv=tuple(item.call.argv))
        facts = call_fields(call, Verdict(), self._config.project_root, os.urandom(ID_BYTES), time())
        violation = Violation("worker-lost", detail=f"{why}; whether the command ran is not known")
        return SandboxResult(exit_code=128 + SIGKILL, signal=int(SIGKILL), violations=(violation,), **facts)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        config = self._config
        # Not the config itself: unpickling would check a project root that does not exist on the other machine.
        settings = {name: getattr(config, name) for name in config._fields if name != "project_root"}
        return ProjectCopyWork, (settings, config.project_root, pack(config.project_root))


class ProjectCopyWork:
    """Runs calls in copies of a project, one per worker. Calls that the policy asks about are refused."""

    def __init__(self, settings: Mapping[str, Any], root: str, packed: bytes) -> None:
        self._settings = settings
        self._root = root
        self._packed = packed

    def begin(self) -> CallWorker:
        """Unpack the project and open a sandbox in it."""
        place = ProcessTempDir("corral-project-")
        try:
            # The project keeps its name: commands may print it.
            project = os.path.join(place.path, os.path.basename(self._root))
            unpack(self._packed, project)
            return ProjectCopyWorker(open_runner(SandboxConfig(project, **self._settings)), place, self._root)
        except BaseException:
            place.close()
            raise


class CallWorker:
    """Runs calls one after the other. Repeats an idempotent call whose warden died."""

    chunk = most = 1

    def __init__(self, start: Start) -> None:
        self._start = start
        self._running: Handle | None = None
        self._is_cancelled = False

    def do_all(self, items: list[BatchCall]) -> list[SandboxResult]:
        """Run calls to their end."""
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
        """Kill the running command, and every command that starts later."""
        self._is_cancelled = True
        running = self._running
        if running is not None:
            running.kill()

    def close(self) -> None:
        """Do nothing: the caller owns the sandbox."""

    def ready(self) -> None:
        """Do nothing: the pool makes and replaces wardens."""


class ProjectCopyWorker(CallWorker):
    """A worker with a sandbox in its own copy of the project. `close` removes both."""

    def __init__(self, runner: CommandRunner, place: ProcessTempDir, home: str) -> None:
        super().__init__(lambda argv, **options: runner.start(run_options(argv, **options)))
        self._runner = runner
        self._place = place
        self._home = home

    def _run(self, entry: BatchCall) -> SandboxResult:
        result = super()._run(entry)
        # The caller knows the project by its original path.
        return result.replace(cwd=self._home + result.cwd.removeprefix(self._runner.context.config.project_root))

    def close(self) -> None:
        """Close the sandbox and remove the copy of the project."""
        self._runner.state.close()
        self._place.close()


def was_lost(result: SandboxResult) -> bool:
    """Return whether a command ended only because its warden died, not because of a limit or a timeout."""
    return not result.timed_out and [violation.kind for violation in result.violations] == ["warden-lost"]


def pack(root: str) -> bytes:
    """Return a project as a tar archive: files, directories, links and modes. Sockets, pipes and devices are left out."""
    import tarfile  # noqa: PLC0415  only a batch on other machines sends its project

    sink = _Bounded()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(os.listdir(root)):
            archive.add(os.path.join(root, name), name, filter=_plain)
    return sink.getvalue()


def unpack(packed: bytes, root: str) -> None:
    """Create a directory with the content of an archive. Everything in it belongs to this user."""
    import tarfile  # noqa: PLC0415  as above

    os.makedirs(root)
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
        for member in archive:
            _extract(archive, member, root)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return member if member.isfile() or member.isdir() or member.issym() or member.islnk() else None


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, root: str) -> None:
    import tarfile  # noqa: PLC0415  as above

    # Checked here because Python before 3.11.4 has no filters. A project may contain a link that leads outside, but nothing
    # may be written through it.
    above = os.path.realpath(os.path.dirname(os.path.join(root, member.name)))
    if not inside(above, os.path.realpath(root)) or ".." in member.name.split("/"):
        raise CorralError(f"the project archive holds {member.name!r}, which leads out of the project")
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    member.mode &= 0o755
    if hasattr(tarfile, "fully_trusted_filter"):
        archive.extract(member, root, filter="fully_trusted")
    else:
        archive.extract(member, root)


class _Bounded(io.BytesIO):
    def write(self, data: object) -> int:
        if self.tell() > MAX_ARCHIVE_BYTES:
            raise CorralError(
                f"the project is larger than {MAX_ARCHIVE_BYTES >> 20} MiB, too large to send; remove files that can be built again"
            )
        return super().write(data)  # type: ignore[arg-type]  # as io has it
