"""OpenAI Agents: an executor for `ShellTool`, and the question whether a call needs approval; a refusal is exit code 126 with its reason as error output."""

from __future__ import annotations

from contextvars import ContextVar

from corral.integrations.extras import missing_extra
from corral.integrations.frameworks._common import open_box
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
    """Use as `ShellTool(executor=shell)`; with `needs_approval=shell.needs_approval`, a person is asked where the verdict is ask."""

    def __init__(self, root: str | os.PathLike[str] = ".", *, box: Sandbox | None = None) -> None:
        self.box = box or open_box(root)
        self._asked: set[tuple[str, object]] = set()
        if box is None:
            self.box.on_ask = self._is_approved

    async def __call__(self, request: Any) -> ShellResult:
        """Run the commands of a call, one after another, up to the first that does not end with 0."""
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
        """Say whether a person must agree; those texts then run, if the agent's run goes on."""
        asked = [text for text in action.commands if self.box.check(text, shell=True).decision == Decision.ASK]
        self._asked |= {(call_id, text) for text in asked}
        return bool(asked)

    def close(self) -> None:
        """End everything that was started."""
        self.box.close()

    def _is_approved(self, call: Call, verdict: Verdict) -> bool:
        # The SDK runs a call that it asked about only after somebody agreed to that one.
        agreed = (_call_id.get(), call.argv)
        if agreed not in self._asked:
            return False
        self._asked.discard(agreed)
        return True


def _output(command: str, result: SandboxResult) -> ShellCommandOutput:
    data = {"corral": {"id": result.id, "enforcement": result.enforcement, "truncated": result.truncated}}
    if result.denied:
        outcome = ShellCallOutcome(type="exit", exit_code=NOT_EXECUTABLE_EXIT_CODE)
        return ShellCommandOutput("", f"corral refused this. {result.reason}", outcome, command, data)
    kind = "timeout" if result.timed_out else "exit"
    outcome = ShellCallOutcome(type=kind, exit_code=None if result.timed_out else result.exit_code)
    return ShellCommandOutput(result.stdout_text, result.stderr_text, outcome, command, data)
