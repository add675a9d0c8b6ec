"""Stores the user's answers about grants: "this destination for this command in this project", "never here", and a recent no.

A family grant is for a kind of command, not for one text. So it covers a call only if nothing else in the call could use it.
"""

from __future__ import annotations

from time import time

from corral._lib.json_text import dumps, loads
from corral._lib.records import Record, frozen
from corral._lib.sha256 import sha256_hex
from corral.guard.path_zones import inside
from corral.guard.rules.loader import build, row_digest
from corral.model.call import Decision
from corral.model.errors import PolicyError
from corral.model.grant import CREATE, LIST, READ, TRANSPORT, WRITE, Grant
from corral.policy.answers.approvals import call_fields, policy_facts
from corral.policy.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from corral.model.call import Call, Finding, Verdict
    from corral.policy.config import SandboxConfig

SCHEMA = "corral.grant/1"
ANSWER_SCHEMA = "corral.answer/1"
GRANT_SECONDS = 7 * 24 * 3600.0
NO_SECONDS = 600.0  # an agent that repeats a refused call must not repeat the question
MAX_GRANTS = 256  # a longer list is too long to review
MAX_FILE_BYTES = 64 * 1024
POLICY = "policy"  # the channel of a [[grant]] of the user's policy
NO, NEVER = "no", "never"
SHORT_ID = 12
_CLOCK_SKEW_SECONDS = 60.0
_HEX = frozenset("0123456789abcdef")


@frozen
class FamilyGrant(Record):
    """A set of grants that every call of one command family gets in one project."""

    key: str  # the hash of everything that it depends on, and of its grants
    root: str
    family: str
    grants: tuple[Grant, ...]
    profile: str
    granted_at: float
    expires_at: float
    channel: str  # where the user said yes: terminal, allow, policy
    uses: int = 0
    last_used: float = 0.0

    @property
    def id(self) -> str:
        """The name by which the command line lists and revokes it."""
        return self.key[:SHORT_ID]

    def is_current(self, now: float) -> bool:
        """Return whether it still counts. A grant from the future does not: the clock was set back."""
        is_past = self.granted_at - _CLOCK_SKEW_SECONDS <= now
        return is_past and now < self.expires_at <= self.granted_at + GRANT_SECONDS

    def to_dict(self) -> dict[str, object]:
        """Return the grant as JSON-ready data."""
        fields = {**self.as_dict(), "grants": [grant.to_dict() for grant in self.grants]}
        return {"schema": SCHEMA, "id": self.id, **fields}


@frozen
class StoredAnswer(Record):
    """A no of the user: for 10 minutes, or never in this project, which means 7 days."""

    key: str
    root: str
    about: str  # the command or the family, for the user
    grants: tuple[Grant, ...]
    answer: str
    answered_at: float

    @property
    def id(self) -> str:
        """The name by which the command line lists and revokes it."""
        return self.key[:SHORT_ID]

    @property
    def expires_at(self) -> float:
        """The time from which the user is asked again."""
        return self.answered_at + (GRANT_SECONDS if self.answer == NEVER else NO_SECONDS)

    def is_current(self, now: float) -> bool:
        """Return whether it still counts."""
        return self.answered_at - _CLOCK_SKEW_SECONDS <= now < self.expires_at

    def to_dict(self) -> dict[str, object]:
        """Return the answer as JSON-ready data."""
        fields = {**self.as_dict(), "grants": [grant.to_dict() for grant in self.grants]}
        return {"schema": ANSWER_SCHEMA, "id": self.id, **fields, "expires_at": self.expires_at}


