"""Claude Agent SDK: runs the hook of Claude Code as a process for each call of a session, so that its deadline and limits hold.

A shell command that is allowed is rewritten, so that it runs contained. A failure refuses: a hook that raises would let the call run.
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
HOOK_SECONDS = 15.0  # the hook gives itself 4; the rest is for a loaded machine


def corral_hooks(root: str | os.PathLike[str] | None = None) -> dict[str, list[HookMatcher]]:
    """Return what `ClaudeAgentOptions(hooks=…)` takes; `root` is the project, else it is found from the session's directory."""
    hook = PreToolUse(root)
    return {"PreToolUse": [HookMatcher(matcher=None, hooks=[hook], timeout=TIMEOUT_SECONDS, on_failure="block")]}


class PreToolUse:
    """Judges the shell commands and file tools of one session."""

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self._root = None if root is None else os.path.realpath(root)

    async def __call__(self, payload: Mapping[str, Any], tool_use_id: str | None, context: Any) -> dict[str, Any]:
        """Return the answer to one call; an empty one where it is nothing that corral judges."""
        try:
            return await asyncio.to_thread(self._answer, dict(payload))
        except Exception as error:  # noqa: BLE001  whatever it is, nobody has judged the call
            return _refusal(error)

    def _answer(self, payload: dict[str, Any]) -> dict[str, Any]:
        environ = dict(os.environ)
        if self._root is not None:
            environ["CLAUDE_PROJECT_DIR"] = self._root
        status, said, why = processes.run_program(
            command("claude", environ), json.dumps(payload).encode(), environ, HOOK_SECONDS
        )
        if status not in (0, 2):
            raise RuntimeError(f"the hook ended with status {status}: {why.decode('utf-8', 'replace').strip()}")
        answered: dict[str, Any] = json.loads(said) if said or status else {}
        return answered


def _refusal(error: Exception) -> dict[str, Any]:
    reason = f"corral could not judge the call: {type(error).__name__}: {error}. So it is refused."
    decided = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": reason}
    return {"hookSpecificOutput": decided}
