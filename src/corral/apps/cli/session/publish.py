"""Asks a session to publish a port, and says where it is reached."""

from __future__ import annotations

from corral.audit.audit_log import Log
from corral.model.errors import PolicyError
from corral.sessions import protocol
from corral.sessions.queries import SessionFacts, ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from corral.policy.config import SandboxConfig


def publish(path: str, port: int, at: int, *, ends: bool = False) -> dict[str, Any]:
    """Have the session at a socket publish a port, or end that. Return its answer; raise PolicyError where it refuses."""
    answer = ask(path, (protocol.PUBLISH, port, at, ends))
    if answer is None:
        raise PolicyError("the session has ended")
    if answer[0] != protocol.FACTS:
        raise PolicyError(str(answer[1]))
    facts: dict[str, Any] = answer[1]
    return facts


def log_publishing(config: SandboxConfig, port: int) -> None:
    """Log that the user publishes a port. Before it happens: what cannot be logged is not opened."""
    reason = f"A person at a terminal published port {port} of a session on this machine's loopback"
    Log(config, event="grant").note({"decision": "allow", "reason": reason})


def choose_session(sessions: Sequence[SessionFacts], port: int) -> SessionFacts:
    """Return the session in which a process listens on a port, or the only one. Raise PolicyError where that is not clear."""
    if not sessions:
        raise PolicyError(
            "no session runs here, so there is nothing to publish. Without a session: corral run --publish PORT -- COMMAND"
        )
    listening = [session for session in sessions if port in session.ports]
    found = listening or sessions
    if len(found) > 1:
        names = ", ".join(session.session for session in found)
        raise PolicyError(f"several sessions run here; choose one with --session: {names}")
    return found[0]


def published_text(facts: dict[str, Any]) -> str:
    """Return where a port is reached now, and why it is not at its own number."""
    text = f"port {facts['port']} of the session is at http://127.0.0.1:{facts['at']}"
    return f"{text}, because {facts['taken']}" if facts["taken"] else text
