"""What a person said yes to, for as long as it counts: one exact call in one project, under the policy it was shown under.

Never looked at but for a call that is asked about; what lies where a command or another user could write is an error.
"""

from __future__ import annotations

import os
import stat
from fcntl import LOCK_EX, LOCK_NB, flock
from time import monotonic, sleep, time

from corral._lib.json_text import dumps
from corral._lib.records import Record, frozen
from corral.model.call import Decision
from corral.model.errors import PolicyError
from corral.policy import user_dirs
from corral.policy.trust import sha256_hex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from corral.model.call import Call, Verdict
    from corral.policy.config import SandboxConfig

SCHEMA = "corral.approval/1"
APPROVAL_SECONDS = 7 * 24 * 3600.0
MAX_APPROVALS = 256  # against an owner who says yes to everything, and no longer knows to what
MAX_TEXT = 16 * 1024  # characters of a call that is kept; nobody reads more
MAX_FILE_BYTES = 256 * 1024
LOCK_SECONDS = 5.0  # a write takes less than a millisecond; whoever holds the lock longer is stopped
SHORT_ID = 12
_DIRECTORY = "approvals"


@frozen
class Approval(Record):
    """One call that runs without being asked about. `key` is the hash of all that was shown."""

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
        """The name by which it is listed and revoked."""
        return self.key[:SHORT_ID]

    def is_current(self, now: float) -> bool:
        """Whether it still counts. Where the clock was set back, nobody knows."""
        return self.approved_at - 60 <= now < self.expires_at <= self.approved_at + APPROVAL_SECONDS

    def to_dict(self) -> dict[str, object]:
        """Return the approval as JSON-ready data."""
        named = {name: getattr(self, name) for name in self._fields}
        return {"schema": SCHEMA, "id": self.id, **named, "call": list(self.call), "rules": list(self.rules)}


def can_be_approved(call: Call) -> bool:
    """Say whether a call can be approved for more than once: plain text that a person has read, nothing around it."""
    words = _words(call)
    return words is not None and call.env is None and sum(map(len, words)) <= MAX_TEXT


def find_approval(call: Call, verdict: Verdict, config: SandboxConfig, environ: Mapping[str, str]) -> Approval | None:
    """Return the approval that holds for exactly this call, judged exactly so; None where it must be asked about."""
    if verdict.decision is not Decision.ASK or not can_be_approved(call):
        return None
    place = _place(environ)
    user_dirs.refuse_inside_project(place, config.project_root)
    found = _read(place, _key(call, verdict, config)) if _is_there(place) else None
    if found is None or not found.is_current(time()):
        return None
    same = (found.root, found.cwd, found.shell, found.call) == _call_of(call, config)
    return found if same else None


def approve(call: Call, verdict: Verdict, config: SandboxConfig, environ: Mapping[str, str]) -> Approval:
    """Let a call that was asked about run from now on; the caller has a person's word. PolicyError where that cannot be kept."""
    if verdict.decision is not Decision.ASK or not can_be_approved(call):
        raise PolicyError("only a call that is asked about, and that can be read, can be approved for the project")
    user_dirs.private_directory("state", environ, config.project_root)
    place = _place(environ)
    os.makedirs(place, 0o700, exist_ok=True)
    user_dirs.refuse_writable_by_others(place)
    now = time()
    rules = tuple(dict.fromkeys(finding.rule for finding in verdict.findings))
    made = Approval(
        _key(call, verdict, config), *_call_of(call, config), config.rules.name, rules, now, now + APPROVAL_SECONDS
    )
    held = _lock(place)
    try:
        kept = list(_sweep(place, now))
        if len(kept) >= MAX_APPROVALS and made.key not in kept:
            raise PolicyError(f"{MAX_APPROVALS} calls are approved already; revoke some: corral grants revoke --all")
        _write(place, made)
    finally:
        os.close(held)
    return made


