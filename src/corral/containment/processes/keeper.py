"""Makes wardens, and outlives none of its host: when the host is gone, everything below ends. One keeper per sandbox.

It is started as a program of its own, so that nothing of the host's memory, environment or descriptors is in it.
"""

from __future__ import annotations

import gc
import os
import select
import sys
from _socket import AF_UNIX, SOCK_SEQPACKET, socket, socketpair
from errno import EIO, ELOOP, EOPNOTSUPP
from time import monotonic, sleep

from corral._lib.own_cgroups import own_memory_limit
from corral.containment import backend, layers, protocol
from corral.containment.filesystem import persistent_scratch, scratch
from corral.containment.kernel import cgroups, namespaces, overlay, process_tree
from corral.containment.kernel.limit_monitor import LimitMonitor, close_all_but
from corral.containment.kernel.limits import rlimits
from corral.containment.kernel.usage import Meter, is_needed
from corral.containment.processes import warden
from corral.containment.processes.bubblewrap_init import namespace_ids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from corral.containment.backend import Start
    from corral.containment.network.proxy_process import ProxyProcess
    from corral.containment.network.publish_port import PortPublisher
    from corral.containment.processes.bubblewrap import Bubblewrap

CTL, HOST = 3, 4  # the descriptors the host leaves this program
MAX_PATH_BYTES = 4096
SWEEP_SECONDS = 2.0  # against what no signal ends
_CONTROLLED = {"pids": "processes", "memory": "memory_bytes", "cpu": "cpu_seconds"}


def main() -> None:
    """Serve the host that started this program."""
    os.closerange(HOST + 1, os.sysconf("SC_OPEN_MAX"))
    os.set_inheritable(CTL, False)
    os.set_inheritable(HOST, False)
    os.chdir("/")
    if not os.path.exists("/proc/self/stat"):
        raise FileNotFoundError("/proc is not mounted; without it what a command leaves behind cannot be found")
    process_tree.become_subreaper()
    process_tree.use_batch_scheduling()
    ctl = socket(fileno=CTL)
    _, (descriptor, *lent) = protocol.receive(ctl)
    plan = {"limits": {}, "places": ()} | protocol.unpack_plan(protocol.read_body(descriptor))
    os.close(descriptor)
    try:
        # Before anything is entered: the proxy stays in the host's network.
        outlet = _outlet(lent) if lent else None
        inlet = _inlet(plan["publish"]) if plan.get("publish") else None
        status = _enter(ctl, plan, outlet, inlet)
        # After the ids are mapped: a process that is hidden cannot open its own map.
        process_tree.hide()
        keeper = _Keeper(ctl, plan, status, [one.pid for one in (outlet, inlet) if one], outlet)
        # Wardens are forks: what is frozen is not touched by their collector, and stays shared.
        gc.collect()
        gc.freeze()
        protocol.send(ctl, protocol.pack_ready(*status))
    except BaseException as error:
        # The host may be gone by now.
        _give_back(plan)
        if isinstance(error, backend.UnusableError):
            # The host shows the last line to the owner.
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
        raise
    try:
        while keeper.answer():
            pass
    finally:
        try:
            keeper.end()
        finally:
            os._exit(0)


def _give_back(plan: dict[str, Any]) -> None:
    """Remove what commands had for themselves, or leave it to the next sandbox of the project."""
    if "held_scratch" in plan:
        persistent_scratch.release(plan["scratch"], plan["held_scratch"])
    elif plan["layers"] and not plan["scratch_lasts"]:
        scratch.remove(plan["scratch"])


def _outlet(lent: list[int]) -> ProxyProcess:
    from corral.containment.network.proxy_process import ProxyProcess  # noqa: PLC0415  few need it, and all would wait for it

    return ProxyProcess(lent)


def _inlet(ports: list[int]) -> PortPublisher:
    from corral.containment.network.publish_port import PortPublisher  # noqa: PLC0415  as above

    return PortPublisher(ports)


