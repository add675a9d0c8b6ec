"""Control groups, where this process may make them: bounds on a whole command that bind root too, and the kernel's own word when one is hit.

Never outside what bounds this process itself: a command must not get more than whoever started corral was given.
"""

from __future__ import annotations

import os

from corral._lib.own_cgroups import MEMORY_BOUND_FILES, own_groups, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from corral._lib.own_cgroups import Home

    Place = tuple[int, str]  # version and directory

# What is counted or bounded, by its name in version 1 and, where version 2 must be told to count it, there.
_CONTROLLERS = {"pids": ("pids", "pids"), "memory": ("memory", "memory"), "cpu": ("cpuacct", "")}
# The file that sets the bound, the file that counts how often it was hit, and the word before that number.
_FILES = {
    ("pids", 1): ("pids.max", "pids.events", b"max "),
    ("pids", 2): ("pids.max", "pids.events", b"max "),
    ("memory", 1): (MEMORY_BOUND_FILES[1], "memory.oom_control", b"oom_kill "),
    ("memory", 2): (MEMORY_BOUND_FILES[2], "memory.events", b"oom_kill "),
}
# Without these a bound on memory only makes the machine swap; absent where there is no swap to bound.
_SWAP = {1: "memory.memsw.limit_in_bytes", 2: "memory.swap.max"}
_IN_USE = {1: (b"rss ", b"shmem "), 2: (b"anon ", b"shmem ")}
_OWN_BOUNDS = ("memory.max", "memory.high", "pids.max", "cpu.max", "memory.swap.max")
_NANOSECONDS, _MICROSECONDS = 1e9, 1e6


def find(wanted: Iterable[str]) -> dict[str, Place]:
    """Return where groups for these controllers can be made, tried by making one; what cannot be had is left out."""
    found: dict[str, Place] = {}
    homes = own_groups()
    for controller in wanted:
        usable = next((place for place in _places(controller, homes) if _can_make(place[1])), None)
        if usable:
            found[controller] = usable
    return found


def _places(controller: str, homes: Iterable[Home]) -> Iterator[Place]:
    in_first, in_second = _CONTROLLERS[controller]
    for version, counted, home in homes:
        if version == 1 and in_first in counted:
            yield 1, home
        elif version == 2:
            yield from ((2, place) for place in creatable_places(home) if _counts(place, in_second))


def creatable_places(own: str) -> list[str]:
    """Return where version 2 lets this process's groups be made: in its own, or beside it.

    A group that holds processes gives no share to groups below, unless it is the kernel's first. Beside is another's to
    manage if it is a slice of systemd or the first; and it would be a way out if the own group has bounds.
    """
    places = [own]
    beside = os.path.dirname(own)
    is_first = not os.path.exists(f"{beside}/cgroup.type")
    unbound = all(read_text(f"{own}/{name}").split()[:1] in ([], ["max"]) for name in _OWN_BOUNDS)
    if unbound and not is_first and not beside.endswith(".slice"):
        places.append(beside)
    return places


def _counts(place: str, controller: str) -> bool:
    return not controller or controller in read_text(f"{place}/cgroup.subtree_control").split()


def _can_make(place: str) -> bool:
    probe = f"{place}/{_prefix()}{os.getpid()}-probe"
    try:
        os.mkdir(probe)
    except OSError:
        return False
    _remove(probe)
    return True


def _prefix() -> str:
    # Numbers of processes mean something in one pid namespace alone, and several may share a hierarchy.
    return f"corral-{os.stat('/proc/self/ns/pid').st_ino}-"


def remove_stale() -> None:
    """Remove the empty groups of keepers that were killed."""
    homes = own_groups()
    for place in {place for controller in _CONTROLLERS for _, place in _places(controller, homes)}:
        _remove_stale(place)


def _remove_stale(place: str) -> None:
    for name in os.listdir(place) if os.access(place, os.W_OK) else ():
        # A keeper that is dead but not waited for is gone too.
        if name.startswith(_prefix()) and ") Z " in (read_text(f"/proc/{name.split('-')[2]}/stat") or ") Z "):
            _remove(f"{place}/{name}")


