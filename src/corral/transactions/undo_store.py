"""Keeps the old files of applied transactions in the user's state directory, until they are too old or too large.

One process at a time has a project's store open. The next process completes or reverts an apply whose process was killed.
"""

from __future__ import annotations

import json
import os
import stat
from fcntl import LOCK_EX, LOCK_UN, flock
from time import time

from corral._lib.dirfd_tree import DirfdTree, disk_usage
from corral._lib.quoting import shell_quote
from corral._lib.records import Record, frozen
from corral.containment.filesystem import scratch
from corral.containment.kernel.syscalls import call
from corral.model.errors import TransactionError
from corral.policy import user_dirs
from corral.transactions import rename
from corral.transactions.copying import copy_all
from corral.transactions.journal import Executor, Operation, is_unchanged
from corral.transactions.scan import facts_at, walk
from corral.transactions.stage import fingerprint
from corral.transactions.workspace import directory_identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

KEPT_SECONDS = 30 * 24 * 3600.0
MAX_KEPT = 100  # transactions
MAX_KEPT_BYTES = 1 << 30  # of old files
MAX_SYNCED_FILES = 8  # with fsync(2) each; for more files, one syncfs(2) is faster
_JOURNAL, _ENTRY, _SLOTS, _GIT = "journal", "entry", "slots", "git"
_IN_PROJECT = ".corral-slots-"


@frozen
class Entry(Record):
    """An applied transaction. `state` is applied or undone, or `kept` if a failed apply could not be reverted completely."""

    id: str
    state: str
    applied_at: float
    commands: tuple[str, ...]
    changes: tuple[dict[str, Any], ...]
    operations: tuple[Operation, ...]
    prints: tuple[str, ...]
    project: str  # the identity of the project's directory
    git: tuple[dict[str, Any], ...] = ()  # the states of changed git directories before and after

    def to_dict(self) -> dict[str, Any]:
        """Return the facts for the user as JSON-ready data."""
        return {
            "id": self.id,
            "state": self.state,
            "applied_at": self.applied_at,
            "commands": list(self.commands),
            "changes": [dict(change) for change in self.changes],
        }


def _path(root: str, environ: Mapping[str, str]) -> str:
    from _blake2 import blake2b  # noqa: PLC0415  hashlib takes longer to load

    return f"{user_dirs.user_directory('state', environ)}/transactions/{blake2b(os.fsencode(root), digest_size=16).hexdigest()}"


def recover(root: str, environ: Mapping[str, str]) -> None:
    """Complete or revert an apply or undo of the project whose process was killed, if there is one."""
    if os.path.isdir(_path(root, environ)):
        with UndoStore(root, environ):
            pass


