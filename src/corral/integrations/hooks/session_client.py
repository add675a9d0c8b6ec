"""Asks the service of the agent's session for the hook's answer, which takes a third of the time of judging here.

Where no service answers in time, the hook judges the call itself: no answer is never a yes.
"""

import posix
import sys
from _signal import (  # type: ignore[import-not-found]  # `signal` imports enum
    ITIMER_REAL,
    SIG_UNBLOCK,
    SIGALRM,
    pthread_sigmask,
    setitimer,
    signal,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

SECONDS = 1.5  # for the payload and the answer; the hook then has its own time to judge
MAX_PAYLOAD_BYTES = 16 * 1024  # longer ones may hold a text that is parsed under limits, which a service does not do
ALIAS = "hook-"  # begins the name of the socket by which hooks find a session
_KEYS = (b'"session_id"', b'"sessionId"', b'"sessionID"', b'"conversation_id"')
_MAX_ID = 80
_PACKAGE = __file__.rsplit("/", 3)[0]


class _TimeoutExceeded(BaseException):
    """The service did not answer in time."""


def _on_alarm(*_: object) -> "NoReturn":
    raise _TimeoutExceeded


def ask_session(arguments: "list[str]") -> "tuple[int | None, bytes]":
    """Return the exit status of the hook if a service gave the answer, which is written then; else None and what stdin had."""
    folder = _folder(arguments)
    if not folder or not arguments[0].isidentifier():
        return None, b""
    parts: list[bytes] = []
    answer = None
    try:
        signal(SIGALRM, _on_alarm)
        pthread_sigmask(SIG_UNBLOCK, (SIGALRM,))  # a host may start its hooks with signals blocked
        setitimer(ITIMER_REAL, SECONDS)
        size = 0
        while size <= MAX_PAYLOAD_BYTES and (data := posix.read(0, MAX_PAYLOAD_BYTES)):
            parts.append(data)
            size += len(data)
        if size <= MAX_PAYLOAD_BYTES:
            answer = _ask(folder, arguments, b"".join(parts))
        setitimer(ITIMER_REAL, 0)
    except (_TimeoutExceeded, OSError):
        setitimer(ITIMER_REAL, 0)
    if answer is None:
        return None, b"".join(parts)
    stdout, stderr, status = answer
    from corral.sessions.client import write  # noqa: PLC0415  loaded by now

    # Hosts run the call after no output.
    is_written = write(1, stdout)
    write(2, stderr)
    return (status if is_written else 2), b""


def _folder(arguments: "list[str]") -> str:
    """Return the directory of the sockets if it exists, or ""."""
    environ = posix.environ
    given = dict(word[2:].split("=", 1) for word in arguments[1:] if word.startswith("--") and "=" in word)
    state = given.get("XDG_STATE_HOME", "")
    if not state and "HOME" not in given:
        state = environ.get(b"XDG_STATE_HOME", b"").decode("utf-8", "surrogateescape")
    if not state.startswith("/"):
        home = given.get("HOME") or environ.get(b"HOME", b"").decode("utf-8", "surrogateescape")
        state = f"{home}/.local/state"
    for folder in (f"/run/user/{posix.geteuid()}/corral", f"{state}/corral/sessions"):
        try:
            posix.stat(folder)
        except OSError:
            continue
        return folder
    return ""


def alias_name(host: str, session: str) -> str:
    """Return the name by which hooks of a host find a session, or "" for an id that cannot be part of a name."""
    is_plain = 0 < len(session) <= _MAX_ID and session.isascii() and session.replace("-", "").replace("_", "").isalnum()
    return f"{ALIAS}{host}-{session}" if is_plain else ""


def _session_in(payload: bytes) -> str:
    """Return what looks like the session's id. If it is not, no service is found, or another one gives the same answer."""
    for key in _KEYS:
        _, found, after = payload.partition(key)
        parts = after.split(b'"', 2)
        if found and len(parts) == 3 and parts[0].strip() == b":":
            return parts[1].decode("ascii", "replace")
    return ""


def _ask(folder: str, arguments: "list[str]", payload: bytes) -> "tuple[bytes, bytes, int] | None":
    name = alias_name(arguments[0], _session_in(payload))
    if not name:
        return None
    try:
        posix.lstat(f"{folder}/{name}")
    except OSError:
        return None
    from corral.sessions import client, protocol  # noqa: PLC0415  most hooks have no session

    sock = client.connect(f"{folder}/{name}")
    if sock is None:
        return None
    try:
        request = (protocol.HOOK, _PACKAGE, sys.argv[1:], payload, dict(posix.environ))
        protocol.send(sock, request)
        answer, descriptors = protocol.receive(sock)
        protocol.close_all(descriptors)
    except protocol.ProtocolError:
        return None
    finally:
        sock.close()
    if len(answer) != 4 or answer[0] != protocol.ANSWERED:
        return None
    _, stdout, stderr, status = answer
    is_whole = isinstance(stdout, bytes) and isinstance(stderr, bytes) and status in (0, 2)
    return (stdout, stderr, status) if is_whole else None
