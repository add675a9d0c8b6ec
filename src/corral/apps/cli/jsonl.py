"""Reads calls from lines of JSON. A line that cannot be read is an error and never runs; nothing about it is guessed."""

from __future__ import annotations

import json

from corral._lib.terminal import printable
from corral.guard.evaluate import vet
from corral.model.call import Call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

    from corral.policy.config import SandboxConfig

MAX_LINE_BYTES = 8 * 1024 * 1024  # against a line that never ends; the kernel accepts no larger command
CHUNK_BYTES = 64 * 1024
MAX_QUOTED = 60  # characters of the input that an error repeats
TYPE_NAMES: dict[type, str] = {
    bool: "a boolean",
    dict: "an object",
    float: "a number",
    int: "a number",
    list: "a list",
    str: "a string",
    type(None): "null",
}


class LineError(ValueError):
    """A line that contains no valid call. `id` is the id of the line if it could be read."""

    def __init__(self, message: str, id: object = None) -> None:  # noqa: A002  the name of the JSON key
        super().__init__(message)
        self.id = id


def answer(source: IO[bytes], sink: IO[bytes], config: SandboxConfig) -> None:
    """Judge the call on every line of `source` and write one answer each to `sink`, flushed at once."""
    encode = json.JSONEncoder().encode
    for line in lines_of(source):
        try:
            name, call = read_call(line)
            verdict = vet(call, config)
            reply: dict[str, object] = {
                "id": name,
                "decision": str(verdict.decision),
                "findings": [f.to_dict() for f in verdict.findings],
            }
        except LineError as error:
            reply = {"id": error.id, "decision": "deny", "findings": [], "error": str(error)}
        sink.write(encode(reply).encode() + b"\n")
        sink.flush()


def lines_of(source: IO[bytes]) -> Iterator[bytes]:
    """Yield lines as they come. A line that is too long is cut to MAX_LINE_BYTES, and the rest of it is skipped."""
    while line := source.readline(MAX_LINE_BYTES):
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            while (rest := source.readline(CHUNK_BYTES)) and not rest.endswith(b"\n"):
                pass
        yield line


def read_call(line: bytes) -> tuple[str | int, Call]:
    """Return the id and the call of a line, or raise LineError."""
    name, data = read_object(line)
    return name, call_in(name, data)


def read_object(line: bytes) -> tuple[str | int, dict[str, Any]]:
    """Return the id of a line and its JSON object, or raise LineError."""
    if not line.strip():
        raise LineError("the line is empty")
    if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
        raise LineError(f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        data = _DECODER.decode(line.decode())
    except RecursionError:
        raise LineError("the line is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise LineError(f"the line is not UTF-8: byte {error.start} is {line[error.start]:#04x}") from None
    except json.JSONDecodeError as error:
        raise LineError(f"the line is not JSON: {error.msg} at character {error.pos}") from None
    except ValueError as error:
        raise LineError(f"the line cannot be read: {printable(str(error)[:MAX_QUOTED])}") from None
    if not isinstance(data, dict):
        raise LineError(f"the line must be an object, not {TYPE_NAMES[type(data)]}")
    name = data.get("id")
    if not isinstance(name, (str, int)) or isinstance(name, bool):
        raise LineError(
            f"id must be a string or a whole number, not {TYPE_NAMES[type(name)]}" if "id" in data else "id is missing"
        )
    return name, data


def call_in(name: str | int, data: dict[str, Any]) -> Call:
    """Return the call that a JSON object describes, or raise LineError."""
    cwd = data.get("cwd")
    if not isinstance(cwd, str) and cwd is not None:
        raise LineError(f"cwd must be a string, not {TYPE_NAMES[type(cwd)]}", name)
    if ("argv" in data) == ("shell" in data):
        raise LineError("give argv or shell, not both" if "argv" in data else "argv or shell is missing", name)
    text, argv = data.get("shell"), data.get("argv")
    if "shell" in data:
        if not isinstance(text, str):
            raise LineError(f"shell must be a string, not {TYPE_NAMES[type(text)]}", name)
        return Call(text, shell=True, cwd=cwd)  # noqa: S604  a record; nothing runs here
    if not isinstance(argv, list):
        raise LineError(f"argv must be a list, not {TYPE_NAMES[type(argv)]}", name)
    return Call(argv, cwd=cwd)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    # Parsers disagree about duplicate keys: Python keeps the last, others the first. Accepting one could judge another call.
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"duplicate key {twice!r}")
    return made


def _constant(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
