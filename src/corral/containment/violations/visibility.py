"""Decides whether the sandbox caused an error of a command, by the paths that the command could see and write.

Looks at the host's disk after the command has ended, and changes nothing.
"""

from __future__ import annotations

import os

from corral._lib.symlink_chain import matching_paths
from corral.containment.kernel.landlock_tree import closed_paths
from corral.guard.path_zones import inside
from corral.model.call import Violation
from corral.model.errors import PolicyError
from corral.policy import path_grants
from corral.policy.installation import installation_links, installation_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from corral.containment.filesystem.view import View
    from corral.policy.config import SandboxConfig

# The kernel generates these for the command, or looking a name up in them would ask a server.
_NOT_FILES = ("/proc", "/dev", "/sys", "/net", "/afs")
_HIDDEN = "exists on the host, but commands do not see it"


def is_locked(path: str) -> bool:
    """Say whether nobody may open a file by its mode. Root can do so outside, but has no such right in the sandbox."""
    try:
        return not os.lstat(path).st_mode & 0o600
    except OSError:
        return False


def _nearest(path: str, roots: Iterable[str]) -> str:
    return max((root for root in roots if inside(path, root)), key=len, default="")


def _existing(path: str) -> str:
    """Return the path, or the nearest directory above it that exists."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def grantable_violation(kind: str, target: str, detail: str, instead: str, grant: str, *, inferred: bool) -> Violation:
    """Return a violation that a setting of the user's would allow."""
    return Violation(kind, target, detail, f"{instead}; to allow it, the user can set {grant}.", inferred, grant)


