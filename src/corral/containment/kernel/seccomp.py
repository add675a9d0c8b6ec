"""Builds the seccomp filter: it refuses a list of system calls and all calls newer than the list, and kills on a foreign ABI.

Only the low 32 bits of an argument are compared. The kernel ignores the rest for these calls, so a high bit must not hide one.
"""

from __future__ import annotations

import ctypes
import os
from _struct import Struct
from errno import EAFNOSUPPORT, ENOSYS, EOPNOTSUPP, EPERM

from corral.containment.kernel.layer import FILTER, Attack, Layer, Remedy
from corral.containment.kernel.syscalls import MACHINE, call, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.containment.plan import WardenPlan

    Instruction = tuple[int, int, int, int]
    Code = list[Instruction]

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_PACKED = Struct("=HBBI")
_SET_MODE_FILTER = 1
_NEWEST_KNOWN = 470  # the calls of Linux 6.18 end before it; later ones are refused
_X32 = 0x40000000
_NEW_NAMESPACES = 0x7E020000
_O_MAKES = 0o100 | 0o20000000  # O_CREAT, and O_TMPFILE, whose file can be linked to a name
_PERSONALITIES = (0, 8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)  # the last is a query; debuggers set 0x40000
_TERMINAL_REQUESTS = (0x5412, 0x541C, 0x5423, 0x541D)  # TIOCSTI, TIOCLINUX, TIOCSETD, TIOCCONS
_RESERVING_REQUESTS = (0x40305828, 0x4030582A, 0x40305839)  # FS_IOC_RESVSP, FS_IOC_RESVSP64, FS_IOC_ZERO_RANGE
_FREEING_MODES = 2 | 8  # of fallocate: FALLOC_FL_PUNCH_HOLE, FALLOC_FL_COLLAPSE_RANGE
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_PRIO_USER, _IOPRIO_WHO_USER = 2, 3

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# From 424 on, both architectures have the same numbers.
_ABSENT_SHARED = (425, 426, 427, 435, 437)  # io_uring_*, clone3, openat2: a filter cannot read arguments in memory
# The mount calls and quotactl_fd; pidfd_getfd, process_madvise and set_mempolicy_home_node.
_REFUSED_SHARED = (428, 429, 430, 431, 432, 433, 442, 443, 467, 438, 440, 450)
_REFUSED = {
    # mount umount2 pivot_root chroot unshare setns; bpf perf_event_open userfaultfd; add_key request_key keyctl; modules;
    # kexec reboot swap; settimeofday clock_settime; quotactl acct syslog; open_by_handle_at fanotify_init; sethostname
    # setdomainname vhangup nfsservctl lookup_dcookie; clock_adjtime kcmp; mbind set_mempolicy get_mempolicy migrate_pages
    # move_pages; then calls that only x86 has: iopl ioperm modify_ldt uselib ustat sysfs _sysctl and the dead ones
    "x86_64": (
        *(165, 166, 155, 161, 272, 308, 321, 298, 323, 248, 249, 250, 175, 176, 313, 246, 320, 169, 167, 168, 164, 227),
        *(179, 163, 103, 304, 300, 170, 171, 153, 180, 212, 305, 312, 237, 238, 239, 256, 279),
        *(172, 173, 154, 134, 136, 139, 156, 174, 177, 178, 181, 182, 183, 184, 185, 214, 215, 236),
    ),
    "aarch64": (
        *(40, 39, 41, 51, 97, 268, 280, 241, 282, 217, 218, 219, 105, 106, 273, 104, 294, 142, 224, 225, 170, 112),
        *(60, 89, 116, 265, 262, 161, 162, 58, 42, 18, 266, 272, 235, 237, 236, 238, 239),
    ),
}
_MQ_OPEN = {"x86_64": 240, "aarch64": 180}
_NAMES = {  # numbers on x86_64 and aarch64
    "clone": (56, 220), "ioctl": (16, 29), "fallocate": (285, 47), "socket": (41, 198), "socketpair": (53, 199),
    "personality": (135, 92), "setpriority": (141, 140), "ioprio_set": (251, 30), "prlimit64": (302, 261),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274), "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
}  # fmt: skip
# The argument that is the mode, in chmod fchmod fchmodat fchmodat2 mknod mknodat creat; and the flags of open and openat, which
# come before the mode.
_MODES = {
    "x86_64": ({90: 1, 91: 1, 268: 2, 452: 2, 133: 1, 259: 2, 85: 1}, {2: 1, 257: 2}),
    "aarch64": ({52: 1, 53: 2, 452: 2, 33: 2}, {56: 2}),
}
ALLOW_ALL: Instruction = (_RETURN, 0, 0, _ALLOW)


