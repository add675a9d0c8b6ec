"""OpenAI Agents: an executor for `ShellTool` that judges and contains commands. A refusal is exit code 126 with the reason on stderr."""

from __future__ import annotations

from contextvars import ContextVar

from corral.integrations.extras import missing_extra
from corral.integrations.frameworks._commands import open_box
from corral.model.call import NOT_EXECUTABLE_EXIT_CODE, Decision

try:
    from agents import ShellCallOutcome, ShellCommandOutput, ShellResult
except ImportError as error:
    raise missing_extra("openai-agents", error) from error

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from typing import Any

    from corral.model.call import Call, Verdict
    from corral.model.result import SandboxResult
    from corral.sandbox import Sandbox

_call_id: ContextVar[str] = ContextVar("call_id", default="")


class CorralShell:
    """Runs shell calls: `ShellTool(executor=shell)`. Add `needs_approval=shell.needs_approval` to ask a person about verdicts `ask`."""

    def __init__(self, root: str | os.PathLike[str] = ".", *, box: Sandbox | None = None) -> None:
        self.box = box or open_box(root)
        self._asked: set[tuple[str, object]] = set()
        if box is None:
            self.box.on_ask = self._is_approved

    async def __call__(self, request: Any) -> ShellResult:
        """Run the commands of a call in order, up to the first that fails."""
        action = request.data.action
        _call_id.set(request.data.call_id)
        seconds = action.timeout_ms / 1000 if action.timeout_ms else None
        outputs: list[ShellCommandOutput] = []
        for command in action.commands:
            result = await self.box.arun(command, shell=True, timeout_seconds=seconds)
            outputs.append(_output(command, result))
            if not result.ok:
                break
        return ShellResult(output=outputs, max_output_length=action.max_output_length)

    async def needs_approval(self, context: Any, action: Any, call_id: str) -> bool:
        """Return whether a person must approve the call. An approved command then runs once, in that call."""
        asked = [text for text in action.commands if self.box.check(text, shell=True).decision == Decision.ASK]
        self._asked |= {(call_id, text) for text in asked}
        return bool(asked)

    def close(self) -> None:
        """Kill every process that the commands left."""
        self.box.close()

    def _is_approved(self, call: Call, verdict: Verdict) -> bool:
        # The SDK runs a call that needs approval only after a person approved it.
        key = (_call_id.get(), call.argv)
        is_approved = key in self._asked
        self._asked.discard(key)
        return is_approved


def _output(command: str, result: SandboxResult) -> ShellCommandOutput:
    data = {"corral": {"id": result.id, "enforcement": result.enforcement, "truncated": result.truncated}}
    if result.denied:
        outcome = ShellCallOutcome(type="exit", exit_code=NOT_EXECUTABLE_EXIT_CODE)
        return ShellCommandOutput("", f"corral refused this. {result.reason}", outcome, command, data)
    kind = "timeout" if result.timed_out else "exit"
    outcome = ShellCallOutcome(type=kind, exit_code=None if result.timed_out else result.exit_code)
    return ShellCommandOutput(result.stdout_text, result.stderr_text, outcome, command, data)
