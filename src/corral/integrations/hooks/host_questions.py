"""Says whether a person answers what a hook asks, and if not, why."""

from __future__ import annotations

from corral.integrations.hooks.protocol import PERSON, UNKNOWN, ToolCall
from corral.policy.loader import user_policy_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.policy.config import SandboxConfig


def is_answered(asked: ToolCall, config: SandboxConfig) -> bool:
    """Say whether a person answers a question about this call."""
    return asked.asks == PERSON or (asked.asks == UNKNOWN and asked.host in config.host_questions)


def why_not_asked(asked: ToolCall, environ: Mapping[str, str]) -> str:
    """Return why a question is not asked, and what the user can do about it."""
    if asked.asks != UNKNOWN:
        return "corral cannot ask the user here, so the call is refused."
    line = f'host_questions = ["{asked.host}"]'
    return (
        f"corral cannot tell whether a person answers {asked.host}'s questions, so it refuses instead. "
        f"If you answer them yourself, add this to the top of {user_policy_path(environ)}: {line}"
    )
