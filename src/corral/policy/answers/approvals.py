"""Stores the user's approvals: one exact call in one project, with the grants, the policy and the findings that the user was shown.

An approval is looked up only for a call whose verdict is ask. It holds for 7 days, or for one run within 10 minutes.
"""

from __future__ import annotations

import os
from time import time

from corral._lib.json_text import dumps, loads
from corral._lib.records import Record, frozen
from corral._lib.sha256 import sha256_hex
from corral.model.call import Decision
from corral.model.errors import PolicyError
from corral.model.grant import Grant
from corral.policy.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from corral.model.call import Call, Verdict
    from corral.policy.config import SandboxConfig

SCHEMA = "corral.approval/2"
OLD_SCHEMA = "corral.approval/1"  # without grants: it does not match any call, and `corral grants` reports it
APPROVAL_SECONDS = 7 * 24 * 3600.0
ONCE_SECONDS = 600.0  # the agent tries again soon after the yes
MAX_APPROVALS = 256  # a longer list is too long to review
MAX_TEXT = 16 * 1024  # characters of a call; a longer one is too long to read before approving it
MAX_FILE_BYTES = 256 * 1024
SHORT_ID = 12
_CLOCK_SKEW_SECONDS = 60.0
# Fields of the policy that give an approved call no more access. A field that is not listed here is part of an approval's key.
_LEFT_OUT = {
    "SandboxConfig": (
        "profile",  # its record is part of the key
        *("max_output_bytes", "timeout_seconds", "host_questions", "sessions", "limits", "output", "audit", "asking"),
    ),
    "Containment": ("scratch",),
    "CommandRule": ("source",),
}


@frozen
class Approval(Record):
    """A call that runs without a question. `key` is the hash of the call, its findings and the policy."""

    key: str
    root: str
    cwd: str
    shell: bool
    call: tuple[str, ...]
    profile: str
    rules: tuple[str, ...]
    approved_at: float
    expires_at: float
    grants: tuple[Grant, ...] = ()
    uses: int | None = None  # runs that are left; None is any number

    @property
    def id(self) -> str:
        """The name by which the command line lists and revokes it."""
        return self.key[:SHORT_ID]

    def is_current(self, now: float) -> bool:
        """Return whether it still counts. An approval from the future does not: the clock was set back."""
        is_past = self.approved_at - _CLOCK_SKEW_SECONDS <= now
        return is_past and now < self.expires_at <= self.approved_at + APPROVAL_SECONDS

    def to_dict(self) -> dict[str, object]:
        """Return the approval as JSON-ready data."""
        lists = {"call": list(self.call), "rules": list(self.rules), "grants": [g.to_dict() for g in self.grants]}
        return {"schema": SCHEMA, "id": self.id, **self.as_dict(), **lists}


def can_be_approved(call: Call) -> bool:
    """Return whether a call can be approved for later runs: readable text, and no environment of its own."""
    words = _words(call)
    return words is not None and call.env is None and sum(map(len, words)) <= MAX_TEXT


def find_approval(call: Call, verdict: Verdict, config: SandboxConfig, environ: Mapping[str, str]) -> Approval | None:
    """Return the approval for exactly this call and verdict; None where the user must be asked. This counts no use."""
    if verdict.decision is not Decision.ASK or not can_be_approved(call):
        return None
    store = Store("state", "approvals", environ, config.project_root)
    found = _read(store, _key(call, verdict, config)) if store.exists() else None
    if found is None or not found.is_current(time()):
        return None
    is_same = (found.root, found.cwd, found.shell, found.call) == call_fields(call, config.project_root)
    return found if is_same and found.grants == verdict.grants else None


def take_approval(call: Call, verdict: Verdict, config: SandboxConfig, environ: Mapping[str, str]) -> Approval | None:
    """Return the approval for a call that runs now, and count the use. Of two runs at the same time, one gets the last use."""
    found = find_approval(call, verdict, config, environ)
    if found is None or found.uses is None:
        return found
    store = Store("state", "approvals", environ, config.project_root)
    with store.lock():
        found = find_approval(call, verdict, config, environ)
        if found is not None and found.uses is not None:
            left = found.replace(uses=found.uses - 1)
            if left.uses:
                store.write(found.key, _data(left))
            else:
                store.remove(found.key)
    return found


def approve(
    call: Call, verdict: Verdict, config: SandboxConfig, environ: Mapping[str, str], *, once: bool = False
) -> Approval:
    """Let a call run without a question from now on, or one time within 10 minutes. The caller has asked the user."""
    if verdict.decision is not Decision.ASK or not can_be_approved(call):
        raise PolicyError(
            "only a call that needs an answer, and whose text can be shown, can be approved for the project"
        )
    store = Store("state", "approvals", environ, config.project_root)
    store.create()
    now = time()
    made = Approval(
        _key(call, verdict, config),
        *call_fields(call, config.project_root),
        profile=config.rules.name,
        rules=tuple(dict.fromkeys(finding.rule for finding in verdict.findings)),
        approved_at=now,
        expires_at=now + (ONCE_SECONDS if once else APPROVAL_SECONDS),
        grants=verdict.grants,
        uses=1 if once else None,
    )
    with store.lock():
        current = list(_sweep(store, now))
        if len(current) >= MAX_APPROVALS and made.key not in current:
            raise PolicyError(f"{MAX_APPROVALS} calls are approved already; revoke some: corral grants revoke --all")
        store.write(made.key, _data(made))
    return made


