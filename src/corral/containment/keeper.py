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
from time import monotonic, sleep

from corral.containment import tree, warden, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CTL, HOST = 3, 4  # the descriptors the host leaves this program
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
    tree.hide()
    ctl = socket(fileno=CTL)
    plan, _ = wire.receive(ctl)
    keeper = _Keeper(ctl, wire.unpack_plan(plan))
    # Wardens are forks: what is frozen is not touched by their collector, and stays shared.
    gc.collect()
    gc.freeze()
    wire.send(ctl, wire.pack_ready("", "", ()))
    try:
        while keeper.answer():
            pass
    finally:
        try:
            keeper.end()
        finally:
            os._exit(0)


class _Keeper:
    def __init__(self, ctl: socket, plan: dict[str, Any]) -> None:
        self.ctl = ctl
        self.plan = plan
        self.wardens: dict[int, int] = {}  # pidfd to pid
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
            keeper = os.getpid()
            pid = os.fork()
        except OSError as error:
            wire.send(self.ctl, wire.COUNT.pack(wire.NEW, error.errno or 0))
            return
        if pid == 0:
            theirs.close()
            self.ctl.close()
            wire.close_all((HOST, *self.wardens))
            _run_warden(ours, self.plan, keeper)
        ours.close()
        pidfd = os.pidfd_open(pid)
        self.wardens[pidfd] = pid
        self.poller.register(pidfd, select.POLLIN)
        wire.send(self.ctl, wire.COUNT.pack(wire.NEW, pid), (theirs.fileno(), pidfd))
        theirs.close()

    def sweep(self, lost: int = 0) -> int:
        """End a warden that is `lost`, and what dead ones left behind: every child that is no warden. Return how many."""
        for pidfd, pid in self.wardens.items():
            if pid == lost:
                pidfd_send_signal(pidfd, SIGKILL)
        give_up_at = monotonic() + SWEEP_SECONDS
        killed: set[int] = set()
        quiet_passes = 0
        # Until the lost one is gone, what is below it has not come to this process; and a list of children that is read while
        # one of them dies may lack another, so it takes two that are empty.
        while quiet_passes < 2 and monotonic() < give_up_at:
            self.reap()
            found = tree.kill_descendants(spared=self.wardens.values())
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


def _run_warden(sock: socket, plan: dict[str, Any], keeper: int) -> None:
    # Nothing of the keeper's stack may run on in the fork.
    try:
        warden.serve(sock, plan, keeper)
    except OSError:
        # The host hung up in the middle of an answer.
        pass
    except BaseException:  # noqa: BLE001  the last frame of this process: told to the keeper's stderr, then the end
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)
