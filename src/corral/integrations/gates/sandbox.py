"""A sandbox behind gates: the same calls, each through the chain first. A refusal is a result, and recorded as one."""

from __future__ import annotations

import os
from errno import EACCES
from hashlib import sha256
from time import time

from corral.integrations.gates.chain import Chain, Passage
from corral.integrations.gates.file_access import touched
from corral.integrations.gates.file_versions import version_of_bytes
from corral.integrations.gates.model import ToolCall
from corral.integrations.gates.recency import Recency
from corral.integrations.gates.sandbox_gate import SandboxGate
from corral.model.call import DENIED_EXIT_CODE, Call, Decision, Verdict
from corral.model.result import SandboxResult
from corral.runtime.handle import Handle
from corral.runtime.observers import ObservedCall
from corral.runtime.outcome import call_fields
from corral.runtime.run_options import call_of, run_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Self

    from corral.integrations.gates.chain import OnRuling
    from corral.integrations.gates.model import Gate, Ruling
    from corral.integrations.gates.token_budget import ObservationLedger
    from corral.runtime.observers import Observer
    from corral.runtime.run_options import RunOptions
    from corral.sandbox import Sandbox

READ_TOOL = "read_file"
WRITE_TOOL = "write_file"
ID_BYTES = 16


class GatedSandbox:
    """A sandbox whose `run`, `arun`, `start`, `astart`, `read_bytes` and `write_bytes` pass gates; its own check is the last.

    With a `ledger`, what `run` and `arun` return is cut to what may still be shown, and charged. What a gate refuses goes to the
    sandbox's `on_result` as any result does, and every ruling to `on_ruling`, with the id of its result.
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

    def check(self, argv: Sequence[object] | str, **options: Any) -> Verdict:
        """Return what the sandbox's own check says; nothing runs."""
        return self.box.check(argv, **options)

    def decide(self, argv: Sequence[object] | str, *, call_id: str = "", **options: Any) -> Ruling:
        """Return what the gates say of a call; nothing runs, nothing is recorded."""
        return self.chain.decide(self._tool_call(run_options(argv, call_id=call_id, **options)))

    def run(
        self,
        argv: Sequence[object] | str,
        *,
        call_id: str = "",
        meant: Sequence[object] | str | None = None,
        **options: Any,
    ) -> SandboxResult:
        """Run a call as `Sandbox.run` does, if every gate lets it pass.

        `meant` is the call as the model wrote it, where an adapter has put words of its own around it: that is what gates judge.
        """
        given = run_options(argv, call_id=call_id, **options)
        with ObservedCall(self.observers, given) as call, self._passage(self._tool_call(given, meant)) as passage:
            if not passage.may_run:
                return self._observed_refusal(passage, call)
            return self._finish(self.box._runner.run(given, call.follow), passage, call)

    async def arun(
        self,
        argv: Sequence[object] | str,
        *,
        call_id: str = "",
        meant: Sequence[object] | str | None = None,
        **options: Any,
    ) -> SandboxResult:
        """Run a call as `Sandbox.arun` does, if every gate lets it pass; `meant` as with `run`."""
        given = run_options(argv, call_id=call_id, **options)
        with (
            ObservedCall(self.observers, given) as call,
            await self._passage_in_loop(self._tool_call(given, meant)) as passage,
        ):
            if not passage.may_run:
                return self._observed_refusal(passage, call)
            return self._finish(await self.box._runner.arun(given, call.follow), passage, call)

    def start(self, argv: Sequence[object] | str, *, call_id: str = "", **options: Any) -> Handle:
        """Start a call as `Sandbox.start` does. It is recorded when it ends; what is shown of it, the caller charges."""
        given = run_options(argv, call_id=call_id, **options)
        with ObservedCall(self.observers, given) as call:
            passage = self._passage(self._tool_call(given))
            if not passage.may_run:
                call.handle = handle = self._never_started(passage)
                return handle
            passage.begin()
            try:
                call.handle = handle = self.box._runner.start(given)
            except BaseException:
                passage.end(worked=False)
                raise
            return _recorded(passage, handle)

    async def astart(self, argv: Sequence[object] | str, *, call_id: str = "", **options: Any) -> Handle:
        """Start a call as `Sandbox.astart` does; the rest is as with `start`."""
        given = run_options(argv, call_id=call_id, **options)
        with ObservedCall(self.observers, given) as call:
            passage = await self._passage_in_loop(self._tool_call(given))
            if not passage.may_run:
                call.handle = handle = self._never_started(passage)
                return handle
            passage.begin()
            try:
                call.handle = handle = await self.box._runner.astart(given)
            except BaseException:
                passage.end(worked=False)
                raise
            return _recorded(passage, handle)

    def read_bytes(self, path: str | os.PathLike[str], *, call_id: str = "") -> bytes:
        """Return a file's bytes, which count as seen; PermissionError where a gate or the sandbox refuses."""
        name = os.fspath(path)
        place = self._place(name)
        with self._file_passage(ToolCall(READ_TOOL, {"path": name}, call_id, reads=(place,))):
            data = self.box.read_bytes(name)
        self._saw(place, data)
        return data

    def write_bytes(self, path: str | os.PathLike[str], data: bytes, *, call_id: str = "") -> None:
        """Replace a file's bytes; PermissionError where a gate or the sandbox refuses."""
        name = os.fspath(path)
        place = self._place(name)
        with self._file_passage(ToolCall(WRITE_TOOL, {"path": name, "data": data}, call_id, writes=(place,))):
            self.box.write_bytes(name, data)
        self._saw(place, data)

    def close(self) -> None:
        """Close the sandbox."""
        self.box.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tool_call(self, options: RunOptions, meant: Sequence[object] | str | None = None) -> ToolCall:
        call = options.call
        if meant is not None:
            call = call_of(meant, call.shell, call.cwd, call.env)
        given = {name: value for name, value in (("cwd", call.cwd), ("env", call.env)) if value is not None}
        reads, writes = touched(call, self.config) if self._remembers() else ((), ())
        arguments = {"command" if call.shell else "argv": call.argv} | given
        return ToolCall(self._tool, arguments, options.call_id, reads, writes)

    def _remembers(self) -> bool:
        return any(hasattr(gate, "before") for gate in self.chain.gates)

    def _passage(self, call: ToolCall) -> Passage:
        ruling = self.chain.decide(call)
        return Passage(self.chain, call, ruling, may_run=self._asks(ruling))

    async def _passage_in_loop(self, call: ToolCall) -> Passage:
        ruling = await self.chain.adecide(call)
        return Passage(self.chain, call, ruling, may_run=self._asks(ruling))

    def _asks(self, ruling: Ruling) -> bool:
        # The sandbox asks by itself, and runs nothing without a yes.
        return ruling.decision == Decision.ASK and ruling.verdict is not None and self.box.on_ask is not None

    def _file_passage(self, call: ToolCall) -> Passage:
        passage = self._passage(call)
        if not passage.may_run:
            with passage:
                raise PermissionError(EACCES, passage.ruling.message, str(call.arguments["path"]))
        return passage

    def _place(self, name: str) -> str:
        # As commands name it: of a relative path, a gate that begins elsewhere would look at another file.
        return os.path.join(self.config.project_root, name)

    def _saw(self, name: str, data: bytes) -> None:
        # What was really read or written, whatever became of the file a moment later.
        version = version_of_bytes(sha256(data).digest())
        for gate in self.chain.gates:
            if isinstance(gate, Recency):
                gate.observe(name, self._clock(), version)

    def _never_started(self, passage: Passage) -> Handle:
        with passage:
            return Handle(None, self._refused(passage))

    def _finish(self, result: SandboxResult, passage: Passage, call: ObservedCall) -> SandboxResult:
        passage.result_id = result.id
        shown = self._shown(result, passage.call.id)
        call.follow(Handle(None, shown))
        return shown

    def _observed_refusal(self, passage: Passage, call: ObservedCall) -> SandboxResult:
        result = self._refused(passage)
        call.follow(Handle(None, result))
        return result

    def _refused(self, passage: Passage) -> SandboxResult:
        ruling = passage.ruling
        call = _command(passage.call)
        root = self.config.project_root
        cwd = root if call.cwd is None else os.path.join(root, str(call.cwd))
        facts = call_fields(call, ruling.verdict or Verdict(), cwd, os.urandom(ID_BYTES), self._clock())
        result = SandboxResult(**facts, exit_code=DENIED_EXIT_CODE, denied=True, reason=ruling.message)
        passage.result_id = result.id
        if self.box.on_result is not None:
            self.box.on_result(result)
        return result

    def _shown(self, result: SandboxResult, call_id: str) -> SandboxResult:
        """Return the result with what may still be shown of its output."""
        if self._ledger is None or not (result.stdout or result.stderr):
            return result
        rooms = [room for room in self._ledger.rooms(self._tool) if room is not None]
        # Errors are short and tell more: they come first, with half of what is left.
        half = min(rooms) // 2 if rooms and result.stdout else None
        errors = self._ledger.show(self._tool, result.stderr_text, call_id=call_id, at_most=half)
        output = self._ledger.show(self._tool, result.stdout_text, call_id=call_id)
        if not (errors.omitted_characters or output.omitted_characters):
            return result
        stdout = output.text.encode() if output.omitted_characters else result.stdout
        stderr = errors.text.encode() if errors.omitted_characters else result.stderr
        return result.replace(stdout=stdout, stderr=stderr, truncated=True)


def _command(call: ToolCall) -> Call:
    shell = "command" in call.arguments
    argv: Any = call.arguments["command" if shell else "argv"]
    cwd: Any = call.arguments.get("cwd")
    return Call(argv, shell=shell, cwd=cwd)


def _recorded(passage: Passage, handle: Handle) -> Handle:
    def end(result: SandboxResult) -> None:
        passage.result_id = result.id
        passage.end()

    handle.when_done(end)
    return handle
