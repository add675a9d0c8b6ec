"""Opens the mirrors of a sandbox's git directories, and brings them in step before and after each command."""

from __future__ import annotations

import os
from _blake2 import blake2b
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import partial
from time import monotonic, time

from corral._lib.fork_lock import ForkSafeLock
from corral.containment.filesystem import scratch
from corral.containment.filesystem.persistent_scratch import grants_digest
from corral.containment.filesystem.quarantine import move_to_quarantine
from corral.containment.filesystem.temp_dirs import make_temp_dir
from corral.containment.kernel.overlay import GIT
from corral.git.comparison import INFORMING
from corral.git.config_file import parse
from corral.git.configuration.home_files import home_files, is_first_report
from corral.git.host_git import HostGit, find_program
from corral.git.index_file import compare
from corral.git.made_repositories import (
    is_known_target,
    is_plain,
    new_modules,
    quarantine_marks,
    rewrite_pointer,
    take_over,
    take_over_module,
    target_of,
)
from corral.git.mirror import PRIVATE, Mirror, is_orphan
from corral.git.names import plain, typed
from corral.git.new_worktrees import has_users_files
from corral.git.safe_files import SafeTree
from corral.git.split_index import read_index
from corral.git.work_files import write_pointer
from corral.guard.path_zones import inside
from corral.model.call import Violation
from corral.model.errors import PolicyError, TransactionError
from corral.policy.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from corral.policy.config import SandboxConfig

    # Takes paths, and returns a number that grows when something happens to one of them, or None if that is not known.
    Changes = Callable[[tuple[str, ...]], int | None]

MAX_MIRRORS = 200  # a project with more repositories has the others read-only
MOUNTED_AT = "/run/corral/git"  # the user's git directories, read-only, as commands see them
CLEANED_SECONDS = 24 * 3600.0  # between two searches for copies of git directories that are gone
REMOVE_SECONDS = 0.5  # limit of one clean-up; the next one continues
_CLEANED, _UNFINISHED = ".cleaned", ".unfinished"
# A command's files must not be able to end the host with an error, whatever they hold.
BROKEN = (OSError, ValueError, LookupError, RecursionError, MemoryError)
INSTEAD = "Later commands still see what stays in the sandbox. To have it outside, the user can run git there."

MADE_INSIDE = "a command made a repository in"
LEFT_OUT_INSTEAD = "They name programs or files that commands must not start or read. `corral doctor` lists them."


