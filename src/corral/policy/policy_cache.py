"""Policy files as they were compiled before, by the hash of their bytes. A cache: what is torn, foreign or linked there is as good as absent."""

from __future__ import annotations

import marshal
import os
import sys

from corral.guard.rules.loader import build
from corral.model.errors import PolicyError
from corral.policy import user_dirs
from corral.policy.trust import sha256_hex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MAX_ENTRIES = 64  # against a project whose file is always another
MAX_ENTRY_BYTES = 4 * 1024 * 1024
_FORMAT = 2  # of what is kept; another one is another entry
_DIGEST_BYTES = 64


def load_compiled(data: bytes, digest: str, path: str, environ: Mapping[str, str], root: str) -> dict[str, Any]:
    """Return the settings and rules of a file, from the cache where these bytes were read before."""
    entry = _entry(digest, environ, root)
    known = _recall(entry) if entry else None
    if known is not None:
        return known
    from corral.policy import parser  # noqa: PLC0415  a file that is known needs no parser
    from corral.policy.rule_examples import compile_policy as compiled_anew  # noqa: PLC0415

    made = compiled_anew(parser.parse(data, path), path)
    if entry:
        _keep(entry, marshal.dumps(made), environ, root)
    return made


def _entry(digest: str, environ: Mapping[str, str], root: str) -> str:
    """Return the path of what is kept for these bytes, or nothing where nothing can be kept."""
    place = f"{user_dirs.user_directory('cache', environ)}/policy"
    try:
        user_dirs.refuse_inside_project(place, root)
    except PolicyError:
        return ""
    # Examples were judged by one build of the rules; another one judges them again.
    tag = build()
    return f"{place}/{digest}-{_FORMAT}-{tag}-{sys.implementation.cache_tag}" if tag else ""


def _recall(entry: str) -> dict[str, Any] | None:
    try:
        user_dirs.refuse_writable_by_others(os.path.dirname(os.path.dirname(entry)))
        user_dirs.refuse_writable_by_others(os.path.dirname(entry))
        data, found = user_dirs.read_regular_file(entry, MAX_ENTRY_BYTES)
        user_dirs.refuse_status_writable_by_others(entry, found)
    except (OSError, PolicyError):
        return None
    if found.st_nlink != 1 or sha256_hex(data[_DIGEST_BYTES:]).encode() != data[:_DIGEST_BYTES]:
        return None
    try:
        kept: dict[str, Any] = marshal.loads(data[_DIGEST_BYTES:])  # noqa: S302  whole, and written where only the owner can
    except (ValueError, EOFError, TypeError):
        return None
    return kept if isinstance(kept, dict) and kept.keys() == {"settings", "rules"} else None


def _keep(entry: str, data: bytes, environ: Mapping[str, str], root: str) -> None:
    place = os.path.dirname(entry)
    partial = f"{entry}.{os.getpid()}"
    try:
        user_dirs.private_directory("cache", environ, root)
        os.makedirs(place, 0o700, exist_ok=True)
        user_dirs.refuse_writable_by_others(place)
        _prune(place)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(sha256_hex(data).encode() + data)
        os.replace(partial, entry)
    except (OSError, PolicyError):
        # Without a cache it is read again the next time.
        return


def _prune(place: str) -> None:
    entries = [entry for entry in os.scandir(place) if entry.is_file(follow_symlinks=False)]
    entries.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns)
    for entry in entries[: max(0, len(entries) - MAX_ENTRIES + 1)]:
        os.unlink(entry.path)
