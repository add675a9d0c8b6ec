"""Keeps the host's side of one sandbox's containment: the plan for its keeper, scratch, and checks after each command."""

from __future__ import annotations

import os

from corral._lib.fork_lock import ForkSafeLock, no_fork
from corral._lib.network.certificates import CERTIFICATES_FILE, certificate_variables
from corral._lib.nofollow import file_identity
from corral._lib.records import Record, frozen
from corral.containment import layers
from corral.containment.filesystem import crash_recovery, persistent_scratch, scratch
from corral.containment.filesystem.credential_masks import CredentialMasks
from corral.containment.filesystem.quarantine import ProtectedLinks
from corral.containment.filesystem.replaced_mounts import MountedPaths
from corral.containment.filesystem.shared_files import make_own_copies
from corral.containment.filesystem.view import HOME, TMP, View, broker_variables, build_view, no_mirrors
from corral.containment.filesystem.watcher import ProtectedNameWatcher
from corral.containment.filesystem.without_mounts import SupervisedProject
from corral.containment.kernel import cgroups, limits
from corral.containment.network.network_inside import network_inside
from corral.containment.plan import Plan
from corral.containment.probe_cache import ProbeCache
from corral.containment.violations import detect, kernel_audit
from corral.guard.path_zones import inside
from corral.guard.toolchain_kinds import NAMED_CACHES
from corral.model.errors import ContainmentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.containment.filesystem.git_repos import GitDirectories
    from corral.containment.filesystem.protected import Protected
    from corral.containment.network.hold_answers import OnHold
    from corral.containment.network.proxy_client import ProxyClient
    from corral.model.call import Connection, Violation
    from corral.policy.config import SandboxConfig


SIGSYS = 31
unmet_requirement = layers.unmet_requirement


@frozen
class _Snapshot(Record):
    """The host's view of the project before the first command. It is taken once, since a command could change the answers."""

    view: View
    mounted: MountedPaths
    watcher: ProtectedNameWatcher
    links: ProtectedLinks
    listener: kernel_audit.AuditListener | None


@frozen
class _Scratch(Record):
    """The scratch directory of the process `pid`. A fork of the host makes its own."""

    path: str
    above_home: str
    lasts: bool  # whether it belongs to the project, and stays when the sandbox ends
    marker: crash_recovery.SandboxMarker | None
    pid: int

    @property
    def tmp(self) -> str:
        """The commands' /tmp, on the host."""
        return f"{self.path}/tmp"  # noqa: S108  in a directory of the user's

    @property
    def home(self) -> str:
        """The commands' HOME, on the host."""
        return f"{self.above_home}/home"


