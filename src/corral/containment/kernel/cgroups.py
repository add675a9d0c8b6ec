"""Creates control groups for commands, where this process may, and reads their counters. Limits of a group hold for root too.

A group is never made outside of the limits of corral's own group: a command must not get more than the process that started corral.
"""

from __future__ import annotations

import os

from corral._lib.own_cgroups import MEMORY_BOUND_FILES, own_groups, read_text
from corral.containment.kernel.syscalls import write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from corral._lib.own_cgroups import Home
    from corral.containment.plan import Place

# The controller's name in version 1, and in version 2 where cgroup.subtree_control must list it.
_CONTROLLERS = {"pids": ("pids", "pids"), "memory": ("memory", "memory"), "cpu": ("cpuacct", "")}
# The file that sets the limit, the file that counts how often it was hit, and the word before that number.
_FILES = {
    ("pids", 1): ("pids.max", "pids.events", b"max "),
    ("pids", 2): ("pids.max", "pids.events", b"max "),
    ("memory", 1): (MEMORY_BOUND_FILES[1], "memory.oom_control", b"oom_kill "),
    ("memory", 2): (MEMORY_BOUND_FILES[2], "memory.events", b"oom_kill "),
}
# Without these a memory limit only makes the machine swap. The files are absent where there is no swap.
_SWAP = {1: "memory.memsw.limit_in_bytes", 2: "memory.swap.max"}
_IN_USE = {1: (b"rss ", b"shmem "), 2: (b"anon ", b"shmem ")}
_OWN_LIMITS = ("memory.max", "memory.high", "pids.max", "cpu.max", "memory.swap.max")
_NANOSECONDS, _MICROSECONDS = 1e9, 1e6


def find(controllers: Iterable[str]) -> dict[str, Place]:
    """Return, by controller, where groups can be made. Each place is tried by making a group there."""
    homes = own_groups()
    found = {name: next((p for p in _places(name, homes) if _can_make(p[1])), None) for name in controllers}
    return {name: place for name, place in found.items() if place}


def _places(controller: str, homes: Iterable[Home]) -> Iterator[Place]:
    name_in_v1, name_in_v2 = _CONTROLLERS[controller]
    for version, counted, home in homes:
        if version == 1 and name_in_v1 in counted:
            yield 1, home
        elif version == 2:
            for place in creatable_places(home):
                if not name_in_v2 or name_in_v2 in read_text(f"{place}/cgroup.subtree_control").split():
                    yield 2, place


def creatable_places(own: str) -> list[str]:
    """Return the version 2 directories where groups can be made: the own group, and its parent.

    A group that holds processes cannot delegate controllers to its children, unless it is the root group. The parent is left
    out if systemd manages it (a slice), if it is the root, and if the own group has limits, which a sibling would escape.
    """
    parent = os.path.dirname(own)
    is_root = not os.path.exists(f"{parent}/cgroup.type")
    unlimited = all(read_text(f"{own}/{name}").split()[:1] in ([], ["max"]) for name in _OWN_LIMITS)
    return [own, parent] if unlimited and not is_root and not parent.endswith(".slice") else [own]


def _can_make(place: str) -> bool:
    probe = f"{place}/{_prefix()}{os.getpid()}-probe"
    try:
        os.mkdir(probe)
    except OSError:
        return False
    _remove(probe)
    return True


def _prefix() -> str:
    # A pid means something in one pid namespace only, and several namespaces can share a hierarchy.
    return f"corral-{os.stat('/proc/self/ns/pid').st_ino}-"


def remove_stale() -> None:
    """Remove the empty groups that killed keepers left."""
    homes = own_groups()
    for place in {place for controller in _CONTROLLERS for _, place in _places(controller, homes)}:
        _remove_stale(place)


def _remove_stale(place: str) -> None:
    for name in os.listdir(place) if os.access(place, os.W_OK) else ():
        # A keeper that is a zombie counts as gone.
        if name.startswith(_prefix()) and ") Z " in (read_text(f"/proc/{name.split('-')[2]}/stat") or ") Z "):
            _remove(f"{place}/{name}")


def known_places(controllers: Iterable[str], tried: Mapping[str, Place]) -> dict[str, Place]:
    """Return the places that were tried before and that this process's own cgroups still allow, by controller."""
    homes = own_groups()
    return {name: tried[name] for name in controllers if name in tried and tried[name] in _places(name, homes)}


def remove_stale_in(places: Mapping[str, Place]) -> None:
    """Remove the empty groups that killed keepers left in these places."""
    for place in {place for _, place in places.values()}:
        _remove_stale(place)


