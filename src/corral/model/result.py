"""The structured result of one call, and its JSON form. `from_dict(to_dict())` gives it back, bytes included."""

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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


_OWN_WORDS = b"corral: "  # before what corral itself says on a command's stderr


@frozen
class SandboxResult(Record):
    """What became of one call."""

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

    @property
    def ok(self) -> bool:
        """Whether the command ran and ended with 0."""
        return self.exit_code == 0

    @property
    def hint(self) -> str:
        """Return one line an agent can act on: why it was refused, did not start or was ended, and the first violation."""
        why = self.reason or self._why_not()
        if self.reason or not self.violations:
            return why
        more = len(self.violations) - 1
        return f"{why} {self.violations[0].text}".strip() + (f" (and {more} more)" if more else "")

    def _why_not(self) -> str:
        if self.timed_out and not any(violation.kind == "silence" for violation in self.violations):
            took = f"{self.duration_ms / 1000:.3g}"
            return f"Timed out after {took} seconds. Set timeout_seconds for another limit."
        if self.exit_code in (NOT_EXECUTABLE_EXIT_CODE, NOT_FOUND_EXIT_CODE) and self.stderr.startswith(_OWN_WORDS):
            return self.stderr_text.partition("\n")[0].removeprefix(_OWN_WORDS.decode())
        return ""

    @property
    def stdout_text(self) -> str:
        """The kept output as text; what is not UTF-8 becomes U+FFFD."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """The kept error output as text; what is not UTF-8 becomes U+FFFD."""
        return self.stderr.decode("utf-8", "replace")

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready data."""
        data: dict[str, Any] = {name: getattr(self, name) for name in self._fields}
        data["argv"] = list(self.argv)
        data["ok"] = self.ok
        data["hint"] = self.hint
        data["verdict"] = self.verdict.to_dict()
        data["missing_layers"] = list(self.missing_layers)
        data["violations"] = [_plain(v) for v in self.violations]
        data["connections"] = [_plain(c) for c in self.connections]
        data["usage"] = _plain(self.usage)
        for stream in ("stdout", "stderr"):
            raw: bytes = data[stream]
            text = raw.decode("utf-8", "replace")
            data[stream] = text
            if text.encode() != raw:
                data[f"{stream}_base64"] = base64.b64encode(raw).decode()
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SandboxResult:
        """Rebuild a result from `to_dict`, also after it went through JSON."""
        fields = {name: data[name] for name in cls._fields if name in data}
        for stream in ("stdout", "stderr"):
            if f"{stream}_base64" in data:
                fields[stream] = base64.b64decode(data[f"{stream}_base64"])
            elif stream in fields:
                fields[stream] = fields[stream].encode()
        for name in ("argv", "missing_layers"):
            if name in fields:
                fields[name] = tuple(fields[name])
        if "verdict" in fields:
            fields["verdict"] = Verdict.from_dict(fields["verdict"])
        if "violations" in fields:
            fields["violations"] = tuple(Violation(**v) for v in fields["violations"])
        if "connections" in fields:
            fields["connections"] = tuple(Connection(**c) for c in fields["connections"])
        if "usage" in fields:
            fields["usage"] = Usage(**fields["usage"])
        return cls(**fields)


def _plain(record: Record) -> dict[str, object]:
    return {name: getattr(record, name) for name in record._fields}
