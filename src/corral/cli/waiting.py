"""Who may answer for a transaction that waits: anybody but an agent, whose command it was."""

from __future__ import annotations

from corral.cli.person import AGENT_VARIABLES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def why_not_ours(environ: Mapping[str, str]) -> str:
    """Return why this is not the owner's shell, or nothing."""
    for name in AGENT_VARIABLES:
        if environ.get(name):
            return f"this is the shell of a coding agent ({name} is set)"
    return ""
