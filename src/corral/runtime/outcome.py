"""Turns a warden's outcome message into the fields of a result. Only the numbers of the message are used."""

from __future__ import annotations

import os
from errno import ENOENT, ENOTDIR
from signal import SIGKILL, SIGXFSZ
from time import monotonic

from corral._lib.records import Record, frozen
from corral._lib.timestamps import format_utc
from corral.containment import protocol
from corral.containment.violations.detect import limit_hit
from corral.model.call import (
    NOT_EXECUTABLE_EXIT_CODE,
    NOT_FOUND_EXIT_CODE,
    TIMED_OUT_EXIT_CODE,
    UNCLEAN_EXIT_CODE,
    Usage,
    Violation,
)
from corral.model.result import SandboxResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.model.call import Call, Launch, Verdict
    from corral.policy.config import Limits
    from corral.runtime.capture import Captured
    from corral.runtime.processes import WardenClient
    from corral.runtime.run_options import RunContext, SentCommand

# Flag of an outcome: kind of the violation, field of `limits`, and whether the violation is only inferred.
_LIMIT_FLAGS = {
    protocol.TOO_MUCH_CPU: ("cpu-limit", "cpu_seconds", False),
    protocol.TOO_MUCH_MEMORY: ("memory-limit", "memory_bytes", False),
    protocol.TOO_MANY_PROCESSES: ("process-limit", "processes", False),
    protocol.PROCESS_LIMIT_REACHED: ("process-limit", "processes", True),
    protocol.TOO_MUCH_WRITTEN: ("disk-limit", "disk_bytes", False),
    protocol.DISK_NEARLY_FULL: ("disk-full", "free_disk_bytes", False),
    protocol.INODES_NEARLY_USED_UP: ("disk-full", "free_inodes", False),
}
_LIMITS_BROKEN = sum(_LIMIT_FLAGS)
MAX_CPU_SECONDS = 1e12  # thirty years on a thousand cores
MAX_STATUS = 0xFFFF  # of a process that has ended
_SIGNALED = 0x7F  # bits of a wait status that are 0 when the process has exited
_LEFT_RUNNING = Violation("left-running", detail="processes that the command started could not be ended by SIGKILL")
_WARDEN_LOST = Violation(
    "warden-lost",
    detail="the process that ran the command was killed or did not answer; all processes of the command were killed",
)


def call_fields(call: Call, verdict: Verdict, cwd: str, id_: bytes, started_at: float) -> dict[str, Any]:
    """Return the fields of a result that are known when a call is judged. `started_at` is in seconds since the epoch."""
    argv = call.argv if isinstance(call.argv, tuple) else (call.argv,)
    return {
        "argv": tuple([word if isinstance(word, str) else repr(word) for word in argv]),
        "shell": call.shell,
        "cwd": cwd,
        "verdict": verdict,
        "id": id_.hex(),
        "started_at": format_utc(started_at),
    }


def output_fields(sent: SentCommand, kept: Captured) -> dict[str, Any]:
    """Return the fields of a result that are known once all output was read."""
    fields = call_fields(sent.options.call, sent.verdict, sent.launch.cwd, sent.nonce, sent.began_at)
    fields["stdout"], fields["stdout_bytes"] = kept.stdout, kept.stdout_bytes
    fields["stderr"], fields["stderr_bytes"] = kept.stderr, kept.stderr_bytes
    fields["truncated"], fields["full_output_path"] = kept.truncated, kept.path
    return fields


def build_result(
    sent: SentCommand,
    context: RunContext,
    warden: WardenClient,
    ending: Ending,
    fields: dict[str, Any],
    *,
    on_terminal: bool,
) -> SandboxResult:
    """Return the result of a command. `fields` come from `output_fields`."""
    violations, exit_code = ending.violations, ending.exit_code
    if context.inspect is not None:
        printed = sent.options.printed
        output, errors = (fields["stdout"], fields["stderr"]) if printed is None else printed()
        # A terminal, and shell text such as `make 2>&1 | tail`, mixes errors into stdout.
        if on_terminal or (not errors and output and _merges_errors(sent.options.call)):
            errors = output
        cwd, missing = sent.launch.cwd, warden.missing_layers
        found = context.inspect(errors, cwd, missing, signal=ending.signal, began_at=sent.began_at, warden=warden.pid)
        if found:
            # A command that succeeded did not miss a variable that it warns about.
            known = {violation.kind for violation in violations} | ({"environment"} if exit_code == 0 else set())
            violations += tuple([violation for violation in found if violation.kind not in known])
            if exit_code == 0 and any(violation.remains for violation in found):
                exit_code = UNCLEAN_EXIT_CODE
    if ending.message:
        message = ending.message.encode("utf-8", "surrogateescape")
        fields["stderr"] += message
        fields["stderr_bytes"] += len(message)
    return SandboxResult(
        exit_code=exit_code,
        timed_out=ending.timed_out,
        duration_ms=(monotonic() - sent.started_at) * 1000,
        signal=ending.signal,
        backend=warden.backend,
        enforcement=warden.enforcement,
        missing_layers=warden.missing_layers,
        violations=violations,
        connections=() if context.connections is None else context.connections(sent.began_at),
        usage=ending.usage,
        killed=ending.killed,
        transaction=context.transaction,
        network=context.config.containment.reach,
        grants=context.grants,
        **fields,
    )


