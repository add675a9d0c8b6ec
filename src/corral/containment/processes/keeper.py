"""Runs as the keeper: starts wardens for the host, and kills everything below when the host is gone. One keeper per sandbox.

It is a program of its own, so that it has nothing of the host's memory, environment or descriptors.
"""

from __future__ import annotations

import gc
import os
import select
import sys
from _socket import AF_UNIX, SOCK_SEQPACKET, socket, socketpair
from errno import EIO, ELOOP, EOPNOTSUPP
from time import monotonic, sleep

from corral.containment import backend, layers, protocol
from corral.containment.filesystem import persistent_scratch, scratch
from corral.containment.kernel import cgroups, limits, mounts, namespaces, overlay, process_tree
from corral.containment.kernel.layer import KEEPER
from corral.containment.kernel.limit_monitor import LimitMonitor, close_all_but
from corral.containment.kernel.usage import Meter
from corral.containment.plan import Plan, Step, WardenPlan
from corral.containment.processes import warden
from corral.containment.processes.bubblewrap_init import namespace_ids
from corral.containment.processes.pid_namespace import fork_in_pid_namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from corral.containment.network.proxy_process import OnDemandProxy, ProxyProcess
    from corral.containment.network.publish_port import PortPublisher
    from corral.containment.processes.bubblewrap import Bubblewrap

    Proxy = ProxyProcess | OnDemandProxy

CTL, HOST = 3, 4  # the descriptors that the host leaves to this program
SWEEP_SECONDS = 2.0  # against processes that no signal ends


def main() -> None:
    """Serve the host that started this program."""
    os.closerange(HOST + 1, os.sysconf("SC_OPEN_MAX"))
    os.set_inheritable(CTL, False)
    os.set_inheritable(HOST, False)
    os.chdir("/")
    if not os.path.exists("/proc/self/stat"):
        raise FileNotFoundError(
            "/proc is not mounted; corral needs it to find the processes that a command leaves behind"
        )
    process_tree.become_subreaper()
    process_tree.use_batch_scheduling()
    ctl = socket(fileno=CTL)
    _, (descriptor, *lent) = protocol.receive(ctl)
    plan = Plan.unpack(protocol.read_body(descriptor))
    os.close(descriptor)
    held_scratch: dict[str, int] = {}
    try:
        # Before any namespace is entered: the proxy stays in the host's network.
        outlet = _proxy(plan, lent) if lent else None
        inlet = _publisher(plan.publish) if plan.publish else None
        if plan.scratch_lasts:
            held_scratch = {path: persistent_scratch.acquire(path) for path in (plan.scratch, plan.above_home)}
        warden_plan, tool = _enter(ctl, plan, outlet, inlet)
        # After the ids are mapped: an undumpable process cannot open its own uid_map.
        process_tree.hide()
        keeper = _Keeper(ctl, warden_plan, tool, outlet, [one for one in (outlet, inlet) if one])
        # Wardens are forks. The collector does not touch frozen objects, so their pages stay shared.
        gc.collect()
        gc.freeze()
        gc.enable()  # it is off while the modules load
        protocol.send(ctl, protocol.pack_ready(*warden_plan.status()))
        # What was not tried is no news, and what bubblewrap holds is not what a warden would hold.
        tried = ((), {}) if plan.held or tool else (tuple(warden_plan.layers), warden_plan.limits.cgroups)
        protocol.send(ctl, bytes((protocol.FACTS,)) + protocol.pack(tried))
        if plan.held:
            cgroups.remove_stale_in(warden_plan.limits.cgroups)
    except BaseException as error:
        # The host may be gone by now.
        persistent_scratch.give_back(plan, held_scratch)
        if isinstance(error, backend.UnusableError):
            # The host shows the last line of stderr to the user.
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
        raise
    try:
        while keeper.answer():
            pass
    finally:
        try:
            keeper.end()
            persistent_scratch.give_back(plan, held_scratch)
        finally:
            os._exit(0)


