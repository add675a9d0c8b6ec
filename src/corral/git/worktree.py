"""Compares HEAD, the index and the files of one worktree on both sides: the user's, and the commands' copy.

Everything is read once, at the beginning. A command may run meanwhile: what it changes after that is left for the next comparison.
"""

from __future__ import annotations

import marshal
import os
import stat
from errno import EXDEV
from time import monotonic, sleep

from corral._lib.nofollow import NEW_FILE
from corral.git import index_file, work_files
from corral.git.host_git import path_in
from corral.git.names import plain, typed
from corral.git.refs import SYMBOLIC, read_log, read_value, update_ref
from corral.git.split_index import has_shared, read_index
from corral.guard.path_zones import inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.git.comparison import Comparison
    from corral.git.index_file import IndexChanges
    from corral.git.safe_files import SafeTree

LOCKED = "locked"  # in the directory of a mirror: which lock of the user's index is ours
LOCK_SECONDS = 2.0  # to wait for the user's git
WAIT_SECONDS = 0.02
_SWITCHED = "checkout: moving from "
# Among the facts: what the commands have and the user did not get.
REFUSED_HEAD, REFUSED_INDEX = "refused_head", "refused_index"


def index_signature(tree: SafeTree, unit: str) -> list[int]:
    """Return which file the index is. Git replaces it and never changes it in place."""
    found = tree.status(path_in(unit, "index"))
    return [] if found is None or not stat.S_ISREG(found.st_mode) else _signature(found)


def _signature(found: os.stat_result) -> list[int]:
    return [found.st_ino, found.st_size, found.st_mtime_ns]


def _base_path(place: str, unit: str) -> str:
    return f"{place}/index{'-' + unit.replace('/', '-') if unit else ''}"