def _merges_errors(call: Call) -> bool:
    text = call.argv
    return call.shell and isinstance(text, str) and any(mark in text for mark in ("2>&1", "&>", "|&"))


@frozen
class Ending(Record):
    """The end of a command. `message` is added to stderr: corral's explanation of a command that could not start."""

    exit_code: int
    signal: int | None = None
    timed_out: bool = False
    violations: tuple[Violation, ...] = ()
    killed: int = 0
    usage: Usage = Usage()
    message: str = ""
    reusable: bool = True


def parse_outcome(message: bytearray, launch: Launch, limits: Limits) -> Ending:
    """Parse a warden's outcome message. Raise ProtocolError if the kernel reports no such values."""
    _, _, flags, status, error, killed, user, system, peak, read, written, _, _ = protocol.OUTCOME.unpack_from(message)
    # A comparison with NaN is false, so NaN is refused too.
    if not (0.0 <= user <= MAX_CPU_SECONDS and 0.0 <= system <= MAX_CPU_SECONDS and 0 <= status <= MAX_STATUS):
        raise protocol.ProtocolError("the outcome has values that no command has")
    usage = Usage(user, system, peak, read, written)
    if not (flags or error or status & _SIGNALED):
        return Ending(status >> 8, None, False, (), killed, usage)
    exit_code, number, text = 0, None, ""
    violations: tuple[Violation, ...] = ()
    if error:
        exit_code, text = _start_failure(error, launch, flags)
    elif os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        exit_code = 128 + number
        if number == SIGXFSZ and limits.file_size_bytes is not None:
            violations = (limit_hit("file-size-limit", "file_size_bytes", limits, inferred=True),)
    else:
        exit_code = os.WEXITSTATUS(status)
    if flags & _LIMITS_BROKEN:
        violations += limit_violations(flags, limits)
    timed_out = bool(flags & protocol.TIMED_OUT)
    spent = bool(flags & protocol.UNKILLABLE_LEFT)
    return Ending(
        TIMED_OUT_EXIT_CODE if timed_out else exit_code,
        number,
        timed_out,
        (*violations, _LEFT_RUNNING) if spent else violations,
        killed,
        usage,
        text,
        not spent,
    )


def warden_lost_ending(killed: int, hits: tuple[Violation, ...] = (), *, timed_out: bool) -> Ending:
    """Return the ending of a command whose warden died. `hits` are the limits that its cgroup has hit."""
    exit_code = TIMED_OUT_EXIT_CODE if timed_out else 128 + SIGKILL
    # An earlier command in the same cgroup may have hit them.
    violations = (*(hit.replace(inferred=True) for hit in hits), _WARDEN_LOST)
    return Ending(exit_code, int(SIGKILL), timed_out, violations, killed, reusable=False)


def silence_ending(ending: Ending, seconds: float) -> Ending:
    """Return the ending of a command that was killed because it printed nothing."""
    violation = Violation("silence", detail=f"nothing was printed for {seconds:g} seconds")
    return ending.replace(exit_code=TIMED_OUT_EXIT_CODE, timed_out=True, violations=(*ending.violations, violation))


def _start_failure(error: int, launch: Launch, flags: int) -> tuple[int, str]:
    why = os.strerror(error)
    if flags & protocol.NO_TERMINAL:
        return NOT_EXECUTABLE_EXIT_CODE, f"corral: no terminal can be given to the command: {why}\n"
    if flags & protocol.NO_DIRECTORY:
        return NOT_EXECUTABLE_EXIT_CODE, f"corral: cannot enter {launch.cwd}: {why}\n"
    name = launch.argv[0]
    if error in (ENOENT, ENOTDIR):
        if not os.path.exists(launch.executable):
            return NOT_FOUND_EXIT_CODE, f"corral: {name}: command not found\n"
        why = "the interpreter in its first line does not exist"
    return NOT_EXECUTABLE_EXIT_CODE, f"corral: {name}: {why}\n"


def limit_violations(flags: int, limits: Limits) -> tuple[Violation, ...]:
    """Return one violation for each limit flag of an outcome."""
    return tuple(
        limit_hit(kind, field, limits, inferred=inferred)
        for flag, (kind, field, inferred) in _LIMIT_FLAGS.items()
        if flags & flag
    )
