"""How a sandbox holds its commands: the plan for its keeper, and whether what the kernel gives is enough for the config."""

from __future__ import annotations

import os

from corral._lib.fork_lock import ForkSafeLock
from corral.containment import layers
from corral.containment.filesystem import crash_recovery, persistent_scratch, scratch, view
from corral.containment.filesystem.credential_masks import CredentialMasks
from corral.containment.filesystem.protected_links import ProtectedLinks
from corral.containment.filesystem.replaced_mounts import MountedPaths, file_identity
from corral.containment.filesystem.watcher import ProtectedNameWatcher
from corral.containment.kernel import cgroups, limits
from corral.containment.protocol import pack_plan
from corral.containment.violations import detect as denials
from corral.containment.violations import kernel_audit
from corral.guard.path_zones import inside
from corral.model.errors import ContainmentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.containment.network.proxy_client import ProxyClient
    from corral.model.call import Violation
    from corral.policy.config import SandboxConfig

SIGSYS = 31


class ContainmentState:
    """What one sandbox asks of the kernel. Looked up once: later a command could have changed the answers."""

    def __init__(self, config: SandboxConfig) -> None:
        self.config = config
        self._project = file_identity(config.project_root)
        self.view: view.View | None = None
        self.scratch = ""
        self.lasts = False  # whether scratch is the project's, and stays when the sandbox ends
        self._mounted: bool | None = None  # whether commands see scratch as /tmp and their home, once that is known
        self._watch: ProtectedNameWatcher | None = None
        self._kept = MountedPaths(config.project_root)
        self._masks: CredentialMasks | None = None
        self.renewal = ForkSafeLock()  # held by the one thread that makes all of this anew
        self._links: ProtectedLinks | None = None
        self._watched: tuple[ProtectedLinks, ...] = ()
        self._made_by = 0
        self._opened: crash_recovery.SandboxMarker | None = None
        self._late: tuple[Violation, ...] = ()  # what others had planted that were killed; told with the first result
        self._listener: kernel_audit.AuditListener | None = None
        self.traffic: ProxyClient | None = None  # through the proxy, where destinations are granted by name
        if config.containment.destinations and config.containment.backend != "none":
            from corral.containment.network.proxy_client import ProxyClient  # noqa: PLC0415  most sandboxes name none

            self.traffic = ProxyClient(config)

    def plan(self) -> bytes:
        """Return what the keeper is to do."""
        containment = self.config.containment
        plan: dict[str, object] = limits.plan(self.config.limits) | {
            "backend": containment.backend,
            "layers": (),
            "full_map": False,
            "places": (self.config.project_root,),
        }
        if containment.backend == "none":
            return pack_plan(plan)
        if self.view is None:
            self.view = self._look()
            found = self.view.protected
            self._kept = MountedPaths(self.config.project_root, (*found.readonly, *found.pinned, *self.view.masked))
            self._masks = CredentialMasks(self.view.hidden)
            self._watch = ProtectedNameWatcher(found, self.config.project_root, self.view.programs)
            kept = [target for what, target, _, _ in self.view.steps if what == "readonly"]
            self._links = ProtectedLinks(kept, self.config.project_root)
            self._listener = kernel_audit.open_listener()
        if self._made_by != os.getpid():
            # A fork of the host has a keeper of its own, which removes what it made.
            self._made_by = os.getpid()
            # That tool follows links while it builds, and commands of another sandbox may be making some in what lasts.
            self.lasts = containment.scratch == "project" and containment.backend != "bubblewrap"
            if self.lasts:
                self.scratch = persistent_scratch.scratch_path(
                    self.config.project_root, self.view.shared, os.environ, make=True
                )
            if not self.lasts or not self.scratch:
                self.lasts = False
                shared = (self.config.project_root, *containment.write, *self.view.shared)
                self.scratch = scratch.new_scratch_path(shared, os.environ)
            self._opened = self._mark(self.view)
        return pack_plan(
            plan
            | {
                "layers": layers.wanted(containment.network),
                "full_map": os.geteuid() == 0,
                "scratch": self.scratch,
                "scratch_lasts": self.lasts,
                "home_files": {".gitconfig": self.view.git_identity.encode("utf-8", "surrogateescape")},
                "steps": [tuple(self._here(word) for word in step) for step in self.view.steps],
                "rules": self.view.rules,
                "rules_without_mounts": [(self._here(path), right) for path, right in self.view.rules_without_mounts],
                "network": containment.network,
                "publish": containment.publish if containment.network != "on" else (),
                "ptrace": containment.ptrace,
                "audited": self._listener is not None,
                "project": (self.config.project_root, *self._project),
                "places": (self.config.project_root, self.scratch),
            }
        )

    def _mark(self, seen: view.View) -> crash_recovery.SandboxMarker | None:
        # Whether scratch lasts is for a project's own file to say too, which must not be rid of the mark by it.
        place = self.scratch
        if not self.lasts:
            place = persistent_scratch.scratch_path(self.config.project_root, seen.shared, os.environ, make=False)
        try:
            return crash_recovery.SandboxMarker(place, seen.protected) if place else None
        except OSError as error:
            raise ContainmentError(f"what is protected cannot be noted in {place}: {error.strerror}") from None

    def _look(self) -> view.View:
        """Look at the project, without what commands planted whose sandbox was killed before it could."""
        seen = view.build_view(self.config, os.environ)
        root = self.config.project_root
        place = persistent_scratch.scratch_path(root, seen.shared, os.environ, make=False)
        for found in crash_recovery.abandoned_markers(place) if place else ():
            watch = ProtectedNameWatcher(found, root, seen.programs)
            self._late += watch.look()
            watch.close()
        return view.build_view(self.config, os.environ) if self._late else seen

    def project_error(self) -> str:
        """Return why commands cannot work in the project any more, or nothing."""
        root = self.config.project_root
        try:
            found = file_identity(root)
        except OSError as error:
            return f"cannot enter {root}: {error.strerror}"
        if found != self._project:
            return f"{root} was replaced since the sandbox was made; make a new one"
        return ""

    def replaced(self) -> str:
        """Return the project, or what in it is mounted over itself, if that was replaced or removed outside; or nothing."""
        return self._kept.replaced()

    def generation(self) -> int:
        """Return a generation number. It increases when a credential appears that running wardens do not mask."""
        return 0 if self._masks is None else self._masks.generation()

    def renew(self) -> None:
        """Look at everything anew when the next keeper starts, of which there is none now."""
        self._forget_opened()
        if self._watch is not None:
            self._watch.close()
        self.view = self._watch = self._links = None
        self._kept = MountedPaths(self.config.project_root)
        self._made_by = 0

    def clean(self) -> None:
        """Remove what a keeper that was killed could not."""
        if self._made_by == os.getpid():
            if not self.lasts:
                scratch.remove(self.scratch)
            if self._watch is not None:
                self._watch.close()
            if self.traffic is not None:
                self.traffic.close()
            self._forget_opened()
            cgroups.remove_stale()

    def _forget_opened(self) -> None:
        if self._made_by == os.getpid():
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.end()

    def __del__(self) -> None:
        # A sandbox that nobody closed has looked after each command all the same.
        self._forget_opened()

    def _here(self, word: str) -> str:
        return word.replace(view.SCRATCH, self.scratch, 1) if word.startswith(view.SCRATCH) else word

    def variables(self, backend: str, enforcement: str, missing: tuple[str, ...]) -> dict[str, str]:
        """Return the variables that name a command's own home and temporary directory."""
        if backend == "none" or enforcement == "none" or self.view is None:
            return {}
        # A warden mounts over links, so that nothing has to be looked for.
        self._watched = (self._links,) if backend == "bubblewrap" and self._links is not None else ()
        self._mounted = "mount" not in missing
        own = self._proxy_variables() if "net" not in missing else {}
        if self._mounted:
            own |= {"TMPDIR": "/tmp"} if "TMPDIR" in os.environ else {}  # noqa: S108  the command's own
            return own | {"HOME": self.view.home}
        return own | {"HOME": f"{self.scratch}/home", "TMPDIR": f"{self.scratch}/tmp"}  # noqa: S108

    def _proxy_variables(self) -> dict[str, str]:
        if self.traffic is None:
            return {}
        from corral.containment.network.proxy_client import variables  # noqa: PLC0415  loaded already

        return variables()

    def shown(self) -> tuple[tuple[str, str], ...]:
        """Return what commands see of their own, and where it lies; nothing before the first."""
        if self.view is None or self._mounted is None:
            return ()
        if self._mounted:
            seen = {"/tmp": f"{self.scratch}/tmp", self.view.home: f"{self.scratch}/home"}  # noqa: S108  the command's own
            return tuple((path, real) for path, real in seen.items() if path in self.view.writable)
        return tuple((f"{self.scratch}/{name}", f"{self.scratch}/{name}") for name in ("tmp", "home"))

    def temporary(self) -> str:
        """Return where the commands' /tmp lies, or nothing where it is the host's or not yet there."""
        if self._mounted is None:
            return persistent_scratch.project_tmp(self.config, os.environ)
        return dict(self.shown()).get("/tmp", "")  # noqa: S108  the command's own

    def violations(
        self, said: bytes, cwd: str, missing: tuple[str, ...], *, signal: int | None, began_at: float, warden: int
    ) -> tuple[Violation, ...]:
        """Return what a command that has ended did against the policy, as far as it can be known from outside."""
        if self.view is None or self._watch is None:
            return ()
        found, self._late = self._late, ()
        if "mount" not in missing:
            found += self._watch.look()
            for links in self._watched:
                found += links.look()
        refused: tuple[Violation, ...] = ()
        if said or signal or self._listener is not None or self.traffic is not None:
            refused = self.denials(said, cwd, missing, signal=signal, began_at=began_at, warden=warden)
        if not found:
            return refused
        known = {violation.target for violation in found if violation.target}
        return (
            *found,
            *[violation for violation in refused if not violation.inferred or violation.target not in known],
        )

    def kept(self) -> tuple[str, ...]:
        """Return what is protected, as it was found before the first command, and what is missing and would be run."""
        seen = self.view if self.view is not None else view.build_view(self.config, os.environ)
        found = seen.protected
        return (*found.readonly, *found.expected, *(target for what, target, _, _ in seen.steps if what == "readonly"))

    def programs(self) -> tuple[str, ...]:
        """Return the directories of programs outside the project."""
        return () if self.view is None else self.view.programs

    def walked(self) -> list[str]:
        """Return what of the project is looked up while a warden's tree is built."""
        if self.view is None:
            return []
        root = self.config.project_root
        pinned = [source for what, _, source, _ in self.view.steps if what == "pin" and source]
        kept = [target for what, target, _, _ in self.view.steps if what == "readonly" and inside(target, root)]
        return [root, *pinned, *kept]

    def denials(
        self, said: bytes, cwd: str, missing: tuple[str, ...], *, signal: int | None, began_at: float, warden: int
    ) -> tuple[Violation, ...]:
        """Return what was refused to a command that has ended; it is not asked what it left in the project."""
        if self.view is None:
            return ()
        found: tuple[Violation, ...] = () if self.traffic is None else self.traffic.violations(began_at)
        listener = self._listener
        if signal == SIGSYS:
            found += (denials.ended_by_filter(listener.take_kill(began_at) if listener else {}),)
        elif listener is not None:
            taken = listener.take(warden, began_at, expected=bool(said))
            found += denials.from_audit_records(taken, self.view, self.config)
        if not said:
            return found
        known = {violation.target for violation in found if violation.target}
        guessed = denials.infer_from_output(said, cwd, self.view, self.config, missing)
        return (*found, *[violation for violation in guessed if violation.target not in known])


