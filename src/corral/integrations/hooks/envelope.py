"""What a host asks and what it is answered, whatever its protocol. JSON is read and written without the json package.

That package loads `re` and `enum`, which take as long as the whole hook may.
"""

from __future__ import annotations

from _json import make_scanner

from corral import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

dumps = jsontext.dumps

SHELL, WRITE = "shell", "write"
MAX_REASON = 4000  # characters; the hosts cut at 10,000 and some at less


class BadPayload(Exception):
    """The host sent something that is no call of its protocol."""


class Asked:
    """One call of a host's tool: shell text to be run, or a file to be written."""

    __slots__ = ("cwd", "kind", "payload", "root", "text")

    def __init__(self, kind: str, text: str, cwd: str, root: str, payload: dict[str, Any]) -> None:
        self.kind = kind
        self.text = text
        self.cwd = cwd
        self.root = root
        self.payload = payload


class Answer:
    """The verdict as a host is told it. `command` is what is to run instead, where the host can rewrite."""

    __slots__ = ("command", "decision", "reason")

    def __init__(self, decision: str, reason: str = "", command: str = "") -> None:
        self.decision = decision
        self.reason = reason[:MAX_REASON]
        self.command = command


class Said:
    """What the hook prints, and its exit code."""

    __slots__ = ("status", "stderr", "stdout")

    def __init__(self, stdout: str = "", stderr: str = "", status: int = 0) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self.status = status


class _Settings:
    """What the C scanner asks of its decoder."""

    strict = False  # a command may hold a line break that the host did not escape
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int

    @staticmethod
    def parse_constant(name: str) -> None:
        raise BadPayload(f"the payload holds {name}, which is no JSON")


_settings: Any = _Settings()
_scan = make_scanner(_settings)


def loads(data: bytes) -> dict[str, Any]:
    """Return a JSON object; BadPayload for anything else."""
    try:
        text = data.decode("utf-8-sig").strip()
        value, end = _scan(text, 0)
    except BadPayload:
        raise
    except (StopIteration, ValueError, RecursionError, IndexError) as error:
        raise BadPayload(f"the payload is no JSON ({type(error).__name__})") from None
    if text[end:].strip() or not isinstance(value, dict):
        raise BadPayload("the payload is no single JSON object")
    return value


def text_at(payload: dict[str, Any], *path: str) -> str:
    """Return a text that must be there; BadPayload names what is missing."""
    value: Any = payload
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if not isinstance(value, str):
        raise BadPayload(f"the payload has no text at {'.'.join(path)}")
    return value
