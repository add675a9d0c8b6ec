"""Gates that a tool call passes in order before it runs. The first refusal stops the call. A sandbox is optional."""

from __future__ import annotations

from corral.integrations.gates.chain import Chain, Passage, noted
from corral.integrations.gates.model import Gate, Refusal, Ruling, ToolCall
from corral.integrations.gates.patterns import Pattern, Patterns, ToolAllowlist
from corral.integrations.gates.project_files import FileStates
from corral.integrations.gates.recency import Recency
from corral.integrations.gates.sandbox import GatedSandbox, SandboxGate
from corral.integrations.gates.token_budget import Budget, BudgetGate, ObservationLedger, Shown, approximate_tokens

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
