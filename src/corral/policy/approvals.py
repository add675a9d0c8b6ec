"""Stores the user's approvals: one exact call in one project, under the policy and the findings that the user was shown.

An approval is looked up only for a call whose verdict is ask.
"""

from __future__ import annotations

import os
from time import time

from corral._lib.json_text import dumps
from corral._lib.records import Record, frozen
from corral._lib.sha256 import sha256_hex
from corral.model.call import Decision
from corral.model.errors import PolicyError
from corral.policy.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from corral.model.call import Call, Verdict
    from corral.policy.config import SandboxConfig

SCHEMA = "corral.approval/1"
APPROVAL_SECONDS = 7 * 24 * 3600.0
MAX_APPROVALS = 256  # a longer list is too long to review
MAX_TEXT = 16 * 1024  # characters of a call; a longer one is too long to read before approving it
MAX_FILE_BYTES = 256 * 1024
SHORT_ID = 12
_CLOCK_SKEW_SECONDS = 60.0


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
        lists = {"call": list(self.call), "rules": list(self.rules)}
        return {"schema": SCHEMA, "id": self.id, **self.as_dict(), **lists}


def can_be_approved(call: Call) -> bool:
    """Return whether a call can be approved for later runs: readable text, and no environment of its own."""
    words = _words(call)
    return words is not None and call.env is None and sum(map(len, words)) <= MAX_TEXT


def find_approval(call: Call, verdict: Verdict, config: SandboxConfig, environ: Mapping[str, str]) -> Approval | None:
    """Return the approval for exactly this call and verdict; None where the user must be asked."""
    if verdict.decision is not Decision.ASK or not can_be_approved(call):
        return None
    store = Store("state", "approvals", environ, config.project_root)
    found = _read(store, _key(call, verdict, config)) if store.exists() else None
    if found is None or not found.is_current(time()):
        return None
    is_same = (found.root, found.cwd, found.shell, found.call) == _call_fields(call, config)
    return found if is_same else None


def approve(call: Call, verdict: Verdict, config: SandboxConfig, environ: Mapping[str, str]) -> Approval:
    """Let a call run without a question from now on. The caller has asked the user."""
    if verdict.decision is not Decision.ASK or not can_be_approved(call):
        raise PolicyError(
            "only a call that needs an answer, and whose text can be shown, can be approved for the project"
        )
    store = Store("state", "approvals", environ, config.project_root)
    store.create()
    now = time()
    made = Approval(
        _key(call, verdict, config),
        *_call_fields(call, config),
        profile=config.rules.name,
        rules=tuple(dict.fromkeys(finding.rule for finding in verdict.findings)),
        approved_at=now,
        expires_at=now + APPROVAL_SECONDS,
    )
    with store.lock():
        current = list(_sweep(store, now))
        if len(current) >= MAX_APPROVALS and made.key not in current:
            raise PolicyError(f"{MAX_APPROVALS} calls are approved already; revoke some: corral grants revoke --all")
        store.write(made.key, f"{dumps(made.to_dict())}\n".encode("ascii"))
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


def _words(call: Call) -> tuple[str, ...] | None:
    words = (call.argv,) if isinstance(call.argv, str) else tuple(call.argv)
    plain = [word for word in words if type(word) is str and "\0" not in word]
    return tuple(plain) if len(plain) == len(words) else None


def _call_fields(call: Call, config: SandboxConfig) -> tuple[str, str, bool, tuple[str, ...]]:
    root = config.project_root
    return root, os.path.realpath(os.path.join(root, call.cwd or "")), call.shell, _words(call) or ()


def _key(call: Call, verdict: Verdict, config: SandboxConfig) -> str:
    """Return the hash of the call, everything the guard found, and the policy."""
    profile = config.rules
    # Limits, output settings and timeouts are left out: they give the call no more access.
    policy = [
        profile.name,
        profile.needs_containment,
        sorted((key, str(decision)) for key, decision in profile.effects.items()),
        sorted((key, str(decision)) for key, decision in profile.groups.items()),
        [[[list(r.words), str(r.decision), r.reason, r.instead] for r in rules] for rules in profile.commands],
        sorted(config.denylist or ()),
        sorted(config.interpreter_block or ()),
        sorted(config.env_allowlist),
        [[name, getattr(config.containment, name)] for name in config.containment._fields if name != "scratch"],
    ]
    judged = [verdict.complete, [finding.to_dict() for finding in verdict.findings]]
    return sha256_hex(dumps([SCHEMA, _call_fields(call, config), judged, policy]).encode())


def _read(store: Store, key: str) -> Approval | None:
    """Return the approval in a file; None where the file is damaged, unsafe, or no approval."""
    if len(key) != 64 or not set(key) <= set("0123456789abcdef"):
        return None
    import json  # noqa: PLC0415  only where there is an approval

    try:
        data = store.read(key, MAX_FILE_BYTES)
        return None if data is None else _from_dict(json.loads(data), key)
    except (ValueError, KeyError, TypeError, RecursionError):  # PolicyError is a ValueError
        return None


def _from_dict(data: dict[str, Any], key: str) -> Approval | None:
    fields = {name: data[name] for name in Approval._fields}
    fields |= {"call": tuple(fields["call"]), "rules": tuple(fields["rules"])}
    has_texts = all(type(word) is str for word in (*fields["call"], *fields["rules"], fields["root"], fields["cwd"]))
    has_times = all(type(fields[name]) is float for name in ("approved_at", "expires_at"))
    return Approval(**fields) if has_texts and has_times and data["schema"] == SCHEMA and data["key"] == key else None


def _sweep(store: Store, now: float) -> Iterator[str]:
    """Remove files that are no current approval, and yield the names of the others."""
    for name in store.names():
        found = _read(store, name)
        if found is not None and found.is_current(now):
            yield name
            continue
        try:
            store.remove(name)
        except OSError:
            # The entry is a directory.
            continue
