"""Defines the instructions of a host to its keeper (`Plan`) and of a keeper to its wardens (`WardenPlan`).

The records travel as marshal data. Only the host and the keeper write them, so a command cannot forge one.
"""

from __future__ import annotations

from corral._lib.records import Record, frozen
from corral.containment import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    Rlimit = tuple[str, int]
    Rule = tuple[str, str]  # a path and the name of its Landlock rights
    KnownPath = tuple[str, int, int]  # path, device, inode
    Place = tuple[int, str]  # cgroup version and directory

IDLE_SECONDS = 30.0  # a warden that is idle for longer exits, unless it is the sandbox's first


@frozen
class Step(Record):
    """A step in building the file tree of a sandbox: an action on the path `target`.

    The actions are directory, link, tmpfs, devpts, bind, pin, readonly, seal, mask and hide.
    """

    action: str
    target: str
    source: str = ""  # the path to bind, the text of a link, or the options of a mount
    access: str = ""  # of a bind: ro, rw, node, or cache: read-only, unless the keeper can mount an overlay


@frozen
class Plan(Record):
    """The host's instructions to its keeper. The defaults describe a sandbox without containment."""

    backend: str = "none"  # as configured: auto, warden, bubblewrap or none
    layers: tuple[str, ...] = ()  # the layers that the config asks for
    network: Collection[str] = "off"  # off, on, or the destinations that are granted by name
    grants_nothing: bool = False  # no destination and no request is granted
    listeners: tuple[
        tuple[str, int], ...
    ] = ()  # addresses and ports inside at which the proxy accepts, besides its own
    publish: tuple[int, ...] = ()
    ptrace: bool = False
    is_audited: bool = False  # whether the host reads the kernel's audit records
    limits: Mapping[str, float] = {}  # memory_bytes as a float is a share of the machine's memory
    rlimits: tuple[Rlimit, ...] = ()
    places: tuple[str, ...] = ()  # the directories that commands write to
    maps_all_ids: bool = False  # whether the sandbox has all user ids of the host, or only the user's own
    project: KnownPath = ("", 0, 0)
    scratch: str = ""  # the directory with the commands' `tmp`
    above_home: str = ""  # the directory with their `home`; the same, unless scratch lasts
    scratch_lasts: bool = False
    home_files: Mapping[str, bytes] = {}
    shown_files: Mapping[
        str, bytes
    ] = {}  # in scratch, by name: files that commands see read-only in place of the host's
    steps: tuple[Step, ...] = ()
    copies: tuple[str, ...] = ()  # sources of binds that are copies of git directories; a transaction has its own
    rules: tuple[Rule, ...] = ()
    rules_without_mounts: tuple[Rule, ...] = ()
    idle_seconds: float = IDLE_SECONDS
    held: tuple[str, ...] = ()  # the layers that an earlier keeper has tried since the machine started; () to try them
    group_places: Mapping[str, Place] = {}  # likewise, where control groups can be made

    def pack(self) -> bytes:
        """Return the plan as bytes for the keeper."""
        return protocol.pack(_packed(self))

    @classmethod
    def unpack(cls, data: bytes) -> Plan:
        """Return the plan that the host packed."""
        return _unpacked_plan(protocol.unpack(data))


@frozen
class LimitPlan(Record):
    """Says how each limit of a command is kept: by a control group, a resource limit or the keeper's meter."""

    limits: Mapping[str, int]
    rlimits: tuple[Rlimit, ...] = ()
    cgroups: Mapping[str, Place] = {}  # where groups can be made, by controller
    uncounted: int = 1  # processes in a warden's cgroup that are not the command's
    counts_by_user: bool = False  # whether RLIMIT_NPROC keeps the limit on processes
    is_metered: bool = False  # whether the keeper measures the resource usage of a command


@frozen
class WardenPlan(Record):
    """A keeper's instructions to its wardens: the host's plan, and the keeper's findings about the machine."""

    host: Plan
    limits: LimitPlan
    backend: str  # the one in use: warden, bubblewrap or none
    enforcement: str
    missing: tuple[str, ...]
    layers: frozenset[str]  # the layers that hold
    keeper: int  # its pid
    known: Mapping[str, tuple[int, int]] = {}  # device and inode of the directories in scratch
    all_ids_mapped: bool = False
    host_namespaces: Mapping[str, str] = {}
    expected: tuple[KnownPath, ...] = ()  # what bubblewrap must have bound

    @property
    def remounts(self) -> bool:
        """True if the keeper can make a path read-only again in the mount namespace of a warden."""
        return self.backend == "warden" and "mount" in self.layers

    def status(self) -> tuple[str, str, tuple[str, ...]]:
        """Return the containment fields of a result: backend, enforcement and missing layers."""
        return self.backend, self.enforcement, self.missing


@frozen
class BubblewrapStart(Record):
    """A keeper's instructions to the one warden that bubblewrap starts."""

    plan: WardenPlan
    is_first: bool
    has_outlet: bool
    counters: tuple[tuple[int, str, bytes], ...]  # descriptor, controller, and the word before the number

    def pack(self) -> bytes:
        """Return the instructions as bytes for the warden."""
        return protocol.pack(_packed(self))

    @classmethod
    def unpack(cls, data: bytes) -> BubblewrapStart:
        """Return the instructions that the keeper packed."""
        (plan, limits, *warden), *start = protocol.unpack(data)
        return cls(WardenPlan(_unpacked_plan(plan), LimitPlan(*limits), *warden), *start)


def _packed(value: Any) -> Any:
    """Return a record as a tuple of its fields, which marshal can write."""
    if isinstance(value, Record):
        return tuple(_packed(getattr(value, name)) for name in value._fields)
    if isinstance(value, tuple) and value and isinstance(value[0], Record):
        return tuple(map(_packed, value))
    return value


def _unpacked_plan(values: tuple[Any, ...]) -> Plan:
    plan = Plan(*values)
    return plan.replace(steps=tuple(Step(*step) for step in plan.steps))  # type: ignore[misc]  # still tuples here
