"""Holds back output that contains a credential of the program that printed it. The last of several protections."""

from __future__ import annotations

import os

from corral._lib.lazy_regex import pattern
from corral.broker.streams import RefusedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MIN_BYTES = 16  # of a value; a shorter one also occurs in ordinary output
MAX_BYTES = 64  # of a value that are searched for
MAX_FILE_BYTES = 4 << 20
MAX_FILES = 256  # in a directory of credentials
_NAMED = pattern(
    rb"""(?i)[\w-]*(?:token|secret|passw|private|credential|key-data|auth)[\w-]*["']?\s*[:=]\s*["']?([^\s"',}]{16,})"""
)
_LONG = pattern(rb"[A-Za-z0-9_+/=-]{40,}")


def credential_values(paths: Iterable[str]) -> tuple[bytes, ...]:
    """Return the values in credential files that must not be printed: those with a telling name, and long random-looking ones."""
    found: dict[bytes, None] = {}
    for path in _files(paths):
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_FILE_BYTES)
        except OSError:
            continue
        named = [match[1] for match in _NAMED.finditer(data)]
        long = [match[0] for match in _LONG.finditer(data) if not match[0].startswith(b"/") and _looks_random(match[0])]
        found |= dict.fromkeys(value[:MAX_BYTES] for value in (*named, *long))
    return tuple(found)


def _looks_random(value: bytes) -> bool:
    return any(48 <= byte < 58 for byte in value) and any(65 <= byte < 91 for byte in value)


def _files(paths: Iterable[str]) -> list[str]:
    found: list[str] = []
    for path in paths:
        if os.path.isdir(path):
            found += [f"{path}/{name}" for name in sorted(os.listdir(path))[:MAX_FILES]]
        elif os.path.isfile(path):
            found.append(path)
    return found


class CredentialFilter:
    """Passes on one output unless it contains one of the values. It only holds back bytes that may be the beginning of one."""

    def __init__(self, values: tuple[bytes, ...]) -> None:
        self._values = values
        self._beginnings = {value[0] for value in values}
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that may be passed on. Raise RefusedError if there is a value in them."""
        text = self._held + data
        if any(value in text for value in self._values):
            raise RefusedError("its output contains a credential of yours, so the rest of it was not passed on")
        cut = self._possible_beginning(text)
        self._held = text[cut:]
        return text[:cut]

    def end(self) -> bytes:
        """Return what was held back."""
        held, self._held = self._held, b""
        return held

    def _possible_beginning(self, text: bytes) -> int:
        """Return where a value may begin that the next bytes complete."""
        for at in range(max(0, len(text) - MAX_BYTES + 1), len(text)):
            if text[at] in self._beginnings and any(value.startswith(text[at:]) for value in self._values):
                return at
        return len(text)
