"""Gates that a tool call passes before it runs, in order; the first that refuses ends it. With a sandbox behind them or without."""

from __future__ import annotations

from corral.gates.allowlist import ToolAllowlist
from corral.gates.budget import BudgetGate
from corral.gates.chain import Chain, Passage, noted
from corral.gates.filestate import FileStates
from corral.gates.gated import GatedSandbox
from corral.gates.guard import SandboxGate
from corral.gates.model import Gate, Refusal, Ruling, ToolCall
from corral.gates.patterns import Pattern, Patterns
from corral.gates.recency import Recency
from corral.gates.tokens import Budget, ObservationLedger, Shown, approximate_tokens

__all__ = [
    "Budget",
    "BudgetGate",
    "Chain",
    "FileStates",
    "Gate",
    "GatedSandbox",
    "ObservationLedger",
    "Passage",
    "Pattern",
    "Patterns",
    "Recency",
    "Refusal",
    "Ruling",
    "SandboxGate",
    "Shown",
    "ToolAllowlist",
    "ToolCall",
    "approximate_tokens",
    "noted",
]