def _proxy(plan: Plan, lent: list[int]) -> Proxy:
    from corral.containment.network import proxy_process  # noqa: PLC0415  not needed where the network is on

    return proxy_process.start_proxy(plan, lent)


def _publisher(ports: tuple[int, ...]) -> PortPublisher:
    from corral.containment.network.publish_port import PortPublisher, listen  # noqa: PLC0415  few sandboxes need it

    return PortPublisher({port: listen(port) for port in ports})


def _enter(
    ctl: socket, plan: Plan, outlet: Proxy | None, inlet: PortPublisher | None
) -> tuple[WardenPlan, Bubblewrap | None]:
    """Choose the backend, and enter the namespaces that all wardens share."""
    controllers = [controller for controller, name in limits.CONTROLLED.items() if name in plan.limits]
    places = cgroups.known_places(controllers, plan.group_places)
    # Where this process may no longer make the groups that an earlier keeper could make, it looks for other places.
    trial = None if plan.held and places == plan.group_places else cgroups.Trial(controllers)
    if not plan.layers:
        places = trial.places() if trial is not None else places
        limit_plan = limits.decide(plan, places, own_pids=False, uncounted=1)
        return WardenPlan(plan, limit_plan, "none", "none", (), frozenset(), os.getpid()), None
    known = scratch.make(plan.scratch, plan.above_home, plan.home_files)
    scratch.show_files(plan.scratch, plan.shown_files)
    outside = namespace_ids()
    tool, available = _choose_backend(plan, known, set(plan.held) or layers.probe(plan.scratch))
    places = trial.places() if trial is not None else places
    # A warden's cgroup holds the warden itself, and bwrap, which started it.
    uncounted = 2 if tool else 1
    limit_plan = limits.decide(plan, places, own_pids="pid" in available, uncounted=uncounted)
    enforcement, missing = layers.downgrade(plan.layers, available)
    warden_plan = WardenPlan(
        plan,
        limit_plan,
        "bubblewrap" if tool else "warden",
        enforcement,
        missing,
        frozenset(plan.layers) - frozenset(missing),
        os.getpid(),
        known,
        host_namespaces=outside,
    )
    if tool and not tool.is_nested:
        if inlet is not None:
            raise backend.UnusableError("a port can be published only where all commands share one network")
        return warden_plan, tool
    uid, gid = os.geteuid(), os.getegid()
    for layer in layers.of_stage(KEEPER, warden_plan):
        layer.enter(warden_plan)
        if layer.name == "user":
            warden_plan = warden_plan.replace(all_ids_mapped=plan.maps_all_ids and protocol.ask_for_all_ids(ctl))
            if not warden_plan.all_ids_mapped:
                namespaces.map_own_id(uid, gid)
    if "net" in warden_plan.layers:
        if outlet is not None:
            outlet.listen(plan.listeners)
        if inlet is not None:
            inlet.start()
    elif inlet is not None:
        raise backend.UnusableError("a port can be published only where the sandbox has a network of its own")
    return warden_plan, tool


def _choose_backend(
    plan: Plan, known: Mapping[str, tuple[int, int]], available: set[str]
) -> tuple[Bubblewrap | None, set[str]]:
    """Return bubblewrap, if it starts the wardens, and the layers that hold."""
    is_full = layers.downgrade(plan.layers, available)[0] == "full"
    # Bubblewrap follows links while it builds, and in scratch that lasts, commands of another sandbox can make some.
    if plan.backend == "warden" or (plan.backend == "auto" and (is_full or plan.scratch_lasts)):
        return None, available
    from corral.containment.processes import bubblewrap  # noqa: PLC0415  few sandboxes need it

    try:
        tool = bubblewrap.Bubblewrap(bubblewrap.find(), plan, known, available)
    except backend.UnusableError:
        if plan.backend == "auto":
            return None, available
        raise
    if plan.backend == "auto" and not backend.holds_more(tool.layers, available, plan.layers):
        return None, available
    return tool, tool.layers