@frozen
class PolicyGrant(Record):
    """A [[grant]] of the user's own policy: openings that commands which begin with these words get without a question."""

    words: tuple[str, ...]
    openings: tuple[tuple[str, str], ...]  # kind and target; the target of a push may end in *
    project: str = ""  # the only project that it is for
    alone: bool = True  # only in calls in which nothing else could use the openings
    source: str = ""  # file and line
    always: bool = (
        False  # also where the guard sees no need: the program connects to something that its words do not name
    )

    @property
    def family(self) -> str:
        """The command that it is for."""
        return " ".join(self.words)

    def covers(self, finding: Finding, root: str) -> bool:
        """Return whether a finding needs no more than this, in this project."""
        if tuple(finding.family.split())[: len(self.words)] != self.words or self.project not in ("", root):
            return False
        return bool(finding.grants) and all(grant.certain and self._opens(grant) for grant in finding.grants)

    def _opens(self, grant: Grant) -> bool:
        if grant.opening in self.openings:
            return True
        if grant.kind in (READ, WRITE):
            return any(kind == grant.kind and inside(grant.target, path) for kind, path in self.openings)
        if grant.kind != TRANSPORT:
            return False
        verb, url, *refs = grant.target.split()
        own = [target.split() for kind, target in self.openings if kind == TRANSPORT and target.startswith(f"{verb} ")]
        # A remote of the project can be given by its name: the configuration that names it is protected.
        own = [words for words in own if words[1] == url or grant.source.endswith(f", remote {words[1]}")]
        if verb == "fetch":
            return bool(own)
        given = [ref for words in own for ref in words[2:]]
        return bool(refs) and all(any(_is_ref_below(ref, each) for each in given) for ref in refs)


def _is_ref_below(ref: str, given: str) -> bool:
    return ref.startswith(given[:-1]) if given.endswith("*") else ref == given


def is_lasting(verdict: Verdict) -> bool:
    """Return whether the user can allow the verdict's grants for a time, and not only once.

    Every grant must be certain and belong to a family, and nothing else in the call may be able to use one.
    """
    if verdict.decision is not Decision.ASK or not verdict.complete or verdict.others:
        return False
    has_families = all(finding.family for finding in verdict.findings if finding.grants)
    return has_families and all(grant.certain and grant.kind not in (WRITE, CREATE, LIST) for grant in verdict.grants)


def family_of(verdict: Verdict) -> str:
    """Return the one family whose later calls can have the same grants, or "" for several families and for grants given once."""
    asked = [finding for finding in verdict.findings if finding.decision is Decision.ASK]
    families = {finding.family for finding in verdict.findings if finding.grants}
    is_one = len(families) == 1 and all(finding.grants for finding in asked)
    return families.pop() if is_one and is_lasting(verdict) else ""


def covering(verdict: Verdict, config: SandboxConfig, environ: Mapping[str, str]) -> FamilyGrant | None:
    """Return the family grant under which a call with this verdict runs without a question, or None. This counts no use."""
    if verdict.decision is not Decision.ASK or not verdict.complete:
        return None
    given = _given_by_policy(verdict, config)
    if given is not None:
        return given
    family = family_of(verdict)
    return next(_stored(verdict, family, config, environ), None) if family else None


def use_family_grant(grant: FamilyGrant, config: SandboxConfig, environ: Mapping[str, str]) -> None:
    """Count a use of a stored grant, for `corral grants`."""
    if grant.channel == POLICY:
        return
    store = Store("state", "grants", environ, config.project_root)
    name = f"{_context(grant.family, config)}-{grant.key}"
    with store.lock():
        found = _read_grant(store, name)
        if found is not None:
            store.write(name, _data(found.replace(uses=found.uses + 1, last_used=time())))


def store_family_grant(
    family: str, grants: Iterable[Grant], config: SandboxConfig, environ: Mapping[str, str], *, channel: str
) -> FamilyGrant:
    """Let every call of a family in this project have these grants for 7 days. The caller has asked the user."""
    given = tuple(sorted(grants, key=lambda grant: grant.opening))
    if not family or not given or not all(grant.certain and grant.kind != WRITE for grant in given):
        raise PolicyError("this can only be allowed once")
    store = Store("state", "grants", environ, config.project_root)
    store.create()
    now = time()
    context = _context(family, config)
    key = sha256_hex(dumps([context, [grant.opening for grant in given]]).encode())
    times = (now, now + GRANT_SECONDS)
    made = FamilyGrant(key, config.project_root, family, given, config.rules.name, *times, channel)
    name = f"{context}-{key}"
    with store.lock():
        others = [each for each in store.names() if each != name and _is_kept(store, each, now, _read_grant)]
        if len(others) >= MAX_GRANTS:
            raise PolicyError(f"{MAX_GRANTS} grants are stored already; revoke some: corral grants revoke --all")
        store.write(name, _data(made))
    return made


