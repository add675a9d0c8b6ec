"""corral runs the commands of a coding agent: guard, confined process, structured result.

Names are loaded on first use, so that `import corral` costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.rules.loader import DEFAULT_DENYLIST, DEFAULT_INTERPRETER_BLOCK, Profile
    from corral.model.call import (
        DENIED_EXIT_CODE,
        TIMED_OUT_EXIT_CODE,
        Axis,
        Decision,
        Finding,
        Usage,
        Verdict,
        Violation,
    )
    from corral.model.errors import AuditError, ContainmentError, CorralError, PolicyError, TransactionError
    from corral.model.result import SandboxResult
    from corral.policy.config import Audit, Containment, Limits, Output, SandboxConfig
    from corral.runtime.handle import Handle
    from corral.sandbox import Sandbox
    from corral.transactions.transaction import Transaction

__version__ = "0.1.0"

_HOME = {
    "Audit": "policy.config",
    "AuditError": "model.errors",
    "Axis": "model.call",
    "Containment": "policy.config",
    "ContainmentError": "model.errors",
    "CorralError": "model.errors",
    "DEFAULT_DENYLIST": "guard.rules.loader",
    "DEFAULT_INTERPRETER_BLOCK": "guard.rules.loader",
    "DENIED_EXIT_CODE": "model.call",
    "Decision": "model.call",
    "Finding": "model.call",
    "Handle": "runtime.handle",
    "Limits": "policy.config",
    "Output": "policy.config",
    "PolicyError": "model.errors",
    "Profile": "guard.rules.loader",
    "Sandbox": "sandbox",
    "SandboxConfig": "policy.config",
    "SandboxResult": "model.result",
    "TIMED_OUT_EXIT_CODE": "model.call",
    "Transaction": "transactions.transaction",
    "TransactionError": "model.errors",
    "Usage": "model.call",
    "Verdict": "model.call",
    "Violation": "model.call",
}

__all__ = [
    "DEFAULT_DENYLIST",
    "DEFAULT_INTERPRETER_BLOCK",
    "DENIED_EXIT_CODE",
    "TIMED_OUT_EXIT_CODE",
    "Audit",
    "AuditError",
    "Axis",
    "Containment",
    "ContainmentError",
    "CorralError",
    "Decision",
    "Finding",
    "Handle",
    "Limits",
    "Output",
    "PolicyError",
    "Profile",
    "Sandbox",
    "SandboxConfig",
    "SandboxResult",
    "Transaction",
    "TransactionError",
    "Usage",
    "Verdict",
    "Violation",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'corral' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415  lazily, as everything here

    value = getattr(import_module(f"corral.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
