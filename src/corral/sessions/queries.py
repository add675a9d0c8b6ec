"""Asks the running sessions of this user: what runs in them, the output of a process, and to end it."""

from __future__ import annotations

import os
from _socket import SO_RCVTIMEO, SOL_SOCKET
from _struct import pack

from corral._lib.records import Record, frozen
from corral.sessions import protocol
from corral.sessions.client import connect
from corral.sessions.socket_paths import LOCK_SUFFIX, SUFFIX, socket_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

END_SECONDS = 15.0  # for a service to end its commands and itself
ANSWER_SECONDS = 30  # for a service that starts on a busy machine


@frozen
class SessionFacts(Record):
    """A running session: its socket, its project, the agent's id of it, its service, and the processes in it."""

    path: str
    root: str
    session: str
    pid: int
    processes: tuple[Mapping[str, Any], ...]
    ports: tuple[int, ...] = ()  # of the session's loopback, on which a process listens
    published: tuple[
        Mapping[str, Any], ...
    ] = ()  # port inside, port of this machine, or 0 and why it cannot be published

    def published_texts(self) -> list[str]:
        """Return each published port with its address, or with the reason why it has none."""
        return [
            f"{one['port']} at http://127.0.0.1:{one['at']}"
            if one["at"]
            else f"{one['port']} not published: {one['why']}"
            for one in self.published
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as JSON-ready data."""
        own = {"root": self.root, "session": self.session, "pid": self.pid, "ports": list(self.ports)}
        own["published"] = [dict(each) for each in self.published]
        return {**own, "processes": [dict(each) for each in self.processes]}


def ask(path: str, message: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return a service's answer, or None where no service answers."""
    sock = connect(path)
    if sock is None:
        return None
    try:
        sock.setsockopt(SOL_SOCKET, SO_RCVTIMEO, pack("@ll", ANSWER_SECONDS, 0))
        protocol.send(sock, message)
        answer, descriptors = protocol.receive(sock)
        protocol.close_all(descriptors)
        return answer or None
    except (OSError, protocol.ProtocolError):
        return None
    finally:
        sock.close()


def running_sessions(environ: Mapping[str, str], root: str = "") -> list[SessionFacts]:
    """Return the sessions of this user, or those of one project. Removes the sockets of services that were killed."""
    found = []
    for path in socket_paths(environ):
        answer = ask(path, (protocol.LIST,))
        if answer is None:
            _remove_stale(path)
        elif answer[0] == protocol.FACTS:
            facts = answer[1]
            if not root or facts["root"] == root:
                about = (tuple(facts[name]) for name in ("processes", "ports", "published"))
                found.append(SessionFacts(path, facts["root"], facts["session"], facts["pid"], *about))
    return found


def await_end(pid: int) -> bool:
    """Wait until a service has ended. Returns false if it has not in time."""
    from select import POLLIN, poll  # noqa: PLC0415  only `corral stop` waits

    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        poller = poll()
        poller.register(descriptor, POLLIN)
        return bool(poller.poll(END_SECONDS * 1000))
    finally:
        os.close(descriptor)


def _remove_stale(path: str) -> None:
    from fcntl import LOCK_EX, LOCK_NB, flock  # noqa: PLC0415  few sockets are stale

    lock_path = path.removesuffix(SUFFIX) + LOCK_SUFFIX
    try:
        lock = os.open(lock_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        # A service holds the lock as long as it runs.
        flock(lock, LOCK_EX | LOCK_NB)
        os.unlink(path)
        os.unlink(lock_path)
    except OSError:
        return
    finally:
        os.close(lock)
