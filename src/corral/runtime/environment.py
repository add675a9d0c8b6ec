"""The environment a command gets: what the allowlist names of the host's, then what the call gave.

A pattern never lets through credentials or what a program loads code from; only an exact name of the owner's does.
"""

from __future__ import annotations

import os

from corral.policy.config import LOADER_VARIABLES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Names that carry credentials, whatever pattern the owner wrote: only an exact name lets one of these through.
CREDENTIAL_WORDS = (
    "TOKEN",
    "SECRET",
    "PASSW",
    "CREDENTIAL",
    "API_KEY",
    "APIKEY",
    "ACCESS_KEY",
    "PRIVATE_KEY",
    "SSH_AUTH",
    "_PAT",
    "DATABASE_URL",
    "_AUTH",
)


def clean_path(path: str) -> str:
    """Return a search path without empty and relative entries, which would mean the command's directory."""
    return ":".join(entry for entry in path.split(":") if entry.startswith("/")) or DEFAULT_PATH


def _passes_pattern(name: str, prefixes: tuple[str, ...]) -> bool:
    return (
        name.startswith(prefixes)
        and not name.startswith(LOADER_VARIABLES)
        and not any(word in name.upper() for word in CREDENTIAL_WORDS)
    )


def scrub(environ: Mapping[str, str], allowlist: Collection[str]) -> dict[str, str]:
    """Return what the allowlist names of `environ`; `PATH` is always there, and clean."""
    prefixes = tuple(name[:-1] for name in allowlist if name.endswith("*"))
    # Names first: os.environ decodes a value each time it is asked for.
    names = [name for name in list(environ) if name in allowlist or _passes_pattern(name, prefixes)]
    # Another thread may take one away meanwhile.
    kept = {name: value for name in names if (value := environ.get(name)) is not None}
    kept["PATH"] = clean_path(kept.get("PATH", DEFAULT_PATH))
    return kept


def overlay(base: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return `base` with what a call gave on top; `PATH` stays clean."""
    merged = {**base, **given}
    merged["PATH"] = clean_path(merged["PATH"])
    return merged


class HostEnvironment:
    """This process's environment, scrubbed, and scrubbed anew only when it has changed."""

    __slots__ = ("_allowlist", "_last", "_replaced")

    def __init__(self, allowlist: Collection[str]) -> None:
        self._allowlist = allowlist
        self._replaced: Mapping[str, str] = {}
        self._last: tuple[object, dict[str, str]] = (None, {})

    def replace(self, variables: Mapping[str, str]) -> None:
        """Give commands these variables instead of the host's."""
        self._replaced = variables
        self._last = (None, {})

    def scrubbed(self) -> dict[str, str]:
        """Return what a command may see of the environment now. The same object means the same variables."""
        # The raw mapping below os.environ: comparing it costs a microsecond, asking os.environ for all of it thirty.
        raw = getattr(os.environ, "_data", None)
        seen, scrubbed = self._last
        if raw is None or raw != seen:
            snapshot = dict(raw or {})  # first: a change after it is seen the next time
            scrubbed = {**scrub(os.environ, self._allowlist), **self._replaced}
            self._last = (snapshot, scrubbed)
        return scrubbed
