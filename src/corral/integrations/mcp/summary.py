"""Renders a tool's record as the short text that a model reads: the output as printed, then corral's own lines in brackets."""

from __future__ import annotations

from corral._lib.terminal import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

MAX_REASONS = 3  # of one refusal; the record has the others
_OWN_LINES = ("[corral:", "[stderr]")  # compared without white space and case, because a model reads so


def result_text(data: dict[str, Any]) -> str:
    """Return the text for a command that has ended or was refused."""
    if data["denied"]:
        return _refusal(data)
    errors = _escape_lines(data["stderr"])
    output = _with_newline(_escape_lines(data["stdout"])) + (f"[stderr]\n{errors}" if errors else "")
    return _with_notes(output, _ending(data)) or "[corral: exit code 0, no output]"


def process_text(data: dict[str, Any]) -> str:
    """Return the text for a background process: its output, and the ids that the next call needs."""
    return _refusal(data) if data["denied"] else _with_notes(_escape_lines(data["output"]), _state(data))


def verdict_text(data: dict[str, Any]) -> str:
    """Return the text for a call that was only checked."""
    why = _reasons(data)
    return f"{data['decision']}: {why}" if why else str(data["decision"])


def _refusal(data: dict[str, Any]) -> str:
    return _note(f"refused, nothing ran: {_reasons(data)}")


def _reasons(data: dict[str, Any]) -> str:
    """Return the reason of a verdict and those of its other decisive findings, each way out once."""
    verdict = data.get("verdict", data)
    decisive = [finding for finding in verdict["findings"] if finding["decision"] == verdict["decision"] != "allow"]
    text: str = data["reason"]
    for finding in decisive[:MAX_REASONS]:
        text += "".join(f" {part}" for part in (finding["reason"], finding["instead"]) if part not in text)
    more = len(decisive) - MAX_REASONS
    return printable(text.strip()) + (f" (and {more} more)" if more > 0 else "")


def _state(data: dict[str, Any]) -> Iterator[str]:
    id_, offset = data["process_id"], data["next_offset"]
    if data["omitted_bytes"]:
        yield f"{data['omitted_bytes']} bytes before this are no longer stored"
    if not id_:
        yield from _ending(data)
    elif data["running"]:
        yield f"process {id_} is running; next_offset {offset}"
        if data.get("hint"):
            yield data["hint"]
    else:
        yield f"process {id_} has ended; next_offset {offset}"
        yield from _ending(data) if data["exit_code"] else ("exit code 0", *_ending(data))


def _ending(data: dict[str, Any]) -> Iterator[str]:
    if data["timed_out"]:
        yield f"timed out after {data['duration_ms'] / 1000:.1f} s; all its processes were killed"
    elif data["exit_code"]:
        by_signal = f", ended by signal {data['signal']}" if data["signal"] else ""
        yield f"exit code {data['exit_code']}{by_signal}"
    if data["killed"] and not data["timed_out"]:
        processes = "1 process" if data["killed"] == 1 else f"{data['killed']} processes"
        yield f"killed {processes} that the command left running"
    if data.get("truncated"):
        path = data["full_output_path"]
        yield "the output was cut" + (f"; all of it is in {path}, which commands can read" if path else "")
    if data["hint"]:
        yield data["hint"]


def _with_notes(output: str, notes: Iterable[str]) -> str:
    lines = [_note(note) for note in notes]
    return _with_newline(output) + "\n".join(lines) if lines else output


def _note(text: str) -> str:
    return f"[corral: {printable(text)}]"


def _with_newline(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _escape_lines(text: str) -> str:
    """Escape control characters, and put a backslash before each line that could pass for one of corral's."""
    return "\n".join(map(_escape_line, text.split("\n")))


def _escape_line(text: str) -> str:
    # Clients print this text on terminals, where escape sequences and NUL bytes have an effect.
    shown = "\t".join(printable(cell) for cell in text.split("\t"))
    return f"\\{shown}" if "".join(shown.split()).casefold().startswith(_OWN_LINES) else shown
