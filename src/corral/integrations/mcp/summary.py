"""Writes a tool's record as the short text that a model reads: the output as it was printed, then corral's own lines in brackets."""

from __future__ import annotations

from corral._lib.terminal import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MAX_REASONS = 3  # of one refusal; the record has more of them
_OWN_LINES = ("[corral:", "[stderr]")  # compared without blanks and in small letters, as a model reads


def result_text(data: dict[str, Any]) -> str:
    """Return the text of a command that ran to its end, or was refused."""
    if data["denied"]:
        return _refusal(data)
    errors = _printed(data["stderr"])
    output = _closed(_printed(data["stdout"])) + (f"[stderr]\n{errors}" if errors else "")
    return _joined(output, _ending(data)) or "[corral: exit code 0, no output]"


def process_text(data: dict[str, Any]) -> str:
    """Return the text of a background process: what it printed, and what the next call needs to know."""
    if data["denied"]:
        return _refusal(data)
    return _joined(_printed(data["output"]), _state(data))


def verdict_text(data: dict[str, Any]) -> str:
    """Return the text of a call that was only judged."""
    why = _why(data)
    return f"{data['decision']}: {why}" if why else str(data["decision"])


def _refusal(data: dict[str, Any]) -> str:
    return _note(f"refused, nothing ran: {_why(data)}")


def _why(data: dict[str, Any]) -> str:
    """Return the reason of a verdict and those of its further decisive findings, each way out once."""
    verdict = data.get("verdict", data)
    decisive = [finding for finding in verdict["findings"] if finding["decision"] == verdict["decision"] != "allow"]
    said: str = data["reason"]
    for finding in decisive[:MAX_REASONS]:
        said += "".join(f" {text}" for text in (finding["reason"], finding["instead"]) if text not in said)
    more = len(decisive) - MAX_REASONS
    return printable(said.strip()) + (f" (and {more} more)" if more > 0 else "")


def _state(data: dict[str, Any]) -> Iterator[str]:
    id_, offset = data["process_id"], data["next_offset"]
    if data["omitted_bytes"]:
        yield f"{data['omitted_bytes']} bytes before this are no longer kept"
    if not id_:
        yield from _ending(data)
    elif data["running"]:
        yield f"process {id_} runs; next_offset {offset}"
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
        yield (
            f"the output was cut; the whole of it is in {path}, which commands can read"
            if path
            else "the output was cut"
        )
    if data["hint"]:
        yield data["hint"]


def _joined(output: str, notes: Iterator[str]) -> str:
    lines = [_note(note) for note in notes]
    return _closed(output) + "\n".join(lines) if lines else output


def _note(text: str) -> str:
    return f"[corral: {printable(text)}]"


def _closed(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _printed(text: str) -> str:
    """Return what a command printed, with a backslash before each line that a reader could take for one of corral's."""
    return "\n".join(map(_line, text.split("\n")))


def _line(text: str) -> str:
    # Clients print this text on terminals, which escape sequences and NULs in it would drive.
    shown = "\t".join(printable(cell) for cell in text.split("\t"))
    return f"\\{shown}" if "".join(shown.split()).casefold().startswith(_OWN_LINES) else shown
