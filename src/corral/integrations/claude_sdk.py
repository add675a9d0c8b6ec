"""Claude Agent SDK: the hook of Claude Code in the program that uses the SDK. A crash refuses, as a hook that raises would let the call run.

A shell command that is allowed is rewritten, so that it runs contained.
"""

from __future__ import annotations

import asyncio
import json
import os

from corral.integrations.extras import missing
from corral.integrations.hooks import claude
from corral.integrations.hooks.envelope import Answer
from corral.integrations.hooks.judging import judge
from corral.integrations.placing import dependencies, package

try:
    from claude_agent_sdk import HookMatcher
except ImportError as error:
    raise missing("claude", error) from error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

TIMEOUT_SECONDS = 30.0


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
        asked = claude.read(payload, environ)
        beside = dependencies()
        paths = [] if beside == os.path.dirname(package()) else [beside]
        answer = Answer("allow") if asked is None else judge(asked, "claude", environ, paths)
        said = claude.render(answer, asked).stdout
        answered: dict[str, Any] = json.loads(said) if said else {}
        return answered


def _refusal(error: Exception) -> dict[str, Any]:
    reason = f"corral could not judge the call: {type(error).__name__}: {error}. So it is refused."
    decided = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": reason}
    return {"hookSpecificOutput": decided}
