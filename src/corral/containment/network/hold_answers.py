"""Answers the proxy's questions about destinations, in the process that owns the sandbox.

The proxy reads what commands send, so its questions are checked here, and there is a bound on their number.
"""

from __future__ import annotations

from _socket import AF_UNIX, MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_RDWR, SOCK_SEQPACKET, socket, socketpair
from _thread import allocate_lock, start_new_thread

from corral._lib.network import network_grants
from corral.containment.network.proxy.hold import MAX_MESSAGE_BYTES, MAX_QUESTIONS, NO, YES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    OnHold = Callable[[str], bool]  # gets `host:port`


class HoldAnswers:
    """The answers of one sandbox. The callback is called once for each destination, whichever proxy asks."""

    def __init__(self, on_hold: OnHold) -> None:
        self._on_hold = on_hold
        self._lock = allocate_lock()
        self._answers: dict[str, bool | None] = {}  # None while the callback runs
        self._proxy: socket | None = None

    def connect(self) -> int:
        """Return the descriptor of a new proxy's end. A thread answers at the other end until `disconnect`."""
        self.disconnect()
        ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        self._proxy = ours
        start_new_thread(self._serve, (ours,))
        return theirs.detach()

    def disconnect(self) -> None:
        """End the connection to the proxy. What the callback still answers has no effect."""
        proxy, self._proxy = self._proxy, None
        if proxy is not None:
            try:
                # Wakes the thread, which closes it. A fork of this process may hold a copy.
                proxy.shutdown(SHUT_RDWR)
            except OSError:
                return

    def _serve(self, proxy: socket) -> None:
        while question := _received(proxy):
            self._ask(question, proxy)
        proxy.close()

    def _ask(self, question: bytes, proxy: socket) -> None:
        destination = _destination(question)
        with self._lock:
            is_new = destination not in self._answers
            if not destination or (is_new and len(self._answers) >= MAX_QUESTIONS):
                answer: bool | None = False
            else:
                answer = self._answers.setdefault(destination, None)
        if answer is not None:
            _send(proxy, question, yes=answer)
        elif is_new:
            try:
                start_new_thread(self._call, (destination,))
            except RuntimeError:
                # The system allows no more threads.
                self._call(destination)

    def _call(self, destination: str) -> None:
        answer = False
        try:
            answer = self._on_hold(destination) is True
        finally:
            with self._lock:
                self._answers[destination] = answer
            # The sandbox may have another proxy by now, which waits for the same answer.
            proxy = self._proxy
            if proxy is not None:
                _send(proxy, destination.encode("ascii"), yes=answer)


def _received(proxy: socket) -> bytes:
    try:
        return proxy.recv(MAX_MESSAGE_BYTES)
    except OSError:
        return b""


def _destination(question: bytes) -> str:
    """Return the destination of a question, or "" if it is not one in its canonical form."""
    try:
        text = question.decode("ascii")
        return text if network_grants.format_destination(*network_grants.parse_authority(text)) == text else ""
    except ValueError:
        return ""


def _send(proxy: socket, question: bytes, *, yes: bool) -> None:
    try:
        proxy.send((YES if yes else NO) + question, MSG_NOSIGNAL | MSG_DONTWAIT)
    except OSError:
        # The proxy is gone, or does not read. It refuses what is not answered.
        return
