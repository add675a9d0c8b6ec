"""Claude Agent SDK: runs the Claude Code hook in a child process for every tool call, so that its time limit holds.

The hook rewrites an allowed shell command so that it runs contained. Every failure refuses the call, because the SDK lets a
call run when its hook raises.
"""

from __future__ import annotations

import asyncio
import json
import os

from corral.integrations.extras import missing_extra
from corral.integrations.hooks.hook_command import command
from corral.runtime import processes

try:
    from claude_agent_sdk import HookMatcher
except ImportError as error:
    raise missing_extra("claude", error) from error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

TIMEOUT_SECONDS = 30.0
HOOK_SECONDS = 15.0  # the hook's own limit is 4 seconds; the rest is for a loaded machine


def corral_hooks(root: str | os.PathLike[str] | None = None) -> dict[str, list[HookMatcher]]:
    """Return the value for `ClaudeAgentOptions(hooks=…)`. Without `root`, the session's directory determines the project."""
    hook = PreToolUse(root)
    return {"PreToolUse": [HookMatcher(matcher=None, hooks=[hook], timeout=TIMEOUT_SECONDS, on_failure="block")]}


class PreToolUse:
    """Judges the shell commands and file tools of one session."""

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self._root = None if root is None else os.path.realpath(root)

    async def __call__(self, payload: Mapping[str, Any], tool_use_id: str | None, context: Any) -> dict[str, Any]:
        """Return the hook's answer to a call. It is empty for tools that corral does not judge."""
        try:
            return await asyncio.to_thread(self._ask_hook, dict(payload))
        except Exception as error:  # noqa: BLE001  whatever failed, the call was not judged
            reason = f"corral could not judge the call: {type(error).__name__}: {error}. So it is refused."
            answer = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": reason}
            return {"hookSpecificOutput": answer}

    def _ask_hook(self, payload: dict[str, Any]) -> dict[str, Any]:
        environ = dict(os.environ)
        if self._root is not None:
            environ["CLAUDE_PROJECT_DIR"] = self._root
        status, stdout, stderr = processes.run_program(
            command("claude", environ), json.dumps(payload).encode(), environ, HOOK_SECONDS
        )
        if status not in (0, 2):
            raise RuntimeError(f"the hook exited with status {status}: {stderr.decode('utf-8', 'replace').strip()}")
        answer: dict[str, Any] = json.loads(stdout) if stdout or status else {}
        return answer
