"""Keeps the host's side of one sandbox's containment: the plan for its keeper, scratch, and checks after each command."""

from __future__ import annotations

import os

from corral._lib.fork_lock import ForkSafeLock
from corral._lib.nofollow import file_identity
from corral._lib.records import Record, frozen
from corral.containment import layers
from corral.containment.filesystem import crash_recovery, persistent_scratch, scratch
from corral.containment.filesystem.credential_masks import CredentialMasks
from corral.containment.filesystem.quarantine import ProtectedLinks
from corral.containment.filesystem.replaced_mounts import MountedPaths
from corral.containment.filesystem.view import SCRATCH, View, build_view
from corral.containment.filesystem.watcher import ProtectedNameWatcher
from corral.containment.kernel import cgroups, limits
from corral.containment.plan import Plan
from corral.containment.violations import detect, kernel_audit
from corral.guard.path_zones import inside
from corral.model.errors import ContainmentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.containment.network.proxy_client import ProxyClient
    from corral.model.call import Violation
    from corral.policy.config import SandboxConfig

SIGSYS = 31


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
    lasts: bool  # whether it belongs to the project, and stays when the sandbox ends
    marker: crash_recovery.SandboxMarker | None
    pid: int


class ContainmentState:
    """Prepares one sandbox on the host, writes the plan for its keeper, and detects violations after each command."""

    def __init__(self, config: SandboxConfig) -> None:
        self.config = config
        self._project = file_identity(config.project_root)
        self._snapshot: _Snapshot | None = None
        self._scratch: _Scratch | None = None
        self._unmounted = MountedPaths(config.project_root)  # before there is a snapshot
        self._masks = CredentialMasks(())
        self._is_mounted: bool | None = None  # whether commands see scratch as /tmp and HOME; None before the first
        self._watched_links: tuple[ProtectedLinks, ...] = ()
        self._late: tuple[Violation, ...] = ()  # from sandboxes that were killed; reported with the first result
        self.renewal = ForkSafeLock()  # held by the thread that renews the snapshot
        self.traffic: ProxyClient | None = None  # where destinations are granted by name
        if config.containment.destinations and config.containment.backend != "none":
            from corral.containment.network.proxy_client import ProxyClient  # noqa: PLC0415  most sandboxes name none

            self.traffic = ProxyClient(config)

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
        own = self._scratch.path
        return Plan(
            backend=containment.backend,
            layers=layers.wanted(containment.network),
            network=containment.network,
            publish=tuple(containment.publish) if containment.network != "on" else (),
            ptrace=containment.ptrace,
            is_audited=snapshot.listener is not None,
            limits=counted,
            rlimits=rlimits,
            places=(root, own),
            maps_all_ids=os.geteuid() == 0,
            project=(root, *self._project),
            scratch=own,
            scratch_lasts=self._scratch.lasts,
            home_files={".gitconfig": seen.git_identity.encode("utf-8", "surrogateescape")},
            steps=tuple(
                step.replace(source=_in_scratch(step.source, own)) if step.source.startswith(SCRATCH) else step
                for step in seen.steps
            ),
            rules=seen.rules,
            rules_without_mounts=tuple((_in_scratch(path, own), right) for path, right in seen.rules_without_mounts),
        ).pack()

    def _make_scratch(self, seen: View) -> _Scratch:
        containment, root = self.config.containment, self.config.project_root
        # Bubblewrap follows links while it builds, and in scratch that lasts, commands of another sandbox can make some.
        lasts = containment.scratch == "project" and containment.backend != "bubblewrap"
        path = persistent_scratch.scratch_path(root, seen.shared, os.environ, make=True) if lasts else ""
        # A policy file in the project can decide whether scratch lasts, but it must not be able to remove the marker.
        marked = path or persistent_scratch.scratch_path(root, seen.shared, os.environ, make=False)
        lasts = bool(path)
        path = path or scratch.new_scratch_path((root, *containment.write, *seen.shared), os.environ)
        try:
            marker = crash_recovery.SandboxMarker(marked, seen.protected) if marked else None
        except OSError as error:
            raise ContainmentError(f"cannot record the protected paths in {marked}: {error.strerror}") from None
        return _Scratch(path, lasts, marker, os.getpid())

    def _look(self) -> _Snapshot:
        """Look at the project. First remove what commands planted whose sandbox was killed before it could look."""
        root = self.config.project_root
        seen = build_view(self.config, os.environ)
        place = persistent_scratch.scratch_path(root, seen.shared, os.environ, make=False)
        for found in crash_recovery.abandoned_markers(place) if place else ():
            watcher = ProtectedNameWatcher(found, root, seen.programs)
            self._late += watcher.look()
            watcher.close()
        if self._late:
            seen = build_view(self.config, os.environ)
        found = seen.protected
        self._masks = CredentialMasks(seen.hidden)
        return _Snapshot(
            seen,
            MountedPaths(root, (*found.readonly, *found.pinned, *seen.masked)),
            ProtectedNameWatcher(found, root, seen.programs),
            ProtectedLinks(_readonly(seen), root),
            kernel_audit.open_listener(),
        )

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
        return (self._unmounted if self._snapshot is None else self._snapshot.mounted).first_replaced()

    def generation(self) -> int:
        """Return a generation number. It increases when a credential appears that running wardens do not mask."""
        return self._masks.generation()

    def renew(self) -> None:
        """Forget the snapshot, so that the next keeper gets a new one. There must be no keeper now."""
        self._end_marker()
        if self._snapshot is not None:
            self._snapshot.watcher.close()
        self._snapshot = self._scratch = None

    def clean(self) -> None:
        """Remove the scratch directory and control groups of a keeper that was killed."""
        made = self._scratch
        if made is not None and made.pid == os.getpid():
            if not made.lasts:
                scratch.remove(made.path)
            if self._snapshot is not None:
                self._snapshot.watcher.close()
            if self.traffic is not None:
                self.traffic.close()
            self._end_marker()
            cgroups.remove_stale()

    def _end_marker(self) -> None:
        made = self._scratch
        if made is not None and made.pid == os.getpid() and made.marker is not None:
            self._scratch = made.replace(marker=None)
            made.marker.end()

    def __del__(self) -> None:
        # The host looked for planted files after each command, even if the sandbox was never closed.
        self._end_marker()

    def variables(self, backend: str, enforcement: str, missing: tuple[str, ...]) -> dict[str, str]:
        """Return the environment variables that name a command's own home and temporary directory."""
        if backend == "none" or enforcement == "none" or self._snapshot is None:
            return {}
        # Corral's own warden mounts over links, so that a command cannot replace them.
        self._watched_links = (self._snapshot.links,) if backend == "bubblewrap" else ()
        self._is_mounted = "mount" not in missing
        own = {}
        if self.traffic is not None and "net" not in missing:
            from corral.containment.network.proxy_client import variables  # noqa: PLC0415  loaded already

            own = variables()
        if self._is_mounted:
            own |= {"TMPDIR": "/tmp"} if "TMPDIR" in os.environ else {}  # noqa: S108  the command's own
            return own | {"HOME": self._snapshot.view.home}
        return own | {"HOME": f"{self.scratch}/home", "TMPDIR": f"{self.scratch}/tmp"}  # noqa: S108

    def shown(self) -> tuple[tuple[str, str], ...]:
        """Return the directories that are a command's own: as it sees them, and on the host. Empty before the first."""
        if self.view is None or self._is_mounted is None:
            return ()
        if self._is_mounted:
            seen = {"/tmp": f"{self.scratch}/tmp", self.view.home: f"{self.scratch}/home"}  # noqa: S108  the command's own
            return tuple((path, real) for path, real in seen.items() if path in self.view.writable)
        return tuple((f"{self.scratch}/{name}", f"{self.scratch}/{name}") for name in ("tmp", "home"))

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
            for links in self._watched_links:
                found += links.look()
        refused: tuple[Violation, ...] = ()
        if said or signal or self._snapshot.listener is not None or self.traffic is not None:
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
        found: tuple[Violation, ...] = () if self.traffic is None else self.traffic.violations(began_at)
        seen, listener = self._snapshot.view, self._snapshot.listener
        if signal == SIGSYS:
            found += (detect.ended_by_filter(listener.take_kill(began_at) if listener else {}),)
        elif listener is not None:
            taken = listener.take(warden, began_at, expected=bool(said))
            found += detect.from_audit_records(taken, seen, self.config)
        if not said:
            return found
        known = {violation.target for violation in found if violation.target}
        guessed = detect.infer_from_output(said, cwd, seen, self.config, missing)
        return (*found, *[violation for violation in guessed if violation.target not in known])

    def kept(self) -> tuple[str, ...]:
        """Return the protected paths as they were before the first command, and the missing ones that would be run."""
        seen = self.view or build_view(self.config, os.environ)
        return (*seen.protected.readonly, *seen.protected.expected, *_readonly(seen))

    def programs(self) -> tuple[str, ...]:
        """Return the directories of programs outside the project."""
        return () if self.view is None else self.view.programs

    def walked(self) -> list[str]:
        """Return the paths of the project that are looked up while the tree of a warden is built."""
        if self.view is None:
            return []
        root = self.config.project_root
        pinned = [step.source for step in self.view.steps if step.action == "pin" and step.source]
        return [root, *pinned, *(path for path in _readonly(self.view) if inside(path, root))]


