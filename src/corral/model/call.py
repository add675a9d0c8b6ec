"""The nouns that travel through corral: call, finding, verdict, launch. Frozen, with no behaviour but their own."""

from __future__ import annotations

from corral._lib.enums import FastIntEnum
from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DENIED_EXIT_CODE = -100
TIMED_OUT_EXIT_CODE = -101
NOT_EXECUTABLE_EXIT_CODE = 126
NOT_FOUND_EXIT_CODE = 127
RESULT_SCHEMA = "corral.result/1"


class Decision(FastIntEnum):
    """What the guard says; ordered, so that the strictest of several is `max()`."""

    ALLOW = 0
    ASK = 1
    DENY = 2

    def __str__(self) -> str:
        return self.name.lower()


class Axis(FastIntEnum):
    """The four ways a call can be refused, in the order in which reasons are told."""

    NAME = 0
    ARGV = 1
    STRUCTURE = 2
    PATH = 3

    def __str__(self) -> str:
        return self.name.lower()


@frozen
class Call(Record):
    """What was asked, as it was given: nothing about it has been checked yet."""

    argv: Sequence[object] | str
    shell: bool = False
    cwd: str | None = None
    env: Mapping[str, str] | None = None


@frozen
class Finding(Record):
    """One reason not to run a call, and the way out."""

    axis: Axis
    rule: str
    decision: Decision
    reason: str
    text: str = ""
    start: int = 0  # in the shell string; in argv calls, within argument number `argument`
    length: int = 0
    argument: int | None = None
    instead: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return the finding as JSON-ready data."""
        return {
            "axis": str(self.axis),
            "rule": self.rule,
            "decision": str(self.decision),
            "reason": self.reason,
            "text": self.text,
            "start": self.start,
            "length": self.length,
            "argument": self.argument,
            "instead": self.instead,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Finding:
        """Rebuild a finding from `to_dict`."""
        fields = dict(data)
        fields["axis"] = Axis[str(fields["axis"]).upper()]
        fields["decision"] = Decision[str(fields["decision"]).upper()]
        return cls(**fields)  # type: ignore[arg-type]  # checked by the record's own names


@frozen
class Verdict(Record):
    """The guard's answer: the strictest of its findings, and all of them. Not `complete` where only part was judged."""

    findings: tuple[Finding, ...] = ()
    complete: bool = True

    @property
    def decision(self) -> Decision:
        """The strictest decision of the findings."""
        return max((f.decision for f in self.findings), default=Decision.ALLOW)

    @property
    def allowed(self) -> bool:
        """Whether the call may run without asking."""
        return self.decision == Decision.ALLOW

    @property
    def reason(self) -> str:
        """The first of the strictest findings in the order of the axes, with its way out, or nothing when allowed."""
        if not self.findings:
            return ""
        worst = self.decision
        first = min((f for f in self.findings if f.decision == worst), key=lambda f: f.axis)
        return f"{first.reason} {first.instead}".strip()

    def to_dict(self) -> dict[str, object]:
        """Return the verdict as JSON-ready data."""
        return {
            "decision": str(self.decision),
            "complete": self.complete,
            "findings": [f.to_dict() for f in self.findings],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Verdict:
        """Rebuild a verdict from `to_dict`."""
        findings = data.get("findings", ())
        return cls(tuple(Finding.from_dict(f) for f in findings), bool(data.get("complete", True)))  # type: ignore[attr-defined]


@frozen
class Violation(Record):
    """What was stopped while the command ran: by the kernel, or by a limit. `grant` is the setting that would allow it."""

    kind: str
    target: str = ""
    detail: str = ""
    instead: str = ""
    inferred: bool = False
    grant: str = ""

    @property
    def text(self) -> str:
        """The violation in one line: what, of what, why, and the way out."""
        said = ": ".join(part for part in (self.kind, self.target, self.detail) if part)
        return f"{said}{' (inferred)' * self.inferred}. {self.instead}".rstrip()


@frozen
class Connection(Record):
    """What was asked of the sandbox's proxy: to where, whether it was allowed, refused or failed, and by which grant."""

    target: str
    outcome: str
    address: str = ""
    detail: str = ""
    grant: str = ""
    count: int = 1


@frozen
class Usage(Record):
    """What the command and its children cost. Bytes are those that disks had to give or will have to take."""

    user_seconds: float = 0.0
    system_seconds: float = 0.0
    peak_memory_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


@frozen
class Launch(Record):
    """What will run, fully decided: an absolute executable, its arguments, place and environment."""

    executable: str
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    stdin: bytes | None = None
    timeout_seconds: float | None = None


@frozen
class Effect(Record):
    """One thing a command would do, by its key in effects.toml, on what, and what the profile says of it."""

    key: str
    text: str
    decision: Decision


@frozen
class Step(Record):
    """One command that a call would run, however deep it is wrapped, and its effects."""

    depth: int
    name: str
    text: str
    effects: tuple[Effect, ...] = ()
    start: int = 0
    length: int = 0
    argument: int | None = None
