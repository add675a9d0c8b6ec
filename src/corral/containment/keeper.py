"""Makes wardens, and outlives none of its host: when the host is gone, everything below ends. One keeper per sandbox.

It is started as a program of its own, so that nothing of the host's memory, environment or descriptors is in it.
"""

from __future__ import annotations

import gc
import os
import select
import sys
from _signal import SIGKILL, pidfd_send_signal  # type: ignore[import-not-found]  # `signal` loads enum, a third of a keeper's start
from _socket import AF_UNIX, SOCK_SEQPACKET, socket, socketpair
from errno import ELOOP
from time import monotonic, sleep

from corral.containment import backend, cgroups, inside, lasting, layers, namespaces, scratch, tree, warden, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from corral.containment.backend import Start
    from corral.containment.bubblewrap import Bubblewrap

CTL, HOST = 3, 4  # the descriptors the host leaves this program
MAX_PATH_BYTES = 4096
SWEEP_SECONDS = 2.0  # against what no signal ends


def main() -> None:
    """Serve the host that started this program."""
    os.closerange(HOST + 1, os.sysconf("SC_OPEN_MAX"))
    os.set_inheritable(CTL, False)
    os.set_inheritable(HOST, False)
    os.chdir("/")
    if not os.path.exists("/proc/self/stat"):
        raise FileNotFoundError("/proc is not mounted; without it what a command leaves behind cannot be found")
    tree.adopt_orphans()
    ctl = socket(fileno=CTL)
    _, (descriptor,) = wire.receive(ctl)
    plan = wire.unpack_plan(wire.read_body(descriptor))
    os.close(descriptor)
    try:
        status = _enter(ctl, plan)
    except backend.UnusableError as error:
        # The host shows the last line to the owner.
        print(error, file=sys.stderr, flush=True)
        scratch.remove(plan["scratch"])
        os._exit(1)
    # After the ids are mapped: a process that is hidden cannot open its own map.
    tree.hide()
    keeper = _Keeper(ctl, plan, status)
    # Wardens are forks: what is frozen is not touched by their collector, and stays shared.
    gc.collect()
    gc.freeze()
    wire.send(ctl, wire.pack_ready(*status))
    try:
        while keeper.answer():
            pass
    finally:
        try:
            keeper.end()
        finally:
            os._exit(0)


def _enter(ctl: socket, plan: dict[str, Any]) -> tuple[str, str, tuple[str, ...]]:
    """Enter the namespaces that all wardens share; return backend, enforcement and what is missing."""
    wanted = plan["layers"]
    if not wanted:
        return "none", "none", ()
    if plan["scratch_lasts"]:
        plan["held_scratch"] = lasting.hold(plan["scratch"])
    scratch.make(plan["scratch"], plan["home_files"])
    plan["outside"] = inside.identities()
    available = layers.probe(plan["scratch"])
    held = _choose_backend(plan, available)
    if plan["processes"] is not None:
        _choose_count(plan, held)
    enforcement, missing = layers.downgrade(wanted, held)
    if plan["backend"] == "bubblewrap" and not plan["nested"]:
        plan["full_map"] = False
        return "bubblewrap", enforcement, missing
    if "user" not in missing:
        uid, gid = os.geteuid(), os.getegid()
        namespaces.unshare("user")
        plan["full_map"] = plan["full_map"] and _ask_for_all_ids(ctl)
        if not plan["full_map"]:
            namespaces.write_own_id(uid, gid)
    if "net" in wanted and "net" not in missing:
        namespaces.unshare("net")
        namespaces.raise_loopback()
    return plan["backend"], enforcement, missing


def _choose_backend(plan: dict[str, Any], available: set[str]) -> set[str]:
    """Decide who makes the wardens, and return the layers that will hold them."""
    asked = plan["backend"]
    plan["backend"] = "warden"
    if asked == "warden" or (asked == "auto" and layers.downgrade(plan["layers"], available)[0] == "full"):
        return available
    if asked == "auto" and plan["scratch_lasts"]:
        # The tool follows links while it builds, and commands of another sandbox may be making some there.
        return available
    from corral.containment.bubblewrap import Bubblewrap  # noqa: PLC0415  few need it, and all would wait for it

    try:
        tool = Bubblewrap()
        held = tool.probe(plan, available)
    except backend.UnusableError:
        if asked == "auto":
            return available
        raise
    if asked == "auto" and not backend.holds_more(held, available, plan["layers"]):
        return available
    plan["backend"] = "bubblewrap"
    plan["tool"] = tool
    return held


