"""The host's side of the proxy: its settings, the connections that it logged, and the variables that commands find it by.

With several commands at a time, a connection is reported with each of them: the proxy cannot tell which one made it.
"""

from __future__ import annotations

import os
from _thread import allocate_lock

from corral.containment import protocol
from corral.containment.network.proxy import HOST, PORT, connection_log
from corral.containment.network.proxy.connection_log import ConnectionLog, merge_entries
from corral.containment.violations.visibility import grantable_violation
from corral.model.call import Connection, Violation
from corral.model.errors import ContainmentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.containment.network.proxy.connection_log import LogEntry
    from corral.policy.config import SandboxConfig

MAX_KEPT = 10_000  # connections of running commands, before equal ones are merged
MAX_TOLD = 50  # kinds of connections in one result; the others are counted
MAX_VIOLATIONS = 10  # likewise
_URL = f"http://{HOST}:{PORT}"
_LOOPBACK = "localhost,127.0.0.1,::1"
_VARIABLES = {
    "HTTP_PROXY": _URL,
    "HTTPS_PROXY": _URL,
    # socks5h sends names to the proxy: there is no resolver in the sandbox.
    "ALL_PROXY": f"socks5h://{HOST}:{PORT}",
    "NO_PROXY": _LOOPBACK,
}
_TOOLS = {
    "PIP_PROXY": _URL,
    "npm_config_proxy": _URL,
    "npm_config_https_proxy": _URL,
    "npm_config_noproxy": _LOOPBACK,
    "NODE_USE_ENV_PROXY": "1",
    # Overrides a repository's own settings.
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "http.proxy",
    "GIT_CONFIG_VALUE_0": _URL,
}


def variables() -> dict[str, str]:
    """Return the environment variables by which programs find the proxy, in both cases: programs read either."""
    return {**_VARIABLES, **{name.lower(): value for name, value in _VARIABLES.items()}, **_TOOLS}


class ProxyClient:
    """The connections of one sandbox's proxy, as the host sees them."""

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._descriptor = -1
        self._log: ConnectionLog | None = None
        self._seen: list[LogEntry] = []
        self._lock = allocate_lock()
        self._used_in = os.getpid()

    def lend(self) -> tuple[int, ...]:
        """Return descriptors of the proxy's settings and of its log, for a keeper that starts. The caller closes them."""
        settings = protocol.sealed("outlet", protocol.pack(self._plan(os.environ)))
        if self._used_in == os.getpid():
            self._drain()
        else:
            # In a fork, the entries belong to the parent, and a thread of the parent may hold the lock.
            self._used_in, self._seen, self._lock = os.getpid(), [], allocate_lock()
        self.close()
        self._descriptor = connection_log.create_log_file()
        self._log = ConnectionLog(self._descriptor)
        return settings, os.dup(self._descriptor)

    def close(self) -> None:
        """Close the log."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._log = -1, None

    def __del__(self) -> None:
        # Without the lock: in a fork, a thread that does not exist there may hold it.
        self._close()

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
        with self._lock:
            if self._log is not None:
                seen = self._seen + self._log.take()
                self._seen = seen if len(seen) <= MAX_KEPT else merge_entries(seen, MAX_KEPT // 2)

    def _since(self, began_at: float) -> list[LogEntry]:
        self._drain()
        # The log rounds times to microseconds.
        return [entry for entry in self._seen if entry.at >= began_at - 0.000_001]

    def connections(self, began_at: float) -> tuple[Connection, ...]:
        """Return the connections since then, each kind once."""
        return tuple(
            Connection(entry.target, entry.outcome, entry.address, entry.detail, entry.grant, entry.count)
            for entry in merge_entries(self._since(began_at), MAX_TOLD)
        )

    def violations(self, began_at: float) -> tuple[Violation, ...]:
        """Return the refused connections since then, with the grant that would allow each."""
        refused = [entry for entry in self._since(began_at) if entry.outcome == connection_log.REFUSED]
        return tuple(_violation(entry) for entry in merge_entries(refused, MAX_VIOLATIONS))


def _violation(entry: LogEntry) -> Violation:
    instead = "Use files in the project or a granted destination"
    if entry.detail == connection_log.OMITTED:
        return Violation("network", "", f"{entry.count} others were refused", f"{instead}.")
    if not entry.grant:
        return Violation("network", entry.target, entry.detail, f"{instead}.")
    grant = entry.grant if entry.grant.startswith("limits.") else f'containment.network = ["{entry.grant}"]'
    return grantable_violation("network", entry.target, entry.detail, instead, grant, inferred=False)


def _expanded(text: str, environ: Mapping[str, str]) -> str:
    """Return a header with each ${NAME} replaced by the user's variable. Raise ContainmentError if one is missing."""
    made, rest = "", text
    while True:
        before, found, after = rest.partition("${")
        made += before
        if not found:
            return made
        name, _, rest = after.partition("}")
        value = environ.get(name, "")
        if not value or not value.isprintable() or not value.isascii():
            raise ContainmentError(
                f"containment.inject uses the variable {name}, which is unset or not printable ASCII"
            )
        made += value
