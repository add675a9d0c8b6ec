"""What Linux says about a process's descendants, and ending them all.

By kill(-1) only where this process is the first of a pid namespace: elsewhere that reaches every process of the user.
"""

from __future__ import annotations

import os
from _signal import SIGKILL, pidfd_send_signal  # type: ignore[import-not-found]  # `signal` loads enum, a third of a keeper's start
from time import monotonic, sleep

from corral.containment.kernel.syscalls import prctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

PASS_SECONDS = 0.002  # between two passes, for the dying to die
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Make every descendant whose parent dies a child of this process."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide() -> None:
    """Close this process's memory, descriptors and environment in /proc to others of the same user."""
    prctl(_PR_SET_DUMPABLE, 0)


def show() -> None:
    """Open them again, for a process that has yet to write its own map of ids."""
    prctl(_PR_SET_DUMPABLE, 1)


def set_parent_death_signal(number: int) -> None:
    """Ask for a signal when the parent dies. The kernel means the thread that forked: the parent must have no other."""
    prctl(_PR_SET_PDEATHSIG, number)


def use_batch_scheduling() -> None:
    """Have this process and all it starts wait for their turn when they are woken, as batch jobs do."""
    # A warden is woken while its command starts, and would stop it for that. Another policy than the usual is the owner's word.
    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                found += map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        # It ended meanwhile; what it left behind is ours by the next pass.
        pass
    return found


def _state_and_parent(pid: int) -> tuple[bytes, int]:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            # The program's name is in brackets and may hold anything, brackets too.
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
    """Return the descendants of a process, parents first, without the `spared` and their own."""
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
    """Kill a process, unless it is gone: bubblewrap waits for a warden that it started before the keeper hears of its end."""
    try:
        pidfd_send_signal(pidfd, SIGKILL)
    except ProcessLookupError:
        return


def kill_descendants(spared: Collection[int] = ()) -> set[int]:
    """Send SIGKILL to every living descendant in one pass, and return them; repeat until `wait4` knows no child."""
    killed = set()
    for pid in descendants(os.getpid(), spared):
        # Counted here and not when they are waited for: a parent that is killed too may still have waited for its child.
        if _state_and_parent(pid)[0] in b"ZX":
            continue
        try:
            os.kill(pid, SIGKILL)
        except (ProcessLookupError, PermissionError):
            # It has gone meanwhile, or has become another user, which is reported when it does not end.
            continue
        killed.add(pid)
    return killed


def is_stopped(pid: int) -> bool:
    """Say whether a process was stopped by a signal, and so does nothing until another."""
    return _state_and_parent(pid)[0] == b"T"


def kill_descendants_of(pid: int) -> int:
    """Send SIGKILL to every living descendant of another process in one pass; return how many there were."""
    living = [child for child in descendants(pid) if _state_and_parent(child)[0] not in b"ZX"]
    for child in living:
        try:
            os.kill(child, SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    return len(living)


def kill_namespace(*, listed: bool) -> set[int]:
    """Send SIGKILL to all others of the pid namespace whose first process this is; return those `listed` in its own /proc."""
    if os.getpid() != 1:
        raise RuntimeError("kill(-1) by a process that is not the first of its pid namespace")
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"] if listed else []
    living = {pid for pid in pids if _state_and_parent(pid)[0] not in b"ZX"}
    try:
        os.kill(-1, SIGKILL)
    except ProcessLookupError:
        # Only zombies are left, or nobody.
        return set()
    return living


def kill_and_reap_descendants(seconds: float) -> None:
    """Kill and collect until nobody is left, or for so long."""
    give_up_at = monotonic() + seconds
    while monotonic() < give_up_at:
        kill_descendants()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        sleep(PASS_SECONDS)
