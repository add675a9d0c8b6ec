"""Defines the result of a call and its JSON form. `from_dict(to_dict())` is lossless, also for bytes that are not UTF-8."""

from __future__ import annotations

import base64

from corral._lib.records import Record, frozen
from corral.model.call import (
    NOT_EXECUTABLE_EXIT_CODE,
    NOT_FOUND_EXIT_CODE,
    RESULT_SCHEMA,
    Connection,
    Usage,
    Verdict,
    Violation,
)
from corral.model.grant import Grant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_OWN_PREFIX = b"corral: "  # of corral's own messages on a command's stderr


@frozen
class SandboxResult(Record):
    """The result of one call."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""
    truncated: bool = False
    timed_out: bool = False
    denied: bool = False
    reason: str = ""
    duration_ms: float = 0.0
    id: str = ""
    schema: str = RESULT_SCHEMA
    started_at: str = ""
    cwd: str = ""
    shell: bool = False
    verdict: Verdict = Verdict()
    signal: int | None = None
    backend: str = "none"
    enforcement: str = "none"
    missing_layers: tuple[str, ...] = ()
    violations: tuple[Violation, ...] = ()
    connections: tuple[Connection, ...] = ()
    usage: Usage = Usage()
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    killed: int = 0
    full_output_path: str | None = None
    transaction: str | None = None
    network: str = "off"
    grants: tuple[Grant, ...] = ()  # the openings that the call had, besides the policy's

    @property
    def ok(self) -> bool:
        """True if the command ran and exited with 0."""
        return self.exit_code == 0

    @property
    def hint(self) -> str:
        """A line that an agent can act on: why the call was refused, did not start or was killed, and the first violation."""
        why = self.reason or self._failure()
        if self.reason or not self.violations:
            return why
        more = len(self.violations) - 1
        return f"{why} {self.violations[0].text}".strip() + (f" (and {more} more)" if more else "")

    def _failure(self) -> str:
        if self.timed_out and not any(violation.kind == "silence" for violation in self.violations):
            return f"Timed out after {self.duration_ms / 1000:.3g} seconds. Set timeout_seconds for another limit."
        if self.exit_code in (NOT_EXECUTABLE_EXIT_CODE, NOT_FOUND_EXIT_CODE) and self.stderr.startswith(_OWN_PREFIX):
            return self.stderr_text.partition("\n")[0].removeprefix(_OWN_PREFIX.decode())
        return ""

    @property
    def stdout_text(self) -> str:
        """The kept output as text; invalid UTF-8 becomes U+FFFD."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """The kept error output as text; invalid UTF-8 becomes U+FFFD."""
        return self.stderr.decode("utf-8", "replace")

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready data."""
        data = self.as_dict() | {
            "argv": list(self.argv),
            "ok": self.ok,
            "hint": self.hint,
            "verdict": self.verdict.to_dict(),
            "missing_layers": list(self.missing_layers),
            "violations": [violation.as_dict() for violation in self.violations],
            "connections": [connection.as_dict() for connection in self.connections],
            "usage": self.usage.as_dict(),
            "grants": [grant.to_dict() for grant in self.grants],
            "stdout": self.stdout_text,
            "stderr": self.stderr_text,
        }
        for stream, raw in (("stdout", self.stdout), ("stderr", self.stderr)):
            if data[stream].encode() != raw:
                data[f"{stream}_base64"] = base64.b64encode(raw).decode()
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SandboxResult:
        """Rebuild a result from `to_dict`, also after it went through JSON."""
        rebuild: dict[str, Callable[[Any], Any]] = {
            "stdout": str.encode,
            "stderr": str.encode,
            "argv": tuple,
            "missing_layers": tuple,
            "verdict": Verdict.from_dict,
            "violations": lambda items: tuple(Violation(**item) for item in items),
            "connections": lambda items: tuple(Connection(**item) for item in items),
            "usage": lambda item: Usage(**item),
            "grants": lambda items: tuple(map(Grant.from_dict, items)),
        }
        fields = {name: data[name] for name in cls._fields if name in data}
        for name in fields.keys() & rebuild.keys():
            encoded = data.get(f"{name}_base64")
            fields[name] = rebuild[name](fields[name]) if encoded is None else base64.b64decode(encoded)
        return cls(**fields)