class Trial:
    """Tries in the background whether groups can be made and entered: moving a process can take the kernel milliseconds."""

    def __init__(self, controllers: Iterable[str]) -> None:
        self._places = find(controllers)
        if not self._places:
            return
        remove_stale_in(self._places)
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
        """Wait for the result; return where groups can be made, by controller."""
        if not self._places:
            return {}
        _, status = os.waitpid(self._child, 0)
        self._group.remove()
        return {} if status else self._places


def make(places: Mapping[str, Place], number: int, limits: Mapping[str, int]) -> Group:
    """Make the groups of this process's warden with this number, and set the limits that they can keep."""
    name = f"{_prefix()}{os.getpid()}-{number}"
    group = Group({controller: (version, f"{place}/{name}") for controller, (version, place) in places.items()})
    try:
        for directory in group.all():
            os.mkdir(directory)
        for controller, limit in limits.items():
            if controller in group.directories:
                group.set_limit(controller, limit)
    except OSError:
        group.remove()
        raise
    return group


class Group:
    """The control groups of one warden and its command, one in each hierarchy."""

    def __init__(self, directories: Mapping[str, Place]) -> None:
        self.directories = directories

    def all(self) -> set[str]:
        """Return the directories. Several controllers can share one."""
        return {directory for _, directory in self.directories.values()}

    def set_limit(self, controller: str, limit: int) -> None:
        """Set the limit of a controller."""
        version, directory = self.directories[controller]
        write_file(f"{directory}/{_FILES[controller, version][0]}", b"%d" % limit)
        swap = f"{directory}/{_SWAP[version]}"
        if controller == "memory" and os.path.exists(swap):
            # Version 1 limits the sum of memory and swap.
            write_file(swap, b"%d" % (limit if version == 1 else 0))

    def take(self, pid: int) -> None:
        """Move a process into the groups. Its later children start there."""
        for directory in self.all():
            write_file(f"{directory}/cgroup.procs", b"%d" % pid)

    def remove(self) -> None:
        """Remove the groups that hold no process."""
        for directory in self.all():
            _remove(directory)

    def counters(self) -> dict[str, Counter]:
        """Open the counters of limit hits, for a warden that cannot see the groups later."""
        found = {}
        for controller, (version, directory) in self.directories.items():
            if (controller, version) in _FILES:
                _, file, word = _FILES[controller, version]
                found[controller] = Counter(os.open(f"{directory}/{file}", os.O_RDONLY | os.O_CLOEXEC), word)
        return found

    def hits(self, controller: str) -> int:
        """Return how often the limit was hit since the group was made."""
        if controller not in self.directories:
            return 0
        version, directory = self.directories[controller]
        _, file, word = _FILES[controller, version]
        return _number(read_text(f"{directory}/{file}").encode(), word)

    def cpu_seconds(self) -> float:
        """Return the CPU time used in the group since it was made."""
        version, directory = self.directories["cpu"]
        if version == 1:
            return int(read_text(f"{directory}/cpuacct.usage") or 0) / _NANOSECONDS
        return _number(read_text(f"{directory}/cpu.stat").encode(), b"usage_usec ") / _MICROSECONDS

    def memory_bytes(self) -> int:
        """Return the anonymous and shared memory in use: all that no file on a disk backs."""
        version, directory = self.directories["memory"]
        text = read_text(f"{directory}/memory.stat").encode()
        return sum(_number(text, word) for word in _IN_USE[version])


class Counter:
    """Counts the hits of one limit. It is read after every command, so it parses the file only if the text changed."""

    __slots__ = ("descriptor", "hits", "text", "word")

    def __init__(self, descriptor: int, word: bytes) -> None:
        self.descriptor = descriptor
        self.word = word
        self.text = os.pread(self.descriptor, 512, 0)
        self.hits = _number(self.text, word)

    def has_risen(self) -> bool:
        """Return whether the limit was hit since the last call."""
        text = os.pread(self.descriptor, 512, 0)
        if text == self.text:
            return False
        before, self.text, self.hits = self.hits, text, _number(text, self.word)
        return self.hits > before


def _number(text: bytes, word: bytes) -> int:
    # Match at the start of a line only: memory.stat has longer words with the same end.
    return int((b"\n" + text).partition(b"\n" + word)[2].split(maxsplit=1)[0])


def _remove(directory: str) -> None:
    try:
        os.rmdir(directory)
    except OSError:
        # The directory was never made, or a process in the group is still dying.
        return