def _enter(
    ctl: socket, plan: dict[str, Any], outlet: ProxyProcess | None = None, inlet: PortPublisher | None = None
) -> tuple[str, str, tuple[str, ...]]:
    """Enter the namespaces that all wardens share; return backend, enforcement and what is missing."""
    wanted = plan["layers"]
    trial = cgroups.Trial(controller for controller, name in _CONTROLLED.items() if name in plan["limits"])
    if not wanted:
        _choose_bounds(plan, trial.places(), own_pids=False)
        return "none", "none", ()
    if plan["scratch_lasts"]:
        plan["held_scratch"] = persistent_scratch.acquire(plan["scratch"])
    plan["known"] = scratch.make(plan["scratch"], plan["home_files"])
    plan["outside"] = namespace_ids()
    available = layers.probe(plan["scratch"])
    held = _choose_backend(plan, available)
    _choose_bounds(plan, trial.places(), own_pids="pid" in held)
    enforcement, missing = layers.downgrade(wanted, held)
    if plan["backend"] == "bubblewrap" and not plan["nested"]:
        plan["full_map"] = False
        if inlet is not None:
            raise backend.UnusableError("a port can be published only where all commands share one network")
        return "bubblewrap", enforcement, missing
    if "user" not in missing:
        uid, gid = os.geteuid(), os.getegid()
        namespaces.unshare("user")
        plan["full_map"] = plan["full_map"] and _ask_for_all_ids(ctl)
        if not plan["full_map"]:
            namespaces.map_own_id(uid, gid)
    if "net" in wanted and "net" not in missing:
        namespaces.unshare("net")
        namespaces.raise_loopback()
        if outlet is not None:
            outlet.listen()
        if inlet is not None:
            inlet.start()
    elif inlet is not None:
        raise backend.UnusableError("a port can be published only where the sandbox has a network of its own")
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
    from corral.containment.processes.bubblewrap import Bubblewrap  # noqa: PLC0415  few need it, and all would wait for it

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


def _choose_bounds(plan: dict[str, Any], groups: dict[str, cgroups.Place], *, own_pids: bool) -> None:
    """Decide by what each bound of a command is kept: a control group, a resource limit, or the meter."""
    bounds = plan["limits"]
    plan["groups"] = groups
    # The warden, and above it the tool that started it.
    plan["not_counted"] = 2 if plan.get("backend") == "bubblewrap" else 1
    # The kernel counts for RLIMIT_NPROC by user and user namespace, and root not at all.
    plan["counts_by_user"] = "processes" in bounds and "pids" not in groups and own_pids and os.geteuid() != 0
    plan["rlimits"] = rlimits(plan)
    plan["is_metered"] = is_needed(plan)
    if isinstance(bounds.get("memory_bytes"), float):
        bounds["memory_bytes"] = int(bounds["memory_bytes"] * own_memory_limit())


def _ask_for_all_ids(ctl: socket) -> bool:
    # The kernel takes a map of more than one id only from outside.
    protocol.send(ctl, protocol.COUNT.pack(protocol.MAP, os.getpid()))
    answer, _ = protocol.receive(ctl)
    return protocol.unpack_count(answer, protocol.MAP) == 0