def unmet_requirement(config: SandboxConfig, backend: str, enforcement: str, missing: tuple[str, ...]) -> str:
    """Return what the config demands of the kernel that is not there, and what to do; or nothing."""
    containment = config.containment
    more = "Set containment.accept_partial to run with less"
    if containment.project == "read-only" and (backend == "none" or "mount" in missing):
        wanted, less = "containment.project 'read-only'", "leave it 'read-write'"
        more = "Run where there is the layer mount"
    elif enforcement == "full" or (containment.accept_partial and enforcement == "partial"):
        return ""
    elif config.rules.needs_containment:
        wanted, less = f"profile {config.rules.name}", "use profile 'strict', which does not rely on it"
    elif containment.backend in ("warden", "bubblewrap"):
        wanted, less = f"containment.backend '{containment.backend}'", "choose 'auto', which takes what there is"
    else:
        return ""
    lacking = "; ".join(f"{name} ({layers.LAYERS[name][0]})" for name in missing)
    if backend == "none":
        lacking, more = "containment.backend is 'none'", "Choose containment.backend 'auto'"
    elif containment.backend == "auto" and containment.scratch == "project" and "mount" in missing:
        # Not tried by itself: with it, scratch does not last.
        more = f"Try containment.backend 'bubblewrap', which may be allowed more. {more}"
    return (
        f"{wanted} needs the kernel to contain the command, and not all of that is to be had here: {lacking}. "
        f"{more}, or {less}"
    )