def _readonly(seen: View) -> list[str]:
    return [step.target for step in seen.steps if step.action == "readonly"]


def _in_scratch(path: str, scratch: str) -> str:
    return path.replace(SCRATCH, scratch, 1) if path.startswith(SCRATCH) else path


def unmet_requirement(config: SandboxConfig, backend: str, enforcement: str, missing: tuple[str, ...]) -> str:
    """Return which containment the config requires that this machine lacks, and what to do; or an empty string."""
    containment = config.containment
    more = "Set containment.accept_partial to run with less"
    if containment.project == "read-only" and (backend == "none" or "mount" in missing):
        wanted, less = "containment.project 'read-only'", "leave it 'read-write'"
        more = "Use a machine that has the layer mount"
    elif enforcement == "full" or (containment.accept_partial and enforcement == "partial"):
        return ""
    elif config.rules.needs_containment:
        wanted, less = f"profile {config.rules.name}", "use profile 'strict', which does not rely on it"
    elif containment.backend in ("warden", "bubblewrap"):
        wanted, less = f"containment.backend '{containment.backend}'", "choose 'auto', which accepts fewer layers"
    else:
        return ""
    lacking = "; ".join(f"{name} ({layers.LAYERS[name].keeps})" for name in missing)
    if backend == "none":
        lacking, more = "containment.backend is 'none'", "Choose containment.backend 'auto'"
    elif containment.backend == "auto" and containment.scratch == "project" and "mount" in missing:
        # Not tried automatically, since scratch does not last with it.
        more = f"Try containment.backend 'bubblewrap', which may be allowed more. {more}"
    return f"{wanted} needs the kernel to contain the command, and this machine lacks: {lacking}. {more}, or {less}"
