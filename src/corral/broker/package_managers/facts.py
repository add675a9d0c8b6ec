"""Caches what corral learned about the registries that a user's tools are configured for.

A fact holds while the program, the configuration files and the variables that it rests on are the same. Reading one starts no process.
"""

from __future__ import annotations

import marshal
import os
from time import time

from corral._lib.records import Record, frozen
from corral._lib.sha256 import sha256_hex
from corral.guard.rules.loader import build
from corral.model.errors import PolicyError
from corral.policy.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_FACTS = 64
MAX_FACT_BYTES = 64 * 1024
MAX_AGE_SECONDS = 7 * 86400.0  # a program that decides by more than its own files is asked again
_FORMAT = 1
_DIGEST_BYTES = 64


@frozen
class Fact(Record):
    """The registries of one tool, and the second hosts that their indexes named. None: the indexes were not read yet."""

    found: tuple[tuple[str, str], ...]  # address and source
    second: tuple[tuple[str, str], ...] | None = None


def fact_key(tool: str, program: str, files: Iterable[str], variables: Mapping[str, str]) -> str:
    """Return the name under which a fact is stored: it changes with everything that the fact rests on."""
    parts: list[object] = [_FORMAT, build(), tool, program, _status(program)]
    parts += [(path, _status(path)) for path in sorted(files)]
    # Only as a part of the digest: values can hold passwords.
    parts += sorted(variables.items())
    return sha256_hex(repr(parts).encode("utf-8", "surrogateescape"))


def _status(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path) if path else None
    except OSError:
        found = None
    return () if found is None else (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def read_fact(key: str, environ: Mapping[str, str], root: str) -> Fact | None:
    """Return a stored fact. A fact that is damaged, old or writable by others does not count."""
    try:
        store = Store("cache", "registries", environ, root)
        data = store.read(key, MAX_FACT_BYTES, allows_hard_links=False) if store.exists() else None
    except PolicyError:
        return None
    if data is None or sha256_hex(data[_DIGEST_BYTES:]).encode() != data[:_DIGEST_BYTES]:
        return None
    try:
        made_at, found, second = marshal.loads(data[_DIGEST_BYTES:])  # noqa: S302  whole, and only the user can write the store
    except (ValueError, EOFError, TypeError):
        return None
    return Fact(found, second) if abs(time() - made_at) <= MAX_AGE_SECONDS else None


def write_fact(key: str, fact: Fact, environ: Mapping[str, str], root: str) -> None:
    """Store a fact. Without a usable store the tool is asked again the next time."""
    data = marshal.dumps((time(), fact.found, fact.second))
    try:
        store = Store("cache", "registries", environ, root)
        store.create()
        store.remove_expired(MAX_AGE_SECONDS)
        store.remove_oldest(MAX_FACTS - 1)
        store.write(key, sha256_hex(data).encode() + data)
    except (OSError, PolicyError):
        return
