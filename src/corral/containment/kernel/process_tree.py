"""Finds and kills the descendants of a process.

kill(-1) is used only by the first process of a pid namespace: elsewhere it would reach every process of the user.
"""

from __future__ import annotations

import os
from _signal import SIGKILL, pidfd_send_signal  # type: ignore[import-not-found]  # `signal` loads enum, a third of a keeper's start
from time import monotonic, sleep

from corral.containment.kernel.syscalls import prctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

PASS_SECONDS = 0.002  # between two passes, so that killed processes can exit
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Make every descendant whose parent dies a child of this process."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide() -> None:
    """Make this process undumpable: others of the same user cannot read its memory, descriptors or environment in /proc."""
    prctl(_PR_SET_DUMPABLE, 0)


def show() -> None:
    """Make this process dumpable again, so that it can write its own uid_map."""
    prctl(_PR_SET_DUMPABLE, 1)


def set_parent_death_signal(number: int) -> None:
    """Ask for a signal when the parent dies. The kernel watches the thread that forked, so the parent must have only one."""
    prctl(_PR_SET_PDEATHSIG, number)


def use_batch_scheduling() -> None:
    """Schedule this process and its children as batch jobs, which do not preempt others when they wake up."""
    # A warden wakes up while its command starts, and would preempt it. Any other policy than the default was set by the user.
    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                found += map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        # The process has ended. Its children belong to the subreaper in the next pass.
        pass
    return found


def _state_and_parent(pid: int) -> tuple[bytes, int]:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            # The program's name is in parentheses and can contain any character.
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return b"X", 0
    return state, int(parent)


def _parents() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            children.setdefault(_state_and_parent(int(name))[1], []).append(int(name))
    return children


def descendants(pid: int, spared: Collection[int] = ()) -> list[int]:
    """Return the descendants of a process, parents first, without the children in `spared` and their descendants."""
    if os.path.exists("/proc/thread-self/children"):
        children_of = _children
    else:
        # A kernel without CONFIG_PROC_CHILDREN.
        table = _parents()

        def children_of(pid: int) -> list[int]:
            return table.get(pid, [])

    found: list[int] = []
    level = [child for child in children_of(pid) if child not in spared]
    while level:
        found += level
        level = [child for parent in level for child in children_of(parent)]
    return found


def kill(pidfd: int) -> None:
    """Kill a process by pidfd. It may be gone: bwrap reaps its warden before the keeper learns of the exit."""
    try:
        pidfd_send_signal(pidfd, SIGKILL)
    except ProcessLookupError:
        return


def kill_descendants(spared: Collection[int] = ()) -> set[int]:
    """Send SIGKILL to every living descendant once, and return them. Repeat until `wait4` reports no child."""
    killed = set()
    for pid in descendants(os.getpid(), spared):
        # Count here and not at wait4(): a parent that is killed too can still reap its child first.
        if _state_and_parent(pid)[0] in b"ZX":
            continue
        try:
            os.kill(pid, SIGKILL)
        except (ProcessLookupError, PermissionError):
            # The process has exited, or runs as another user; then the caller reports that it does not end.
            continue
        killed.add(pid)
    return killed


def is_dead(pid: int) -> bool:
    """Return whether a process has ended, also if nobody has waited for it."""
    return _state_and_parent(pid)[0] in b"ZX"


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal."""
    return _state_and_parent(pid)[0] == b"T"


def kill_descendants_of(pid: int) -> int:
    """Send SIGKILL to every living descendant of another process once; return how many there were."""
    living = [child for child in descendants(pid) if _state_and_parent(child)[0] not in b"ZX"]
    for child in living:
        try:
            os.kill(child, SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    return len(living)


def kill_namespace(*, listed: bool) -> set[int]:
    """Send SIGKILL to all other processes of the pid namespace that this process is the first of.

    Return the living ones if `listed`, that is, if /proc shows this pid namespace.
    """
    if os.getpid() != 1:
        raise RuntimeError("kill(-1) by a process that is not the first of its pid namespace")
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"] if listed else []
    living = {pid for pid in pids if _state_and_parent(pid)[0] not in b"ZX"}
    try:
        os.kill(-1, SIGKILL)
    except ProcessLookupError:
        # Only zombies are left, or nothing.
        return set()
    return living


def kill_and_reap_descendants(seconds: float) -> None:
    """Kill and reap all descendants, for at most this many seconds."""
    give_up_at = monotonic() + seconds
    while monotonic() < give_up_at:
        kill_descendants()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        sleep(PASS_SECONDS)
