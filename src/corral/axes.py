"""Four checks under the names of corral's first version. Each runs the whole guard and reports one axis."""

from __future__ import annotations

from corral.guard.axes import structure
from corral.guard.evaluate import vet
from corral.model.call import Axis, Call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.policy.config import SandboxConfig

__all__ = ["_check_argv_interpreter", "_check_executable_denylist", "_check_path_jail", "_check_shell_metachars"]


def _check_executable_denylist(argv: Sequence[str], config: SandboxConfig) -> str | None:
    return _reason(Call(argv), config, Axis.NAME)


def _check_argv_interpreter(argv: Sequence[str], config: SandboxConfig) -> str | None:
    return _reason(Call(argv), config, Axis.ARGV)


def _check_path_jail(argv: Sequence[str], config: SandboxConfig) -> str | None:
    return _reason(Call(argv), config, Axis.PATH)


def _check_shell_metachars(
    argv: Sequence[str] | str, config: SandboxConfig | None = None, *, shell: bool = False
) -> str | None:
    """Return why an argv is refused for its structure, or None. Without a config, shell text is not checked."""
    if shell and config is None:
        return None
    refused = structure.refuse(Call(argv, shell))
    if refused is not None:
        return f"{refused.reason} {refused.instead}"
    if config is not None:
        return _reason(Call(argv, shell), config, Axis.STRUCTURE)
    for index, argument in enumerate(argv):
        match = structure.metacharacter(argument)
        if match is not None:
            return structure.metacharacter_reason(index, match.group())
    return None


def _reason(call: Call, config: SandboxConfig, axis: Axis) -> str | None:
    """Return the reason why one axis refuses a call, or None."""
    for found in vet(call, config).findings:
        if found.axis is axis or found.rule == "structure-crash":
            return f"{found.reason} {found.instead}".strip()
    return None
