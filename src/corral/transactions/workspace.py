"""Manages the directories that hold the changes of transactions until they are applied.

They are in the user's cache, where commands cannot see them. The process that begins a transaction locks its directory. The next
process removes directories that are neither locked nor kept for the user.
"""

from __future__ import annotations

import marshal
import os
import stat
from errno import ENOTSUP
from fcntl import LOCK_EX, LOCK_NB, flock
from time import clock_gettime_ns, monotonic, sleep, time

from corral._lib.dirfd_tree import DirfdTree
from corral._lib.nofollow import DIRECTORY
from corral.containment.filesystem import persistent_scratch, scratch
from corral.containment.kernel.overlay import COPY, UPPER, WORK
from corral.containment.kernel.syscalls import handle
from corral.model.errors import ContainmentError, TransactionError
from corral.transactions.copying import copy_metadata

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

KEPT_SECONDS = 7 * 24 * 3600.0  # for a waiting transaction
# Per project, against an agent that begins transactions for a week without a user.
MAX_WAITING = 50
MAX_WAITING_BYTES = 2 << 30
CLEAN_SECONDS = 0.5  # for removing abandoned directories; the next process continues
UNLOCKED_SECONDS = 3600.0  # for a process to lock its new directory, on an overloaded machine
TICK_SECONDS = 0.02  # longer than any kernel's clock tick
ID_BYTES = 6
_MARK, _PENDING, _INODES, _APPLYING = "begun", "pending", "inodes", "applying"
_KEPT = ("begun_ns", "copied_ns", "how", "project", "directories")
_CLOCK_REALTIME_COARSE = 5
_HEX = frozenset("0123456789abcdef")