def base_index(place: str, unit: str) -> bytes:
    """Return the index that both sides had when they were last compared."""
    try:
        with open(_base_path(place, unit), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return index_file.build(())


def free_own_lock(place: str, user: SafeTree) -> None:
    """Remove an index.lock that a comparison left behind when it was killed."""
    for name in os.listdir(place):
        if not name.startswith(LOCKED):
            continue
        try:
            with open(f"{place}/{name}", "rb") as file:
                path, device, inode = marshal.loads(file.read())  # noqa: S302  commands cannot write this file
            found = user.status(path)
            if found is not None and (found.st_dev, found.st_ino) == (device, inode):
                user.remove(path)
        except (OSError, ValueError, EOFError, TypeError):
            pass
        # Its inode number can be that of a later lock of the user's.
        os.unlink(f"{place}/{name}")


class Worktree:
    """The state of one worktree on both sides, and the changes to make."""

    def __init__(self, comparison: Comparison, name: str) -> None:
        self.name = name
        self._comparison = comparison
        self._place = comparison.mirror.place
        self._user, self._private = comparison.user, comparison.private
        self._git_dir = f"{comparison.git.path}/{name}".rstrip("/")
        self._base: dict[str, Any] = comparison.base.get("units", {}).get(name, {})
        self._facts = dict(self._base)
        self._is_writable = bool(self._base) and self._is_in_project()
        self._user_head = read_value(self._user.text(self.path("HEAD")))
        self._private_head = read_value(self._private.text(self.path("HEAD")))
        self._user_index = index_signature(self._user, name)
        self._private_index = index_signature(self._private, name)
        self._changes: IndexChanges | None = None
        self._private_data = b""  # the command's index
        self._is_merged = False  # the user has changed the index too
        self._is_locked = False
        self._is_refused = False  # HEAD, index and files of the command's stay in the sandbox
        self._is_index_refused = False
        self._has_failed_head = False  # git could not write the user's HEAD; the next comparison tries again
        self._files: dict[str, bytes | None] = {}
        self._private_files: dict[str, Any] = {}

    def look(self) -> None:
        """Find what the command has changed."""
        if self._is_refused_head():
            # HEAD, index and files stay apart until the command's HEAD is another one.
            self._is_refused = True
        else:
            self._facts.pop(REFUSED_HEAD, None)
            if self._is_writable:
                self._look_at_index()
        self._look_at_files()

    def _is_refused_head(self) -> bool:
        return bool(self._private_head) and self._private_head == self._base.get(REFUSED_HEAD)

    def is_unchanged(self) -> bool:
        """Say whether the user has changed neither HEAD nor the index, and commands may write both."""
        known = self._base.get("head"), self._base.get("user_index")
        return self._is_writable and (self._user_head, self._user_index) == known

    def is_current(self) -> bool:
        """Say whether both sides still are as the facts of the last comparison say."""
        if self._is_refused_head():
            return self._user_head == self._base.get("head")
        heads = {self._user_head, self._private_head}
        known = self._base.get("user_index") or [], self._base.get("private_index") or []
        is_same_index = (self._user_index, self._private_index) == known
        is_same_index |= bool(self._private_index) and self._private_index == self._base.get(REFUSED_INDEX)
        return heads == {self._base.get("head")} and is_same_index

    def path(self, name: str) -> str:
        """Return the path of one of its files."""
        return path_in(self.name, name)

    def _is_in_project(self) -> bool:
        """Say whether the worktree, or a git directory without one, lies where commands may write."""
        worktree = self._comparison.mirror.user_dir
        if self._comparison.mirror.is_new:
            return True
        if self.name:
            worktree = os.path.dirname(self._user.text(self.path("gitdir")).rstrip("\n"))
        elif worktree.endswith("/.git"):
            worktree = os.path.dirname(worktree)
        return any(inside(worktree, root) for root in self._comparison.mirror.roots)

    def _tell(self, note: str) -> None:
        self._comparison.notes.append(note)

    # --- index --------------------------------------------------------------------------------------------------------

    def _look_at_index(self) -> None:
        """Find the entries that the command changed."""
        if self._private_index == self._base.get("private_index"):
            return
        if self._private_index == self._base.get(REFUSED_INDEX):
            self._is_index_refused = True
            return
        self._facts.pop(REFUSED_INDEX, None)
        new = read_index(self._private, self.name)
        if new is None:
            # Without an index git builds an empty one. That would unstage everything, so it does not cross.
            return
        own = read_index(self._user, self.name) or index_file.build(())
        self._is_merged = self._user_index != self._base.get("user_index")
        self._private_data = new
        why = ""
        try:
            if self._is_merged:
                changes = index_file.compare(base_index(self._place, self.name), new)
                changes = index_file.locate(own, changes.differences)
            else:
                changes = index_file.compare(own, new)
                self._tell_hidden(changes.hidden)
            why = index_file.first_unsafe(own, changes.differences)
        except ValueError as error:
            why = str(error)
        if why and not self._is_readable(own):
            # The command gets the user's, with which its own cannot be compared.
            self._tell(f"the index stays in the sandbox: {why}")
            self._facts["private_index"] = self._private_index
        elif why:
            self._tell(f"the index stays in the sandbox: {why}")
            self._is_index_refused = True
            self._facts[REFUSED_INDEX] = self._private_index
        elif changes.differences:
            self._changes, self._own_index = changes, own
        elif not self._is_merged:
            self._facts["private_index"] = self._private_index

    def _tell_hidden(self, paths: tuple[bytes, ...]) -> None:
        """Report files whose changes the commands' git no longer shows. The flags do not cross, so the user's git shows them."""
        if paths:
            shown = ", ".join(plain(path.decode("utf-8", "replace")) for path in paths[:5])
            more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
            note = f"git inside does not show changes of {shown}{more}, because a command set skip-worktree or assume-unchanged"
            self._comparison.tell_once(f"hidden:{shown}{more}", note)

    def _is_readable(self, data: bytes) -> bool:
        try:
            return index_file.compare(data, data) is not None
        except ValueError:
            return False

    def needs(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return the objects that the changes of this worktree need, each with the types that it may have."""
        found: list[tuple[str, tuple[str, ...]]] = []
        if self._changes is not None:
            added = [each.new for each in self._changes.differences if each.new is not None]
            found += [(entry.oid.hex(), ("blob",)) for entry in added if entry.mode != index_file.GITLINK]
        if self._head_changed() and not self._private_head.startswith(SYMBOLIC):
            found.append((self._private_head, ("commit",)))
        for name, content in self._files.items():
            found += [(oid, ("commit", "tag")) for oid in work_files.oids_in(content, name)]
        return found

    def roots(self) -> list[str]:
        """Return the names of these objects."""
        return [oid for oid, _ in self.needs()]

    def refuse(self, why: str) -> None:
        """Keep the changes of this worktree in the sandbox."""
        self._tell(f"the index, HEAD and merges of {self.name or 'the worktree'} stay in the sandbox: {why}")
        self._keep_apart()

    def _keep_apart(self) -> None:
        self._changes, self._files = None, {}
        self._is_refused = True

    def lock_index(self) -> bool:
        """Lock the user's index, with the new one in the lock. Return false if another process holds the lock."""
        if self._changes is None:
            return True
        lock = f"{self._git_dir}/index.lock"
        partial = f"{self._git_dir}/.corral-{os.urandom(6).hex()}"
        with open(os.open(partial, NEW_FILE, 0o644), "wb") as file:
            found = os.fstat(file.fileno())
            noted = os.open(self._noted_lock(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(noted, "wb") as note:
                note.write(marshal.dumps([self.path("index.lock"), found.st_dev, found.st_ino]))
            file.write(index_file.splice(self._own_index, self._changes))
            file.flush()
            self._new_index = _signature(os.fstat(file.fileno()))
        try:
            self._is_locked = self._link(partial, lock)
        finally:
            os.unlink(partial)
        if self._is_locked and index_signature(self._user, self.name) != self._user_index:
            # The user's git replaced the index meanwhile. The next comparison merges both.
            self.unlock_index()
        return self._is_locked

    def _link(self, partial: str, lock: str) -> bool:
        give_up_at = monotonic() + LOCK_SECONDS
        base = self._comparison.base
        while True:
            try:
                os.link(partial, lock)
                return True
            except FileExistsError:
                try:
                    found = os.lstat(lock)
                except FileNotFoundError:
                    continue
            known = [found.st_ino, found.st_mtime_ns]
            if monotonic() > give_up_at or base.get("waited") == known:
                base["waited"] = known
                shown = f"{self._comparison.mirror.user_dir}/{self.path('index.lock')}"
                self._tell(
                    f"{shown} exists, so the command's work in git stays in the sandbox until it is gone. "
                    f"If no git runs there: rm {typed(shown)}"
                )
                return False
            sleep(WAIT_SECONDS)

    def replace_index(self) -> None:
        """Put the new index in the place of the user's."""
        if self._is_locked:
            os.rename(f"{self._git_dir}/index.lock", f"{self._git_dir}/index")
            self._forget_lock()
            self._user_index = self._new_index
            self._user.forget()

    def unlock_index(self) -> None:
        """Remove the lock, if it is still there."""
        if self._is_locked:
            os.unlink(f"{self._git_dir}/index.lock")
            self._forget_lock()

    def _forget_lock(self) -> None:
        self._is_locked = False
        os.unlink(self._noted_lock())

    def _noted_lock(self) -> str:
        return f"{self._place}/{LOCKED}{'-' + self.name.replace('/', '-') if self.name else ''}"

    # --- HEAD ---------------------------------------------------------------------------------------------------------

    def _head_changed(self) -> bool:
        return (
            self._is_writable
            and not self._is_refused
            and self._private_head not in ("", self._base.get("head", ""), self._user_head)
        )

    def _message(self, new: str) -> str:
        """Return the text for the reflog of the user's HEAD. A switch has git's own words: then `git switch -` works for the user."""
        log = read_log(self._private, self.path("HEAD"))
        words = log[0][1] if log else ""
        if not words.startswith(_SWITCHED):
            return self._comparison.message()
        known = self._comparison.user_refs
        name = words.rpartition(" to ")[2]
        if new.startswith(SYMBOLIC) or not known.keys() & {f"refs/tags/{name}", f"refs/remotes/{name}"}:
            name = new.removeprefix(f"{SYMBOLIC}refs/heads/")
        return f"{_SWITCHED}{self._user_head.removeprefix(f'{SYMBOLIC}refs/heads/')} to {name}"

    def write_head(self) -> None:
        """Move the user's HEAD where the command's is."""
        if not self._head_changed():
            return
        mine = self._private_head
        if self._user_head != self._base.get("head", ""):
            self._comparison.keep_other_head(mine)
            return
        message = self._message(mine)
        git = self._comparison.git
        if mine.startswith(SYMBOLIC):
            target = mine.removeprefix(SYMBOLIC)
            if not target.startswith("refs/heads/") or not self._comparison.is_crossing_branch(target):
                # The index shows changes since the commands' branch, which the user does not have.
                where = self.name or "the worktree"
                self._tell(
                    f"HEAD, index and merges of {where} stay in the sandbox: {target} is not a branch that can cross"
                )
                self.unlock_index()
                self._keep_apart()
                self._facts[REFUSED_HEAD] = mine
                return
            answer = git.run("symbolic-ref", "-m", message, "HEAD", target, unit=self.name)
        else:
            answer = git.run("update-ref", "--no-deref", "-m", message, "HEAD", mine, unit=self.name)
        if answer.code:
            self._tell(f"HEAD stays in the sandbox: {answer.errors}")
            self._has_failed_head = True
        else:
            self._user_head = mine

    # --- other files --------------------------------------------------------------------------------------------------

    def _look_at_files(self) -> None:
        """Find the files of a merge in progress that the command wrote or removed."""
        known: dict[str, Any] = self._base.get("private_files", {})
        copied = self._comparison.copied.get(self.name, {})
        for name in {*work_files.names_in(self._private, self.name), *known}:
            if not work_files.is_in_progress(name):
                continue
            own = work_files.signature(self._private, self.path(name))
            if own:
                self._private_files[name] = own
            is_known = own in (tuple(map(tuple, known.get(name, ()))), copied.get(name))
            if is_known or self._is_refused or not self._is_writable:
                continue
            if not own:
                self._files[name] = None
            elif name in work_files.CROSSING:
                content = work_files.crossing_content(self._private, self.name, name)
                if content is None:
                    self._tell(f".git/{self.path(name)} stays in the sandbox: its content is not git's")
                else:
                    self._files[name] = content
            elif self._user.status(self.path(name)) is None and name in work_files.TOLD:
                what = work_files.TOLD[name]
                self._tell(f"a {what} is in progress in the sandbox; git outside shows a detached HEAD until it ends")

    def write_files(self) -> None:
        """Write or remove the user's files of a merge in progress."""
        for name, content in self._files.items():
            path = self.path(name)
            if content is None and name in work_files.ENDED and self._user.status(path) is not None:
                self._comparison.keep_ended(self.name, name)
            elif content is None:
                self._user.remove(path)
            else:
                self._user.write(path, content)
            self._comparison.user_files.note(self.name, name)

    # --- the end ------------------------------------------------------------------------------------------------------

    def copy_in(self) -> None:
        """Copy HEAD and the index of the user to the command's side, unless the command has changed them meanwhile."""
        head = self._user_head
        if head == self._private_head:
            self._facts["head"] = head
        elif (
            head
            and not self._is_refused
            and not self._has_failed_head
            and update_ref(self._private, self.path("HEAD"), self._private_head, head)
        ):
            self._facts["head"] = head
            self._comparison.copy_log(self.path("logs/HEAD"))
        if self._comparison.is_first:
            self._comparison.copy_log(self.path("logs/HEAD"))
        if self.name:
            for name in ("gitdir", "commondir", "locked"):
                data = self._user.read(self.path(name), 4096)
                if data is not None and data != self._private.read(self.path(name), 4096):
                    self._private.write(self.path(name), data)
        if self._is_refused or self._is_index_refused:
            return
        if self._changes is not None and not self._is_merged:
            # Both have the same entries now.
            self._facts |= {"user_index": self._user_index, "private_index": self._private_index}
            self._keep_base_index()
        elif self._user_index and self._user_index != self._base.get("user_index"):
            is_copied = self._copy_index()
            if not is_copied and self._is_merged and self._private_data:
                # The command has changed its index meanwhile. What crossed now must not cross again, over what it changed since.
                self._keep_base_index(self._private_data)
                self._facts["private_index"] = self._private_index

    def _copy_index(self) -> bool:
        """Copy the user's index to the command's side. Return false if one of both has changed meanwhile."""
        found = self._user.status(self.path("index"))
        data = read_index(self._user, self.name)
        if data is None or found is None or _signature(found) != self._user_index:
            return False
        lock = self.path("index.lock")
        if not self._private.create(lock, data, found):
            return False
        if index_signature(self._private, self.name) != self._private_index:
            self._private.remove(lock)
            return False
        self._private.rename(lock, self.path("index"))
        self._facts |= {"user_index": self._user_index, "private_index": index_signature(self._private, self.name)}
        self._keep_base_index()
        return True

    def _keep_base_index(self, data: bytes | None = None) -> None:
        """Keep the user's index of now, or another one, to compare with later."""
        target = _base_path(self._place, self.name)
        partial = f"{target}.new"
        if os.path.lexists(partial):
            os.unlink(partial)
        try:
            if data is not None or has_shared(self._user, self.name):
                raise OSError(EXDEV, "it is not the index itself")
            os.link(f"{self._git_dir}/index", partial)
        except OSError:
            data = data or read_index(self._user, self.name) or b""
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(data)
        os.replace(partial, target)

    def facts(self) -> dict[str, Any]:
        """Return what both sides have in common."""
        copied = self._comparison.copied.get(self.name, {})
        own = self._base.get("private_files", {}) if self._is_refused else self._private_files
        files = own | {name: own for name, own in copied.items() if own and work_files.is_in_progress(name)}
        return self._facts | {"private_files": files}
