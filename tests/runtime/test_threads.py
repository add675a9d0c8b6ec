"""Several threads share one sandbox: no thread uses an object that another one has released."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socket import AF_UNIX, SOCK_SEQPACKET, socketpair

import pytest
from observe import DEADLINE_SECONDS, descriptors, unique_seconds

from corral import Containment, ContainmentError, Sandbox
from corral.containment.violations.kernel_audit import AuditListener
from corral.guard.cache import VerdictCache
from corral.runtime.waiters import LoopWaiters

THREADS = 6
PLANTS = "mkdir -p a/.vscode && echo '{}' >a/.vscode/tasks.json"


def replace(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(path.read_bytes())
    new.rename(path)


def listening() -> list[str]:
    return [number for number, what in descriptors().items() if "inotify" in what]


def test_containment_is_recreated_once_by_many_threads(open_sandbox: Callable[..., Sandbox], project: Path) -> None:
    settings = project / ".vscode" / "settings.json"
    settings.parent.mkdir()
    settings.write_text("{}")
    box = open_sandbox()
    assert box.run(["true"]).ok
    for _ in range(5):
        replace(settings)
        together = threading.Barrier(THREADS)

        def run(together: threading.Barrier = together) -> str:
            together.wait(DEADLINE_SECONDS)
            done = box.run(["true"])
            return "" if done.ok else done.stderr_text

        with ThreadPoolExecutor(THREADS) as pool:
            told = {future.result() for future in [pool.submit(run) for _ in range(THREADS)]}
        assert all(not text or "was replaced or removed" in text for text in told), told
        assert box.run(["true"]).ok
        done = box.run(f"{PLANTS}; echo x >>.vscode/settings.json", shell=True)
        assert {violation.kind for violation in done.violations} >= {"planted"}
        assert settings.read_text() == "{}"


def test_warden_made_after_discard_runs_nothing(held: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = held.transaction()
    busy = changes.start(["sleep", unique_seconds()])
    make = held._pool._make

    def slowly(place: str = "") -> object:
        made = make(place)
        changes.discard()
        return made

    monkeypatch.setattr(held._pool, "_make", slowly)
    with pytest.raises(ContainmentError, match="the transaction has ended"):
        changes.run(["true"])
    # The command that ran in it still has a result.
    result = busy.wait()
    assert [violation.kind for violation in result.violations] == ["warden-lost"]


def test_warden_is_closed_once(held: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    warden = held._pool.acquire()
    free_reserved = type(warden).free_reserved

    def meanwhile(self: object) -> None:
        monkeypatch.undo()
        free_reserved(warden)
        other = threading.Thread(target=warden.close)
        other.start()
        # The other thread waits until this one is done.
        other.join(0.05)

    monkeypatch.setattr(type(warden), "free_reserved", meanwhile)
    pidfd = warden.pidfd
    warden.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(pidfd)
    assert warden.pidfd == -1


def test_audit_listener_is_thread_safe() -> None:
    ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    ours.setblocking(False)
    listener = AuditListener(ours)
    with ThreadPoolExecutor(THREADS) as pool, theirs:
        taken = [pool.submit(listener.take, 1, 0.0, expected=True) for _ in range(4 * THREADS)]
        assert {future.result() for future in taken} == {()}
    listener.close()


def test_command_ending_after_close_leaks_nothing(open_sandbox: Callable[..., Sandbox], project: Path) -> None:
    (project / "a" / "b").mkdir(parents=True)
    box = open_sandbox()
    before = listening()
    for _ in range(4):
        box.run(["true"])
    running = box.start(["sleep", unique_seconds()])
    box.close()
    running.wait()
    del running
    assert listening() == before


def test_concurrent_first_commands_get_the_sandbox_variables(
    open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    box = open_sandbox(containment=Containment(network=("example.org:443",)))
    vet = VerdictCache.vet
    others: list[bytes] = []

    def meanwhile(*about: object) -> object:
        if not others:
            others.append(b"")
            # Another thread is admitted first, after this one has read the environment.
            others.append(box.run("echo $TMPDIR $HTTP_PROXY", shell=True).stdout)
        return vet(*about)  # type: ignore[arg-type]

    monkeypatch.setattr(VerdictCache, "vet", meanwhile)
    assert box.run("echo $TMPDIR $HTTP_PROXY", shell=True).stdout == others[1]
    assert others[1].startswith(b"/tmp http://")


def test_wakeup_before_waiting_is_not_lost() -> None:
    async def scene() -> float:
        crowd = LoopWaiters(asyncio.get_running_loop())
        called = crowd.wakeups
        caller = threading.Thread(target=crowd.wake_from_thread)
        caller.start()
        caller.join()
        begun = time.monotonic()
        await crowd.wait(DEADLINE_SECONDS, called)
        return time.monotonic() - begun

    assert asyncio.run(scene()) < DEADLINE_SECONDS / 2


def test_concurrent_transactions_share_one_workshop(held: Sandbox) -> None:
    together = threading.Barrier(4)

    def begin() -> object:
        together.wait(DEADLINE_SECONDS)
        return held.transaction()

    with ThreadPoolExecutor(4) as pool:
        begun = [future.result() for future in [pool.submit(begin) for _ in range(4)]]
    assert len({id(one._factory) for one in begun}) == 1  # type: ignore[attr-defined]
    for one in begun:
        one.discard()  # type: ignore[attr-defined]
