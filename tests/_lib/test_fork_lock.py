"""A lock is held by one thread, and a fork does not wait for one that it does not have."""

import os
import signal
import threading

import pytest
from observe import DEADLINE_SECONDS

from corral._lib.fork_lock import ForkSafeLock


def test_one_thread_has_it_at_a_time() -> None:
    lock = ForkSafeLock()
    entered = threading.Event()

    def enter() -> None:
        with lock:
            entered.set()

    with lock:
        other = threading.Thread(target=enter)
        other.start()
        assert not entered.wait(0.05)
    other.join(DEADLINE_SECONDS)
    assert entered.is_set()


def test_it_is_given_back_by_an_error() -> None:
    lock = ForkSafeLock()
    with pytest.raises(ValueError, match="x"), lock:
        raise ValueError("x")
    with lock:
        pass


def test_a_fork_has_one_of_its_own() -> None:
    lock = ForkSafeLock()
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            let_go.wait(DEADLINE_SECONDS)

    other = threading.Thread(target=hold)
    other.start()
    held.wait(DEADLINE_SECONDS)
    child = os.fork()
    if child == 0:
        signal.alarm(int(DEADLINE_SECONDS))
        with lock:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    let_go.set()
    other.join(DEADLINE_SECONDS)
