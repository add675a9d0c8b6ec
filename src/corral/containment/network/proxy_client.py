"""The host's side of the proxy: its settings, the connections that it logged, and the variables that commands find it by.

With several commands at a time, a connection is reported with each of them: the proxy cannot tell which one made it.
"""

from __future__ import annotations

import os
from _thread import allocate_lock

from corral._lib.network.proxy_settings import parent_settings
from corral.containment import protocol
from corral.containment.network.proxy import HOST, PORT, connection_log
from corral.containment.network.proxy.connection_log import NAME_REFUSED, ConnectionLog, merge_entries
from corral.containment.violations.visibility import grantable_violation
from corral.model.call import Connection, Violation
from corral.model.errors import ContainmentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.containment.network.hold_answers import HoldAnswers, OnHold
    from corral.containment.network.proxy.connection_log import LogEntry
    from corral.policy.config import SandboxConfig

MAX_KEPT = 10_000  # connections of running commands, before equal ones are merged
MAX_TOLD = 50  # kinds of connections in one result; the others are counted
MAX_VIOLATIONS = 10  # likewise
_URL = f"http://{HOST}:{PORT}"
_LOOPBACK = "localhost,127.0.0.1,0.0.0.0,::1"
_VARIABLES = {"HTTP_PROXY": _URL, "HTTPS_PROXY": _URL, "NO_PROXY": _LOOPBACK}
# socks5h sends names to the proxy: there is no resolver in the sandbox.
_SOCKS = {"ALL_PROXY": f"socks5h://{HOST}:{PORT}"}
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
# A second attempt would be refused like the first. A refused search for updates is no violation that anyone wants to see.
_NO_ATTEMPTS = {
    "PIP_RETRIES": "0",
    "npm_config_fetch_retries": "0",
    "pnpm_config_fetch_retries": "0",
    "BUNDLE_RETRY": "0",
    "CARGO_NET_RETRY": "0",
    "UV_HTTP_RETRIES": "0",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "npm_config_update_notifier": "false",
    "npm_config_audit": "false",
}


def variables(*, refuses_all: bool = False) -> dict[str, str]:
    """Return the environment variables by which programs find the proxy, in both cases: programs read either.

    A proxy that refuses everything only has to be found by most programs. Some take ALL_PROXY for an error, and pip ignores
    NO_PROXY where PIP_PROXY is set.
    """
    named = _VARIABLES if refuses_all else _VARIABLES | _SOCKS
    more = _NO_ATTEMPTS if refuses_all else _TOOLS
    return {**named, **{name.lower(): value for name, value in named.items()}, **more}


class ProxyClient:
    """The connections of one sandbox's proxy, as the host sees them.

    `on_hold` decides on a destination that is not granted, while the connections to it wait for up to `hold_seconds`. Only True
    allows it, for the life of the sandbox. It is called once for each destination, in a thread of its own.
    """

    def __init__(self, config: SandboxConfig, on_hold: OnHold | None = None, hold_seconds: float = 0.0) -> None:
        self._config = config
        self._hold_seconds = hold_seconds if on_hold is not None else 0.0
        self._on_hold = on_hold if hold_seconds > 0 else None
        self._answers: HoldAnswers | None = None
        self._descriptor = -1
        self._log: ConnectionLog | None = None
        self._seen: list[LogEntry] = []
        self._lock = allocate_lock()
        self._used_in = os.getpid()

    def variables(self) -> dict[str, str]:
        """Return the environment variables by which commands find the proxy."""
        containment = self._config.containment
        is_granted = containment.destinations or containment.requests
        return variables(refuses_all=not is_granted and self._on_hold is None)

    def lend(self) -> tuple[int, ...]:
        """Return descriptors for a keeper that starts, which the caller closes: the proxy's settings, its log, and a socket.

        The socket is there where connections are held: the proxy asks through it.
        """
        settings = protocol.pack(self._plan(os.environ))
        if self._used_in == os.getpid():
            self._drain()
        else:
            # In a fork, the entries belong to the parent, and a thread of the parent may hold the lock.
            self._used_in, self._seen, self._lock = os.getpid(), [], allocate_lock()
            self._answers = None
        self.close()
        self._descriptor = connection_log.create_log_file()
        self._log = ConnectionLog(self._descriptor)
        lent: list[int] = []
        try:
            lent.append(protocol.sealed("outlet", settings))
            lent.append(os.dup(self._descriptor))
            if self._on_hold is not None:
                lent.append(self._answer_questions(self._on_hold))
        except OSError:
            protocol.close_all(lent)
            raise
        return tuple(lent)

    def _answer_questions(self, on_hold: OnHold) -> int:
        from corral.containment.network.hold_answers import HoldAnswers  # noqa: PLC0415  few sandboxes hold connections

        if self._answers is None:
            self._answers = HoldAnswers(on_hold)
        return self._answers.connect()

    def close(self) -> None:
        """Close the log."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._log = -1, None
        if self._answers is not None:
            self._answers.disconnect()

    def __del__(self) -> None:
        # Without the lock: in a fork, a thread that does not exist there may hold it.
        self._close()

    def _plan(self, environ: Mapping[str, str]) -> dict[str, object]:
        containment, limits = self._config.containment, self._config.limits
        return {
            "granted": containment.destinations,
            "local": containment.local_ports,
            "hosts": tuple(containment.hosts),
            "inject": tuple(_expanded(text, environ) for text in containment.inject),
            "requests": containment.requests,
            "connections": limits.connections,
            "bytes": limits.network_bytes,
            "sent_bytes": containment.sent_bytes,
            "parents": parent_settings(environ),
            "certificates": environ.get("SSL_CERT_FILE", ""),
            "hold_seconds": self._hold_seconds,
        }

    def _drain(self) -> None:
        with self._lock:
            # Most commands connect to nothing.
            if self._log is not None and self._log.has_entries():
                seen = self._seen + self._log.take()
                self._seen = seen if len(seen) <= MAX_KEPT else merge_entries(seen, MAX_KEPT // 2)

    def _since(self, began_at: float) -> list[LogEntry]:
        self._drain()
        if not self._seen:
            return []
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
    if entry.detail == NAME_REFUSED:
        # A DNS query has no port.
        grant = f'containment.network = ["{entry.target}:PORT"]'
        return grantable_violation("network", entry.target, entry.detail, instead, grant, inferred=False)
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
