"""The directories that a sandbox looks through, and which of them have changed since: asked one by one, or told by the kernel."""

from __future__ import annotations

import os
from time import time_ns

from corral.containment.filesystem.git_repos import GIT
from corral.containment.filesystem.inotify import InotifyWatches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Known = tuple[str, str, int, int]  # path, role, number of the inode, time of change

MAX_ASKED = 1  # directory; with more the kernel is to tell which have changed, from the third command on
MAX_NAMES = 8  # that are looked at one by one; of more, the directory is listed
MAX_WATCHED = 16_384  # directories; a project of more is asked one by one, about 2 ms a thousand
FEW_LOOKS = 2  # most processes of the command line run one command: to ask costs them less than to listen
# A directory's time of change has the kernel's clock tick: younger than this, another change may have the same.
SETTLED_NS = 50_000_000
COARSE_NS = 2_100_000_000
NO_CTIME = -1
_FOR_GOOD = -(1 << 62)  # a number of looks after which all are asked for ever


def ctime_of(path: str) -> int:
    """Return when something was last changed, or 0 if it is not there."""
    try:
        return os.lstat(path).st_ctime_ns
    except OSError:
        return 0


def comparable_ctime(changed: int) -> int:
    """Return a time of change to compare with later, or one that is never equal if it is too young."""
    # Where times are in whole seconds, or two, a second change in the same one has the same.
    young = SETTLED_NS if changed % 1_000_000_000 else COARSE_NS
    return changed if changed < time_ns() - young else NO_CTIME


class DirectoryTracker:
    """What is looked through: paths with their roles."""

    def __init__(self, known: Iterable[Known]) -> None:
        self.roles: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._times: dict[str, int] = {}
        for path, role, number, changed in known:
            self.roles[path], self._numbers[path], self._times[path] = role, number, changed
        self._notices: InotifyWatches | None = None
        self._unseen: set[str] = set()  # what the kernel does not tell of
        self._looks = 0

    def changed(self, is_nothing: Callable[[str, str], bool]) -> list[str]:
        """Return those in which something may have appeared; of a few names it is asked whether they are nothing to look at."""
        told = None
        if self._notices is not None:
            told = self._notices.changed()
            if told is None:
                self._listen()
        else:
            self._looks += 1
            if self._looks > FEW_LOOKS and MAX_ASKED < len(self.roles) <= MAX_WATCHED:
                # All are asked once more: the kernel does not tell what came before it was to listen.
                self._listen()
        if told is None:
            # Times of those that the kernel told of are old ones, which are listed once more than needed.
            return [path for path, known in self._times.items() if ctime_of(path) != known]
        appeared, gone = told
        if not (appeared or gone or self._unseen):
            return []
        for path in gone:
            self.forget(path)
        found = [
            path
            for path, names in appeared.items()
            if len(names) > MAX_NAMES or not all(is_nothing(path, os.fsdecode(name)) for name in names)
        ]
        return [path for path in (*found, *self._unseen) if path in self.roles]

    def holds(self, path: str, number: int) -> bool:
        """Say whether a directory is known, and not another that has taken its name."""
        return self._numbers.get(path) == number

    def enter(self, path: str, role: str, number: int) -> None:
        """Look at a directory from now on."""
        self.roles[path], self._numbers[path], self._times[path] = role, number, NO_CTIME
        if self._notices is not None:
            self._add(self._notices, path)

    def listed(self, path: str, changed: int) -> None:
        """Note that all of a directory was looked at, as it was at a time of change."""
        self._times[path] = comparable_ctime(changed)
        if path in self._unseen and self._notices is not None:
            self._unseen.discard(path)
            self._add(self._notices, path)

    def shut(self, path: str) -> None:
        """Look again after each command at a directory that cannot be listed, until it can: the kernel does not tell when."""
        self._unseen.add(path)

    def forget(self, path: str) -> None:
        """Look no longer at a directory."""
        for table in (self.roles, self._times, self._numbers):
            table.pop(path, None)
        self._unseen.discard(path)

    def forget_below(self, path: str) -> None:
        """Look no longer at what lies in a directory, so that it is met anew."""
        for inner in [inner for inner in self.roles if inner.startswith(f"{path}/")]:
            self.forget(inner)

    def forked(self) -> None:
        """Go on in a fork of the process: the notices are its parent's."""
        self.close()

    def close(self) -> None:
        """Let go of what the kernel holds."""
        if self._notices is not None:
            self._notices.close()
            self._notices = None

    def end(self) -> None:
        """Listen no more: a command that is looked after later must not begin anew what nobody will close."""
        self._looks = _FOR_GOOD
        self.close()

    def _listen(self) -> None:
        try:
            if self._notices is None:
                self._notices = InotifyWatches()
        except OSError:
            # As many as the kernel gives a user are in use; asking each directory is slower and as good.
            self._looks = _FOR_GOOD
            return
        # What was moved has another path now, and what has come to its place is watched under that one.
        self._notices.forget()
        gone = "\0"
        for path in sorted(self.roles, key=lambda path: path.replace("/", "\0")):
            if path.startswith(gone):
                # What is above it is another by now, perhaps a link: under this path it would be watched elsewhere.
                self.forget(path)
            elif self._notices is not None:
                self._add(self._notices, path)
                gone = gone if path in self.roles else f"{path}/"

    def _add(self, notices: InotifyWatches, path: str) -> None:
        try:
            # Git makes and removes a lock in each command.
            notices.add(path, removals=self.roles[path] == GIT)
        except (FileNotFoundError, NotADirectoryError):
            self.forget(path)
        except PermissionError:
            self._unseen.add(path)
        except OSError:
            self._looks = _FOR_GOOD
            self.close()
