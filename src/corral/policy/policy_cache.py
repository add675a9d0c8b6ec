"""Caches compiled policy files by the hash of their bytes. A damaged, unsafe or linked entry counts as missing."""

from __future__ import annotations

import marshal
import sys

from corral._lib.sha256 import sha256_hex
from corral.guard.rules.loader import build
from corral.model.errors import PolicyError
from corral.policy.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MAX_ENTRIES = 64  # against a project whose file changes all the time
MAX_ENTRY_BYTES = 4 * 1024 * 1024
_FORMAT = 3
_DIGEST_BYTES = 64


def load_compiled(data: bytes, digest: str, path: str, environ: Mapping[str, str], root: str) -> dict[str, Any]:
    """Return the settings, rules and grants of a policy file, from the cache if these bytes were compiled before."""
    # A rule's examples are judged by one build of the built-in rules, so another build compiles the file again.
    tag = build()
    name = f"{digest}-{_FORMAT}-{tag}-{sys.implementation.cache_tag}"
    try:
        store = Store("cache", "policy", environ, root) if tag else None
    except PolicyError:
        store = None
    known = _read(store, name) if store else None
    if known is not None:
        return known
    from corral.policy import parser  # noqa: PLC0415  a cached file needs no parser
    from corral.policy.rule_examples import compile_policy  # noqa: PLC0415

    made = compile_policy(parser.parse(data, path), path)
    if store is not None:
        _write(store, name, marshal.dumps(made))
    return made


def _read(store: Store, name: str) -> dict[str, Any] | None:
    try:
        data = store.read(name, MAX_ENTRY_BYTES, allows_hard_links=False) if store.exists() else None
    except PolicyError:
        return None
    if data is None or sha256_hex(data[_DIGEST_BYTES:]).encode() != data[:_DIGEST_BYTES]:
        return None
    try:
        entry: dict[str, Any] = marshal.loads(data[_DIGEST_BYTES:])  # noqa: S302  whole, and only the user can write the store
    except (ValueError, EOFError, TypeError):
        return None
    return entry if isinstance(entry, dict) and entry.keys() == {"settings", "rules", "grants"} else None


def _write(store: Store, name: str, data: bytes) -> None:
    try:
        store.create()
        store.remove_oldest(MAX_ENTRIES - 1)
        store.write(name, sha256_hex(data).encode() + data)
    except (OSError, PolicyError):
        # Without a cache entry the file is compiled again the next time.
        return
