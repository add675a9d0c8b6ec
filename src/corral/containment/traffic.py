"""The host's side of the network by name: what the proxy is told, what it wrote down, and what commands need to know of it.

What was asked for is told with every command that ran at the time: which of several it was, nobody can see.
"""

from __future__ import annotations

import os
from collections import deque

from corral.containment import wire
from corral.containment.proxy import HOST, PORT
from corral.containment.proxy.journal import REFUSED, Journal, new
from corral.containment.sight import granted
from corral.errors import ContainmentError
from corral.model import Connection, Violation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.config import SandboxConfig
    from corral.containment.proxy.journal import Entry

MAX_KEPT = 10_000  # connections that a command which still runs may be told of
MAX_TOLD = 50  # kinds of them in one result
MAX_VIOLATIONS = 10
_URL = f"http://{HOST}:{PORT}"
_LOOPBACK = "localhost,127.0.0.1,::1"
_VARIABLES = {
    "HTTP_PROXY": _URL,
    "HTTPS_PROXY": _URL,
    # By name, and not by address: there is nobody inside to ask for one.
    "ALL_PROXY": f"socks5h://{HOST}:{PORT}",
    "NO_PROXY": _LOOPBACK,
}
_TOOLS = {
    "PIP_PROXY": _URL,
    "npm_config_proxy": _URL,
    "npm_config_https_proxy": _URL,
    "npm_config_noproxy": _LOOPBACK,
    "NODE_USE_ENV_PROXY": "1",
    # Above what a repository's own settings say.
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "http.proxy",
    "GIT_CONFIG_VALUE_0": _URL,
}


def variables() -> dict[str, str]:
    """Return the variables by which programs find the proxy."""
    # Some programs read the one, some the other.
    return {**_VARIABLES, **{name.lower(): value for name, value in _VARIABLES.items()}, **_TOOLS}


class Traffic:
    """What goes through one sandbox's proxy."""

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._descriptor = -1
        self._journal: Journal | None = None
        self._seen: deque[Entry] = deque(maxlen=MAX_KEPT)

    def lend(self) -> tuple[int, ...]:
        """Return descriptors for a keeper that starts: what its proxy is to do, and where it writes. Who takes them closes them."""
        settings = wire.sealed("outlet", wire.pack_plan(self._plan(os.environ)))
        self._drain()
        self.close()
        self._descriptor = new()
        self._journal = Journal(self._descriptor)
        return settings, os.dup(self._descriptor)

    def close(self) -> None:
        """Forget the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._journal = -1, None

    def __del__(self) -> None:
        self.close()

    def _plan(self, environ: Mapping[str, str]) -> dict[str, object]:
        containment, limits = self._config.containment, self._config.limits
        return {
            "granted": containment.destinations,
            "hosts": tuple(containment.hosts),
            "inject": tuple(_expanded(text, environ) for text in containment.inject),
            "connections": limits.connections,
            "bytes": limits.network_bytes,
            "certificates": environ.get("SSL_CERT_FILE", ""),
        }

    def _drain(self) -> None:
        if self._journal is not None:
            self._seen.extend(self._journal.take())

    def _since(self, began_at: float) -> list[Entry]:
        self._drain()
        # Clocks of the two processes are one, but it is written with six digits.
        return [entry for entry in list(self._seen) if entry.at >= began_at - 0.000_001]

    def connections(self, began_at: float) -> tuple[Connection, ...]:
        """Return what was connected to since then, or asked for, each kind once."""
        counts: dict[tuple[str, str, str, str, str], int] = {}
        for entry in self._since(began_at):
            key = (entry.target, entry.outcome, entry.address, entry.detail, entry.grant)
            counts[key] = counts.get(key, 0) + 1
        return tuple(Connection(*key, count) for key, count in list(counts.items())[:MAX_TOLD])

    def violations(self, began_at: float) -> tuple[Violation, ...]:
        """Return what was refused since then, with the grant that would allow it."""
        found: dict[tuple[str, str], Violation] = {}
        for entry in self._since(began_at):
            if entry.outcome == REFUSED:
                found.setdefault((entry.target, entry.detail), _violation(entry))
        return tuple(found.values())[:MAX_VIOLATIONS]


def _violation(entry: Entry) -> Violation:
    instead = "Use what is in the project, or a destination that is granted"
    if not entry.grant:
        return Violation("network", entry.target, entry.detail, f"{instead}.")
    grant = entry.grant if entry.grant.startswith("limits.") else f'containment.network = ["{entry.grant}"]'
    return granted("network", entry.target, entry.detail, instead, grant, inferred=False)


def _expanded(text: str, environ: Mapping[str, str]) -> str:
    """Return a header with the owner's variables in it."""
    made, rest = "", text
    while True:
        before, found, after = rest.partition("${")
        made += before
        if not found:
            return made
        name, _, rest = after.partition("}")
        value = environ.get(name, "")
        if not value or not value.isprintable() or not value.isascii():
            raise ContainmentError(f"containment.inject needs the variable {name}, which is not set, or no plain text")
        made += value