class Membrane:
    """The git directories of one sandbox."""

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._mirrors: list[Mirror] = []
        self._lock = ForkSafeLock()  # held during a comparison, until its notes can be read
        self._late: list[Violation] = []
        self._git: HostGit | None = None
        self._adopted: dict[str, Mirror] = {}
        self._temporary: dict[str, str] = {}  # directories that hold a mirror until the sandbox ends, by git directory
        self._left_out: tuple[str, ...] = ()  # settings of the user's that commands do not get
        self._reports = 0  # comparisons
        self._watched: tuple[int, tuple[str, ...]] = (-1, ())  # the paths to watch, and after which comparison
        # What was noticed when nothing had changed: on the user's side, and on the commands'.
        self._quiet_users: tuple[int, int] | None = None
        self._quiet_privates: tuple[int, int] | None = None
        self.pointers: dict[str, str] = {}  # `.git` files that the host wrote, and their texts
        self.is_outdated = False  # whether a repository was taken over that the view does not know

    def open(self, repositories: Iterable[str], programs: Iterable[str]) -> dict[str, tuple[str, str]]:
        """Make or update the mirrors. Return for each git directory the commands' copy, and where they see the user's."""
        self._adopted, self.is_outdated = {}, False
        program = find_program(programs)
        if not program:
            return {}
        found: dict[str, tuple[str, str]] = {}
        mirrors: list[Mirror] = []
        self._git = git = HostGit(program, os.environ)
        self._resume(git)
        # The project's own is the first.
        for path in sorted(repositories, key=lambda path: path.count("/")):
            if len(mirrors) >= MAX_MIRRORS or not _is_supported(path):
                continue
            mirror = self._mirror(path, git)
            self._report(mirror)
            mirrors.append(mirror)
            found[path] = (mirror.private_dir, _shown_at(path))
        for mirror in mirrors:
            try:
                self._make_mount_points(mirror.user_dir, found)
            except BROKEN:
                mirror.set_aside()
                self._report(mirror)
                self._make_mount_points(mirror.user_dir, found)
        self._mirrors = mirrors
        self._reports += 1
        return found

    def home_files(self, programs: Iterable[str], home: str) -> Mapping[str, bytes]:
        """Return the git files of the commands' home: the user's configuration without what names programs."""
        found = home_files(self._config, os.environ, programs, home)
        self._left_out = found.left_out
        return found.files

    def _mirror(self, path: str, git: HostGit) -> Mirror:
        roots = (self._config.project_root, *self._config.containment.write)
        return Mirror(path, self._place(path), _shown_at(path), git, roots)

    def _make_mount_points(self, path: str, found: dict[str, tuple[str, str]]) -> None:
        """Make the directories in a copy over which others are mounted: hooks, and the git directories of submodules."""
        with SafeTree(found[path][0]) as private:
            private.make_directory("hooks")
            for inner in found:
                if inside(inner, path) and inner != path:
                    private.make_directory(inner[len(path) + 1 :])

    def _place(self, path: str) -> str:
        """Return the directory that holds a mirror. It is in the user's state directory, or a new one if that cannot be used."""
        if path in self._temporary:
            return self._temporary[path]
        # Apart by what is granted: a command's own git configuration must not wait for a run with more rights.
        name = f"{_name_of(path)}-{grants_digest(self._config)}"
        try:
            store = Store("state", f"git/{name}", os.environ, self._config.project_root)
            store.create()
            _remove_orphans(os.path.dirname(store.path))
        except (PolicyError, OSError) as error:
            place = make_temp_dir("corral-git-", self._config.project_root, *self._config.containment.write)
            self._temporary[path] = place
            detail = f"the commands' side of {path} does not outlast this sandbox, and lies in {place}: {error}"
            self._late.append(Violation("git", path, detail, "Make the directory writable for the user."))
            return place
        return store.path

    def prepare_transaction(self, place: str) -> None:
        """Make or update the copies for a transaction. What its commands change in them crosses when it is applied."""
        for mirror in self._mirrors:
            own = f"{place}/{GIT}/{os.path.basename(mirror.place)}"
            os.makedirs(own, 0o700, exist_ok=True)
            Mirror(mirror.user_dir, own, _shown_at(mirror.user_dir), mirror.git, mirror.roots).compare()
        for mirror in self._mirrors:
            found = {
                each.user_dir: (f"{place}/{GIT}/{os.path.basename(each.place)}/{PRIVATE}", "") for each in self._mirrors
            }
            self._make_mount_points(mirror.user_dir, found)

    def before(self, changes: Changes | None = None) -> None:
        """Copy in what the user has changed since the last command."""
        seen = self._noticed(changes)
        if seen is None or seen != self._quiet_users:
            changed = [mirror for mirror in self._mirrors if mirror.user_changed()]
            for mirror in changed:
                self._report(mirror)
            self._quiet_users = None if changed else seen

    def after(self, changes: Changes | None = None) -> tuple[Violation, ...]:
        """Write what a command has changed for the user. Return what the user should know."""
        seen = self._noticed(changes)
        if seen is None or seen != self._quiet_privates:
            changed = [mirror for mirror in self._mirrors if mirror.private_changed()]
            for mirror in changed:
                self._report(mirror)
                self._report_left_out(mirror)
            self._quiet_privates = None if changed else seen
        with self._lock:
            found, self._late = self._late, []
        return tuple(found)

    def _noticed(self, changes: Changes | None) -> tuple[int, int] | None:
        """Return numbers that stay the same as long as nothing happens in the git directories; None if that is not known."""
        if changes is None:
            return None
        reports = self._reports
        if reports != self._watched[0]:
            # A comparison looks at other directories then.
            self._watched = reports, tuple(path for mirror in self._mirrors for path in mirror.watched())
        number = changes(self._watched[1])
        return None if number is None else (reports, number)

    def _report_left_out(self, mirror: Mirror) -> None:
        """Report once in a session the user's settings that commands do not get, after a command has used git."""
        left_out, self._left_out = self._left_out, ()
        if left_out and is_first_report(left_out, self._config.project_root, os.environ):
            detail = f"git in the sandbox lacks settings of the user's: {', '.join(map(plain, left_out))}"
            self._late.append(Violation("git", mirror.user_dir, detail, LEFT_OUT_INSTEAD))

    def take_over(
        self, made: Iterable[str], pointers: Iterable[str], originals: Mapping[str, str]
    ) -> tuple[Violation, ...]:
        """Take over repositories and `.git` files that commands made. Return a violation for each that was moved away.

        `originals` are the texts of the user's `.git` files. One that leads elsewhere now is restored.
        """
        found: list[Violation] = []
        root = self._config.project_root
        for path in sorted(made, key=len):
            if any(inside(path, mirror.user_dir) for mirror in self._mirrors):
                continue
            if self._git is not None and is_plain(path) and path != root:
                mirror = self._adopt(path, self._git)
                found += self._told(mirror, partial(self._take_over, mirror, self._git))
                found += self._told_inside(path)
            elif os.path.basename(path) == ".git":
                found.append(move_to_quarantine(path, root))
            else:
                found += quarantine_marks(path, root)
        leading = {pointer: target_of(pointer) for pointer in pointers if os.path.lexists(pointer)}
        if leading and self._git is not None:
            found += self._take_over_modules(leading, self._git)
        known = {mirror.user_dir for mirror in self._mirrors} | self._adopted.keys()
        for pointer, target in leading.items():
            if target and is_known_target(target, known) and os.path.isfile(f"{target}/HEAD"):
                self.pointers[pointer] = rewrite_pointer(pointer, target)
            else:
                found.append(move_to_quarantine(pointer, root))
                if pointer in originals:
                    self.pointers[pointer] = originals[pointer]
                    write_pointer(os.path.dirname(pointer), originals[pointer].removeprefix("gitdir: "))
        return tuple(found)

    def _told_inside(self, path: str) -> list[Violation]:
        """Report a repository in a directory of another one's files: there, the user expects git to work on the other one."""
        place = os.path.dirname(path)
        for mirror in self._mirrors if os.path.basename(path) == ".git" else ():
            try:
                with SafeTree(mirror.user_dir, is_strict=True) as user:
                    holds_files = has_users_files(user, mirror.user_dir, place)
            except OSError:
                continue  # a command that still runs has moved it, or put a link in its place
            if holds_files:
                detail = f"{MADE_INSIDE} {plain(place)}, whose files {plain(mirror.user_dir)} tracks: git works on the new one there"
                return [Violation("git", path, detail, f"To remove it: rm -r {typed(path)}")]
        return []

    def _take_over(self, mirror: Mirror, git: HostGit) -> list[str]:
        """Take over a repository. If this process is killed meanwhile, the next sandbox continues."""
        if mirror.user_dir in self._temporary:
            return take_over(mirror, git)
        above, name = os.path.split(mirror.place)
        record = f"{above}/{_UNFINISHED}/{name}"
        os.makedirs(os.path.dirname(record), 0o700, exist_ok=True)
        with open(os.open(record, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
            flock(file, LOCK_EX)
            file.write(os.fsencode(mirror.user_dir))
            file.flush()
            # Another sandbox may have continued it before this one got the lock.
            notes = take_over(mirror, git) if os.path.lexists(record) else []
            if os.path.lexists(record):
                os.unlink(record)
        return notes

    def _resume(self, git: HostGit) -> None:
        """Take over the repositories of commands that a killed process had moved away."""
        try:
            folder = f"{Store('state', 'git', os.environ, self._config.project_root).path}/{_UNFINISHED}"
            names = os.listdir(folder)
        except (PolicyError, OSError):
            return
        for name in names:
            with open(f"{folder}/{name}", "rb") as file:
                try:
                    flock(file, LOCK_EX | LOCK_NB)
                except OSError:
                    # Its process still runs.
                    continue
                path = os.fsdecode(file.read())
            place = f"{os.path.dirname(folder)}/{name}"
            if not inside(path, self._config.project_root) or self._place(path) != place:
                continue
            if not os.path.lexists(path) and os.path.lexists(f"{place}/{PRIVATE}"):
                mirror = self._adopt(path, git)
                self._late += self._told(mirror, partial(self._take_over, mirror, git))
            else:
                os.unlink(f"{folder}/{name}")

    def _take_over_modules(self, leading: dict[str, str], git: HostGit) -> list[Violation]:
        found: list[Violation] = []
        worktrees = {target: os.path.dirname(pointer) for pointer, target in leading.items()}
        for parent in self._mirrors:
            known = [mirror.user_dir for mirror in self._mirrors]
            for path in new_modules(parent, known):
                if path in worktrees and path not in self._adopted:
                    mirror = self._adopt(path, git)
                    found += self._told(mirror, partial(take_over_module, parent, mirror, git, worktrees[path]))
        return found

    def _adopt(self, path: str, git: HostGit) -> Mirror:
        mirror = self._mirror(path, git)
        mirror.others = {each.user_dir: _shown_at(each.user_dir) for each in self._mirrors}
        self._adopted[path] = mirror
        self.is_outdated = True
        return mirror

    def adopted(self) -> list[str]:
        """Return the repositories that were taken over since the view was built: running wardens show them unprotected."""
        return [path for path in self._adopted if os.path.isdir(path)]

    def _told(self, mirror: Mirror, action: Callable[[], list[str]]) -> list[Violation]:
        try:
            notes = action()
        except BROKEN as error:
            is_users = any(inside(mirror.user_dir, each.user_dir) for each in self._mirrors)
            if os.path.lexists(mirror.user_dir) and not is_users:
                return [move_to_quarantine(mirror.user_dir, self._config.project_root)]
            return [Violation("git", mirror.user_dir, f"the repository was moved to {mirror.place}: {error}", INSTEAD)]
        return [_violation(mirror, note) for note in notes]

    def _report(self, mirror: Mirror) -> None:
        with self._lock:
            self._report_locked(mirror)

    def _report_locked(self, mirror: Mirror) -> None:
        try:
            notes = mirror.compare()
        except BROKEN as error:
            notes = [f"the command's work in git stays in the sandbox: {getattr(error, 'strerror', '') or error}"]
            mirror.forget()
        if mirror.is_replaced:
            mirror.is_replaced, self.is_outdated = False, True
        found = [_violation(mirror, note) for note in notes]
        self._late += [each for each in found if each not in self._late]
        self._reports += 1

    def compare_meanwhile(self, is_busy: Callable[[], bool]) -> None:
        """Compare while a command runs for long: a whole agent, or a process in the background."""
        for mirror in self._mirrors:
            with self._lock:
                if not is_busy():
                    # It has ended meanwhile. The user's git must not meet the locks of a comparison then.
                    return
                if mirror.user_changed() or mirror.private_changed():
                    self._report_locked(mirror)

    def settle(self) -> None:
        """Wait until a comparison has ended that began while commands ran."""
        with self._lock:
            return

    def close(self) -> None:
        """Compare for the last time if a command that was killed has changed something, and forget the mirrors."""
        self.compare_meanwhile(lambda: True)
        unfinished = {mirror.place for mirror in self._mirrors if mirror.private_changed()}
        for place in self._temporary.values():
            if place not in unfinished:
                scratch.remove(place)
        self._mirrors, self._temporary = [], {}


def host_git(root: str) -> HostGit | None:
    """Return the user's git, from a directory of PATH outside the project; or None."""
    places = [each for each in os.environ.get("PATH", "").split(":") if each.startswith("/") and not inside(each, root)]
    program = find_program(places)
    return HostGit(program, os.environ) if program else None


def transaction_mirrors(place: str, roots: tuple[str, ...]) -> list[Mirror]:
    """Return the mirrors of a transaction, also of one that another process began."""
    git = host_git(roots[0])
    try:
        names = sorted(os.listdir(f"{place}/{GIT}"))
    except FileNotFoundError:
        return []
    if git is None:
        raise TransactionError("git is not installed, so the transaction's changes to repositories cannot be written")
    found = [Mirror.stored(f"{place}/{GIT}/{name}", git, roots) for name in names]
    return [mirror for mirror in found if mirror is not None]


def made_place(above: str, path: str) -> str:
    """Return where the commands' side of a repository lies that a transaction made."""
    return f"{above}/made-{_name_of(path)}"


def take_over_copy(path: str, source: str, root: str, git: HostGit, above: str) -> list[str]:
    """Take over a repository that a transaction made, from its layer. `path` is where the user gets it.

    If a process was killed meanwhile, this continues.
    """
    place = made_place(above, path)
    os.makedirs(place, 0o700, exist_ok=True)
    mirror = Mirror(path, place, _shown_at(path), git, (root,))
    return mirror.compare() if os.path.lexists(path) else take_over(mirror, git, source)


def _remove_orphans(folder: str) -> None:
    """Once a day, remove the copies of git directories that no longer exist."""
    mark = f"{folder}/{_CLEANED}"
    try:
        if 0 <= time() - os.lstat(mark).st_mtime < CLEANED_SECONDS:
            return
    except FileNotFoundError:
        pass
    give_up_at = monotonic() + REMOVE_SECONDS
    for name in os.listdir(folder):
        place = f"{folder}/{name}"
        if name != _CLEANED and is_orphan(place):
            scratch.remove(place, give_up_at)
        if monotonic() > give_up_at:
            return
    with open(mark, "wb"):
        os.utime(mark)


def _name_of(path: str) -> str:
    return blake2b(os.fsencode(path), digest_size=16).hexdigest()


def _shown_at(path: str) -> str:
    return f"{MOUNTED_AT}/{_name_of(path)}"


def _is_supported(path: str) -> bool:
    """Say whether a repository has the formats that mirrors know: SHA-1, and refs in files."""
    try:
        with SafeTree(path, is_strict=True) as tree:
            settings = parse(tree.text("config", 1 << 18))
            index = read_index(tree, "")
        if index is not None:
            compare(index, index)
    except (OSError, ValueError):
        # A sparse index, for example.
        return False
    formats = [settings.get(("extensions", "", name), ("",))[0] for name in ("objectformat", "refstorage")]
    return formats[0] in ("", "sha1") and formats[1] in ("", "files")


def _violation(mirror: Mirror, note: str) -> Violation:
    """Return a note of a comparison as a violation. One that tells what was done has its own advice."""
    return Violation("git", mirror.user_dir, note, "" if note.startswith(INFORMING) else INSTEAD)