class _Keeper:
    def __init__(
        self,
        ctl: socket,
        plan: dict[str, Any],
        status: tuple[str, str, tuple[str, ...]],
        helpers: list[int],
        outlet: ProxyProcess | None = None,
    ) -> None:
        self.helpers = helpers  # children that are no command's
        self.outlet = outlet
        self.ctl = ctl
        self.plan = plan
        self.status = status
        self.layers = frozenset(plan["layers"]) - frozenset(status[2])
        self.ours_lives, self.lives = os.pipe()  # its end tells a warden that the keeper is gone
        self.start: Start = self.fork
        if tool := plan.pop("tool", None):
            self.start = lambda ours, bounds, group, plan: self.start_by_tool(tool, ours, bounds, group, plan)
        self.overlays = overlay.Overlays(plan.get("project", ("", 0, 0)))
        self.wardens: dict[int, int] = {}  # pidfd to pid
        self.above: dict[int, int] = {}  # where the tool starts wardens, the pid of its own process to the warden's
        self.groups: dict[int, cgroups.Group] = {}  # pid of this process's child to control group
        self.hits: dict[int, int] = {}  # pid of a dead warden to the bounds that its group had hit
        self.meters: dict[int, tuple[socket, Meter]] = {}  # descriptor of the way to a warden
        self.made = 0
        self.poller = select.poll()
        self.poller.register(CTL, select.POLLIN)
        self.poller.register(HOST, select.POLLIN)

    def answer(self) -> bool:
        """Serve what has happened; false when the host is gone."""
        for descriptor, _ in self.poller.poll():
            if descriptor == HOST:
                return False
            if descriptor == CTL:
                message, descriptors = protocol.receive(self.ctl)
                protocol.close_all(descriptors)
                if not message:
                    return False
                if message[0] == protocol.NEW:
                    self.make_warden(os.fsdecode(message[1:]))
                elif message[0] in (protocol.MOUNT_OVERLAY, protocol.UNMOUNT_OVERLAY):
                    number = self.change_overlay(message[0], os.fsdecode(message[1:]))
                    protocol.send(self.ctl, protocol.COUNT.pack(message[0], number))
                elif message[0] == protocol.SWEEP:
                    killed = self.sweep(protocol.unpack_count(message, protocol.SWEEP))
                    protocol.send(self.ctl, protocol.COUNT.pack(protocol.SWEEP, killed))
                elif message[0] == protocol.LIMIT_HITS:
                    hits = self.hits.pop(protocol.unpack_count(message, protocol.LIMIT_HITS), 0)
                    protocol.send(self.ctl, protocol.COUNT.pack(protocol.LIMIT_HITS, hits))
            elif descriptor in self.meters:
                self.measure(descriptor)
            elif descriptor in self.wardens:
                self.sweep()
        return True

    def measure(self, descriptor: int) -> None:
        """Tell a warden what its command uses."""
        sock, meter = self.meters[descriptor]
        try:
            asked = sock.recv(protocol.ASK.size)
            if asked:
                protocol.send(sock, meter.answer(asked))
                return
        except (BrokenPipeError, ConnectionResetError):
            # It ended with a question open.
            pass
        self.poller.unregister(descriptor)
        sock.close()
        del self.meters[descriptor]

    def change_overlay(self, what: int, place: str) -> int:
        """Lay or lift a transaction's overlay; return the error that prevents it, or 0."""
        if "mount" not in self.layers:
            return EOPNOTSUPP
        try:
            self.overlays.lay(place) if what == protocol.MOUNT_OVERLAY else self.overlays.lift(place)
        except OSError as error:
            return error.errno or EIO
        return 0

    def plan_in(self, place: str) -> dict[str, Any]:
        """Return the plan of a warden in a transaction's place; everybody's where there is none."""
        if not place:
            return self.plan
        if "mount" not in self.layers:
            raise OSError(EOPNOTSUPP, "a transaction needs mounts")
        path = self.plan["project"][0]
        source, *known = self.overlays.root_of(place)
        return self.plan | {
            "steps": overlay.replace_project_source(self.plan["steps"], path, source),
            "project": (path, *known),
            "places": (*self.plan["places"], place),
            "idle_seconds": 0.0,
        }

    def make_warden(self, place: str) -> None:
        """Fork a warden, and hand the host its socket and a pidfd, or the error that prevents it."""
        group: cgroups.Group | None = None
        try:
            plan = self.plan_in(place)
            theirs, ours = socketpair(AF_UNIX, SOCK_SEQPACKET)
            group = self.make_group()
            pid, pidfd, child = self.start_bounded(ours, group, plan)
        except OSError as error:
            if group:
                group.remove()
            protocol.send(self.ctl, protocol.COUNT.pack(protocol.NEW, error.errno or 0))
            return
        ours.close()
        self.wardens[pidfd] = pid
        if group:
            self.groups[child] = group
        self.poller.register(pidfd, select.POLLIN)
        protocol.send(self.ctl, protocol.COUNT.pack(protocol.NEW, pid), (theirs.fileno(), pidfd))
        theirs.close()

    def make_group(self) -> cgroups.Group | None:
        """Make the control group of a warden, where there is to be one."""
        if not self.plan["groups"]:
            return None
        self.made += 1
        bounds = {"memory": self.plan["limits"].get("memory_bytes", 0)}
        bounds["pids"] = self.plan["limits"].get("processes", 0) + self.plan["not_counted"]
        return cgroups.make(self.plan["groups"], self.made, bounds)

    def start_bounded(self, ours: socket, group: cgroups.Group | None, plan: dict[str, Any]) -> tuple[int, int, int]:
        """Start a warden in its group, and answer its questions from now on."""
        meter, asks = socketpair(AF_UNIX, SOCK_SEQPACKET) if self.plan["is_metered"] else (None, None)
        bounds = LimitMonitor(group.counters() if group else {}, self.plan["limits"], asks)
        try:
            pid, pidfd, child = self.start(ours, bounds, group, plan)
        finally:
            protocol.close_all(bounds.descriptors())
            if asks:
                asks.detach()
        if meter:
            self.meters[meter.fileno()] = (meter, Meter(pid, group, plan))
            self.poller.register(meter.fileno(), select.POLLIN)
        return pid, pidfd, child

    def fork(
        self, ours: socket, bounds: LimitMonitor, group: cgroups.Group | None, plan: dict[str, Any]
    ) -> tuple[int, int, int]:
        """Fork a warden, and let it begin when it is this process's child and in its group."""
        bounds.wait, go = os.pipe()
        keeper = os.getpid()
        try:
            if "pid" in self.layers:
                pid, pidfd = self.fork_first_of_namespace(lambda: self.run_warden(ours, keeper, bounds, plan))
            else:
                pid = os.fork()
                if pid == 0:
                    self.run_warden(ours, keeper, bounds, plan)
                pidfd = os.pidfd_open(pid)
            # Only now is this process the warden's parent, whose death it can ask to be told of.
            os.write(go, b"c")
            if group:
                group.take(pid)
            os.write(go, b"g")
        finally:
            # A warden that reads the pipe's end before it was let go ends itself.
            os.close(go)
        return pid, pidfd, pid

    def fork_first_of_namespace(self, run: Callable[[], NoReturn]) -> tuple[int, int]:
        """Fork a warden that is the first process of a new pid namespace."""
        # By way of a child: who enters a pid namespace for its children can do so only once.
        told, tell = socketpair(AF_UNIX, SOCK_SEQPACKET)
        between = os.fork()
        if between == 0:
            _step_between(tell, run, own_user=self.plan["counts_by_user"])
        tell.close()
        try:
            message, descriptors = protocol.receive(told)
            os.waitpid(between, 0)
        finally:
            told.close()
        number = protocol.unpack_count(message, protocol.NEW)
        if not descriptors:
            raise OSError(number, os.strerror(number))
        return number, descriptors[0]

    def start_by_tool(
        self, tool: Bubblewrap, ours: socket, bounds: LimitMonitor, group: cgroups.Group | None, plan: dict[str, Any]
    ) -> tuple[int, int, int]:
        """Let bubblewrap start a warden."""

        def count(child: int) -> None:
            if group:
                group.take(child)

        facts = {"status": self.status, "is_first": not self.wardens}
        tool.plan = plan
        try:
            pid, pidfd, child = tool.start(
                *(ours, self.ours_lives, self.layers, bounds), facts=facts, count=count, outlet=self.own_outlet()
            )
        except backend.UnusableError as error:
            # A link has come into the way since the first one was started.
            raise OSError(ELOOP, str(error)) from error
        self.above[child] = pid
        return pid, pidfd, child

    def own_outlet(self) -> int:
        """Return the way to the proxy for a warden that the tool gives a network of its own, else -1."""
        return self.outlet.way.fileno() if self.outlet and not self.plan["nested"] else -1

    def run_warden(self, ours: socket, keeper: int, bounds: LimitMonitor, plan: dict[str, Any]) -> NoReturn:
        """Be a warden, and end as one: nothing of the keeper's stack may run on in a fork."""
        try:
            close_all_but(ours.fileno(), self.ours_lives, *bounds.descriptors())
            bounds.await_keeper()
            warden.serve(
                *(ours, plan, self.layers, bounds),
                status=self.status,
                keeper=keeper,
                keeper_lives=self.ours_lives,
                is_first=not self.wardens,
            )
        except (BrokenPipeError, ConnectionResetError):
            # The host hung up in the middle of an answer, or the keeper before the beginning.
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
                killed.update(process_tree.descendants(pid))
                process_tree.kill(pidfd)
        give_up_at = monotonic() + SWEEP_SECONDS
        quiet_passes = 0
        # Until the lost one is gone, what is below it has not come to this process; and a list of children that is read while
        # one of them dies may lack another, so it takes two that are empty.
        while quiet_passes < 2 and monotonic() < give_up_at:
            self.reap()
            found = process_tree.kill_descendants(spared=self.spared())
            killed |= found
            quiet_passes = 0 if found or lost in self.wardens.values() else quiet_passes + 1
            sleep(process_tree.PASS_SECONDS)
        return len(killed)

    def spared(self) -> list[int]:
        """Return the children that are no command's: wardens, what started them, and the proxy."""
        return [*self.wardens.values(), *self.above, *self.helpers]

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
            group = self.groups.pop(pid)
            if group.hits("memory"):
                self.hits[self.above.get(pid, pid)] = protocol.TOO_MUCH_MEMORY
            group.remove()
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
            process_tree.kill(pidfd)
        process_tree.kill_and_reap_descendants(SWEEP_SECONDS)
        for group in self.groups.values():
            group.remove()
        _give_back(self.plan)


def _step_between(tell: socket, run: Callable[[], NoReturn], *, own_user: bool) -> NoReturn:
    """Enter a pid namespace, fork its first process, tell of it and end. In a user namespace of its own it is counted alone."""
    try:
        if own_user:
            uid, gid = os.geteuid(), os.getegid()
            process_tree.show()
            namespaces.unshare("user")
            namespaces.map_own_id(uid, gid)
        namespaces.unshare("pid")
        pid = os.fork()
        if pid == 0:
            tell.close()
            run()
        protocol.send(tell, protocol.COUNT.pack(protocol.NEW, pid), (os.pidfd_open(pid),))
    except OSError as error:
        protocol.send(tell, protocol.COUNT.pack(protocol.NEW, error.errno or 0))
    finally:
        os._exit(0)