def is_known(machine: str = MACHINE) -> bool:
    """Return whether corral has system call numbers for this machine."""
    return machine in _ARCHITECTURES


def program(
    machine: str,
    *,
    guarded: Sequence[int],
    own_pids: bool,
    own_files: bool,
    network: bool,
    is_root: bool,
    ptrace: bool,
    reserves_disk: bool = True,
) -> list[Instruction]:
    """Return the filter. `guarded` are the pids of the warden and the keeper; the flags say what other layers enforce.

    `ptrace` allows debuggers, but only in a pid namespace, where a command sees no other processes.
    Without `reserves_disk` a command can take disk space only by writing, which corral counts.
    """
    names = {name: numbers[machine == "aarch64"] for name, numbers in _NAMES.items()}
    code: Code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
    ]
    # x32 numbers are larger, so this refuses them too.
    code += [(_AT_LEAST, 0, 1, _NEWEST_KNOWN), _fail(ENOSYS)]
    for number in (*_ABSENT_SHARED, _MQ_OPEN[machine]):
        code += [(_EQUAL, 0, 1, number), _fail(ENOSYS)]
    for number in (*_REFUSED[machine], *_REFUSED_SHARED):
        code += [(_EQUAL, 0, 1, number), _fail(EPERM)]
    code += _on(names["clone"], _if_bits(0, _NEW_NAMESPACES))
    code += _on(names["ioctl"], _if_equal(1, _TERMINAL_REQUESTS + (() if reserves_disk else _RESERVING_REQUESTS)))
    if not reserves_disk:
        # As on a file system without fallocate(): the C library then writes instead.
        code += _on(names["fallocate"], [_argument(1), (_ANY_BIT, 1, 0, _FREEING_MODES), _fail(EOPNOTSUPP)])
    families = (*((_UNIX,) if own_files else ()), *((_INET, _INET6) if network else ()))
    code += _on(names["socket"], _only_families(families))
    # The kernel also makes pairs of other families, such as TIPC.
    code += _on(names["socketpair"], [_argument(0), (_EQUAL, 1, 0, _UNIX), _fail(EAFNOSUPPORT)])
    code += _on(names["personality"], _only(0, _PERSONALITIES))
    set_id_bits = 0o6000 if is_root else 0o4000
    modes, opens = _MODES[machine]
    for number, argument in modes.items():
        code += _on(number, _if_bits(argument, set_id_bits))
    for number, argument in opens.items():
        block = _if_bits(argument + 1, set_id_bits)
        code += _on(number, [_argument(argument), (_ANY_BIT, 0, len(block), _O_MAKES), *block])
    if not own_pids:
        code += _guard_others(names)
    code += _guard(names, guarded)
    if not (ptrace and own_pids):
        for name in ("ptrace", "process_vm_readv", "process_vm_writev"):
            code += [(_EQUAL, 0, 1, names[name]), _fail(EPERM)]
    if not own_pids:
        code += _guard_signals(names, guarded)
    return [*code, ALLOW_ALL]


def packed(code: Sequence[Instruction]) -> bytes:
    """Return a filter as bytes for the kernel."""
    return b"".join(_PACKED.pack(*instruction) for instruction in code)


def install(code: Sequence[Instruction]) -> None:
    """Install a filter on this process and all that it starts. It cannot be removed."""
    data = packed(code)
    buffer = ctypes.create_string_buffer(data, len(data))
    header = Struct("@HP").pack(len(code), ctypes.addressof(buffer))
    syscall("seccomp", _SET_MODE_FILTER, 0, header)


def _fail(error: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | error)


def _argument(index: int) -> Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * index)


def _on(number: int, block: Code) -> Code:
    """Run a block for one system call, and allow the call if the block does not return."""
    return [(_EQUAL, 0, len(block) + 1, number), *block, (_RETURN, 0, 0, _ALLOW)]


def _if_bits(argument: int, bits: int) -> Code:
    return [_argument(argument), (_ANY_BIT, 0, 1, bits), _fail(EPERM)]


