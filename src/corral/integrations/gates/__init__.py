"""Gates that a tool call passes before it runs, in order; the first that refuses ends it. With a sandbox behind them or without."""

from __future__ import annotations

from corral.integrations.gates.allowlist import ToolAllowlist
from corral.integrations.gates.budget import BudgetGate
from corral.integrations.gates.chain import Chain, Passage, noted
from corral.integrations.gates.file_versions import FileStates
from corral.integrations.gates.model import Gate, Refusal, Ruling, ToolCall
from corral.integrations.gates.patterns import Pattern, Patterns
from corral.integrations.gates.recency import Recency
from corral.integrations.gates.sandbox import GatedSandbox
from corral.integrations.gates.sandbox_gate import SandboxGate
from corral.integrations.gates.token_budget import Budget, ObservationLedger, Shown, approximate_tokens

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
