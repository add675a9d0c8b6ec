"""Maps a result to the labels of telemetry: decision, error type, program. Pure."""

from __future__ import annotations

from signal import Signals

from corral.model.call import Decision

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.model.call import Verdict
    from corral.model.result import SandboxResult

# Error types of a tool call. A command that exits with an error is not one of them. Documented in docs/telemetry.md.
DENIED = "denied"
TIMEOUT = "timeout"
OUT_OF_MEMORY = "oom"
LIMIT = "limit"
NOT_STARTED = "not_started"
LOST = "sandbox_lost"
UNAVAILABLE = "sandbox_unavailable"
CANCELLED = "cancelled"
ABANDONED = "abandoned"
INTERNAL = "internal"
ERROR_TYPES = (
    DENIED, TIMEOUT, OUT_OF_MEMORY, LIMIT, NOT_STARTED, LOST, UNAVAILABLE, CANCELLED, ABANDONED, INTERNAL,
)  # fmt: skip

_LIMITS = frozenset({"cpu-limit", "disk-limit", "disk-full", "process-limit", "file-size-limit", "open-files-limit"})
DURATION_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)  # seconds


def decision_of(result: SandboxResult) -> str:
    """Return the decision. A gate or an invalid environment may refuse a call that the guard allows."""
    decision = result.verdict.decision
    return str(Decision.DENY if result.denied and decision == Decision.ALLOW else decision)


def error_type(result: SandboxResult) -> str:
    """Return the error type of the tool call, or an empty string."""
    if result.denied:
        return DENIED
    kinds = {violation.kind for violation in result.violations if not violation.inferred}
    if "warden-lost" in kinds:
        return LOST
    if result.timed_out:
        return TIMEOUT
    if "memory-limit" in kinds:
        return OUT_OF_MEMORY
    if kinds & _LIMITS:
        return LIMIT
    return "" if was_started(result) else NOT_STARTED


def was_started(result: SandboxResult) -> bool:
    """Return whether a process was started. The duration is 0 if no warden received the command."""
    return result.duration_ms > 0


def process_error_type(result: SandboxResult) -> str:
    """Return the exit code or signal name of a process that failed, or an empty string."""
    if result.timed_out:
        return TIMEOUT
    if result.signal is not None:
        try:
            return Signals(result.signal).name
        except ValueError:  # a real-time signal
            return f"SIG{result.signal}"
    return str(result.exit_code) if result.exit_code else ""


def executable_name(result: SandboxResult) -> str:
    """Return the base name of the program. For shell text it is bash."""
    return "bash" if result.shell or not result.argv else result.argv[0].rpartition("/")[2] or "?"


def rules_of(verdict: Verdict) -> tuple[str, ...]:
    """Return the distinct rule ids of a verdict, the strictest first."""
    findings = sorted(verdict.findings, key=lambda finding: (-finding.decision, finding.axis))
    return tuple(dict.fromkeys(finding.rule for finding in findings))
