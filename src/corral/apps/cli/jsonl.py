"""Calls as lines of JSON, for many in one process. Nothing about a line is guessed: one that can't be read is an error, and never runs."""

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

MAX_LINE_BYTES = 8 * 1024 * 1024  # against a line that never ends; the kernel takes no larger command anyway
CHUNK_BYTES = 64 * 1024
MAX_QUOTED = 60  # characters of somebody's input repeated in an error
KINDS: dict[type, str] = {
    bool: "a truth value",
    dict: "an object",
    float: "a number",
    int: "a number",
    list: "a list",
    str: "a string",
    type(None): "null",
}


class LineError(ValueError):
    """A line does not hold a call. `id` is what it said of itself, where that could be read."""

    def __init__(self, message: str, id: object = None) -> None:  # noqa: A002  the key's own name
        super().__init__(message)
        self.id = id


def answer(source: IO[bytes], sink: IO[bytes], config: SandboxConfig) -> None:
    """Answer every line of `source` on `sink`, flushing each."""
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
    """Yield lines as they come; of one that is too long only the beginning."""
    while line := source.readline(MAX_LINE_BYTES):
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            while (rest := source.readline(CHUNK_BYTES)) and not rest.endswith(b"\n"):
                pass
        yield line


def read_call(line: bytes) -> tuple[str | int, Call]:
    """Return a line's id and call, or raise LineError: nothing about it is guessed."""
    name, data = read_object(line)
    return name, call_in(name, data)


def read_object(line: bytes) -> tuple[str | int, dict[str, Any]]:
    """Return a line's id and all it holds."""
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
        raise LineError(f"the line must be an object, not {KINDS[type(data)]}")
    name = data.get("id")
    if not isinstance(name, (str, int)) or isinstance(name, bool):
        raise LineError(
            f"id must be a string or a whole number, not {KINDS[type(name)]}" if "id" in data else "id is missing"
        )
    return name, data


def call_in(name: str | int, data: dict[str, Any]) -> Call:
    """Return the call that a line holds."""
    cwd = data.get("cwd")
    if not isinstance(cwd, str) and cwd is not None:
        raise LineError(f"cwd must be a string, not {KINDS[type(cwd)]}", name)
    if ("argv" in data) == ("shell" in data):
        raise LineError("give argv or shell, not both" if "argv" in data else "argv or shell is missing", name)
    text, argv = data.get("shell"), data.get("argv")
    if "shell" in data:
        if not isinstance(text, str):
            raise LineError(f"shell must be a string, not {KINDS[type(text)]}", name)
        return Call(text, shell=True, cwd=cwd)  # noqa: S604  judged, never run
    if not isinstance(argv, list):
        raise LineError(f"argv must be a list, not {KINDS[type(argv)]}", name)
    return Call(argv, cwd=cwd)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    # Of two equal keys Python keeps the last and others the first: the call judged must be the call meant.
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r} is given twice")
    return made


def _constant(text: str) -> object:
    raise ValueError(f"{text} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
