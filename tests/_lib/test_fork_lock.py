"""Process ownership, and a lock that is free in a forked child."""

import os
import signal
import threading

import pytest
from observe import DEADLINE_SECONDS

from corral._lib.fork_lock import ForkSafeLock, ProcessOwner


def test_one_thread_holds_the_lock_at_a_time() -> None:
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


def test_error_releases_the_lock() -> None:
    lock = ForkSafeLock()
    with pytest.raises(ValueError, match="x"), lock:
        raise ValueError("x")
    with lock:
        pass


def test_forked_child_has_a_free_lock() -> None:
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


def test_forked_child_does_not_own_the_object() -> None:
    owner = ProcessOwner()
    child = os.fork()
    if child == 0:
        before, claimed, after = owner.is_current, owner.claim(), owner.is_current
        os._exit((before, claimed, after) == (False, True, True))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert owner.is_current


def test_released_object_belongs_to_no_process() -> None:
    owner = ProcessOwner(is_claimed=False)
    assert (owner.is_current, owner.claim(), owner.claim(), owner.is_current) == (False, True, False, True)
    owner.release()
    assert not owner.is_current
