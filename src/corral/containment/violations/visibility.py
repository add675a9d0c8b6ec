"""What a command could see and write, asked path by path after it has ended: whether an error was the sandbox's doing.

Looks at the host's disk, changes nothing. A path that means nothing to the sandbox gives nothing.
"""

from __future__ import annotations

import os

from corral.containment.filesystem.credential_masks import matching_paths
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

# Of the kernel's own making in a command's tree, or answered by a server that a look-up would call.
_NOT_FILES = ("/proc", "/dev", "/sys", "/net", "/afs")
_PROTECTED_DETAIL = "what is written there runs later outside the sandbox"
_OWN_DETAIL = "corral itself runs from it"


def _nearest(path: str, roots: Iterable[str]) -> str:
    return max((root for root in roots if inside(path, root)), key=len, default="")


def _existing(path: str) -> str:
    """Return the nearest of a path and its parents that is there."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def grantable_violation(kind: str, target: str, detail: str, instead: str, grant: str, *, inferred: bool) -> Violation:
    """Return a violation that a setting of the owner's would allow."""
    return Violation(kind, target, detail, f"{instead}; the owner grants more: {grant}.", inferred, grant)


class CommandView:
    """A command's view, to be asked."""

    def __init__(self, view: View, config: SandboxConfig, missing: tuple[str, ...]) -> None:
        self.view = view
        self.config = config
        self.missing = missing
        self.has_mounts = "mount" not in missing
        self.readable, self.writable = view.readable, view.writable
        if not self.has_mounts:
            self.readable = tuple(path for path, _ in view.rules_without_mounts)
            self.writable = tuple(path for path, right in view.rules_without_mounts if right == "write")
        self.scratch = {"/tmp", view.home}  # noqa: S108  inside they are the sandbox's own
        self.empty = {"/", *(step.target for step in view.steps if step.action == "directory")}

    def refused(self, path: str, error: str) -> Violation | None:
        """Return what kept a path from being changed, or opened, if that was the sandbox."""
        if self.has_mounts:
            return self._refused_by_mount(path, error)
        root = _nearest(path, self.readable)
        if error != "EACCES" or root in self.writable or _nearest(path, _NOT_FILES):
            return None
        if not root:
            shut = os.access(path, os.R_OK)
            return self._unseen(path, "commands may not open it", path, inferred=True) if shut else None
        # Refused outside too, where the user has no right to it, is no refusal of ours.
        return self._unwritable(path, grantable=True, inferred=True) if os.access(_existing(path), os.W_OK) else None

    def _refused_by_mount(self, path: str, error: str) -> Violation | None:
        # A mount says EROFS, or EBUSY; a right that is missing is the file's own, but for what is masked.
        if error == "EACCES" and self._is_masked(path) and os.access(path, os.R_OK):
            return self._unseen(path, "it exists outside, and commands do not see it", path, inferred=True)
        if error not in ("EROFS", "EBUSY"):
            return None
        if _nearest(path, _NOT_FILES):
            detail = "the kernel's settings are read-only for commands"
            changeable = error == "EROFS" and os.access(path, os.W_OK)
            return Violation("write-outside", path, detail, "There is no grant for it.", True) if changeable else None
        kept = self._protected(path, error)
        if (
            kept is not None
            or error == "EBUSY"
            or _nearest(path, self.readable) in self.writable
            or _is_read_only(path)
        ):
            return kept
        return self._unwritable(path, grantable=os.access(_existing(path), os.W_OK), inferred=True)

    def _is_masked(self, path: str) -> bool:
        masks = [step.target for step in self.view.steps if step.action == "mask"]
        masks += [found for pattern in self.view.hidden for found in matching_paths(pattern)]
        return any(inside(path, mask) for mask in masks)

    def absent(self, path: str) -> Violation | None:
        """Return why a path that is there outside was not there for the command."""
        if not self.has_mounts or _nearest(path, _NOT_FILES):
            return None
        root = _nearest(path, self.readable)
        if root and root not in self.scratch and not self._is_masked(path):
            return None
        if os.path.lexists(path):
            return self._unseen(path, "it exists outside, and commands do not see it", path, inferred=True)
        parent = os.path.dirname(path)
        if root or self._is_shown(parent) or not os.path.isdir(parent):
            return None
        return self._unseen(path, f"{parent} exists outside, and commands do not see it", parent, inferred=True)

    def by_rule(self, path: str, *, writes: bool) -> Violation:
        """Return what the kernel says that it refused."""
        if writes:
            kept = self._protected(path, "EROFS")
            if kept is not None:
                return kept.replace(inferred=False)
            return self._unwritable(path, grantable=True, inferred=False)
        return self._unseen(path, "commands may not open it", path, inferred=False)

    def _is_shown(self, directory: str) -> bool:
        return directory in self.empty or any(inside(root, directory) for root in self.readable)

    def _protected(self, path: str, error: str) -> Violation | None:
        found = self.view.protected
        for kept in found.readonly:
            if inside(path, kept):
                instead = "Leave it as it is, or ask the owner to change it."
                return Violation("protected", path, _PROTECTED_DETAIL, instead, inferred=True)
        for step in self.view.steps:
            if step.action == "readonly" and inside(path, step.target):
                return Violation("protected", path, _OWN_DETAIL, "Leave it as it is.", inferred=True)
        if error == "EBUSY" and any(inside(kept, path) for kept in (*found.readonly, *found.pinned)):
            detail = "it holds protected files, and cannot be renamed or removed"
            return Violation("protected", path, detail, "Leave it where it is.", inferred=True)
        return None

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

    def _unwritable(self, path: str, *, grantable: bool, inferred: bool) -> Violation:
        if inside(path, self.config.project_root):
            detail, grant = "the project is read-only for commands", "containment.project = 'read-write'"
            return grantable_violation("write-outside", path, detail, "Write to /tmp", grant, inferred=inferred)
        place = _existing(path)
        detail, instead = "it is read-only for commands", "Write inside the project or /tmp"
        if not grantable:
            detail += ", and this user could not write it outside either"
        if not grantable or not self._may_be_granted(place, to_write=True):
            return Violation("write-outside", path, detail, f"{instead}; there is no grant for it.", inferred)
        grant = f"containment.write = [{place!r}]"
        return grantable_violation("write-outside", path, detail, instead, grant, inferred=inferred)

    def _unseen(self, path: str, detail: str, place: str, *, inferred: bool) -> Violation:
        instead = "Work inside the project"
        if not self._may_be_granted(place, to_write=False):
            return Violation("hidden", path, detail, f"{instead}; there is no grant for it.", inferred)
        grant = f"containment.read = [{place!r}]"
        return grantable_violation("hidden", path, detail, instead, grant, inferred=inferred)


def _is_read_only(path: str) -> bool:
    try:
        return bool(os.statvfs(_existing(path)).f_flag & os.ST_RDONLY)
    except OSError:
        return False