class Place:
    """The directory of one transaction, locked by this process."""

    def __init__(self, path: str, held: int) -> None:
        self.path = path
        self.id = os.path.basename(path)
        self.begun_ns = 0
        self.copied_ns = 0  # when the copy was complete
        self.how = "overlay"
        self.is_spent = False  # all changes are applied
        self.project = ""  # the identity of the project's directory
        self.directories: dict[str, int] = {}  # inodes of the project's directories at the first scan
        self._held = held

    @property
    def layer(self) -> str:
        """The directory with the changed files: the upper directory of an overlay, or a copy of the project."""
        return f"{self.path}/{UPPER if self.how == 'overlay' else COPY}"

    def begin(self) -> None:
        """Note the time after which a change in the project is a conflict."""
        self.begun_ns = _moment(f"{self.path}/{_MARK}")

    def copied(self, how: str, inodes: dict[str, tuple[int, int]]) -> None:
        """Note that commands work on a copy, the inodes of its files, and the time after which a changed file is theirs."""
        self.how = how
        with open(f"{self.path}/{_INODES}", "wb") as file:
            file.write(marshal.dumps(inodes))
        self.copied_ns = _moment(f"{self.path}/{_MARK}")

    def inodes(self) -> dict[str, tuple[int, int]]:
        """Return the paths of the copied project, each with its inode and that of its copy."""
        with open(f"{self.path}/{_INODES}", "rb") as file:
            found: dict[str, tuple[int, int]] = marshal.loads(file.read())  # noqa: S302  commands cannot write this file
        return found

    def keep(self, facts: Mapping[str, Any]) -> None:
        """Keep the changes for the user after this process has ended."""
        data = marshal.dumps(dict(facts) | {name: getattr(self, name) for name in _KEPT})
        descriptor = os.open(f"{self.path}/{_PENDING}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)

    def hold_for(self, work: str) -> None:
        """Keep the directory if this process is killed, as long as a file exists that says what is left to do."""
        with open(f"{self.path}/{_APPLYING}", "wb") as file:
            file.write(os.fsencode(work))

    def facts(self) -> dict[str, Any]:
        """Return the facts that `keep` wrote, and set the attributes that it saved. Return nothing if they are unreadable."""
        try:
            with open(f"{self.path}/{_PENDING}", "rb") as file:
                found: dict[str, Any] = marshal.loads(file.read())  # noqa: S302  commands cannot write this file
            for name in _KEPT:
                setattr(self, name, found[name])
        except (OSError, ValueError, EOFError, TypeError, KeyError):
            # Another version wrote the file, or it is damaged. corral then applies nothing.
            return {}
        return found

    def spend(self) -> None:
        """Remove the layer after all changes are applied. Its files may be hard links to the project's."""
        self.is_spent = True
        scratch.remove(self.layer)

    def release(self) -> None:
        """Unlock the directory."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def remove(self, give_up_at: float = float("inf")) -> None:
        """Remove the directory. After `give_up_at`, leave the rest to the next process."""
        scratch.remove(self.path, give_up_at)
        self.release()


def directory_identity(descriptor: int) -> str:
    """Return the identity of an open directory: its inode, and its file handle, because inode numbers are reused."""
    inode = os.fstat(descriptor).st_ino
    known = handle("", descriptor)
    return f"{inode:x}-{known.hex()}" if known else f"{inode:x}"


def make(project: str, writable: Iterable[str], environ: Mapping[str, str]) -> Place:
    """Make the directory for a transaction over a project."""
    above = persistent_scratch.scratch_path(project, (project, *writable), environ, make=True, kind="transactions")
    if not above:
        raise ContainmentError("a transaction needs a directory that belongs to you and that commands cannot write")
    os.makedirs(above, 0o700, exist_ok=True)
    name = os.urandom(ID_BYTES).hex()
    path, unlocked = f"{above}/{name}", f"{above}/.{name}"
    os.mkdir(unlocked, 0o700)
    held = os.open(unlocked, DIRECTORY)
    flock(held, LOCK_EX)
    # Renamed only when locked: another process could otherwise remove it as abandoned.
    os.rename(unlocked, path)
    place = Place(path, held)
    os.mkdir(f"{path}/{WORK}", 0o700)
    os.mkdir(f"{path}/{UPPER}", 0o700)
    with DirfdTree(project) as tree, DirfdTree(f"{path}/{UPPER}") as upper:
        place.project = directory_identity(tree.descriptor)
        # Commands see the upper directory in place of the project.
        found = os.fstat(tree.descriptor)
        copy_metadata(upper, "", found, stat.S_IMODE(found.st_mode))
    return place


def refuse_without_attributes(path: str) -> None:
    """Raise OSError if the file system has no user attributes. An overlay could not hide deleted directories on it."""
    os.setxattr(path, "user.overlay.corral", b"y")
    try:
        if os.getxattr(path, "user.overlay.corral") != b"y":
            raise OSError(ENOTSUP, os.strerror(ENOTSUP))
    finally:
        os.removexattr(path, "user.overlay.corral")


def clean(above: str) -> None:
    """Remove the directories of killed processes, and transactions that have waited too long."""
    give_up_at = monotonic() + CLEAN_SECONDS
    try:
        names = os.listdir(above)
    except OSError:
        return
    for name in names:
        if monotonic() > give_up_at:
            return
        if name.startswith(".") and _age(f"{above}/{name}") < UNLOCKED_SECONDS:
            continue
        place = _held(f"{above}/{name}")
        if place is None:
            continue
        if _waits(place.path) or _is_being_applied(place.path):
            place.release()
        else:
            place.remove(give_up_at)


def _waits(path: str) -> bool:
    return _age(f"{path}/{_PENDING}") < KEPT_SECONDS


def _is_being_applied(path: str) -> bool:
    """Say whether the next process needs the directory to complete an apply: its process was killed."""
    try:
        with open(f"{path}/{_APPLYING}", "rb") as file:
            return os.path.lexists(file.read())
    except OSError:
        return False


def _age(path: str) -> float:
    try:
        return time() - os.lstat(path).st_mtime
    except OSError:
        return float("inf")


def _held(path: str) -> Place | None:
    try:
        held = os.open(path, DIRECTORY)
    except OSError:
        return None
    try:
        flock(held, LOCK_EX | LOCK_NB)
    except OSError:
        # Its process still runs.
        os.close(held)
        return None
    return Place(path, held)


def pending(project: str, environ: Mapping[str, str]) -> list[Place]:
    """Return the waiting transactions of a project, the oldest first. The caller releases each."""
    found = []
    for path in _waiting_paths(project, environ):
        place = _held(path)
        if place is not None and place.facts():
            found.append(place)
        elif place is not None:
            place.release()
    return sorted(found, key=lambda place: place.begun_ns)


def _waiting_paths(project: str, environ: Mapping[str, str]) -> list[str]:
    # Search all possible directories: if a policy lets commands write to one, corral uses another.
    above = persistent_scratch.scratch_paths(project, (project,), environ, make=False, kind="transactions")
    paths = [f"{each}/{name}" for each in above if os.path.isdir(each) for name in os.listdir(each)]
    return [path for path in paths if set(os.path.basename(path)) <= _HEX and _waits(path)]


def refuse_more(project: str, environ: Mapping[str, str]) -> None:
    """Raise TransactionError if too many transactions wait for the user to begin another."""
    places = pending(project, environ)
    size = sum(place.facts().get("bytes", 0) for place in places)
    for place in places:
        place.release()
    if len(places) >= MAX_WAITING or size > MAX_WAITING_BYTES:
        raise TransactionError(
            f"{len(places)} transactions with {size >> 20} MiB wait for the user in {project}, so corral does not begin another. "
            "The user can list them with corral history and answer with corral apply ID, corral discard ID or corral discard --all"
        )


def waiting(project: str, environ: Mapping[str, str], id_: str = "") -> Place:
    """Return the waiting transaction whose id begins with `id_`, locked. Without an id, return the only one."""
    places = pending(project, environ)
    fitting = [place for place in places if place.id.startswith(id_)]
    if len(fitting) == 1:
        for place in places:
            if place is not fitting[0]:
                place.release()
        return fitting[0]
    for place in places:
        place.release()
    ids = [place.id for place in places]
    names = (os.path.basename(path) for path in _waiting_paths(project, environ))
    busy = [name for name in names if name.startswith(id_) and name not in ids]
    if not fitting and busy:
        raise TransactionError(f"another process is at work on transaction {busy[0]}; try again when it has ended")
    if not places:
        raise TransactionError(f"no transaction waits in {project}; corral try -- CMD makes one")
    problem = f"{len(fitting)} of these ids begin with {id_!r}" if id_ else "several transactions wait; which one?"
    raise TransactionError(f"{problem} ({', '.join(ids)})")


def _moment(path: str) -> int:
    """Return a ctime that is later than that of every earlier change, and not later than that of any later change."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        # Since Linux 6.13, the change after a fstat(2) gets an exact ctime, and no later change gets an earlier one.
        os.fstat(descriptor)
        before = clock_gettime_ns(_CLOCK_REALTIME_COARSE)
        os.utime(descriptor)
        found = os.fstat(descriptor).st_ctime_ns
        after = clock_gettime_ns(_CLOCK_REALTIME_COARSE)
        if found not in (before, after):
            return found
        # Older kernels use the time of the last clock tick, so wait until the next tick.
        give_up_at = monotonic() + TICK_SECONDS
        while clock_gettime_ns(_CLOCK_REALTIME_COARSE) <= found and monotonic() < give_up_at:
            sleep(0.0005)
        os.utime(descriptor)
        return os.fstat(descriptor).st_ctime_ns
    finally:
        os.close(descriptor)