def list_family_grants(environ: Mapping[str, str]) -> list[FamilyGrant]:
    """Return every stored family grant that still counts, the newest first."""
    store = Store("state", "grants", environ)
    found = [_read_grant(store, name) for name in store.names()] if store.exists() else []
    now = time()
    return sorted((g for g in found if g is not None and g.is_current(now)), key=lambda g: (-g.granted_at, g.key))


def revoke_family_grant(grant: FamilyGrant, environ: Mapping[str, str]) -> None:
    """Remove a family grant, so that the user is asked again."""
    store = Store("state", "grants", environ)
    for name in store.names() if store.exists() else ():
        if name.endswith(f"-{grant.key}"):
            store.remove(name)


def store_answer(
    answer: str, call: Call, verdict: Verdict, config: SandboxConfig, environ: Mapping[str, str]
) -> StoredAnswer:
    """Remember that the user said no, or never in this project, to this question."""
    store = Store("state", "answers", environ, config.project_root)
    store.create()
    about = " and ".join(_families(verdict)) or " ".join(map(str, call_fields(call, config.project_root)[3]))
    made = StoredAnswer(
        _question_key(call, verdict, config), config.project_root, about, verdict.grants, answer, time()
    )
    with store.lock():
        kept = [each for each in store.names() if _is_kept(store, each, time(), _read_answer)]
        if len(kept) >= MAX_GRANTS and made.key not in kept:
            raise PolicyError(f"{MAX_GRANTS} answers are stored already; revoke some: corral grants revoke --all")
        store.write(made.key, _data(made))
    return made


def find_answer(call: Call, verdict: Verdict, config: SandboxConfig, environ: Mapping[str, str]) -> StoredAnswer | None:
    """Return the user's stored no to this question, or None if the user may be asked."""
    if not verdict.grants:
        return None
    store = Store("state", "answers", environ, config.project_root)
    found = _read_answer(store, _question_key(call, verdict, config)) if store.exists() else None
    return found if found is not None and found.is_current(time()) else None


def list_answers(environ: Mapping[str, str]) -> list[StoredAnswer]:
    """Return every stored no that still counts, the newest first."""
    store = Store("state", "answers", environ)
    found = [_read_answer(store, name) for name in store.names()] if store.exists() else []
    now = time()
    return sorted((a for a in found if a is not None and a.is_current(now)), key=lambda a: (-a.answered_at, a.key))


def revoke_answer(answer: StoredAnswer, environ: Mapping[str, str]) -> None:
    """Forget a no, so that the user is asked again."""
    Store("state", "answers", environ).remove(answer.key)


def _given_by_policy(verdict: Verdict, config: SandboxConfig) -> FamilyGrant | None:
    """Return the grants of the [[grant]] entries that cover every question of a verdict, or None."""
    used: dict[str, PolicyGrant] = {}
    for finding in verdict.findings if config.policy_grants else ():
        if not finding.grants:
            if finding.decision is Decision.ASK:
                return None
            continue
        if finding.decision is Decision.ALLOW:
            continue
        entry = next((entry for entry in config.policy_grants if entry.covers(finding, config.project_root)), None)
        if entry is None:
            return None
        used[entry.source] = entry
    families = {finding.family for finding in verdict.findings if finding.grants}
    if not used or (any(entry.alone for entry in used.values()) and (verdict.others or len(families) > 1)):
        return None
    first = next(iter(used.values()))
    times = (0.0, GRANT_SECONDS)
    return FamilyGrant(
        first.source, config.project_root, first.family, verdict.grants, config.rules.name, *times, POLICY
    )


