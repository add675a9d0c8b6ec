"""corral runs the commands of a coding agent: a guard, a confined process, a structured result.

Names are loaded on first use, so that `import corral` is cheap.
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
    from corral.policy.config import Asking, Audit, Containment, Limits, Output, SandboxConfig
    from corral.runtime.handle import Handle
    from corral.sandbox import Sandbox
    from corral.transactions.transaction import Transaction

__version__ = "0.1.0"

_MODULES = {
    "guard.rules.loader": ("DEFAULT_DENYLIST", "DEFAULT_INTERPRETER_BLOCK", "Profile"),
    "model.call": ("Axis", "DENIED_EXIT_CODE", "Decision", "Finding", "TIMED_OUT_EXIT_CODE", "Usage", "Verdict", "Violation"),
    "model.errors": ("AuditError", "ContainmentError", "CorralError", "PolicyError", "TransactionError"),
    "model.result": ("SandboxResult",),
    "policy.config": ("Asking", "Audit", "Containment", "Limits", "Output", "SandboxConfig"),
    "runtime.handle": ("Handle",),
    "sandbox": ("Sandbox",),
    "transactions.transaction": ("Transaction",),
}  # fmt: skip

__all__ = [
    "DEFAULT_DENYLIST",
    "DEFAULT_INTERPRETER_BLOCK",
    "DENIED_EXIT_CODE",
    "TIMED_OUT_EXIT_CODE",
    "Asking",
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
    for module, names in _MODULES.items():
        if name in names:
            from importlib import import_module  # noqa: PLC0415  loaded on first use, like the names

            value = globals()[name] = getattr(import_module(f"corral.{module}"), name)
            return value
    raise AttributeError(f"module 'corral' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