class UndoStore:
    """The applied transactions of one project, locked."""

    def __init__(self, root: str, environ: Mapping[str, str]) -> None:
        self.root = root
        self.path = _path(root, environ)
        try:
            user_dirs.private_directory("state", environ, root)
            with DirfdTree(root) as project:
                self.project = directory_identity(project.descriptor)
            for path in (os.path.dirname(self.path), self.path):
                os.makedirs(path, 0o700, exist_ok=True)
                user_dirs.refuse_writable_by_others(path)
            self._lock = os.open(f"{self.path}/lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise TransactionError(f"the history of {root} cannot be opened: {_why(error)}") from error
        try:
            flock(self._lock, LOCK_EX)
            self._recover()
        except BaseException:
            # Otherwise the next attempt of this process would wait for its own lock.
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock >= 0:
            flock(self._lock, LOCK_UN)
            os.close(self._lock)
            self._lock = -1

    def slots(self, id_: str) -> str:
        """Make and return the directory for a transaction's slots: in the store if it is on the project's mount, else in the project."""
        home, inside = f"{self.path}/{id_}/{_SLOTS}", f"{self.root}/{_IN_PROJECT}{id_}"
        os.makedirs(f"{self.path}/{id_}", 0o700, exist_ok=True)
        with DirfdTree(self.root) as project, DirfdTree(self.path) as store:
            shares_mount = rename.mount_of(project.descriptor) == rename.mount_of(store.descriptor)
        if shares_mount:
            os.makedirs(home, 0o700, exist_ok=True)
            return home
        with _KeepTimes(self.root):
            if os.path.lexists(home):
                copy_all(home, inside, opens=True)
            else:
                os.mkdir(inside, 0o700)
        return inside

    def write(
        self, id_: str, facts: Mapping[str, Any], operations: list[Operation], git: Mapping[str, Any] | None = None
    ) -> None:
        """Write the journal. From here on, the operations are completed, or reverted as a whole. The work in `git` follows."""
        place = self._slots_path(id_)
        try:
            if not _is_directory(place):
                raise TransactionError(f"another process removed {place}, which held the changes")
            _sync(place)
            if git is not None:
                self._write_json(f"{id_}/{_GIT}", {**git, "project": self.project, "ends_as": facts["ends_as"]})
            listed = [operation.to_list() for operation in operations]
            self._write_json(f"{id_}/{_JOURNAL}", dict(facts) | {"project": self.project, "operations": listed})
        except OSError as error:
            self.abandon(id_)
            raise TransactionError(
                f"nothing was changed, because the journal cannot be written to {self.path}: {_why(error)}"
            ) from error

    def complete(self, id_: str) -> str:
        """Do the operations of a journal and note the result. Return the path that failed and why, or an empty string."""
        data = self._read_json(f"{id_}/{_JOURNAL}")
        place = self._slots_path(id_)
        if not _is_directory(place):
            # A command may have removed the slots. That must not block every later apply.
            self._forget(id_)
            return f"{os.path.basename(place)}: another process removed it"
        try:
            failure = "" if "prints" in data else self._execute(id_, data, place)
            if not failure:
                self._move_to_store(id_, data, place)
                self._write_json(f"{id_}/{_ENTRY}", data | {"state": data["ends_as"]})
                os.unlink(f"{self.path}/{id_}/{_JOURNAL}")
        except OSError as error:
            raise TransactionError(
                f"the changes are {data['ends_as']}, but the old files cannot be stored in {self.path}: "
                f"{_why(error)}. When there is space: corral history --root {shell_quote(self.root)}"
            ) from error
        return failure

    def _execute(self, id_: str, data: dict[str, Any], place: str) -> str:
        operations = [Operation.from_list(each) for each in data["operations"]]
        with DirfdTree(self.root) as project, DirfdTree(place) as slots:
            if directory_identity(project.descriptor) != data.get("project", self.project):
                self._forget(id_)
                return f"{self.root}: another directory has replaced it"
            failure = Executor(project, slots).complete(operations)
            if not failure:
                data["prints"] = [
                    "" if each.keeps_directory else fingerprint(project, each.path) for each in operations
                ]
                # All operations are done. A later recovery must not check them again.
                self._write_json(f"{id_}/{_JOURNAL}", data)
                return ""
            is_lost = any(
                each.slot and each.old and is_unchanged(facts_at(slots, each.slot), each.old) for each in operations
            )
        if is_lost:
            self._move_to_store(id_, data, place)
            self._write_json(f"{id_}/{_ENTRY}", data | {"state": "kept", "prints": []})
            failure += f"; the old files are in {self.path}/{id_}/{_SLOTS}"
        elif place.startswith(f"{self.root}/"):
            self._remove_slots(place)
        self._forget(id_)
        return failure

    def _forget(self, id_: str) -> None:
        """Remove a journal, and the whole transaction if it has no entry."""
        if not os.path.lexists(f"{self.path}/{id_}/{_ENTRY}"):
            self._remove(id_)
        elif os.path.lexists(f"{self.path}/{id_}/{_JOURNAL}"):
            os.unlink(f"{self.path}/{id_}/{_JOURNAL}")

    def finish_git(self, id_: str) -> list[tuple[str, str]]:
        """Do what an apply or undo has left to do in git. Return a path and a reason for each thing that stays as it is."""
        from corral.transactions.git_changes import finish  # noqa: PLC0415  most stores are only read

        refused, facts = finish(self.root, self._read_json(f"{id_}/{_GIT}"), self.folder(id_))
        if facts:
            self.note(id_, facts)
        self.forget_git(id_)
        return refused

    def forget_git(self, id_: str) -> None:
        """Leave the work in git, because the files stay as they are."""
        if os.path.lexists(self.git_work(id_)):
            os.unlink(self.git_work(id_))

    def git_work(self, id_: str) -> str:
        """Return the file that says what is left to do in git."""
        return f"{self.path}/{id_}/{_GIT}"

    def folder(self, id_: str) -> str:
        """Return the directory of a transaction in the store."""
        return f"{self.path}/{id_}"

    def note(self, id_: str, facts: Mapping[str, Any]) -> None:
        """Add facts to an applied transaction."""
        self._write_json(f"{id_}/{_ENTRY}", self._read_json(f"{id_}/{_ENTRY}") | dict(facts))

    def entries(self) -> list[Entry]:
        """Return the applied transactions, the latest first."""
        return [entry for entry in self._all() if entry.project == self.project]

    def _all(self) -> list[Entry]:
        """Return the transactions applied at the project's path, also those of directories that had this path before."""
        found = [entry for name in self._ids() if (entry := self._entry(name)) is not None]
        return sorted(found, key=lambda entry: entry.applied_at, reverse=True)

    def _entry(self, id_: str) -> Entry | None:
        try:
            data = self._read_json(f"{id_}/{_ENTRY}")
            operations = tuple(Operation.from_list(each) for each in data["operations"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        commands, changes = tuple(data["commands"]), tuple(data["changes"])
        facts = data["state"], data["applied_at"], commands, changes, operations, tuple(data["prints"])
        return Entry(id_, *facts, data.get("project", self.project), tuple(data.get("git", ())))

    def _remove(self, id_: str) -> None:
        scratch.remove(f"{self.path}/{id_}")

    def abandon(self, id_: str) -> None:
        """Remove an apply or undo that was being prepared. An existing entry stays."""
        self._remove_slots(f"{self.root}/{_IN_PROJECT}{id_}")
        self._forget(id_)

    def prune(self) -> None:
        """Remove the entries that are too old, and the oldest ones until the rest is small enough."""
        size = 0
        for number, entry in enumerate(self._all()):
            size += disk_usage(f"{self.path}/{entry.id}")
            if number >= MAX_KEPT or (number and size > MAX_KEPT_BYTES) or time() - entry.applied_at > KEPT_SECONDS:
                self._remove(entry.id)

    def _ids(self) -> list[str]:
        return [name for name in os.listdir(self.path) if name != "lock"]

    def _recover(self) -> None:
        """Complete or revert an apply or undo whose process was killed."""
        for id_ in self._ids():
            journal = f"{self.path}/{id_}/{_JOURNAL}"
            if not os.path.lexists(journal):
                # Its process was killed before it changed anything in the project.
                self.abandon(id_)
            elif self._read_json(f"{id_}/{_JOURNAL}").setdefault("project", self.project) == self.project:
                self.complete(id_)
            elif time() - os.lstat(journal).st_mtime > KEPT_SECONDS:
                # Until then it waits for its own directory to return to the project's path.
                self._remove(id_)
                continue
            self._recover_git(id_)

    def _recover_git(self, id_: str) -> None:
        """Complete the work in git of a process that was killed after it had changed the files."""
        if not os.path.lexists(self.git_work(id_)):
            return
        try:
            entry, work = self._entry(id_), self._read_json(f"{id_}/{_GIT}")
            if entry is None or entry.state != work["ends_as"]:
                # The files were not changed.
                self.forget_git(id_)
            elif work["project"] == self.project:
                self.finish_git(id_)
        except (OSError, ValueError, LookupError, TransactionError):
            # The next process tries again.
            return

    def _slots_path(self, id_: str) -> str:
        inside = f"{self.root}/{_IN_PROJECT}{id_}"
        return inside if os.path.lexists(inside) else f"{self.path}/{id_}/{_SLOTS}"

    def _move_to_store(self, id_: str, data: dict[str, Any], place: str) -> None:
        """Move the old files out of the project, where commands could change them."""
        if not place.startswith(f"{self.root}/"):
            return
        home = f"{self.path}/{id_}/{_SLOTS}"
        if "is_home" not in data:
            scratch.remove(home)
            copy_all(place, home, opens=True)
            data["is_home"] = True
            self._write_json(f"{id_}/{_JOURNAL}", data)
        self._remove_slots(place)

    def _remove_slots(self, place: str) -> None:
        if os.path.lexists(place):
            with _KeepTimes(self.root):
                scratch.remove(place)

    def _write_json(self, name: str, data: Mapping[str, Any]) -> None:
        path = f"{self.path}/{name}"
        descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(json.dumps(data).encode())
            file.flush()
            os.fsync(descriptor)
        os.rename(f"{path}.new", path)
        above = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(above)
        finally:
            os.close(above)

    def _read_json(self, name: str) -> dict[str, Any]:
        with open(f"{self.path}/{name}", "rb") as file:
            found: dict[str, Any] = json.load(file)
        return found


class _KeepTimes:
    """Restores the times of a directory after corral has added or removed an entry."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._found = os.stat(path)

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        os.utime(self._path, ns=(self._found.st_atime_ns, self._found.st_mtime_ns))


def _why(error: OSError) -> str:
    return error.strerror or str(error)


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _sync(place: str) -> None:
    """Flush the slots to disk before the journal is written."""
    with DirfdTree(place) as slots:
        files: list[str] = []
        for path, found in walk(slots, "", opens=True):
            if stat.S_ISREG(found.st_mode):
                files.append(path)
                if len(files) > MAX_SYNCED_FILES:
                    call("syncfs", slots.descriptor)
                    return
        for path in files:
            descriptor = slots.open(path)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
