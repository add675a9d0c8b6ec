"""A sandbox behind gates, and the gate that asks the sandbox itself. A refusal is an ordinary, recorded result."""

from __future__ import annotations

import os
from contextlib import contextmanager
from errno import EACCES
from hashlib import sha256
from time import time

from corral.integrations.gates.chain import Chain, Passage
from corral.integrations.gates.model import Refusal, ToolCall, names
from corral.integrations.gates.project_files import files_touched, version_of_digest
from corral.integrations.gates.recency import Recency
from corral.model.call import DENIED_EXIT_CODE, Call, Decision, Verdict
from corral.model.result import SandboxResult
from corral.runtime.handle import Handle
from corral.runtime.observers import ObservedCall
from corral.runtime.outcome import call_fields
from corral.runtime.run_options import call_of, run_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any, Self

    from corral.integrations.gates.chain import OnRuling
    from corral.integrations.gates.model import Gate, Ruling
    from corral.integrations.gates.token_budget import ObservationLedger
    from corral.runtime.observers import Observer
    from corral.runtime.run_options import RunOptions
    from corral.sandbox import Sandbox

    Command = Sequence[object] | str

READ_TOOL = "read_file"
WRITE_TOOL = "write_file"
ID_BYTES = 16


class SandboxGate:
    """Judges commands as the sandbox does: `argv`, a list, or `command`, shell text, with the `cwd` and `env` of `Sandbox.check`.

    The tools in `besides` are not commands and pass. A call of any other form is refused. If the guard would ask the user,
    the gate refuses with the decision `ask`.
    """

    name = "sandbox"
    is_last = True

    def __init__(self, box: Sandbox, *, besides: Iterable[str] = ()) -> None:
        self._box = box
        self._besides = frozenset(names("the tools besides commands", besides))

    def judge(self, call: ToolCall, now: float) -> Refusal | None:  # noqa: ARG002  one signature for all gates
        """Refuse a command that the guard does not allow."""
        if call.tool in self._besides:
            return None
        argv, text = call.arguments.get("argv"), call.arguments.get("command")
        if (argv is None) == (text is None):
            instead = "Give argv as a list, or command as shell text."
            return Refusal("gate-no-command", "A command has either argv or command.", instead)
        options = {name: call.arguments[name] for name in ("cwd", "env") if call.arguments.get(name) is not None}
        # The type is not checked here: the guard refuses anything but words or text.
        command: Any = text if argv is None else argv
        verdict = self._box.check(command, shell=argv is None, **options)  # type: ignore[arg-type]  # as above
        if verdict.allowed:
            return None
        strictest = (finding for finding in verdict.findings if finding.decision == verdict.decision)
        first = min(strictest, key=lambda finding: finding.axis)
        return Refusal(first.rule, first.reason, first.instead, verdict.decision, verdict)