class Trial:
    """Tries, while other things are done, whether groups can be made and a process moved there: the kernel may take its time."""

    def __init__(self, wanted: Iterable[str]) -> None:
        self._places = find(wanted)
        if not self._places:
            return
        for _, place in self._places.values():
            _remove_stale(place)
        try:
            self._group = make(self._places, 0, {})
        except OSError:
            self._places = {}
            return
        self._child = os.fork()
        if self._child == 0:
            try:
                self._group.take(os.getpid())
                os._exit(0)
            finally:
                os._exit(1)

    def places(self) -> dict[str, Place]:
        """Return where groups can be made, or nothing."""
        if not self._places:
            return {}
        _, status = os.waitpid(self._child, 0)
        self._group.remove()
        return {} if status else self._places


def make(places: Mapping[str, Place], number: int, bounds: Mapping[str, int]) -> Group:
    """Make the groups of this process's warden of that number, with these bounds where they can be set."""
    name = f"{_prefix()}{os.getpid()}-{number}"
    group = Group({controller: (version, f"{place}/{name}") for controller, (version, place) in places.items()})
    try:
        for directory in group.all():
            os.mkdir(directory)
        for controller, bound in bounds.items():
            if controller in group.directories:
                group.bound(controller, bound)
    except OSError:
        group.remove()
        raise
    return group


class Group:
    """The groups that hold one warden and its command, one for each hierarchy."""

    def __init__(self, directories: Mapping[str, Place]) -> None:
        self.directories = directories

    def all(self) -> set[str]:
        """Return the directories, of which several controllers may share one."""
        return {directory for _, directory in self.directories.values()}

    def bound(self, controller: str, bound: int) -> None:
        """Set the bound of a controller."""
        version, directory = self.directories[controller]
        _write(f"{directory}/{_FILES[controller, version][0]}", bound)
        swap = f"{directory}/{_SWAP[version]}"
        if controller == "memory" and os.path.exists(swap):
            # Version 1 counts memory and swap in one.
            _write(swap, bound if version == 1 else 0)

    def take(self, pid: int) -> None:
        """Move a process in; its children begin there."""
        for directory in self.all():
            _write(f"{directory}/cgroup.procs", pid)

    def remove(self) -> None:
        """Remove the groups, if nobody is in them any more."""
        for directory in self.all():
            _remove(directory)

    def counters(self) -> dict[str, Counter]:
        """Open what counts how often each bound was hit, for a process that will not see the group later."""
        found = {}
        for controller, (version, directory) in self.directories.items():
            if (controller, version) in _FILES:
                _, file, word = _FILES[controller, version]
                found[controller] = Counter(os.open(f"{directory}/{file}", os.O_RDONLY | os.O_CLOEXEC), word)
        return found

    def hits(self, controller: str) -> int:
        """Return how often a bound was ever hit in the group."""
        if controller not in self.directories:
            return 0
        version, directory = self.directories[controller]
        _, file, word = _FILES[controller, version]
        return _number(read_text(f"{directory}/{file}").encode(), word)

    def cpu_seconds(self) -> float:
        """Return the processor time that was ever used in the group."""
        version, directory = self.directories["cpu"]
        if version == 1:
            return int(read_text(f"{directory}/cpuacct.usage") or 0) / _NANOSECONDS
        return _number(read_text(f"{directory}/cpu.stat").encode(), b"usage_usec ") / _MICROSECONDS

    def memory_bytes(self) -> int:
        """Return the memory in use that no file on a disk backs."""
        version, directory = self.directories["memory"]
        said = read_text(f"{directory}/memory.stat").encode()
        return sum(_number(said, word) for word in _IN_USE[version])


class Counter:
    """How often a bound was hit. Read after each command, so almost always it says the same as the last time."""

    __slots__ = ("descriptor", "hits", "said", "word")

    def __init__(self, descriptor: int, word: bytes) -> None:
        self.descriptor = descriptor
        self.word = word
        self.said = os.pread(self.descriptor, 512, 0)
        self.hits = _number(self.said, word)

    def has_risen(self) -> bool:
        """Say whether the bound was hit since this was last asked."""
        said = os.pread(self.descriptor, 512, 0)
        if said == self.said:
            return False
        before, self.said, self.hits = self.hits, said, _number(said, self.word)
        return self.hits > before


def _number(text: bytes, word: bytes) -> int:
    # The word begins a line: in memory.stat another one ends with it.
    return int((b"\n" + text).partition(b"\n" + word)[2].split(maxsplit=1)[0])


def _remove(directory: str) -> None:
    try:
        os.rmdir(directory)
    except OSError:
        # It was never made, or a process in it is still dying.
        return


def _write(path: str, number: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, b"%d" % number)
    finally:
        os.close(descriptor)
