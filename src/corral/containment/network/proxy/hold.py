"""Holds connections to destinations that are not granted, while the host asks the user.

There is one question for each destination, and all connections to it wait for the same answer. An answer lasts as long as the
proxy.
"""

from __future__ import annotations

import os
from _socket import MSG_DONTWAIT, MSG_NOSIGNAL
from _thread import allocate_lock
from select import POLLIN, POLLRDHUP, poll
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket

MAX_HELD = 512  # connections, which each have a thread
MAX_QUESTIONS = 32  # destinations in the life of a proxy, against a command that invents names to tire the user
MAX_MESSAGE_BYTES = 512  # a destination has at most 261
YES, NO = b"y", b"n"  # the first byte of an answer; the destination follows


class _Question:
    """A question about one destination. Its pipe, there while connections wait, is closed by the answer."""

    __slots__ = ("answer", "deadline", "ready", "waiting", "wakes")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.answer: bool | None = None
        self.waiting = 0
        self.ready = self.wakes = -1

    def join(self) -> None:
        if not self.waiting:
            self.ready, self.wakes = os.pipe()
        self.waiting += 1

    def leave(self) -> None:
        self.waiting -= 1
        if not self.waiting:
            os.close(self.ready)
            self.wake()

    def wake(self) -> None:
        if self.wakes >= 0:
            os.close(self.wakes)
            self.wakes = -1


class Holds:
    """The held connections of one proxy. `host` is the socket to the process that asks the user."""

    def __init__(self, host: socket, seconds: float) -> None:
        self._host = host
        self._seconds = seconds
        self._lock = allocate_lock()
        self._questions: dict[str, _Question] = {}
        self._held = 0
        self._is_closed = False

    def wait(self, destination: str, client: socket) -> str:
        """Wait until the user allows a destination, and return an empty string; or return why it is refused."""
        with self._lock:
            question = self._questions.get(destination)
            is_new = question is None
            if question is None:
                if self._is_closed:
                    return "it is not granted, and nobody can be asked"
                if len(self._questions) >= MAX_QUESTIONS:
                    return f"it is not granted, and the user was asked about {MAX_QUESTIONS} destinations already"
                question = _Question(monotonic() + self._seconds)
            if question.answer is not None:
                return _reason(question.answer)
            if self._held >= MAX_HELD:
                return f"it is not granted, and {MAX_HELD} connections are held already"
            question.join()
            self._questions[destination] = question
            self._held += 1
        try:
            if is_new and not self._ask(destination):
                self._answer(destination, yes=False)
            return self._await_answer(question, client)
        finally:
            with self._lock:
                question.leave()
                self._held -= 1

    def _ask(self, destination: str) -> bool:
        try:
            # Not blocking: a host that does not read must not keep clients waiting.
            self._host.send(destination.encode("ascii"), MSG_NOSIGNAL | MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def _await_answer(self, question: _Question, client: socket) -> str:
        poller = poll()
        poller.register(question.ready, POLLIN)
        poller.register(client.fileno(), POLLRDHUP)
        left = question.deadline - monotonic()
        ready = {descriptor for descriptor, _ in poller.poll(max(0.0, left) * 1000)}
        if question.answer is not None:
            return _reason(question.answer)
        if client.fileno() in ready:
            return "it is not granted, and the client left before the user answered"
        return f"it is not granted, and the user did not answer within {self._seconds:g} seconds"

    def read_answers(self) -> None:
        """Pass on the host's answers until it is gone. Then nobody answers, and every open question is a no."""
        try:
            while message := self._host.recv(MAX_MESSAGE_BYTES):
                self._answer(message[1:].decode("ascii", "replace"), yes=message[:1] == YES)
        except OSError:
            # As if it had closed the socket.
            pass
        with self._lock:
            self._is_closed = True
            unanswered = [name for name, question in self._questions.items() if question.answer is None]
        for destination in unanswered:
            self._answer(destination, yes=False)

    def _answer(self, destination: str, *, yes: bool) -> None:
        with self._lock:
            question = self._questions.get(destination)
            if question is not None and question.answer is None:
                question.answer = yes
                question.wake()


def _reason(answer: bool) -> str:
    return "" if answer else "it is not granted, and the user did not allow it"