def _if_equal(argument: int, values: Sequence[int]) -> Code:
    code = [_argument(argument)]
    for value in values:
        code += [(_EQUAL, 0, 1, value & 0xFFFFFFFF), _fail(EPERM)]
    return code


def _only(argument: int, values: Sequence[int]) -> Code:
    code = [_argument(argument)]
    for value in values:
        code += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
    return [*code, _fail(EPERM)]


def _only_families(families: Sequence[int]) -> Code:
    code = [_argument(0)]
    for family in families:
        code += [(_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW)]
    # Of netlink only NETLINK_ROUTE, which programs use to list the network interfaces.
    code += [(_EQUAL, 1, 0, _NETLINK), _fail(EAFNOSUPPORT), _argument(2), (_EQUAL, 1, 0, 0), _fail(EAFNOSUPPORT)]
    return code


def _guard(names: dict[str, int], guarded: Sequence[int]) -> Code:
    """Refuse to change limits and priorities of the guarded processes. The same user could lower them for good."""
    code: Code = []
    for name in ("prlimit64", "sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr"):
        code += _on(names[name], _if_equal(0, guarded))
    for name, of_user in (("setpriority", _PRIO_USER), ("ioprio_set", _IOPRIO_WHO_USER)):
        code += _on(names[name], [*_if_equal(0, (of_user,)), *_if_equal(1, guarded)])
    return code


def _guard_others(names: dict[str, int]) -> Code:
    """Refuse to change limits and priorities of any process but the caller. Needed without a pid namespace.

    Not of processors: threads set their own by number. That call can only slow another process down.
    """
    code: Code = []
    for name in ("prlimit64", "sched_setparam", "sched_setscheduler", "sched_setattr"):
        code += _on(names[name], _only(0, (0,)))
    for name, of_user in (("setpriority", _PRIO_USER), ("ioprio_set", _IOPRIO_WHO_USER)):
        code += _on(names[name], [*_if_equal(0, (of_user,)), *_only(1, (0,))])
    return code


def _guard_signals(names: dict[str, int], guarded: Sequence[int]) -> Code:
    """Refuse signals to the guarded processes, and to all processes of the user. Needed without a pid namespace."""
    code: Code = []
    signalled = (*guarded, *(-pid for pid in guarded), -1)
    for name in ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open"):
        code += _on(names[name], _if_equal(0, signalled))
    return code


def program_for(plan: WardenPlan, guarded: Sequence[int]) -> list[Instruction]:
    """Return the filter that goes with the other layers of a plan."""
    return program(
        MACHINE,
        guarded=guarded,
        own_pids="pid" in plan.layers,
        own_files="mount" in plan.layers,
        network="net" in plan.layers or plan.host.network == "on",
        is_root=os.geteuid() == 0,
        ptrace=plan.host.ptrace,
        reserves_disk=not {"disk_bytes", "free_disk_bytes"} & set(plan.limits.limits),
    )


def _enter(plan: WardenPlan) -> None:
    install(program_for(plan, (os.getpid(),) if "pid" in plan.layers else (os.getpid(), plan.keeper)))


def _probe(_: str) -> None:
    if not is_known():
        raise OSError(ENOSYS, f"seccomp: there is no table for {MACHINE}")
    is_root = os.geteuid() == 0
    install(program(MACHINE, guarded=(), own_pids=True, own_files=True, network=True, is_root=is_root, ptrace=True))
    try:
        # Without a filter, unshare() of no namespace does nothing and is allowed to everybody.
        call("unshare", 0)
    except PermissionError:
        return
    raise OSError(0, "seccomp: a call went through against the filter")


LAYERS = (
    Layer(
        "seccomp",
        9,
        keeps="rarely needed system calls fail",
        without="Every system call is open, so commands can reach a bug in a rarely used one.",
        needs=(),
        probe=_probe,
        stage=FILTER,
        enter=_enter,
        bubblewrap="installed by bubblewrap, which gets the filter by --seccomp",
        is_supported=is_known,
        is_evident=lambda status: status.get(b"Seccomp") == b"2",
        remedy=Remedy(("no table", "not built"), "CONFIG_SECCOMP_FILTER"),
        self_test=Attack(
            "processes",
            "slow down what holds the command",
            "os.setpriority(os.PRIO_PROCESS, os.getppid(), os.getpriority(os.PRIO_PROCESS, os.getppid()))\nreturn True",
        ),
    ),
)
