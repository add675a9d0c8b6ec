"""Defines the records of a call and its verdict: Call, Finding, Verdict, Launch and others. All are frozen."""

from __future__ import annotations

from corral._lib.enums import FastIntEnum
from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.model.grant import Grant

DENIED_EXIT_CODE = -100
TIMED_OUT_EXIT_CODE = -101
NOT_EXECUTABLE_EXIT_CODE = 126
NOT_FOUND_EXIT_CODE = 127
UNCLEAN_EXIT_CODE = 125  # of a command that succeeded and planted a file that corral could not move away
RESULT_SCHEMA = "corral.result/1"


class Decision(FastIntEnum):
    """The guard's decision. Ordered, so that the strictest of several is `max()`."""

    ALLOW = 0
    ASK = 1
    DENY = 2


class Axis(FastIntEnum):
    """The four ways to refuse a call, in the order in which reasons are shown."""

    NAME = 0
    ARGV = 1
    STRUCTURE = 2
    PATH = 3


@frozen
class Call(Record):
    """A call as the caller gave it, unchecked."""

    argv: Sequence[object] | str
    shell: bool = False
    cwd: str | None = None
    env: Mapping[str, str] | None = None


@frozen
class Finding(Record):
    """A reason not to run a call, and the alternative."""

    axis: Axis
    rule: str
    decision: Decision
    reason: str
    text: str = ""
    start: int = 0  # in the shell string; in argv calls, within argument number `argument`
    length: int = 0
    argument: int | None = None
    instead: str = ""
    grants: tuple[Grant, ...] = ()  # the openings that would make it pass, all together; () if none would
    family: str = ""  # the command that a stored yes would be for, such as "pip install"

    def to_dict(self) -> dict[str, object]:
        """Return the finding as JSON-ready data. `grants` and `family` are there only if there are grants."""
        made = self.as_dict() | {"axis": str(self.axis), "decision": str(self.decision)}
        if self.grants:
            return made | {"grants": [grant.to_dict() for grant in self.grants]}
        del made["grants"], made["family"]
        return made

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Finding:
        """Rebuild a finding from `to_dict`."""
        fields = dict(data)
        fields["axis"] = Axis[str(fields["axis"]).upper()]
        fields["decision"] = Decision[str(fields["decision"]).upper()]
        if fields.get("grants"):
            from corral.model.grant import Grant  # noqa: PLC0415  most findings have none

            fields["grants"] = tuple(Grant.from_dict(grant) for grant in fields["grants"])  # type: ignore[attr-defined]
        return cls(**fields)  # type: ignore[arg-type]  # the record checks the names


@frozen
class Verdict(Record):
    """The guard's findings on a call. `complete` is false where only a part of the call was judged.

    A finding with grants and the decision `allow` is an opening that the posture or the policy gives without a question.
    """

    findings: tuple[Finding, ...] = ()
    complete: bool = True
    others: tuple[str, ...] = ()  # commands of the call that could use its grants besides those that need them

    @property
    def grants(self) -> tuple[Grant, ...]:
        """The openings under which the call runs, once nothing denies it and the user has answered every question."""
        if self.decision == Decision.DENY or not any(finding.grants for finding in self.findings):
            return ()
        from corral.model.grant import unique_grants  # noqa: PLC0415  most calls need none

        return unique_grants(grant for finding in self.findings for grant in finding.grants)

    @property
    def decision(self) -> Decision:
        """The strictest decision of the findings."""
        return max((f.decision for f in self.findings), default=Decision.ALLOW)

    @property
    def allowed(self) -> bool:
        """True if the call may run without a question."""
        return self.decision == Decision.ALLOW

    @property
    def reason(self) -> str:
        """Reason and alternative of the strictest finding, the first in the order of the axes; empty if allowed."""
        worst = self.decision
        if worst == Decision.ALLOW:
            return ""
        first = min((f for f in self.findings if f.decision == worst), key=lambda f: f.axis)
        return f"{first.reason} {first.instead}".strip()

    def to_dict(self) -> dict[str, object]:
        """Return the verdict as JSON-ready data."""
        findings = [f.to_dict() for f in self.findings]
        made = {"decision": str(self.decision), "complete": self.complete, "findings": findings}
        return made | {"others": list(self.others)} if self.others else made

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Verdict:
        """Rebuild a verdict from `to_dict`."""
        findings = data.get("findings", ())
        others = tuple(map(str, data.get("others", ())))  # type: ignore[call-overload]
        return cls(tuple(Finding.from_dict(f) for f in findings), bool(data.get("complete", True)), others)  # type: ignore[attr-defined]


@frozen
class Violation(Record):
    """An operation that the kernel or a limit stopped while the command ran. `grant` is the setting that would allow it.

    `remains` says that a planted file is still there, so that no other command of the project may start.
    """

    kind: str
    target: str = ""
    detail: str = ""
    instead: str = ""
    inferred: bool = False
    grant: str = ""
    remains: bool = False

    @property
    def text(self) -> str:
        """The violation in one line: kind, target, detail and the alternative."""
        parts = ": ".join(part for part in (self.kind, self.target, self.detail) if part)
        return f"{parts}{' (inferred)' * self.inferred}. {self.instead}".rstrip()


@frozen
class Connection(Record):
    """A request to the sandbox's proxy: its target, whether it was allowed, refused or failed, and the grant that covers it."""

    target: str
    outcome: str
    address: str = ""
    detail: str = ""
    grant: str = ""
    count: int = 1


@frozen
class Usage(Record):
    """The resources that the command and its children used. Bytes count reads and writes that reach a disk."""

    user_seconds: float = 0.0
    system_seconds: float = 0.0
    peak_memory_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


@frozen
class Launch(Record):
    """A program to start: absolute executable, arguments, directory and environment."""

    executable: str
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    stdin: bytes | None = None
    timeout_seconds: float | None = None


@frozen
class Effect(Record):
    """An effect that a command would have: its key in effects.toml, its target, and the profile's decision."""

    key: str
    text: str
    decision: Decision


@frozen
class Step(Record):
    """A command that a call would run, however deeply it is wrapped, and its effects."""

    depth: int
    name: str
    text: str
    effects: tuple[Effect, ...] = ()
    start: int = 0
    length: int = 0
    argument: int | None = None