def _choose_count(plan: dict[str, Any], available: set[str]) -> None:
    """Decide by what the processes of a command are counted; without a way the limits are not kept."""
    if "pid" in available:
        plan["group_place"] = cgroups.place()
        # The kernel counts for RLIMIT_NPROC by user and user namespace, and root not at all.
        plan["counts_by_user"] = plan["group_place"] is None and os.geteuid() != 0
        if plan["group_place"] or plan["counts_by_user"]:
            return
    available.discard("limits")


def _ask_for_all_ids(ctl: socket) -> bool:
    # The kernel takes a map of more than one id only from outside.
    wire.send(ctl, wire.COUNT.pack(wire.MAP, os.getpid()))
    answer, _ = wire.receive(ctl)
    return wire.unpack_count(answer, wire.MAP) == 0


class _Keeper:
    def __init__(self, ctl: socket, plan: dict[str, Any], status: tuple[str, str, tuple[str, ...]]) -> None:
        self.ctl = ctl
        self.plan = plan
        self.status = status
        self.layers = frozenset(plan["layers"]) - frozenset(status[2])
        self.ours_lives, self.lives = os.pipe()  # its end tells a warden that the keeper is gone
        self.start: Start = self.fork_first_of_namespace if "pid" in self.layers else self.fork
        if tool := plan.pop("tool", None):
            self.start = lambda ours: self.start_by_tool(tool, ours)
        self.wardens: dict[int, int] = {}  # pidfd to pid
        self.above: dict[int, int] = {}  # where the tool starts wardens, the pid of its own process to the warden's
        self.groups: dict[int, str] = {}  # pid to control group
        self.poller = select.poll()
        self.poller.register(CTL, select.POLLIN)
        self.poller.register(HOST, select.POLLIN)

    def answer(self) -> bool:
        """Serve what has happened; false when the host is gone."""
        for descriptor, _ in self.poller.poll():
            if descriptor == HOST:
                return False
            if descriptor == CTL:
                message, descriptors = wire.receive(self.ctl)
                wire.close_all(descriptors)
                if not message:
                    return False
                if message[0] == wire.NEW:
                    self.make_warden()
                elif message[0] == wire.SWEEP:
                    killed = self.sweep(wire.unpack_count(message, wire.SWEEP))
                    wire.send(self.ctl, wire.COUNT.pack(wire.SWEEP, killed))
            elif descriptor in self.wardens:
                self.sweep()
        return True

    def make_warden(self) -> None:
        """Fork a warden, and hand the host its socket and a pidfd, or the error that prevents it."""
        try:
            theirs, ours = socketpair(AF_UNIX, SOCK_SEQPACKET)
            pid, pidfd = self.start(ours)
        except OSError as error:
            wire.send(self.ctl, wire.COUNT.pack(wire.NEW, error.errno or 0))
            return
        ours.close()
        self.wardens[pidfd] = pid
        self.poller.register(pidfd, select.POLLIN)
        wire.send(self.ctl, wire.COUNT.pack(wire.NEW, pid), (theirs.fileno(), pidfd))
        theirs.close()

    def fork(self, ours: socket) -> tuple[int, int]:
        """Fork a warden in this pid namespace."""
        keeper = os.getpid()
        pid = os.fork()
        if pid == 0:
            self.run_warden(ours, keeper)
        return pid, os.pidfd_open(pid)

    def fork_first_of_namespace(self, ours: socket) -> tuple[int, int]:
        """Fork a warden that is the first process of a new pid namespace."""
        # By way of a child: who enters a pid namespace for its children can do so only once.
        keeper = os.getpid()
        told, tell = socketpair(AF_UNIX, SOCK_SEQPACKET)
        wait, go = os.pipe()
        between = os.fork()
        if between == 0:
            _step_between(
                tell, lambda: self.run_warden(ours, keeper, wait), own_user=self.plan.get("counts_by_user", False)
            )
        tell.close()
        os.close(wait)
        try:
            message, descriptors = wire.receive(told)
            os.waitpid(between, 0)
            number = wire.unpack_count(message, wire.NEW)
            if not descriptors:
                raise OSError(number, os.strerror(number))
            group = ""
            if self.plan.get("group_place"):
                group = cgroups.make(self.plan["group_place"], number, self.plan["processes"])
                self.groups[number] = group
            # Only now is this process the warden's parent, whose death it can ask to be told of.
            os.write(go, os.fsencode(group) or b"-")
        finally:
            told.close()
            os.close(go)
        return number, descriptors[0]

    def start_by_tool(self, tool: Bubblewrap, ours: socket) -> tuple[int, int]:
        """Let bubblewrap start a warden."""

        def count(child: int) -> None:
            if self.plan.get("group_place"):
                # One more for the tool's own process.
                self.groups[child] = cgroups.make(self.plan["group_place"], child, self.plan["processes"] + 1)

        facts = {"status": self.status, "is_first": not self.wardens}
        try:
            pid, pidfd, child = tool.start(ours, self.ours_lives, self.layers, facts, count)
        except backend.UnusableError as error:
            # A link has come into the way since the first one was started.
            raise OSError(ELOOP, str(error)) from error
        self.above[child] = pid
        return pid, pidfd

    def run_warden(self, ours: socket, keeper: int, wait: int = -1) -> NoReturn:
        """Be a warden, and end as one: nothing of the keeper's stack may run on in a fork."""
        try:
            _close_all_but(ours.fileno(), wait, self.ours_lives)
            if wait >= 0:
                os.read(wait, 1)
                os.close(wait)
            warden.serve(
                ours,
                self.plan,
                self.layers,
                status=self.status,
                keeper=keeper,
                keeper_lives=self.ours_lives,
                is_first=not self.wardens,
            )
        except (BrokenPipeError, ConnectionResetError):
            # The host hung up in the middle of an answer.
            pass
        except BaseException:  # noqa: BLE001  the last frame of this process: told to the keeper's stderr, then the end
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)

    def sweep(self, lost: int = 0) -> int:
        """End a warden that is `lost`, and what dead ones left behind: every child that is no warden. Return how many."""
        killed: set[int] = set()
        for pidfd, pid in self.wardens.items():
            if pid == lost:
                # Counted now: with the first process of a pid namespace the kernel ends all of it.
                killed.update(tree.descendants(pid))
                pidfd_send_signal(pidfd, SIGKILL)
        give_up_at = monotonic() + SWEEP_SECONDS
        quiet_passes = 0
        # Until the lost one is gone, what is below it has not come to this process; and a list of children that is read while
        # one of them dies may lack another, so it takes two that are empty.
        while quiet_passes < 2 and monotonic() < give_up_at:
            self.reap()
            found = tree.kill_descendants(spared=(*self.wardens.values(), *self.above))
            killed |= found
            quiet_passes = 0 if found or lost in self.wardens.values() else quiet_passes + 1
            sleep(tree.PASS_SECONDS)
        return len(killed)

    def reap(self) -> None:
        """Collect the dead, and close what is known of a warden among them."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.forget(pid)

    def forget(self, pid: int) -> None:
        """Close what is known of a warden that has ended."""
        if pid in self.groups:
            cgroups.remove(self.groups.pop(pid))
        pid = self.above.pop(pid, pid)
        for pidfd, known in self.wardens.items():
            if known == pid:
                self.poller.unregister(pidfd)
                os.close(pidfd)
                del self.wardens[pidfd]
                return

    def end(self) -> None:
        """End every warden and everything below."""
        for pidfd in self.wardens:
            pidfd_send_signal(pidfd, SIGKILL)
        tree.end_descendants(SWEEP_SECONDS)
        for group in self.groups.values():
            cgroups.remove(group)
        if "held_scratch" in self.plan:
            lasting.release(self.plan["scratch"], self.plan["held_scratch"])
        elif self.layers:
            scratch.remove(self.plan["scratch"])


def _close_all_but(*kept: int) -> None:
    after = 3
    for descriptor in sorted(kept):
        if descriptor >= 0:
            os.closerange(after, descriptor)
            after = descriptor + 1
    os.closerange(after, os.sysconf("SC_OPEN_MAX"))


def _step_between(tell: socket, run: Callable[[], NoReturn], *, own_user: bool) -> NoReturn:
    """Enter a pid namespace, fork its first process, tell of it and end. In a user namespace of its own it is counted alone."""
    try:
        if own_user:
            uid, gid = os.geteuid(), os.getegid()
            tree.show()
            namespaces.unshare("user")
            namespaces.write_own_id(uid, gid)
        namespaces.unshare("pid")
        pid = os.fork()
        if pid == 0:
            tell.close()
            run()
        wire.send(tell, wire.COUNT.pack(wire.NEW, pid), (os.pidfd_open(pid),))
    except OSError as error:
        wire.send(tell, wire.COUNT.pack(wire.NEW, error.errno or 0))
    finally:
        os._exit(0)
