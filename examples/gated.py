"""Gates before any tool of a model: which may be used, whether what it changes was seen, how much it may still read."""

from corral import Sandbox, SandboxConfig
from corral.integrations.gates import (
    Budget,
    BudgetGate,
    FileStates,
    GatedSandbox,
    ObservationLedger,
    Recency,
    ToolAllowlist,
)

ledger = ObservationLedger(Budget(total=200))
gates = (ToolAllowlist("run_command"), Recency(FileStates("."), must_read=True), BudgetGate(ledger, at_least=20))
with GatedSandbox(Sandbox(SandboxConfig(project_root=".")), *gates, ledger=ledger) as box:
    blind = box.run("sort -o notes.txt notes.txt", shell=True)
    print(blind.reason)
    print(box.run(["cat", "notes.txt"]).stdout_text.split())
    print(box.run("sort -o notes.txt notes.txt", shell=True).ok)
    print(box.run(["seq", "1000"]).truncated)
    print(box.run(["ls"]).reason)
