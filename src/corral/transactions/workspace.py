"""Where a transaction's changes lie until they are applied: a directory in the owner's cache that no command sees as it is.

It is locked for as long as the process that began it lives; what nobody holds and nobody wanted kept is removed by the next.
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
from corral.model.errors import ContainmentError, TransactionError
from corral.transactions.dir_identity import identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

KEPT_SECONDS = 7 * 24 * 3600.0  # how long what waits for an answer is kept
# Of what waits in a project, against an agent that tries for a week while nobody looks.
MAX_WAITING = 50
MAX_WAITING_BYTES = 2 << 30
CLEAN_SECONDS = 0.5  # for removing what others left; the rest is the next one's
UNLOCKED_SECONDS = 3600.0  # for a process to lock what it has made, on a machine that does not get to it
TICK_SECONDS = 0.02  # longer than any kernel's clock tick
ID_BYTES = 6
_MARK, _PENDING, _INODES = "begun", "pending", "inodes"
_KEPT = ("begun_ns", "copied_ns", "how", "project", "directories")
_CLOCK_REALTIME_COARSE = 5
_HEX = frozenset("0123456789abcdef")


class Place:
    """One transaction's directory, held."""

    def __init__(self, path: str, held: int) -> None:
        self.path = path
        self.id = os.path.basename(path)
        self.begun_ns = 0
        self.copied_ns = 0  # when a copy was complete
        self.how = "overlay"
        self.is_spent = False  # all of it was applied
        self.project = ""  # the identity of the directory that it began in
        self.directories: dict[str, int] = {}  # the project's, by inode, as they were when somebody first looked
        self._held = held

    @property
    def layer(self) -> str:
        """Where the changed files lie: what an overlay holds above the project, or a copy of all."""
        return f"{self.path}/{UPPER if self.how == 'overlay' else COPY}"

    def begin(self) -> None:
        """Note the moment from which a change to the project is somebody else's."""
        self.begun_ns = _moment(f"{self.path}/{_MARK}")

    def copied(self, how: str, inodes: dict[str, tuple[int, int]]) -> None:
        """Note that a copy stands for the project, what was in both, and from when on it is the commands'."""
        self.how = how
        with open(f"{self.path}/{_INODES}", "wb") as file:
            file.write(marshal.dumps(inodes))
        self.copied_ns = _moment(f"{self.path}/{_MARK}")

    def inodes(self) -> dict[str, tuple[int, int]]:
        """Return the paths that were in the project when it was copied, with the inodes of each and its copy."""
        with open(f"{self.path}/{_INODES}", "rb") as file:
            found: dict[str, tuple[int, int]] = marshal.loads(file.read())  # noqa: S302  written above, where no command can
        return found

    def keep(self, facts: Mapping[str, Any]) -> None:
        """Let it wait for an answer after this process has ended."""
        data = marshal.dumps(dict(facts) | {name: getattr(self, name) for name in _KEPT})
        descriptor = os.open(f"{self.path}/{_PENDING}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)

    def facts(self) -> dict[str, Any]:
        """Return what was noted when it was left waiting."""
        try:
            with open(f"{self.path}/{_PENDING}", "rb") as file:
                found: dict[str, Any] = marshal.loads(file.read())  # noqa: S302  written above, where no command can
            for name in _KEPT:
                setattr(self, name, found[name])
        except (OSError, ValueError, EOFError, TypeError, KeyError):
            # Left by another version, or damaged: what nobody can tell is not applied.
            return {}
        return found

    def spend(self) -> None:
        """Forget what was written, since all of it was applied: files that lie in both places would seem changed when one goes."""
        self.is_spent = True
        scratch.remove(self.layer)

    def release(self) -> None:
        """Let go of it."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def remove(self, give_up_at: float = float("inf")) -> None:
        """Remove it with all that was written; what is not removed in time is so by the next."""
        scratch.remove(self.path, give_up_at)
        self.release()


def make(project: str, writable: Iterable[str], environ: Mapping[str, str]) -> Place:
    """Make a place for a transaction over a project."""
    above = persistent_scratch.scratch_path(project, (project, *writable), environ, make=True, kind="transactions")
    if not above:
        raise ContainmentError("a transaction needs a directory of this user's own, outside of what commands can write")
    os.makedirs(above, 0o700, exist_ok=True)
    name = os.urandom(ID_BYTES).hex()
    path, unlocked = f"{above}/{name}", f"{above}/.{name}"
    os.mkdir(unlocked, 0o700)
    held = os.open(unlocked, DIRECTORY)
    flock(held, LOCK_EX)
    # Only now, or somebody who cleans could take it for one whose process was killed.
    os.rename(unlocked, path)
    place = Place(path, held)
    with DirfdTree(project) as tree:
        place.project = identity(tree.descriptor)
    os.mkdir(f"{path}/{WORK}", 0o700)
    _like(f"{path}/{UPPER}", project)
    return place


def _like(path: str, model: str) -> None:
    """Make a directory with the rights of another: it will be seen in its place."""
    found = os.stat(model)
    os.mkdir(path, 0o700)
    if os.geteuid() == 0:
        os.chown(path, found.st_uid, found.st_gid)
    os.chmod(path, stat.S_IMODE(found.st_mode))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def refuse_without_attributes(path: str) -> None:
    """Raise where a file system cannot say that a directory hides the one below: the kernel would show both."""
    os.setxattr(path, "user.overlay.corral", b"y")
    try:
        if os.getxattr(path, "user.overlay.corral") != b"y":
            raise OSError(ENOTSUP, os.strerror(ENOTSUP))
    finally:
        os.removexattr(path, "user.overlay.corral")


def clean(above: str) -> None:
    """Remove what processes left that were killed, and what has waited too long."""
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
        if _waits(place.path):
            place.release()
        else:
            place.remove(give_up_at)


def _waits(path: str) -> bool:
    return _age(f"{path}/{_PENDING}") < KEPT_SECONDS


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
        # Its process lives.
        os.close(held)
        return None
    return Place(path, held)


def pending(project: str, environ: Mapping[str, str]) -> list[Place]:
    """Return what waits for an answer in a project, the oldest first; the caller releases each."""
    found = []
    for path in _waiting_paths(project, environ):
        place = _held(path)
        if place is not None and place.facts():
            found.append(place)
        elif place is not None:
            place.release()
    return sorted(found, key=lambda place: place.begun_ns)


def _waiting_paths(project: str, environ: Mapping[str, str]) -> list[str]:
    # In all places: a policy that grants one of them to commands has theirs put into another.
    above = persistent_scratch.scratch_paths(project, (project,), environ, make=False, kind="transactions")
    paths = [f"{each}/{name}" for each in above if os.path.isdir(each) for name in os.listdir(each)]
    return [path for path in paths if set(os.path.basename(path)) <= _HEX and _waits(path)]


def refuse_more(project: str, environ: Mapping[str, str]) -> None:
    """Raise where so much waits for an answer already that no more is begun which would."""
    places = pending(project, environ)
    size = sum(place.facts().get("bytes", 0) for place in places)
    for place in places:
        place.release()
    if len(places) < MAX_WAITING and size <= MAX_WAITING_BYTES:
        return
    raise TransactionError(
        f"{len(places)} transactions with {size >> 20} MiB wait for their owner's answer in {project}, so this one was not begun. "
        "The owner can look at them by corral history, and answer by corral apply ID, corral discard ID or corral discard --all"
    )


def waiting(project: str, environ: Mapping[str, str], id_: str = "") -> Place:
    """Return the transaction that waits and whose id begins so, held; the only one without an id."""
    places = pending(project, environ)
    fitting = [place for place in places if place.id.startswith(id_)]
    for place in places:
        if len(fitting) != 1 or place is not fitting[0]:
            place.release()
    if len(fitting) != 1:
        busy = [os.path.basename(path) for path in _waiting_paths(project, environ)]
        busy = [name for name in busy if name.startswith(id_) and name not in {place.id for place in places}]
        if not fitting and busy:
            raise TransactionError(f"another process is at work on transaction {busy[0]}; try again when it has ended")
        if not places:
            raise TransactionError(f"no transaction waits in {project}; corral try -- CMD makes one")
        known = ", ".join(place.id for place in places)
        said = f"{len(fitting)} of these ids begin with {id_!r}" if id_ else "several transactions wait; which one?"
        raise TransactionError(f"{said} ({known})")
    return fitting[0]


def _moment(path: str) -> int:
    """Return a time of change that no earlier change has, and every later one has or exceeds."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        # A time that somebody has asked for is followed by an exact one, since Linux 6.13; no later change is stamped before it.
        os.fstat(descriptor)
        before = clock_gettime_ns(_CLOCK_REALTIME_COARSE)
        os.utime(descriptor)
        found = os.fstat(descriptor).st_ctime_ns
        after = clock_gettime_ns(_CLOCK_REALTIME_COARSE)
        if found not in (before, after):
            return found
        # Else times are those of the clock's ticks: what changed before must have another than what changes after.
        give_up_at = monotonic() + TICK_SECONDS
        while clock_gettime_ns(_CLOCK_REALTIME_COARSE) <= found and monotonic() < give_up_at:
            sleep(0.0005)
        os.utime(descriptor)
        return os.fstat(descriptor).st_ctime_ns
    finally:
        os.close(descriptor)