def list_approvals(environ: Mapping[str, str]) -> list[Approval]:
    """Return every approval that still counts, the newest first."""
    place = _place(environ)
    if not _is_there(place):
        return []
    found = [_read(place, name) for name in os.listdir(place)]
    now = time()
    return sorted((a for a in found if a is not None and a.is_current(now)), key=lambda a: (-a.approved_at, a.key))


def revoke(approval: Approval, environ: Mapping[str, str]) -> None:
    """Ask about a call again."""
    try:
        os.unlink(f"{_place(environ)}/{approval.key}")
    except FileNotFoundError:
        # Another one has just done it.
        return


def _place(environ: Mapping[str, str]) -> str:
    return f"{user_dirs.user_directory('state', environ)}/{_DIRECTORY}"


def _is_there(place: str) -> bool:
    try:
        user_dirs.refuse_writable_by_others(os.path.dirname(place))
        user_dirs.refuse_writable_by_others(place)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _words(call: Call) -> tuple[str, ...] | None:
    words = (call.argv,) if isinstance(call.argv, str) else tuple(call.argv)
    plain = [word for word in words if type(word) is str and "\0" not in word]
    return tuple(plain) if len(plain) == len(words) else None


def _call_of(call: Call, config: SandboxConfig) -> tuple[str, str, bool, tuple[str, ...]]:
    root = config.project_root
    return root, os.path.realpath(os.path.join(root, call.cwd or "")), call.shell, _words(call) or ()


def _key(call: Call, verdict: Verdict, config: SandboxConfig) -> str:
    """Return the hash of a question: the call, all that the guard said of it, and the policy. Another question is another call."""
    profile = config.rules
    # Not limits, output and timeouts: they let nothing happen that was not shown.
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
    said = [verdict.complete, [finding.to_dict() for finding in verdict.findings]]
    return sha256_hex(dumps([SCHEMA, _call_of(call, config), said, policy]).encode())


def _read(place: str, key: str) -> Approval | None:
    """Return what a file says; None where it is none of ours, or damaged."""
    if len(key) != 64 or not set(key) <= set("0123456789abcdef"):
        return None
    try:
        # Never through a link, and never waiting for the other end of a pipe.
        descriptor = os.open(f"{place}/{key}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        is_owners = state.st_uid in (os.geteuid(), 0) and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not stat.S_ISREG(state.st_mode) or not is_owners:
            return None
        data = file.read(MAX_FILE_BYTES + 1)
    import json  # noqa: PLC0415  only where there is an approval

    try:
        return _from_dict(json.loads(data), key)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _from_dict(data: dict[str, Any], key: str) -> Approval | None:
    fields = {name: data[name] for name in Approval._fields}
    fields |= {"call": tuple(fields["call"]), "rules": tuple(fields["rules"])}
    sound = all(type(word) is str for word in (*fields["call"], *fields["rules"], fields["root"], fields["cwd"]))
    times = all(type(fields[name]) is float for name in ("approved_at", "expires_at"))
    return Approval(**fields) if sound and times and data["schema"] == SCHEMA and data["key"] == key else None


def _write(place: str, approval: Approval) -> None:
    partial = f"{place}/.{approval.key}.{os.getpid()}"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(dumps(approval.to_dict()) + "\n")
    os.replace(partial, f"{place}/{approval.key}")


def _sweep(place: str, now: float) -> Iterator[str]:
    """Remove what no longer counts, and yield the names of what does."""
    for name in os.listdir(place):
        found = _read(place, name)
        if found is not None and found.is_current(now):
            yield name
            continue
        try:
            os.unlink(f"{place}/{name}")
        except OSError:
            # A directory, or gone already.
            continue


def _lock(place: str) -> int:
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    ends_at = monotonic() + LOCK_SECONDS
    while True:
        try:
            flock(descriptor, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            if monotonic() > ends_at:
                os.close(descriptor)
                raise PolicyError(f"{place} is held by another process, which may be stopped") from None
            sleep(0.001)
        else:
            return descriptor