def list_approvals(environ: Mapping[str, str]) -> list[Approval]:
    """Return every approval that still counts, the newest first."""
    store = Store("state", "approvals", environ)
    found = [_read(store, name) for name in store.names()] if store.exists() else []
    now = time()
    return sorted((a for a in found if a is not None and a.is_current(now)), key=lambda a: (-a.approved_at, a.key))


def revoke(approval: Approval, environ: Mapping[str, str]) -> None:
    """Remove an approval, so that the user is asked about the call again."""
    Store("state", "approvals", environ).remove(approval.key)


def remove_old_approvals(environ: Mapping[str, str]) -> int:
    """Remove the approvals of earlier versions of corral, which say nothing about grants. Return how many still counted."""
    store = Store("state", "approvals", environ)
    if not store.exists():
        return 0
    with store.lock():
        old = [name for name in store.names() if _is_old(store, name, time())]
        for name in old:
            store.remove(name)
    return len(old)


def call_fields(call: Call, root: str) -> tuple[str, str, bool, tuple[str, ...]]:
    """Return what makes a call the same call: project, directory, whether it is shell text, and its words."""
    return root, os.path.realpath(os.path.join(root, call.cwd or "")), call.shell, _words(call) or ()


def _words(call: Call) -> tuple[str, ...] | None:
    words = (call.argv,) if isinstance(call.argv, str) else tuple(call.argv)
    plain = [word for word in words if type(word) is str and "\0" not in word]
    return tuple(plain) if len(plain) == len(words) else None


def _key(call: Call, verdict: Verdict, config: SandboxConfig) -> str:
    """Return the hash of the call, everything the guard found, and the policy."""
    judged = [verdict.complete, [finding.to_dict() for finding in verdict.findings], verdict.others]
    policy = [policy_facts(config.rules), policy_facts(config)]
    return sha256_hex(dumps([SCHEMA, call_fields(call, config.project_root), judged, policy]).encode())


def _data(approval: Approval) -> bytes:
    return f"{dumps(approval.to_dict())}\n".encode("ascii")


def policy_facts(value: object) -> object:
    """Return a policy as JSON-ready data. Every field of every record counts, unless it gives the call no more access."""
    if isinstance(value, Record):
        left_out = _LEFT_OUT.get(type(value).__name__, ())
        return [[name, policy_facts(getattr(value, name))] for name in value._fields if name not in left_out]
    if isinstance(value, dict):
        return sorted([key, policy_facts(each)] for key, each in value.items())
    if isinstance(value, (set, frozenset)):
        # One text: a list of a thousand names takes half a millisecond to write as JSON. No name contains a NUL.
        return "\0".join(sorted(value))
    if isinstance(value, (list, tuple)):
        return [policy_facts(each) for each in value]
    return str(value) if isinstance(value, Decision) else value


def _read(store: Store, key: str) -> Approval | None:
    """Return the approval in a file; None where the file is damaged, unsafe, or no approval."""
    try:
        data = _read_json(store, key)
        return None if data is None else _from_dict(data, key)
    except (ValueError, KeyError, TypeError, AttributeError):  # PolicyError is a ValueError
        return None


def _read_json(store: Store, key: str) -> dict[str, Any] | None:
    if len(key) != 64 or not set(key) <= set("0123456789abcdef"):
        return None
    data = store.read(key, MAX_FILE_BYTES)
    found: dict[str, Any] | None = None if data is None else loads(data)
    return found


def _is_old(store: Store, name: str, now: float) -> bool:
    """Return whether a file is an approval of an earlier version that would still count."""
    try:
        data = _read_json(store, name)
        return data is not None and data["schema"] == OLD_SCHEMA and now < data["expires_at"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _from_dict(data: dict[str, Any], key: str) -> Approval | None:
    fields = {name: data[name] for name in Approval._fields}
    fields |= {"call": tuple(fields["call"]), "rules": tuple(fields["rules"])}
    fields["grants"] = tuple(Grant.from_dict(grant) for grant in fields["grants"])
    has_uses = fields["uses"] is None or (type(fields["uses"]) is int and fields["uses"] > 0)
    has_texts = all(type(word) is str for word in (*fields["call"], *fields["rules"], fields["root"], fields["cwd"]))
    has_times = all(type(fields[name]) is float for name in ("approved_at", "expires_at"))
    is_sound = has_texts and has_times and has_uses
    return Approval(**fields) if is_sound and data["schema"] == SCHEMA and data["key"] == key else None


def _sweep(store: Store, now: float) -> Iterator[str]:
    """Remove files that are no current approval, and yield the names of the others."""
    for name in store.names():
        if _is_old(store, name, now):
            continue  # until `corral grants` has reported it
        found = _read(store, name)
        if found is not None and found.is_current(now):
            yield name
            continue
        try:
            store.remove(name)
        except OSError:
            # The entry is a directory.
            continue
