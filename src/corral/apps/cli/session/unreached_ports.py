"""Says that a command with an opening ran outside the session, so that it did not reach the session's servers."""

from __future__ import annotations

import os

from corral.apps.cli.session.own_session import OWN
from corral.sessions import protocol
from corral.sessions.queries import ask
from corral.sessions.socket_paths import socket_path, socket_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.policy.answers.pending_calls import PendingCall
    from corral.policy.config import SandboxConfig


def unreached_ports_text(config: SandboxConfig, pending: PendingCall | None) -> str:
    """Return the message for a command that had openings and failed, or "" if its session listens on no port."""
    path = pending.service if pending is not None else ""
    if pending is None and socket_paths(os.environ):
        path = socket_path(config, OWN, os.environ)
    answer = ask(path, (protocol.LIST,)) if path else None
    ports = answer[1]["ports"] if answer is not None and answer[0] == protocol.FACTS else []
    if not ports:
        return ""
    shown = f"port {ports[0]}" if len(ports) == 1 else f"ports {', '.join(map(str, ports))}"
    return f"this command had an opening, so it ran outside the session: {shown} of the session cannot be reached from there"