class GatedSandbox:
    """A sandbox whose `run`, `arun`, `start`, `astart`, `read_bytes` and `write_bytes` pass gates. Its own check is the last gate.

    Every call takes the `call_id` of the model. With a `ledger`, `run` and `arun` cut the output to the budget and charge it.
    The sandbox's `on_result` receives refusals like any other result, and `on_ruling` receives every ruling.
    """

    def __init__(
        self,
        box: Sandbox,
        *gates: Gate,
        ledger: ObservationLedger | None = None,
        tool: str = "run_command",
        on_ruling: OnRuling | None = None,
        clock: Callable[[], float] = time,
    ) -> None:
        last = SandboxGate(box, besides=(READ_TOOL, WRITE_TOOL))
        self.chain = Chain(*gates, last, on_ruling=on_ruling, clock=clock)
        self.box = box
        self.config = box.config
        self.observers: list[Observer] = []
        self._ledger = ledger
        self._tool = tool
        self._clock = clock

    def check(self, argv: Command, **options: Any) -> Verdict:
        """Return the verdict of the sandbox's own check. Runs nothing."""
        return self.box.check(argv, **options)

    def decide(self, argv: Command, **options: Any) -> Ruling:
        """Return the ruling of the gates. Runs and records nothing."""
        return self.chain.decide(self._tool_call(run_options(argv, **options)))

    def run(self, argv: Command, *, meant: Command | None = None, **options: Any) -> SandboxResult:
        """Run a call as `Sandbox.run` does, if every gate lets it pass.

        If an adapter added to the model's command, `meant` is the command as the model wrote it. The gates judge that.
        """
        given = run_options(argv, **options)
        with ObservedCall(self.observers, given) as call, self._passage(self._tool_call(given, meant)) as passage:
            result = self.box._runner.run(given, call.follow) if passage.may_run else self._refused(passage)
            return self._finish(result, passage, call)

    async def arun(self, argv: Command, *, meant: Command | None = None, **options: Any) -> SandboxResult:
        """Run a call as `Sandbox.arun` does, if every gate lets it pass. `meant` is as for `run`."""
        given = run_options(argv, **options)
        with (
            ObservedCall(self.observers, given) as call,
            await self._apassage(self._tool_call(given, meant)) as passage,
        ):
            result = await self.box._runner.arun(given, call.follow) if passage.may_run else self._refused(passage)
            return self._finish(result, passage, call)

    def start(self, argv: Command, **options: Any) -> Handle:
        """Start a call as `Sandbox.start` does. Its end records it. The caller charges the output that it shows."""
        given = run_options(argv, **options)
        with ObservedCall(self.observers, given) as call:
            passage = self._passage(self._tool_call(given))
            with _record_failure(passage):
                if passage.may_run:
                    call.handle = handle = self.box._runner.start(given)
                else:
                    call.handle = handle = Handle(None, self._refused(passage))
            return _record_at_end(passage, handle)

    async def astart(self, argv: Command, **options: Any) -> Handle:
        """Start a call as `Sandbox.astart` does, and record it as `start` does."""
        given = run_options(argv, **options)
        with ObservedCall(self.observers, given) as call:
            passage = await self._apassage(self._tool_call(given))
            with _record_failure(passage):
                if passage.may_run:
                    call.handle = handle = await self.box._runner.astart(given)
                else:
                    call.handle = handle = Handle(None, self._refused(passage))
            return _record_at_end(passage, handle)

    def read_bytes(self, path: str | os.PathLike[str], *, call_id: str = "") -> bytes:
        """Return the content of a file, which the gates remember. Raises PermissionError on a refusal."""
        name = os.fspath(path)
        full_path = self._full_path(name)
        with self._file_passage(ToolCall(READ_TOOL, {"path": name}, call_id, reads=(full_path,))):
            data = self.box.read_bytes(name)
        self._observe(full_path, data)
        return data

    def write_bytes(self, path: str | os.PathLike[str], data: bytes, *, call_id: str = "") -> None:
        """Replace the content of a file. Raises PermissionError on a refusal."""
        name = os.fspath(path)
        full_path = self._full_path(name)
        with self._file_passage(ToolCall(WRITE_TOOL, {"path": name, "data": data}, call_id, writes=(full_path,))):
            self.box.write_bytes(name, data)
        self._observe(full_path, data)

    def close(self) -> None:
        """Close the sandbox."""
        self.box.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tool_call(self, options: RunOptions, meant: Command | None = None) -> ToolCall:
        call = options.call
        if meant is not None:
            call = call_of(meant, call.shell, call.cwd, call.env)
        given = {name: value for name, value in (("cwd", call.cwd), ("env", call.env)) if value is not None}
        has_memory = any(hasattr(gate, "before") for gate in self.chain.gates)
        reads, writes = files_touched(call, self.config) if has_memory else ((), ())
        arguments = {"command" if call.shell else "argv": call.argv} | given
        return ToolCall(self._tool, arguments, options.call_id, reads, writes)

    def _passage(self, call: ToolCall) -> Passage:
        return self._under_ruling(call, self.chain.decide(call))

    async def _apassage(self, call: ToolCall) -> Passage:
        return self._under_ruling(call, await self.chain.adecide(call))

    def _under_ruling(self, call: ToolCall, ruling: Ruling) -> Passage:
        # On the sandbox gate's `ask`, let the sandbox ask the user. It runs nothing without a yes.
        asks = ruling.decision == Decision.ASK and ruling.verdict is not None and self.box.on_ask is not None
        return Passage(self.chain, call, ruling, may_run=asks)

    def _file_passage(self, call: ToolCall) -> Passage:
        passage = self._passage(call)
        if not passage.may_run:
            with passage:
                raise PermissionError(EACCES, passage.ruling.message, str(call.arguments["path"]))
        return passage

    def _full_path(self, name: str) -> str:
        # A gate may resolve relative paths from another directory.
        return os.path.join(self.config.project_root, name)

    def _observe(self, name: str, data: bytes) -> None:
        # The version of the bytes themselves: another process may have changed the file since.
        version = version_of_digest(sha256(data).digest())
        for gate in self.chain.gates:
            if isinstance(gate, Recency):
                gate.observe(name, self._clock(), version)

    def _finish(self, result: SandboxResult, passage: Passage, call: ObservedCall) -> SandboxResult:
        passage.result_id = result.id
        shown = self._within_budget(result, passage.call.id)
        call.follow(Handle(None, shown))
        return shown

    def _refused(self, passage: Passage) -> SandboxResult:
        ruling, arguments = passage.ruling, passage.call.arguments
        shell = "command" in arguments
        argv: Any = arguments["command" if shell else "argv"]
        call = Call(argv, shell=shell, cwd=arguments.get("cwd"))  # type: ignore[arg-type]  # of any type
        root = self.config.project_root
        cwd = root if call.cwd is None else os.path.join(root, str(call.cwd))
        facts = call_fields(call, ruling.verdict or Verdict(), cwd, os.urandom(ID_BYTES), self._clock())
        result = SandboxResult(**facts, exit_code=DENIED_EXIT_CODE, denied=True, reason=ruling.message)
        passage.result_id = result.id
        if self.box.on_result is not None:
            self.box.on_result(result)
        return result

    def _within_budget(self, result: SandboxResult, call_id: str) -> SandboxResult:
        """Charge the output of a result, and cut it to the budget."""
        if self._ledger is None or not (result.stdout or result.stderr):
            return result
        rooms = [room for room in self._ledger.rooms(self._tool) if room is not None]
        # stderr comes first, with up to half of the budget: it is short and says more.
        half = min(rooms) // 2 if rooms and result.stdout else None
        errors = self._ledger.show(self._tool, result.stderr_text, call_id=call_id, at_most=half)
        output = self._ledger.show(self._tool, result.stdout_text, call_id=call_id)
        if not (errors.omitted_characters or output.omitted_characters):
            return result
        stdout = output.text.encode() if output.omitted_characters else result.stdout
        stderr = errors.text.encode() if errors.omitted_characters else result.stderr
        return result.replace(stdout=stdout, stderr=stderr, truncated=True)


@contextmanager
def _record_failure(passage: Passage) -> Iterator[None]:
    """Begin a passage, and end it if the call cannot start."""
    passage.begin()
    try:
        yield
    except BaseException:
        passage.end(worked=False)
        raise


def _record_at_end(passage: Passage, handle: Handle) -> Handle:
    def end(result: SandboxResult) -> None:
        passage.result_id = result.id
        passage.end()

    handle.when_done(end)
    return handle
