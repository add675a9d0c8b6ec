"""Keeps a git directory of the user's and the commands' own copy of it in step.

Commands see the copy. Its objects are theirs alone, with the user's as alternates. Before a command the user's changes are copied
in; after it the host writes the command's changes for the user, with git's own verifying writers. Both are one three-way
comparison with what both sides had when they were last compared. A crash at any step is completed by the next comparison.
"""

from __future__ import annotations

import marshal
import os
from fcntl import LOCK_EX, flock
from time import sleep

from corral._lib.nofollow import chmod_directory
from corral.git import config_file, index_file, work_files
from corral.git.changes import HAS_FINE_TIMES, WatchedDirectory
from corral.git.comparison import MAX_CONFIG_BYTES, Comparison
from corral.git.host_git import path_in
from corral.git.names import OID
from corral.git.refs import read_refs, read_value
from corral.git.safe_files import SafeTree
from corral.git.split_index import read_index
from corral.git.work_files import MAIN
from corral.git.worktree import base_index, index_signature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from corral.git.host_git import HostGit

PRIVATE, BASE = "dir", "base"  # names in the directory of a mirror
MAX_NOTES = 20
TICK_SECONDS = 0.01  # at most, of the kernel's clock


class Mirror:
    """One git directory of the user's, and the commands' copy of it."""

    def __init__(self, user_dir: str, place: str, alternates: str, git: HostGit, roots: tuple[str, ...]) -> None:
        self.is_new = False  # a repository that a command made, at its first comparison
        self.is_replaced = False  # running wardens show another copy
        self.others: Mapping[str, str] = {}  # other repositories of the user's, and where commands see them
        self.user_dir = user_dir
        self.place = place
        self.roots = roots
        self.private_dir = f"{place}/{PRIVATE}"
        self.alternates = alternates
        self.git = git
        self._user = WatchedDirectory(user_dir)
        self._private = WatchedDirectory(self.private_dir)
        self._saved = b""  # the base as it was read or written last

    @classmethod
    def stored(cls, place: str, git: HostGit, roots: tuple[str, ...]) -> Mirror | None:
        """Return the mirror that another process made in a directory, or None if it is not complete."""
        found = _read_base(place)[0]
        if "refs" not in found:
            return None
        user_dir, alternates = found["mirrors"]
        return cls(user_dir, place, alternates, git, roots)

    def preview(self) -> list[tuple[str, str, str]]:
        """Return what commands have changed: a name, and the old and the new value, or ""."""
        base = self._base()
        with SafeTree(self.private_dir) as private:
            refs, old = read_refs(private), base.get("refs", {})
            names = sorted(name for name in {*refs, *old} if refs.get(name) != old.get(name))
            found = [(name, old.get(name, ""), refs.get(name, "")) for name in names]
            for unit, known in base.get("units", {}).items():
                path = path_in(unit, "HEAD")
                head = read_value(private.text(path))
                if head != known.get("head"):
                    found.append((path, known.get("head", ""), head))
                is_same = index_signature(private, unit) == known.get("private_index")
                if not is_same and self._has_other_entries(private, unit):
                    found.append((path_in(unit, "index"), "", ""))
        return found

    def details(self) -> list[str]:
        """Return lines about staged files, settings and worktrees that would cross, for a review."""
        base = self._base()
        lines: list[str] = []
        with SafeTree(self.private_dir) as private, SafeTree(self.user_dir, is_strict=True) as user:
            for unit in base.get("units", {}):
                new = read_index(private, unit)
                try:
                    found = index_file.compare(base_index(self.place, unit), new or b"").differences
                except ValueError:
                    continue
                for each in found:
                    old, now = (side.oid.hex() if side is not None else "none" for side in (each.old, each.new))
                    if old != now:
                        name = each.key[0].decode("utf-8", "surrogateescape")
                        lines.append(f"{path_in(unit, 'index')}: {name!r}: {old} -> {now}")
            if base.get("config") is not None:
                before, theirs = (
                    config_file.parse(base["config"]),
                    config_file.parse(user.text("config", MAX_CONFIG_BYTES)),
                )
                mine = config_file.parse(private.text("config", MAX_CONFIG_BYTES))
                found_settings = config_file.changes(before, theirs, mine, base.get("refs", {}))
                lines += [
                    f"config: {config_file.name_of(each.key)} = {', '.join(each.values)}"
                    for each in found_settings
                    if not each.why
                ]
            try:
                names = private.names("worktrees")
            except OSError:
                names = []
            lines += [
                f"worktrees: {name!r} is new" for name in names if f"worktrees/{name}" not in base.get("units", {})
            ]
        return lines

    def _has_other_entries(self, private: SafeTree, unit: str) -> bool:
        new = read_index(private, unit)
        if new is None:
            return False
        try:
            return bool(index_file.compare(base_index(self.place, unit), new).differences)
        except ValueError:
            return True

    # --- what changed -------------------------------------------------------------------------------------------------

    def user_changed(self) -> bool:
        """Say whether the user's side may have changed since it was last compared. Takes some microseconds."""
        return self._user.is_changed()

    def private_changed(self) -> bool:
        """Say whether the commands' side may have changed since it was last compared."""
        return self._private.is_changed()

    def watched(self) -> list[str]:
        """Return the directories and files whose changes are noticed, on both sides."""
        return [*self._user.watched, *self._private.watched]

    def _remember(self, user: SafeTree, private: SafeTree) -> None:
        if not HAS_FINE_TIMES:
            # A change in the same tick of the kernel's clock would have the same ctime.
            sleep(TICK_SECONDS)
        self._user.remember(user)
        self._private.remember(private)

    # --- comparison ---------------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Have the next command compare again."""
        self._user.forget()
        self._private.forget()

    def compare(self) -> list[str]:
        """Bring both sides in step, and return what the user should know."""
        held = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            flock(held, LOCK_EX)
            # A command of another sandbox may put a link in the place of a directory above it.
            with SafeTree(self.user_dir, is_strict=True) as user:
                self._prepare(user)
                with SafeTree(self.private_dir) as private:
                    private.make_all_accessible()
                    found = Comparison(self, user, private, self._base())
                    is_complete = found.run()
                    self._remember(user, private)
                    if len(found.notes) > MAX_NOTES:
                        # A command can cause many notes about what stays, but must not hide the others with them.
                        found.notes.sort(key=lambda note: " in the sandbox" in note)
                        found.notes[MAX_NOTES:] = [f"and {len(found.notes) - MAX_NOTES} more"]
                    if not is_complete or not found.is_current():
                        # The next command compares again.
                        self.forget()
                    return found.notes
        finally:
            os.close(held)

    def adopt(self, built: str) -> list[str]:
        """Begin with a repository that a command made and that lies in the place of the copy. The user's is new and empty.

        It lies in `built`, from where the caller moves it to its place.
        """
        mirror = Mirror(built, self.place, self.alternates, self.git, self.roots)
        mirror.others, mirror.is_new = self.others, True
        return mirror._adopt()

    def note_place(self) -> None:
        """Note that the user's repository lies in its place now."""
        base = self._base()
        with SafeTree(self.user_dir, is_strict=True) as user:
            found = os.fstat(user.descriptor)
            files = {MAIN: {name: work_files.signature(user, name) for name in work_files.names_in(user, MAIN)}}
            if base.get("units", {}).get(MAIN):
                base["units"][MAIN]["user_index"] = index_signature(user, MAIN)
        identity = [found.st_dev, found.st_ino]
        self.save(base | {"mirrors": [self.user_dir, self.alternates], "identity": identity, "files": files})
        self.forget()

    def _adopt(self) -> list[str]:
        with SafeTree(self.user_dir) as user, SafeTree(self.private_dir) as private:
            self._repair(private)
            found = os.fstat(user.descriptor)
            head = read_value(user.text("HEAD"))
            unit: dict[str, Any] = {"head": head, "user_index": [], "private_index": None, "private_files": {}}
            config = user.text("config", MAX_CONFIG_BYTES)
            files = {MAIN: {n: work_files.signature(user, n) for n in work_files.names_in(user, MAIN)}}
            shallow = private.text("shallow", 1 << 20).split()
            if shallow and all(map(OID.match, shallow)):
                user.write("shallow", "".join(f"{oid}\n" for oid in shallow).encode())
                files[MAIN]["shallow"] = work_files.signature(user, "shallow")
        identity = [found.st_dev, found.st_ino]
        base = {"refs": {}, "units": {MAIN: unit}, "stash": [], "config": config, "files": files}
        self.save({"identity": identity, **base})
        return self.compare()

    def _repair(self, private: SafeTree) -> None:
        """Make the directories that a repository needs, and let its git find the user's objects."""
        for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info", "hooks", "logs"):
            private.make_directory(name)
        own = private.text("objects/info/alternates")
        line = f"{self.alternates}/objects"
        if line not in own.split("\n"):
            private.write("objects/info/alternates", f"{line}\n{own}".encode("utf-8", "surrogateescape"))

    def borrowed(self, private: SafeTree) -> tuple[str, ...]:
        """Return the object directories of the user's other repositories that a command's repository borrows from."""
        if not self.others:
            return ()
        lines = private.text("objects/info/alternates").split("\n")
        return tuple(f"{path}/objects" for path, shown in self.others.items() if f"{shown}/objects" in lines)

    def _base(self) -> dict[str, Any]:
        found, self._saved = _read_base(self.place)
        return found

    def save(self, base: dict[str, Any]) -> None:
        """Write what both sides have in common now."""
        data = marshal.dumps(base)
        if data == self._saved:
            return
        path, partial = f"{self.place}/{BASE}", f"{self.place}/.{BASE}"
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
        # Two names, because ext4 writes a file to the disk at once that is renamed over another.
        old = f"{path}-old"
        if os.path.lexists(old):
            os.unlink(old)
        if os.path.lexists(path):
            os.rename(path, old)
        os.rename(partial, path)
        self._saved = data

    def set_aside(self) -> None:
        """Keep the commands' side under another name, because a command's work may be in it alone."""
        if os.path.lexists(self.private_dir):
            os.rename(self.private_dir, f"{self.place}/{PRIVATE}-{os.urandom(4).hex()}")
            self.is_replaced = True
        self.forget()

    def _prepare(self, user: SafeTree) -> None:
        """Make the commands' side if it is missing, or if the user's repository is another one than before."""
        found = os.fstat(user.descriptor)
        identity = [found.st_dev, found.st_ino]
        base = self._base()
        if os.path.lexists(self.private_dir):
            # A command can remove the rights to it.
            os.close(chmod_directory(self.private_dir, None, 0o700))
        if base.get("identity") == identity and _is_repository(self.private_dir):
            return
        self.set_aside()
        os.mkdir(self.private_dir, 0o700)
        with SafeTree(self.private_dir) as private:
            self._repair(private)
            private.write("HEAD", b"ref: refs/heads/main\n")
        self.save({"identity": identity})


def is_orphan(place: str) -> bool:
    """Say whether a directory holds the copy of a git directory that no longer exists."""
    found = _read_base(place)[0]
    return "mirrors" in found and not os.path.lexists(found["mirrors"][0])


def _read_base(place: str) -> tuple[dict[str, Any], bytes]:
    """Return what both sides had in common when they were last compared, and the bytes of it. Both are empty if unknown."""
    for name in (BASE, f"{BASE}-old"):
        try:
            with open(f"{place}/{name}", "rb") as file:
                data = file.read()
            found: dict[str, Any] = marshal.loads(data)  # noqa: S302  commands cannot write this file
        except (OSError, ValueError, EOFError, TypeError):
            continue
        return found, data
    return {}, b""


def _is_repository(path: str) -> bool:
    return all(os.path.lexists(f"{path}/{name}") for name in ("HEAD", "objects", "refs"))