class ContainmentState:
    """Prepares one sandbox on the host, writes the plan for its keeper, and detects violations after each command."""

    def __init__(
        self,
        config: SandboxConfig,
        git: GitDirectories | None = None,
        *,
        on_hold: OnHold | None = None,
        hold_seconds: float = 0.0,
    ) -> None:
        self.config = config
        self._git = git
        self._on_hold = on_hold
        self._hold_seconds = hold_seconds
        self._project = file_identity(config.project_root)
        self._snapshot: _Snapshot | None = None
        self._scratch: _Scratch | None = None
        self._unmounted = MountedPaths(config.project_root)  # before there is a snapshot
        self._masks = CredentialMasks(())
        self._is_outdated = False
        self._is_mounted: bool | None = None  # whether commands see scratch as /tmp and HOME; None before the first
        self._supervised: SupervisedProject | None = None  # if commands have no mounts
        self._watched_links: tuple[ProtectedLinks, ...] = ()
        self._late: tuple[Violation, ...] = ()  # found before a command was started; reported with its result
        self._is_unclean = False  # whether a planted file could not be moved away
        self.renewal = ForkSafeLock()  # held by the thread that renews the snapshot
        self.probes: ProbeCache | None = None  # made for the first keeper
        self._proxy: ProxyClient | None = None  # made for the first keeper, unless the network is on

    @property
    def view(self) -> View | None:
        """The file system as commands see it, once a plan was made."""
        return None if self._snapshot is None else self._snapshot.view

    @property
    def scratch(self) -> str:
        """The scratch directory, once a plan was made."""
        return "" if self._scratch is None else self._scratch.path

    def plan(self) -> bytes:
        """Return the plan for a new keeper, packed. The first call looks at the project."""
        containment, root = self.config.containment, self.config.project_root
        counted, rlimits = limits.counted(self.config.limits), limits.rlimits(self.config.limits)
        if containment.backend == "none":
            return Plan(limits=counted, rlimits=rlimits, places=(root,)).pack()
        snapshot = self._snapshot = self._snapshot or self._look()
        seen = snapshot.view
        if self._scratch is None or self._scratch.pid != os.getpid():
            self._scratch = self._make_scratch(seen)
        own = self._scratch
        inside_net = network_inside(containment, os.environ)
        placed = {TMP: own.tmp, HOME: own.home, **inside_net.placed(own.path)}
        if self.probes is None and containment.backend in ("auto", "warden"):
            controllers = [name for name, limit in limits.CONTROLLED.items() if limit in counted]
            self.probes = ProbeCache(layers.wanted(containment.network), controllers, os.environ, root)
        return Plan(
            held=() if self.probes is None else self.probes.held,
            group_places={} if self.probes is None else self.probes.places,
            backend=containment.backend,
            layers=layers.wanted(containment.network),
            network=containment.network,
            grants_nothing=not (containment.destinations or containment.requests or containment.local),
            listeners=inside_net.listeners,
            publish=tuple(containment.publish) if containment.network != "on" else (),
            ptrace=containment.ptrace,
            is_audited=snapshot.listener is not None,
            limits=counted,
            rlimits=rlimits,
            places=tuple(dict.fromkeys((root, own.path, own.above_home))),
            maps_all_ids=os.geteuid() == 0,
            project=(root, *self._project),
            scratch=own.path,
            above_home=own.above_home,
            scratch_lasts=own.lasts,
            home_files={} if self._git is None else self._git.home_files(seen.programs, seen.home),
            shown_files=inside_net.files,
            steps=tuple(
                step.replace(source=placed[step.source]) if step.source in placed else step for step in seen.steps
            ),
            copies=seen.copies,
            rules=seen.rules,
            rules_without_mounts=tuple((placed.get(path, path), right) for path, right in seen.rules_without_mounts),
        ).pack()

    def known_layers(self) -> ProbeCache | None:
        """Return what the last plan says about the layers of this machine."""
        return self.probes

    def lend(self) -> tuple[int, ...]:
        """Return descriptors of the proxy for a new keeper, which gets them with its plan. The caller closes them."""
        if self.config.containment.network == "on" or self.config.containment.backend == "none":
            return ()
        if self._proxy is None:
            # Here, while the keeper's interpreter starts.
            with no_fork:
                from corral.containment.network.proxy_client import ProxyClient  # noqa: PLC0415  as above

            self._proxy = ProxyClient(self.config, self._on_hold, self._hold_seconds)
        return self._proxy.lend()

    def connections(self, began_at: float) -> tuple[Connection, ...]:
        """Return the connections through the proxy since a time."""
        return () if self._proxy is None else self._proxy.connections(began_at)

    def _make_scratch(self, seen: View) -> _Scratch:
        containment, root = self.config.containment, self.config.project_root
        # Bubblewrap follows links while it builds, and in scratch that lasts, commands of another sandbox can make some.
        lasts = containment.scratch == "project" and containment.backend != "bubblewrap"
        path = persistent_scratch.scratch_path(root, seen.shared, os.environ, make=True) if lasts else ""
        # A policy file in the project can decide whether scratch lasts, but not whether there is a marker. Without one, what the user
        # makes between two commands counts as a command's.
        marker = self._mark(seen)
        lasts = bool(path)
        path = path or scratch.new_scratch_path((root, *containment.write, *seen.shared), os.environ)
        above_home = persistent_scratch.home_path(path, self.config) if lasts else path
        return _Scratch(path, above_home, lasts, marker, os.getpid())

    def _mark(self, seen: View) -> crash_recovery.SandboxMarker | None:
        """Record the protected paths for the next sandbox. Return None if there is no private directory for it."""
        place = persistent_scratch.scratch_path(self.config.project_root, seen.shared, os.environ, make=True)
        try:
            return crash_recovery.SandboxMarker(place, seen.protected) if place else None
        except OSError as error:
            raise ContainmentError(f"cannot record the protected paths in {place}: {error.strerror}") from None

    def _look(self) -> _Snapshot:
        """Look at the project. First remove what commands of other sandboxes planted that could not remove it."""
        root = self.config.project_root
        open_mirrors = no_mirrors if self._git is None else self._git.open
        seen = build_view(self.config, os.environ, open_mirrors)
        for place in persistent_scratch.scratch_paths(root, seen.shared, os.environ, make=False):
            for found in crash_recovery.abandoned_markers(place):
                remaining = self._search_again(found)
                if remaining:
                    # The marker stays, for the next sandbox.
                    raise ContainmentError(remaining)
        if self._late or (self._git is not None and self._git.is_outdated):
            seen = build_view(self.config, os.environ, open_mirrors)
        if seen.protected.shared and self.config.containment.project != "read-only":
            copied = make_own_copies(root, seen.protected.shared)
            seen = build_view(self.config, os.environ, open_mirrors, copied)
        found = seen.protected
        self._masks = CredentialMasks(seen.hidden, seen.private, seen.scan)
        return _Snapshot(
            seen,
            MountedPaths(root, (*found.readonly, *found.pinned, *seen.masked, *seen.shared_trees)),
            ProtectedNameWatcher(found, root),
            ProtectedLinks(_readonly(seen), root),
            kernel_audit.open_listener(),
        )

    def _search_again(self, found: Protected, *links: ProtectedLinks) -> str:
        """Search for files that were planted since a search for protected paths. Return which one remains, or ""."""
        watcher = ProtectedNameWatcher(found, self.config.project_root)
        late = [*watcher.look(), *(violation for each in links for violation in each.look())]
        made, pointers = watcher.take_made()
        if self._git is not None and (made or pointers):
            late += self._git.take_over(made, pointers, dict(found.pointers))
        watcher.close()
        self._late += tuple(violation for violation in late if not violation.remains)
        return next((violation.text for violation in late if violation.remains), "")

    def remaining(self) -> str:
        """Return why no command may start: a planted file could not be moved away before, and cannot be now. Else ""."""
        if not self._is_unclean or self._snapshot is None:
            return ""
        with self.renewal:
            seen = self._snapshot.view
            remaining = self._search_again(seen.protected, *self._watched_links)
            if remaining:
                return remaining
            self._is_unclean = False
            self._end_marker()
            if self._scratch is not None:
                self._scratch = self._scratch.replace(marker=self._mark(seen))
        return ""

    def _leave_marker(self) -> None:
        """Remember a planted file that could not be moved away, for the sandboxes of all processes."""
        self._is_unclean = True
        made, snapshot = self._scratch, self._snapshot
        if made is None or snapshot is None:
            return
        if made.marker is None:
            try:
                self._scratch = made = made.replace(marker=self._mark(snapshot.view))
            except ContainmentError:
                # This sandbox remembers it all the same.
                return
        if made.marker is not None:
            made.marker.leave()

    def project_error(self) -> str:
        """Return why commands can no longer work in the project, or an empty string."""
        root = self.config.project_root
        try:
            found = file_identity(root)
        except OSError as error:
            return f"cannot enter {root}: {error.strerror}"
        return "" if found == self._project else f"{root} was replaced since the sandbox was made; make a new one"

    def replaced(self) -> str:
        """Return the first mounted path that was replaced or removed on the host, or an empty string."""
        if self._snapshot is None or self._supervised is not None:
            return self._unmounted.first_replaced()
        return self._snapshot.mounted.first_replaced()

    def repair(self, remount: Callable[[list[str]], bool]) -> bool:
        """Have replaced paths made read-only again for the commands that run. Returns false if that is not possible."""
        found = self._snapshot if self._is_mounted and not self._watched_links else None
        return found is not None and found.mounted.repair(_readonly(found.view), remount)

    def is_outdated(self) -> bool:
        """Return whether new wardens need a new plan: a repository was taken over, or the user made something protected."""
        return self._is_outdated or (self._git is not None and self._git.is_outdated)

    def synchronize(self, is_busy: Callable[[], bool]) -> None:
        """Copy what the user changed in git directories to the commands' copies. Call this before each command."""
        if self._snapshot is None or self._is_mounted is None:
            return
        if self._supervised is not None:
            # Another sandbox restores what its own commands change.
            self._is_outdated = not is_busy() and (self._supervised.is_changed() or self._snapshot.watcher.has_news())
            return
        if self._snapshot.watcher.has_news() and not is_busy() and not self._has_others():
            # No command runs, so it is the user's.
            self._is_outdated = True
        if self._git is not None:
            self._git.before(self._snapshot.watcher.other_changes)

    def prepare_transaction(self, place: str) -> None:
        """Make or update the copies of git directories for a transaction in a directory."""
        if self._git is not None:
            self._git.prepare_transaction(place)

    def _has_others(self) -> bool:
        """Return whether another sandbox of this project is open. What appears may then be its command's."""
        made = self._scratch
        return made is None or made.marker is None or made.marker.has_others()

    def generation(self) -> int:
        """Return a generation number. It increases when a credential appears that running wardens do not mask.

        Also when a name appears that they have no Landlock rule for.
        """
        return self._masks.generation() + (0 if self._supervised is None else self._supervised.changes())

    def added_masks(self) -> list[str]:
        """Return the credentials to hide that appeared since the plan was made and that no pattern of it names."""
        return self._masks.added()

    def renew(self) -> None:
        """Forget the snapshot, so that the next keeper gets a new one. There must be no keeper now."""
        self._end_marker()
        if self._snapshot is not None:
            self._snapshot.watcher.close()
        self._snapshot = self._scratch = self._supervised = None
        self._is_outdated = False

    def clean(self, *, was_busy: bool = False) -> None:
        """Remove the scratch directory and control groups of a keeper that was killed.

        If a command was running, it may have planted something. Else what appeared is the user's.
        """
        made = self._scratch
        if made is not None and made.pid == os.getpid():
            if not made.lasts:
                scratch.remove(made.path)
            if self._snapshot is not None:
                if was_busy:
                    self._look_again()
                self._snapshot.watcher.close()
            if self._git is not None:
                self._git.close()
            if self._proxy is not None:
                self._proxy.close()
            self._end_marker()
            cgroups.remove_stale()

    def _look_again(self) -> None:
        """Look after the last process has ended. No result tells what it planted."""
        if self._snapshot is None or self._is_mounted is None:
            return
        if self._supervised is not None:
            self._late += self._supervised.look(self._snapshot.watcher)
            return
        self._late += self._snapshot.watcher.look()
        if self._git is not None:
            made, pointers = self._snapshot.watcher.take_made()
            made = [*made, *self._git.adopted()]
            self._late += self._git.after()
            if made or pointers:
                originals = dict(self._snapshot.view.protected.pointers)
                self._late += self._git.take_over(made, pointers, originals)

    def _end_marker(self) -> None:
        made = self._scratch
        if made is not None and made.pid == os.getpid() and made.marker is not None:
            self._scratch = made.replace(marker=None)
            if self._is_unclean:
                made.marker.close()
            else:
                made.marker.end()

    def __del__(self) -> None:
        # The host looked for planted files after each command, even if the sandbox was never closed.
        self._end_marker()

    def variables(self, backend: str, enforcement: str, missing: tuple[str, ...]) -> dict[str, str]:
        """Return the environment variables that name a command's own home and temporary directory."""
        if backend == "none" or enforcement == "none" or self._snapshot is None or self._scratch is None:
            return {}
        # Corral's own warden mounts over links, so that a command cannot replace them.
        self._is_mounted = "mount" not in missing
        self._watched_links = (self._snapshot.links,) if backend == "bubblewrap" or not self._is_mounted else ()
        if not self._is_mounted and self._supervised is None:
            self._supervised = SupervisedProject(self._snapshot.view, self.config.project_root)
        own = {}
        if self._proxy is not None and "net" not in missing:
            own = self._proxy.variables()
        if self._is_mounted:
            if CERTIFICATES_FILE in self._snapshot.view.readable:
                own |= certificate_variables(os.environ)
            own |= broker_variables(self.config.containment.broker, os.environ)
            own |= {"TMPDIR": "/tmp"} if "TMPDIR" in os.environ else {}  # noqa: S108  the command's own
            home = self._snapshot.view.home
            caches = {name: f"{home}/{path}" for name, path in NAMED_CACHES.items()}
            own |= {name: path for name, path in caches.items() if os.path.isdir(path)}
            return own | {"HOME": home}
        return own | {"HOME": self._scratch.home, "TMPDIR": self._scratch.tmp}

    def shown(self) -> tuple[tuple[str, str], ...]:
        """Return the directories that are a command's own: as it sees them, and on the host. Empty before the first."""
        if self.view is None or self._is_mounted is None or self._scratch is None:
            return ()
        tmp, home = self._scratch.tmp, self._scratch.home
        if self._is_mounted:
            seen = {"/tmp": tmp, self.view.home: home}  # noqa: S108  the command's own
            return tuple((path, real) for path, real in seen.items() if path in self.view.writable)
        return ((tmp, tmp), (home, home))

    def temporary(self) -> str:
        """Return the host's path of the commands' /tmp, or an empty string if it is the host's /tmp or not made yet."""
        if self._is_mounted is None:
            return persistent_scratch.project_tmp(self.config, os.environ)
        return dict(self.shown()).get("/tmp", "")  # noqa: S108  the command's own

    def violations(
        self, said: bytes, cwd: str, missing: tuple[str, ...], *, signal: int | None, began_at: float, warden: int
    ) -> tuple[Violation, ...]:
        """Return the violations of a command that has ended: planted files and refused accesses."""
        if self._snapshot is None:
            return ()
        found, self._late = self._late, ()
        if "mount" not in missing:
            found += self._snapshot.watcher.look()
            if self._git is not None:
                made, pointers = self._snapshot.watcher.take_made()
                if self._git.is_outdated:
                    # Running wardens can still write these.
                    made = [*made, *self._git.adopted()]
                found += self._git.after(self._snapshot.watcher.other_changes)
                if made or pointers:
                    found += self._git.take_over(made, pointers, dict(self._snapshot.view.protected.pointers))
                    self._snapshot.watcher.settle(self._git.pointers)
        elif self._supervised is not None:
            found += self._supervised.look(self._snapshot.watcher)
        for links in self._watched_links:
            found += links.look()
        if found and any(violation.remains for violation in found):
            self._leave_marker()
        refused: tuple[Violation, ...] = ()
        if said or signal or self._snapshot.listener is not None or self._proxy is not None:
            refused = self.denials(said, cwd, missing, signal=signal, began_at=began_at, warden=warden)
        if not found:
            return refused
        known = {violation.target for violation in found if violation.target}
        return (*found, *[one for one in refused if not one.inferred or one.target not in known])

    def denials(
        self, said: bytes, cwd: str, missing: tuple[str, ...], *, signal: int | None, began_at: float, warden: int
    ) -> tuple[Violation, ...]:
        """Return the accesses that were refused to a command that has ended, without looking for planted files."""
        if self._snapshot is None:
            return ()
        found: tuple[Violation, ...] = () if self._proxy is None else self._proxy.violations(began_at)
        seen, listener = self._snapshot.view, self._snapshot.listener
        if signal == SIGSYS:
            found += (detect.ended_by_filter(listener.take_kill(began_at) if listener else {}),)
        elif listener is not None:
            taken = listener.take(warden, began_at, expected=bool(said))
            found += detect.from_audit_records(taken, seen, self.config)
        if not said:
            return found
        guessed = detect.infer_from_output(said, cwd, seen, self.config, missing, warden=warden)
        known = {violation.target for violation in found if violation.target}
        found = detect.with_ports(found, guessed)
        known.update(violation.target for violation in found)
        return (*found, *[violation for violation in guessed if violation.target not in known])

    def kept(self) -> tuple[str, ...]:
        """Return the protected paths as they were before the first command, and the missing ones that would be run."""
        seen = self.view or build_view(self.config, os.environ)
        return (*seen.protected.readonly, *seen.protected.expected, *_readonly(seen))

    def walked(self) -> list[str]:
        """Return the paths of the project that are looked up while the tree of a warden is built."""
        if self.view is None:
            return []
        root = self.config.project_root
        pinned = [step.source for step in self.view.steps if step.action == "pin" and step.source]
        return [root, *pinned, *(path for path in _readonly(self.view) if inside(path, root))]


def _readonly(seen: View) -> list[str]:
    return [step.target for step in seen.steps if step.action == "readonly"]
