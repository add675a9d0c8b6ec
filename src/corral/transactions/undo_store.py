"""The transactions that were applied to a project: what was there before is kept in the owner's state, until they are old or too large.

One process at a time writes to a project's book. What one that was killed had begun is completed or taken back by the next.
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
from corral.transactions.dir_identity import identity
from corral.transactions.journal import Hands, Operation, found_at, is_it
from corral.transactions.stage import print_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any, Self

KEPT_SECONDS = 30 * 24 * 3600.0
MAX_KEPT = 100  # transactions
MAX_KEPT_BYTES = 1 << 30  # of what was there before
MAX_SYNCED_FILES = 8  # one by one; more are written with all else that waits for the disk
_JOURNAL, _ENTRY, _SLOTS = "journal", "entry", "slots"
_IN_PROJECT = ".corral-slots-"


@frozen
class Entry(Record):
    """One transaction. `state` is applied or undone; `kept` where it was taken back, and something stood in the way of that too."""

    id: str
    state: str
    applied_at: float
    commands: tuple[str, ...]
    changes: tuple[dict[str, Any], ...]
    operations: tuple[Operation, ...]
    prints: tuple[str, ...]
    project: str  # the identity of its directory

    def to_dict(self) -> dict[str, Any]:
        """Return what a person may want to know of it, as JSON-ready data."""
        changes = [dict(change) for change in self.changes]
        return {
            "id": self.id,
            "state": self.state,
            "applied_at": self.applied_at,
            "commands": list(self.commands),
            "changes": changes,
        }


def _path(root: str, environ: Mapping[str, str]) -> str:
    from _blake2 import blake2b  # noqa: PLC0415  hashlib takes longer to load

    return f"{user_dirs.user_directory('state', environ)}/transactions/{blake2b(os.fsencode(root), digest_size=16).hexdigest()}"


def recover(root: str, environ: Mapping[str, str]) -> None:
    """Complete or take back what a process that was killed had begun to apply to a project, if there is any."""
    if os.path.isdir(_path(root, environ)):
        with Book(root, environ):
            pass


class Book:
    """A project's book, locked."""

    def __init__(self, root: str, environ: Mapping[str, str]) -> None:
        self.root = root
        self.path = _path(root, environ)
        try:
            user_dirs.private_directory("state", environ, root)
            with DirfdTree(root) as project:
                self.project = identity(project.descriptor)
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
            # Or this process would wait for itself at the next try.
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
        """Make and return the directory for a transaction's slots: in the book if that is on the project's own mount, else in the project."""
        home, inside = f"{self.path}/{id_}/{_SLOTS}", f"{self.root}/{_IN_PROJECT}{id_}"
        os.makedirs(f"{self.path}/{id_}", 0o700, exist_ok=True)
        if self._shares_mount():
            os.makedirs(home, 0o700, exist_ok=True)
            return home
        with _Quiet(self.root):
            if os.path.lexists(home):
                copy_all(home, inside, opens=True)
            else:
                os.mkdir(inside, 0o700)
        return inside

    def _shares_mount(self) -> bool:
        with DirfdTree(self.root) as project, DirfdTree(self.path) as book:
            return rename.mount_of(project.descriptor) == rename.mount_of(book.descriptor)

    def write(self, id_: str, facts: Mapping[str, Any], operations: list[Operation]) -> None:
        """Write down what is to be done: from here on it is completed, or taken back as a whole."""
        try:
            self._write(id_, facts, operations)
        except OSError as error:
            self.abandon(id_)
            raise TransactionError(
                f"nothing was changed, since what was to be done cannot be noted in {self.path}: {_why(error)}"
            ) from error

    def _write(self, id_: str, facts: Mapping[str, Any], operations: list[Operation]) -> None:
        place = self._place_of_slots(id_)
        if not _is_directory(place):
            raise TransactionError(f"somebody has taken away {place}, where the changes were put")
        _sync(place)
        listed = [operation.to_list() for operation in operations]
        data = dict(facts) | {"project": self.project, "operations": listed}
        self._put(f"{id_}/{_JOURNAL}", data)

    def complete(self, id_: str) -> str:
        """Do what a journal says, and note how it ended; return what stood in the way, or nothing."""
        data = self._get(f"{id_}/{_JOURNAL}")
        place = self._place_of_slots(id_)
        if not _is_directory(place):
            # A command may have taken them away, and must not keep everybody from the book.
            self._forget(id_)
            return f"{os.path.basename(place)}: somebody has taken it away"
        try:
            stood = "" if "prints" in data else self._do(id_, data, place)
            if not stood:
                self._bring_home(id_, data, place)
                self._put(f"{id_}/{_ENTRY}", data | {"state": data["ends_as"]})
                os.unlink(f"{self.path}/{id_}/{_JOURNAL}")
        except OSError as error:
            raise TransactionError(
                f"the project is as it is to be ({data['ends_as']}), but what was there cannot be put away in {self.path}: "
                f"{_why(error)}. When there is room: corral history --root {shell_quote(self.root)}"
            ) from error
        return stood

    def _do(self, id_: str, data: dict[str, Any], place: str) -> str:
        operations = [Operation.from_list(each) for each in data["operations"]]
        with DirfdTree(self.root) as project, DirfdTree(place) as slots:
            if identity(project.descriptor) != data.get("project", self.project):
                self._forget(id_)
                return f"{self.root}: another directory has come into its place"
            stood = Hands(project, slots).complete(operations)
            if not stood:
                data["prints"] = [_print(project, operation) for operation in operations]
                # From here on, all of it is done: what follows must not look whether it is.
                self._put(f"{id_}/{_JOURNAL}", data)
                return ""
            lost = [
                each for each in operations if each.slot and each.old and is_it(found_at(slots, each.slot), each.old)
            ]
        if lost:
            self._bring_home(id_, data, place)
            self._put(f"{id_}/{_ENTRY}", data | {"state": "kept", "prints": []})
            stood += f"; what was there is kept in {self.path}/{id_}/{_SLOTS}"
        elif place.startswith(f"{self.root}/"):
            self._clear(place)
        self._forget(id_)
        return stood

    def _forget(self, id_: str) -> None:
        """Give a journal up; what was noted of its transaction before stays."""
        if not os.path.lexists(f"{self.path}/{id_}/{_ENTRY}"):
            self.remove(id_)
        elif os.path.lexists(f"{self.path}/{id_}/{_JOURNAL}"):
            os.unlink(f"{self.path}/{id_}/{_JOURNAL}")

    def entries(self) -> list[Entry]:
        """Return what was applied, the latest first."""
        return [entry for entry in self._all() if entry.project == self.project]

    def _all(self) -> list[Entry]:
        """Return what was applied here, also to directories that had the project's path before it."""
        found = [entry for name in self._ids() if (entry := self._entry(name)) is not None]
        return sorted(found, key=lambda entry: entry.applied_at, reverse=True)

    def _entry(self, id_: str) -> Entry | None:
        try:
            data = self._get(f"{id_}/{_ENTRY}")
            operations = tuple(Operation.from_list(each) for each in data["operations"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        commands, changes = tuple(data["commands"]), tuple(data["changes"])
        facts = data["state"], data["applied_at"], commands, changes, operations, tuple(data["prints"])
        return Entry(id_, *facts, data.get("project", self.project))

    def remove(self, id_: str) -> None:
        """Forget a transaction, and what was kept for it."""
        scratch.remove(f"{self.path}/{id_}")

    def abandon(self, id_: str) -> None:
        """Forget what was being prepared; what was noted of its transaction before stays."""
        self._clear(f"{self.root}/{_IN_PROJECT}{id_}")
        self._forget(id_)

    def prune(self) -> None:
        """Forget what is too old, and of the rest the oldest until it is not too large."""
        size = 0
        for number, entry in enumerate(self._all()):
            size += disk_usage(f"{self.path}/{entry.id}")
            if number >= MAX_KEPT or (number and size > MAX_KEPT_BYTES) or time() - entry.applied_at > KEPT_SECONDS:
                self.remove(entry.id)

    def _ids(self) -> Iterator[str]:
        for name in os.listdir(self.path):
            if name != "lock":
                yield name

    def _recover(self) -> None:
        """Complete or take back what a process that was killed had begun."""
        for id_ in list(self._ids()):
            if os.path.lexists(f"{self.path}/{id_}/{_JOURNAL}"):
                if self._get(f"{id_}/{_JOURNAL}").setdefault("project", self.project) == self.project:
                    self.complete(id_)
                elif time() - os.lstat(f"{self.path}/{id_}/{_JOURNAL}").st_mtime > KEPT_SECONDS:
                    self.remove(id_)
                # Else it waits for the directory that it was begun in to come back.
                continue
            # Nothing was done yet of what was being prepared.
            self._clear(f"{self.root}/{_IN_PROJECT}{id_}")
            if not os.path.lexists(f"{self.path}/{id_}/{_ENTRY}"):
                self.remove(id_)

    def _place_of_slots(self, id_: str) -> str:
        inside = f"{self.root}/{_IN_PROJECT}{id_}"
        return inside if os.path.lexists(inside) else f"{self.path}/{id_}/{_SLOTS}"

    def _bring_home(self, id_: str, data: dict[str, Any], place: str) -> None:
        """Move what was there before out of the project, where commands could change it."""
        if not place.startswith(f"{self.root}/"):
            return
        home = f"{self.path}/{id_}/{_SLOTS}"
        if "is_home" not in data:
            scratch.remove(home)
            copy_all(place, home, opens=True)
            data["is_home"] = True
            self._put(f"{id_}/{_JOURNAL}", data)
        self._clear(place)

    def _clear(self, place: str) -> None:
        """Remove slots from the project."""
        if os.path.lexists(place):
            with _Quiet(self.root):
                scratch.remove(place)

    def _put(self, name: str, data: Mapping[str, Any]) -> None:
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

    def _get(self, name: str) -> dict[str, Any]:
        with open(f"{self.path}/{name}", "rb") as file:
            found: dict[str, Any] = json.load(file)
        return found


class _Quiet:
    """A while in which something comes or goes in a directory whose time of change does not tell."""

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


def _print(project: DirfdTree, operation: Operation) -> str:
    # What lies in a directory whose times alone are changed is no part of it.
    is_kept = operation.what == "dress" and operation.new is not None and operation.new.what == "directory"
    return "" if is_kept else print_of(project, operation.path)


def _sync(place: str) -> None:
    """Have what is staged on the disk before the journal says so."""
    with DirfdTree(place) as slots:
        files: list[str] = []
        pending = [""]
        while pending and len(files) <= MAX_SYNCED_FILES:
            at = pending.pop()
            for name in slots.names(at):
                path = f"{at}/{name}" if at else name
                found = slots.status(path)
                if found is not None and stat.S_ISDIR(found.st_mode):
                    slots.make_accessible(path, found)
                    pending.append(path)
                elif found is not None and stat.S_ISREG(found.st_mode):
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
