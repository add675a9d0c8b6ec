"""Keeps the calls that were refused because nobody could be asked, so that the user can answer later: `corral allow ID`.

A refusal gives no permission. It only says what `corral allow` shows; the call is judged again before the question.
"""

from __future__ import annotations

import os
from time import time

from corral._lib.json_text import dumps, loads
from corral._lib.records import Record, frozen
from corral._lib.sha256 import sha256_hex
from corral.model.call import Call, Decision, Verdict
from corral.policy.answers.approvals import call_fields, can_be_approved
from corral.policy.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from corral.model.grant import Grant

SCHEMA = "corral.refusal/1"
REFUSAL_SECONDS = 3600.0
MAX_OF_PROJECT = 64  # the oldest makes room, against an agent that tries for ever
MAX_FILES = 1024  # of all projects together
MAX_FILE_BYTES = 512 * 1024
_CLOCK_SKEW_SECONDS = 60.0
_ID_DIGITS = 4
_HASH_DIGITS = 32
_HEX = frozenset("0123456789abcdef")


@frozen
class Refusal(Record):
    """A call that nobody could be asked about. `call` is its words, or its shell text alone."""

    id: str
    root: str
    cwd: str
    shell: bool
    call: tuple[str, ...]
    verdict: Verdict
    host: str  # the agent host, or the part of corral that refused it
    session: str
    refused_at: float
    held_until: float = 0.0  # the call runs, and waits for the answer until then

    @property
    def grants(self) -> tuple[Grant, ...]:
        """The openings that the call needs."""
        return self.verdict.grants

    @property
    def as_call(self) -> Call:
        """The call, to be judged again."""
        argv: Any = self.call[0] if self.shell else self.call
        return Call(argv, self.shell, self.cwd)

    def is_open(self, now: float) -> bool:
        """Return whether it can still be answered. A refusal from the future cannot: the clock was set back."""
        return -_CLOCK_SKEW_SECONDS <= now - self.refused_at < REFUSAL_SECONDS

    def to_dict(self) -> dict[str, object]:
        """Return the refusal as JSON-ready data."""
        fields = {**self.as_dict(), "call": list(self.call), "verdict": self.verdict.to_dict()}
        return {"schema": SCHEMA, **fields}


def save_refusal(
    call: Call,
    verdict: Verdict,
    root: str,
    environ: Mapping[str, str],
    *,
    host: str,
    session: str = "",
    held_until: float = 0.0,
) -> str:
    """Save a refused call and return its id; "" for a call that no question could allow or show. The same call keeps its id."""
    if verdict.decision is not Decision.ASK or not can_be_approved(call):
        return ""
    store = Store("state", "refusals", environ, root)
    store.create()
    fields = call_fields(call, root)
    of_project, of_call = _digest(root), _digest(dumps(fields))
    with store.lock():
        store.remove_expired(REFUSAL_SECONDS)
        names = store.names()
        known = next((name for name in names if name.endswith(f"-{of_project}-{of_call}")), "")
        if not known:
            _make_room(store, [name for name in names if f"-{of_project}-" in name], names)
        id_ = known.partition("-")[0] or _new_id({name.partition("-")[0] for name in names})
        made = Refusal(id_, *fields, verdict, host, session, time(), held_until)
        data = f"{dumps(made.to_dict())}\n".encode("ascii")
        if len(data) > MAX_FILE_BYTES:
            return ""
        store.write(f"{id_}-{of_project}-{of_call}", data)
    return id_


def open_refusals(environ: Mapping[str, str]) -> list[Refusal]:
    """Return every refusal that can still be answered, the newest first."""
    return sorted(_refusals(environ, ""), key=lambda refusal: (-refusal.refused_at, refusal.id))


def find_refusal(id_: str, environ: Mapping[str, str]) -> Refusal | None:
    """Return the open refusal with exactly this id, or None."""
    return next(_refusals(environ, id_), None) if _is_id(id_) else None


def remove_refusal(refusal: Refusal, environ: Mapping[str, str]) -> None:
    """Remove a refusal, because the user has answered it."""
    store = Store("state", "refusals", environ)
    for name in store.names() if store.exists() else ():
        if name.startswith(f"{refusal.id}-"):
            store.remove(name)


def _refusals(environ: Mapping[str, str], id_: str) -> Iterator[Refusal]:
    store = Store("state", "refusals", environ)
    if not store.exists():
        return
    now = time()
    for name in store.names():
        if not id_ or name.startswith(f"{id_}-"):
            found = _read(store, name)
            if found is not None and found.is_open(now):
                yield found


def _digest(text: str) -> str:
    return sha256_hex(text.encode("utf-8", "surrogatepass"))[:_HASH_DIGITS]


def _is_id(text: str) -> bool:
    return _ID_DIGITS <= len(text) <= _HASH_DIGITS and _HEX.issuperset(text)


def _new_id(taken: set[str]) -> str:
    """Return a random id that no open refusal has. It is as short as possible, because the user types it."""
    # Random, so that an agent cannot prepare a call that gets the id of another call later.
    digits = os.urandom(_HASH_DIGITS // 2).hex()
    return next(digits[:size] for size in range(_ID_DIGITS, len(digits) + 1) if digits[:size] not in taken)


def _make_room(store: Store, of_project: list[str], names: list[str]) -> None:
    for own, most in ((of_project, MAX_OF_PROJECT), (names, MAX_FILES)):
        for name in sorted(own, key=lambda name: _written_at(store, name))[: max(0, len(own) - most + 1)]:
            store.remove(name)


def _written_at(store: Store, name: str) -> int:
    try:
        return os.lstat(f"{store.path}/{name}").st_mtime_ns
    except FileNotFoundError:
        return 0


def _read(store: Store, name: str) -> Refusal | None:
    """Return the refusal in a file; None where the file is damaged, unsafe, or no refusal."""
    id_, _, hashes = name.partition("-")
    if not _is_id(id_) or len(hashes) != 2 * _HASH_DIGITS + 1:
        return None
    try:
        data = store.read(name, MAX_FILE_BYTES)
        return None if data is None else _from_dict(loads(data), id_)
    except (ValueError, KeyError, TypeError, AttributeError):  # PolicyError is a ValueError
        return None


def _from_dict(data: dict[str, Any], id_: str) -> Refusal | None:
    fields = {name: data[name] for name in Refusal._fields}
    fields |= {"call": tuple(fields["call"]), "verdict": Verdict.from_dict(fields["verdict"])}
    texts = (*fields["call"], *(fields[name] for name in ("root", "cwd", "host", "session")))
    is_sound = all(type(text) is str for text in texts) and fields["shell"] in (True, False) and bool(fields["call"])
    if (
        not is_sound
        or not {type(fields["refused_at"]), type(fields["held_until"])} <= {float}
        or (data["schema"], data["id"]) != (SCHEMA, id_)
    ):
        return None
    return Refusal(**fields)