def _stored(verdict: Verdict, family: str, config: SandboxConfig, environ: Mapping[str, str]) -> Iterator[FamilyGrant]:
    store = Store("state", "grants", environ, config.project_root)
    if not store.exists():
        return
    needed = {grant.opening for grant in verdict.grants}
    context = _context(family, config)
    now = time()
    for name in store.names():
        if name.startswith(f"{context}-"):
            found = _read_grant(store, name)
            if found is None or not found.is_current(now):
                continue
            is_same = (found.root, found.family) == (config.project_root, family)
            if is_same and needed <= {grant.opening for grant in found.grants}:
                yield found


def _context(family: str, config: SandboxConfig) -> str:
    """Return the hash of everything but the grants that a family grant depends on: project, family, its rule, the policy."""
    contained = [fact for fact in policy_facts(config.containment) if fact[0] != "network"]  # type: ignore[attr-defined]
    rules = policy_facts(config.rules)
    name = family.partition(" ")[0]
    row = row_digest(name) or build()
    facts = [SCHEMA, config.project_root, family, row, rules, contained]
    names = map(
        policy_facts, (config.denylist or frozenset(), config.interpreter_block or frozenset(), config.env_allowlist)
    )
    return sha256_hex(dumps([*facts, *names]).encode("utf-8", "surrogatepass"))


def _families(verdict: Verdict) -> list[str]:
    return sorted({finding.family for finding in verdict.findings if finding.grants and finding.family})


def _question_key(call: Call, verdict: Verdict, config: SandboxConfig) -> str:
    """Return the hash of a question. With other words, the same openings for the same commands are the same question."""
    openings = sorted(grant.opening for grant in verdict.grants)
    families = _families(verdict)
    # A call that can only be allowed once has no family; then the question is about this very call.
    about: object = families or list(call_fields(call, config.project_root))
    return sha256_hex(dumps([ANSWER_SCHEMA, config.project_root, about, openings]).encode("utf-8", "surrogatepass"))


def _data(record: FamilyGrant | StoredAnswer) -> bytes:
    return f"{dumps(record.to_dict())}\n".encode("ascii")


def _is_kept(store: Store, name: str, now: float, read: Any) -> bool:
    """Return whether a file still counts, and remove it otherwise."""
    found = read(store, name)
    if found is not None and found.is_current(now):
        return True
    try:
        store.remove(name)
    except OSError:
        return False  # the entry is a directory
    return False


def _read_grant(store: Store, name: str) -> FamilyGrant | None:
    """Return the grant in a file; None where the file is damaged, unsafe, or no grant."""
    context, _, key = name.partition("-")
    data = _read(store, name) if len(context) == len(key) == 64 and _HEX.issuperset(context + key) else None
    try:
        if data is None or (data["schema"], data["key"]) != (SCHEMA, key):
            return None
        fields = {field: data[field] for field in FamilyGrant._fields}
        fields["grants"] = tuple(Grant.from_dict(grant) for grant in fields["grants"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    texts = all(type(fields[field]) is str for field in ("root", "family", "profile", "channel"))
    numbers = all(type(fields[field]) is float for field in ("granted_at", "expires_at", "last_used"))
    is_whole = sha256_hex(dumps([context, [grant.opening for grant in fields["grants"]]]).encode()) == key
    is_sound = texts and numbers and type(fields["uses"]) is int and is_whole
    return FamilyGrant(**fields) if is_sound else None


def _read_answer(store: Store, name: str) -> StoredAnswer | None:
    """Return the answer in a file; None where the file is damaged, unsafe, or no answer."""
    data = _read(store, name) if len(name) == 64 and _HEX.issuperset(name) else None
    try:
        if data is None or (data["schema"], data["key"]) != (ANSWER_SCHEMA, name) or data["answer"] not in (NO, NEVER):
            return None
        fields = {field: data[field] for field in StoredAnswer._fields}
        fields["grants"] = tuple(Grant.from_dict(grant) for grant in fields["grants"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    is_sound = type(fields["root"]) is type(fields["about"]) is str and type(fields["answered_at"]) is float
    return StoredAnswer(**fields) if is_sound else None


def _read(store: Store, name: str) -> dict[str, Any] | None:
    try:
        data = store.read(name, MAX_FILE_BYTES)
        found = None if data is None else loads(data)
    except ValueError:  # PolicyError is a ValueError
        return None
    return found if isinstance(found, dict) else None