class _Keeper:
    def __init__(
        self,
        ctl: socket,
        warden_plan: WardenPlan,
        tool: Bubblewrap | None,
        outlet: Proxy | None,
        helpers: list[Proxy | PortPublisher],
    ) -> None:
        self.ctl = ctl
        self.warden_plan = warden_plan
        self.tool = tool
        self.outlet = outlet
        self.helpers = helpers  # children that belong to no command
        self.ours_lives, self.lives = os.pipe()  # end of file tells a warden that the keeper is gone
        self.overlays = overlay.Overlays(warden_plan.host.project)
        if tool is None and "mount" in warden_plan.layers:
            homes = persistent_scratch.readable_homes(warden_plan.host)
            self.warden_plan = warden_plan.replace(host=self.overlays.mount_caches(warden_plan.host, homes))
        self.wardens: dict[int, int] = {}  # pidfd to pid
        self.above: dict[int, int] = {}  # the pid of bwrap to that of the warden it started
        self.groups: dict[int, cgroups.Group] = {}  # pid of a child of this process to its control group
        self.hits: dict[int, int] = {}  # pid of a dead warden to the limits that its group had hit
        self.meters: dict[int, tuple[socket, Meter]] = {}  # descriptor of the socket to a warden
        self.made = 0
        self.poller = select.poll()
        self.poller.register(CTL, select.POLLIN)
        self.poller.register(HOST, select.POLLIN)
        if outlet is not None:
            outlet.watch(self.poller)

    def answer(self) -> bool:
        """Wait for events and handle them; return false when the host is gone."""
        for descriptor, _ in self.poller.poll():
            if descriptor == HOST or (descriptor == CTL and not self.answer_host()):
                return False
            if descriptor in self.meters:
                self.measure(descriptor)
            elif descriptor in self.wardens:
                self.sweep()
            elif self.outlet is not None:
                self.outlet.answer(descriptor)
        return True

    def answer_host(self) -> bool:
        """Answer one message of the host; return false at end of file."""
        message, descriptors = protocol.receive(self.ctl)
        if message[:1] == bytes((protocol.REMOUNT,)):
            number = mounts.cover_again(descriptors, os.fsdecode(message[1:]).split("\0"))
            protocol.send(self.ctl, protocol.COUNT.pack(protocol.REMOUNT, number))
            return True
        if message[:1] == bytes((protocol.PUBLISH,)):
            number = self.publish(protocol.unpack_count(message, protocol.PUBLISH), descriptors)
            protocol.send(self.ctl, protocol.COUNT.pack(protocol.PUBLISH, number))
            return True
        protocol.close_all(descriptors)
        if not message:
            return False
        kind = message[0]
        if kind == protocol.NEW:
            self.make_warden(*os.fsdecode(message[1:]).split("\0"))
            return True
        if kind in (protocol.MOUNT_OVERLAY, protocol.UNMOUNT_OVERLAY):
            number = self.change_overlay(kind, os.fsdecode(message[1:]))
        elif kind == protocol.SWEEP:
            number = self.sweep(protocol.unpack_count(message, protocol.SWEEP))
        elif kind == protocol.LIMIT_HITS:
            number = self.hits.pop(protocol.unpack_count(message, protocol.LIMIT_HITS), 0)
        else:
            return True
        protocol.send(self.ctl, protocol.COUNT.pack(kind, number))
        return True

    def measure(self, descriptor: int) -> None:
        """Answer a warden that asks for the resource usage of its command."""
        sock, meter = self.meters[descriptor]
        try:
            asked = sock.recv(protocol.ASK.size)
            if asked:
                protocol.send(sock, meter.answer(asked))
                return
        except (BrokenPipeError, ConnectionResetError):
            # The warden ended before it got its answer.
            pass
        self.poller.unregister(descriptor)
        sock.close()
        del self.meters[descriptor]

    def publish(self, port: int, descriptors: Sequence[int]) -> int:
        """Forward a listening socket of the host to a port of the sandbox's loopback; return the errno of a failure, or 0."""
        if "net" not in self.warden_plan.layers or (self.tool and not self.tool.is_nested):
            protocol.close_all(descriptors)
            return EOPNOTSUPP
        from corral.containment.network.publish_port import publisher_of  # noqa: PLC0415  few sandboxes need it

        try:
            publisher = publisher_of(port, *descriptors)
            publisher.start()
            self.helpers.append(publisher)
        except OSError as error:
            return error.errno or EIO
        return 0

    def change_overlay(self, kind: int, place: str) -> int:
        """Mount or unmount the overlay of a transaction; return the errno of a failure, or 0."""
        if "mount" not in self.warden_plan.layers:
            return EOPNOTSUPP
        try:
            self.overlays.mount(place) if kind == protocol.MOUNT_OVERLAY else self.overlays.unmount(place)
        except OSError as error:
            return error.errno or EIO
        return 0

    def plan_in(self, place: str, masks: Sequence[str]) -> WardenPlan:
        """Return the plan of a warden in the directory of a transaction, or in the project for an empty path. It hides `masks` too."""
        warden_plan = self.warden_plan
        if masks:
            steps = (*warden_plan.host.steps, *(Step("hide", path) for path in masks))
            warden_plan = warden_plan.replace(host=warden_plan.host.replace(steps=steps))
        if not place:
            return warden_plan
        if "mount" not in warden_plan.layers:
            raise OSError(EOPNOTSUPP, "a transaction needs mounts")
        plan = warden_plan.host
        source, *identity = self.overlays.root_of(place)
        return warden_plan.replace(
            host=plan.replace(
                steps=overlay.replace_project_source(plan, source, place),
                project=(plan.project[0], *identity),
                places=(*plan.places, place),
                idle_seconds=0.0,
            )
        )

    def make_warden(self, place: str, *masks: str) -> None:
        """Start a warden that also hides `masks`, and send the host its socket and pidfd, or the errno of a failure."""
        group: cgroups.Group | None = None
        try:
            warden_plan = self.plan_in(place, masks)
            theirs, ours = socketpair(AF_UNIX, SOCK_SEQPACKET)
            group = self.make_group()
            pid, pidfd, child = self.start_warden(ours, group, warden_plan)
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
        """Make the control group of a warden, where groups keep a limit."""
        kept = self.warden_plan.limits
        if not kept.cgroups:
            return None
        self.made += 1
        pids = kept.limits.get("processes", 0) + kept.uncounted
        return cgroups.make(kept.cgroups, self.made, {"memory": kept.limits.get("memory_bytes", 0), "pids": pids})

    def start_warden(self, ours: socket, group: cgroups.Group | None, warden_plan: WardenPlan) -> tuple[int, int, int]:
        """Start a warden in its group, and register its meter.

        Return its pid, its pidfd, and the pid of the keeper's child: the warden itself, or bwrap above it.
        """
        kept = warden_plan.limits
        meter, asks = socketpair(AF_UNIX, SOCK_SEQPACKET) if kept.is_metered else (None, None)
        monitor = LimitMonitor(group.counters() if group else {}, kept.limits, asks)
        try:
            start = self.start_by_bubblewrap if self.tool else self.fork
            pid, pidfd, child = start(ours, monitor, group, warden_plan)
        finally:
            protocol.close_all(monitor.descriptors())
            if asks:
                asks.detach()
        if meter:
            self.meters[meter.fileno()] = (meter, Meter(pid, group, kept, warden_plan.host.places))
            self.poller.register(meter.fileno(), select.POLLIN)
        return pid, pidfd, child

    def fork(
        self, ours: socket, monitor: LimitMonitor, group: cgroups.Group | None, warden_plan: WardenPlan
    ) -> tuple[int, int, int]:
        """Fork a warden, which waits until it is this process's child and in its group."""
        wait, go = os.pipe()
        try:
            if "pid" in warden_plan.layers:
                pid, pidfd = fork_in_pid_namespace(
                    lambda: self.run_warden(ours, monitor, warden_plan, wait), warden_plan
                )
            else:
                pid = os.fork()
                if pid == 0:
                    self.run_warden(ours, monitor, warden_plan, wait)
                pidfd = os.pidfd_open(pid)
            # The warden's parent is this process only from now on, so only now can it ask for a signal on its death.
            os.write(go, b"c")
            if group:
                group.take(pid)
            os.write(go, b"g")
        finally:
            # A warden that reads end of file before both bytes exits.
            protocol.close_all((go, wait))
        return pid, pidfd, pid

    def start_by_bubblewrap(
        self, ours: socket, monitor: LimitMonitor, group: cgroups.Group | None, warden_plan: WardenPlan
    ) -> tuple[int, int, int]:
        """Start a warden by bubblewrap."""
        tool, outlet = self.tool, self.outlet
        if tool is None:
            raise RuntimeError("bubblewrap was not chosen")
        # A warden in a network of its own gets its own way to the proxy.
        way = outlet.way.fileno() if outlet and not tool.is_nested else -1
        first = not self.wardens
        try:
            pid, pidfd, child = tool.start(
                ours, self.ours_lives, monitor, warden_plan, group=group, is_first=first, outlet=way
            )
        except backend.UnusableError as error:
            # Since the first warden was started, a command has made a link in a path of the tree.
            raise OSError(ELOOP, str(error)) from error
        self.above[child] = pid
        return pid, pidfd, child

    def run_warden(self, ours: socket, monitor: LimitMonitor, warden_plan: WardenPlan, wait: int) -> NoReturn:
        """Run as a warden, and exit."""
        lives, first = self.ours_lives, not self.wardens

        def run() -> None:
            close_all_but(ours.fileno(), lives, wait, *monitor.descriptors())
            warden.await_byte(wait)
            warden.serve(ours, warden_plan, monitor, keeper_lives=lives, is_first=first, in_group=wait)

        warden.exit_after(run)

    def sweep(self, lost: int = 0) -> int:
        """Kill the warden with the pid `lost`, and all children that belong to no living warden. Return how many."""
        killed: set[int] = set()
        for pidfd, pid in self.wardens.items():
            if pid == lost:
                # Count now: when the first process of a pid namespace dies, the kernel kills the rest.
                killed.update(process_tree.descendants(pid))
                process_tree.kill(pidfd)
        give_up_at = monotonic() + SWEEP_SECONDS
        quiet_passes = 0
        # The lost warden's children become ours only when it is gone. A list of children that is read while one of them dies
        # may lack another, so stop only after two empty lists.
        while quiet_passes < 2 and monotonic() < give_up_at:
            self.reap()
            spared = [*self.wardens.values(), *self.above, *(helper.pid for helper in self.helpers)]
            found = process_tree.kill_descendants(spared=spared)
            killed |= found
            quiet_passes = 0 if found or lost in self.wardens.values() else quiet_passes + 1
            sleep(process_tree.PASS_SECONDS)
        return len(killed)

    def reap(self) -> None:
        """Reap dead children, and forget the wardens among them."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.forget(pid)

    def forget(self, pid: int) -> None:
        """Close the descriptors and groups of a warden that has ended."""
        if pid in self.groups:
            group = self.groups.pop(pid)
            if group.hits("memory"):
                self.hits[self.above.get(pid, pid)] = protocol.TOO_MUCH_MEMORY
            group.remove()
        self.helpers = [helper for helper in self.helpers if helper.pid != pid]
        pid = self.above.pop(pid, pid)
        for pidfd, known in self.wardens.items():
            if known == pid:
                self.poller.unregister(pidfd)
                os.close(pidfd)
                del self.wardens[pidfd]
                return

    def end(self) -> None:
        """Kill every warden and all descendants."""
        for pidfd in self.wardens:
            process_tree.kill(pidfd)
        process_tree.kill_and_reap_descendants(SWEEP_SECONDS)
        for group in self.groups.values():
            group.remove()
