"""What telemetry says of a result, in few words: the decision, the class of error, the program. Pure."""

from __future__ import annotations

from signal import Signals

from corral.model.call import Decision

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.model.call import Verdict
    from corral.model.result import SandboxResult

# Of a tool call; what a command itself ends with is no failure of the tool. Documented in docs/telemetry.md.
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
    """Return what was decided; a call may be refused although the guard allows it, by a gate or for its environment."""
    decision = result.verdict.decision
    return str(Decision.DENY if result.denied and decision == Decision.ALLOW else decision)


def error_type(result: SandboxResult) -> str:
    """Return why the tool did not do what it is for, or nothing."""
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
    """Say whether there was a process: what was never handed to a warden took no time."""
    return result.duration_ms > 0


def process_error_type(result: SandboxResult) -> str:
    """Return how the process failed: its exit code, the name of the signal that ended it, or nothing."""
    if result.timed_out:
        return TIMEOUT
    if result.signal is not None:
        return _signal_name(result.signal)
    return str(result.exit_code) if result.exit_code else ""


def executable_name(result: SandboxResult) -> str:
    """Return the base name of the program; of shell text it is the shell's."""
    return "bash" if result.shell or not result.argv else result.argv[0].rpartition("/")[2] or "?"


def rules_of(verdict: Verdict) -> tuple[str, ...]:
    """Return the ids of the rules that spoke, the strictest first, each once."""
    findings = sorted(verdict.findings, key=lambda finding: (-finding.decision, finding.axis))
    return tuple(dict.fromkeys(finding.rule for finding in findings))


def _signal_name(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:  # a real-time signal
        return f"SIG{number}"