class CommandView:
    """The paths that a command could see and write. Methods return None if the sandbox did not cause the error."""

    def __init__(self, view: View, config: SandboxConfig, missing: tuple[str, ...]) -> None:
        self.view = view
        self.config = config
        self.missing = missing
        self.has_mounts = "mount" not in missing
        self.readable, self.writable = view.readable, view.writable
        if not self.has_mounts:
            self.readable = tuple(path for path, _ in view.rules_without_mounts)
            self.writable = tuple(path for path, right in view.rules_without_mounts if right == "write")

    def refused(self, path: str, error: str) -> Violation | None:
        """Return why a path could not be changed or opened. `error` is the name of the errno."""
        if self.has_mounts:
            return self._refused_by_mount(path, error)
        root = _nearest(path, self.readable)
        if error != "EACCES" or _nearest(path, _NOT_FILES):
            return None
        closed = self._closed(path)
        if closed is not None or root in self.writable:
            return closed
        # A path that this user cannot open or write on the host either is not the sandbox's refusal.
        if not root:
            return self._hidden(path, "commands may not open it") if os.access(path, os.R_OK) else None
        return self._read_only(path, is_grantable=True) if os.access(_existing(path), os.W_OK) else None

    def _closed(self, path: str) -> Violation | None:
        """Return why Landlock closes a path in a directory that is open to commands, where they have no mounts."""
        closed = closed_paths(self.view.steps, self.view.rules_without_mounts)
        if any(inside(path, hidden) for hidden in closed.unreadable):
            return self._hidden(path, "commands may not open it") if os.access(path, os.R_OK) else None
        if not os.access(_existing(path), os.W_OK):
            return None
        if any(inside(path, repository) for repository in self.view.protected.repositories):
            detail = "without mounts, commands have no copy of a git directory, and the user's is read-only"
            instead = "Leave the work uncommitted, for the user to commit."
        elif any(inside(path, kept) for kept in closed.unwritable):
            return self._protected(path, "EROFS")
        elif (path in closed.split or os.path.dirname(path) in closed.split) and not is_locked(path):
            above = os.path.dirname(path) if os.path.dirname(path) in closed.split else path
            detail = f"without mounts, no name can be made, renamed or removed in {above}: it holds a directory that is protected"
            instead = "Work in a directory below it, or ask the user to make the name there."
        else:
            return None
        return Violation("protected", path, detail, instead, inferred=True)

    def _refused_by_mount(self, path: str, error: str) -> Violation | None:
        # A mount fails with EROFS or EBUSY. EACCES comes from the file's own mode, except for masked credentials.
        if error == "EACCES" and self._is_masked(path) and os.access(path, os.R_OK):
            return self._hidden(path, f"it {_HIDDEN}")
        if error not in ("EROFS", "EBUSY"):
            return None
        if _nearest(path, _NOT_FILES):
            if error == "EBUSY" or not os.access(path, os.W_OK):
                return None
            detail = "kernel settings are read-only for commands"
            return Violation("write-outside", path, detail, "No grant allows it.", inferred=True)
        found = self._protected(path, error)
        is_writable = _nearest(path, self.readable) in self.writable
        if found is not None or error == "EBUSY" or is_writable or _is_on_read_only_mount(path):
            return found
        return self._read_only(path, is_grantable=os.access(_existing(path), os.W_OK))

    def _is_masked(self, path: str) -> bool:
        masks = [step.target for step in self.view.steps if step.action == "mask"]
        masks += [found for pattern in self.view.hidden for found in matching_paths(pattern)]
        masks += self.view.scan.paths
        return any(inside(path, mask) for mask in masks)

    def absent(self, path: str) -> Violation | None:
        """Return why a path that exists on the host did not exist for the command."""
        if not self.has_mounts or _nearest(path, _NOT_FILES):
            return None
        root = _nearest(path, self.readable)
        is_scratch = root in ("/tmp", self.view.home)  # noqa: S108  the command's own
        if root and not is_scratch and not self._is_masked(path):
            return None
        if os.path.lexists(path):
            return self._hidden(path, f"it {_HIDDEN}")
        parent = os.path.dirname(path)
        if root or self._is_shown(parent) or not os.path.isdir(parent):
            return None
        return self._hidden(path, f"{parent} {_HIDDEN}", parent)

    def by_audit(self, path: str, *, writes: bool) -> Violation:
        """Return the violation for a refusal that the kernel's audit records name."""
        if writes:
            return (self._protected(path, "EROFS") or self._read_only(path, is_grantable=True)).replace(inferred=False)
        return self._hidden(path, "commands may not open it").replace(inferred=False)

    def _is_shown(self, directory: str) -> bool:
        empty = {"/", *(step.target for step in self.view.steps if step.action == "directory")}
        return directory in empty or any(inside(root, directory) for root in self.readable)

    def _protected(self, path: str, error: str) -> Violation | None:
        found = self.view.protected
        if any(inside(path, kept) for kept in found.readonly):
            detail, instead = (
                "its contents run later, outside the sandbox",
                "Leave it unchanged, or ask the user to change it.",
            )
        elif any(inside(path, tree) for tree in self.view.shared_trees):
            detail = "its files are hard links to files outside the project, which would change too"
            instead = (
                "Write elsewhere, or ask the user to install the packages again as copies: "
                "UV_LINK_MODE=copy uv sync --reinstall, or pnpm install --force --package-import-method=copy."
            )
        elif any(step.action == "readonly" and inside(path, step.target) for step in self.view.steps):
            detail, instead = "corral itself runs from it", "Leave it unchanged."
        elif error == "EBUSY" and any(inside(kept, path) for kept in (*found.readonly, *found.pinned)):
            detail, instead = "it holds protected files, and cannot be renamed or removed", "Leave it where it is."
        else:
            return None
        return Violation("protected", path, detail, instead, inferred=True)

    def _may_be_granted(self, place: str, *, to_write: bool) -> bool:
        real = os.path.realpath(place)
        try:
            if to_write:
                own = (*installation_paths(), *installation_links())
                path_grants.refuse_write_grant(real, self.view.home, self.config.project_root, own)
            path_grants.refuse_read_grant(real, self.view.home)
        except PolicyError:
            return False
        return real != "/"

    def _read_only(self, path: str, *, is_grantable: bool) -> Violation:
        if inside(path, self.config.project_root):
            detail, grant = "the project is read-only for commands", "containment.project = 'read-write'"
            return grantable_violation("write-outside", path, detail, "Write to /tmp", grant, inferred=True)
        place = _existing(path)
        detail, instead = "it is read-only for commands", "Write inside the project or /tmp"
        if not is_grantable:
            detail += ", and this user cannot write it on the host either"
        if not is_grantable or not self._may_be_granted(place, to_write=True):
            return Violation("write-outside", path, detail, f"{instead}; no grant allows it.", inferred=True)
        grant = f"containment.write = [{place!r}]"
        return grantable_violation("write-outside", path, detail, instead, grant, inferred=True)

    def _hidden(self, path: str, detail: str, place: str = "") -> Violation:
        instead, place = "Work inside the project", place or path
        if not self._may_be_granted(place, to_write=False):
            return Violation("hidden", path, detail, f"{instead}; no grant allows it.", inferred=True)
        return grantable_violation("hidden", path, detail, instead, f"containment.read = [{place!r}]", inferred=True)


def _is_on_read_only_mount(path: str) -> bool:
    try:
        return bool(os.statvfs(_existing(path)).f_flag & os.ST_RDONLY)
    except OSError:
        return False
