"""Tests the filter: an interpreter runs its program for both architectures, and the kernel runs it on child processes."""

import os
import subprocess
import sys
from collections.abc import Callable
from errno import EAFNOSUPPORT, ENOSYS, EPERM
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import corral
from corral import Containment, Sandbox, SandboxConfig
from corral.containment.kernel import seccomp
from corral.model.errors import PolicyError

ALLOW, KILL = 0x7FFF0000, 0x80000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386, ARM = 0x40000003, 0x40000028
BEYOND = 470  # the first number that the filter does not know

# The calls that Docker's default profile blocks for a container without further capabilities: number on x86-64 and on arm64.
DOCKER_BLOCKS = {
    "_sysctl": (156, None),
    "acct": (163, 89),
    "add_key": (248, 217),
    "afs_syscall": (183, None),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_settime": (227, 112),
    "clone3": (435, 435),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "get_kernel_syms": (177, None),
    "get_mempolicy": (239, 236),
    "getpmsg": (181, None),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mbind": (237, 235),
    "migrate_pages": (256, 238),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "putpmsg": (182, None),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "security": (185, None),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "tuxcall": (184, None),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "vhangup": (153, 58),
    "vserver": (236, None),
}
# Calls that programs need and Docker allows: number on x86-64 and on arm64.
NEEDED = {
    "read": (0, 63),
    "write": (1, 64),
    "openat": (257, 56),
    "execve": (59, 221),
    "execveat": (322, 281),
    "clone": (56, 220),
    "exit_group": (231, 94),
    "mmap": (9, 222),
    "futex": (202, 98),
    "kill": (62, 129),
    "memfd_create": (319, 279),
    "landlock_create_ruleset": (444, 444),
    "seccomp": (317, 277),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "close_range": (436, 436),
    "statx": (332, 291),
    "chmod": (90, None),
    "fchmodat": (268, 53),
    "prlimit64": (302, 261),
    "inotify_init1": (294, 26),
    "shmget": (29, 194),
    "file_setattr": (469, 469),
}
TRACING = {"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271)}


def run(code: list[tuple[int, int, int, int]], number: int, *arguments: int, architecture: int) -> int:
    """Run a filter for one system call as the kernel does, and return its answer."""
    data = {0: number, 4: architecture}
    for index in range(6):
        value = arguments[index] if index < len(arguments) else 0
        data[16 + 8 * index], data[20 + 8 * index] = value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF
    place = accumulator = 0
    while True:
        operation, if_true, if_false, constant = code[place]
        place += 1
        match operation:
            case 0x20:
                accumulator = data[constant]
            case 0x06:
                return constant
            case 0x15:
                place += if_true if accumulator == constant else if_false
            case 0x35:
                place += if_true if accumulator >= constant else if_false
            case 0x45:
                place += if_true if accumulator & constant else if_false
            case _:
                raise AssertionError(f"an instruction that the filter does not use: {operation:#x}")


@pytest.fixture(params=ARCHITECTURES)
def machine(request: pytest.FixtureRequest) -> str:
    """Yield each architecture that has a table."""
    return str(request.param)


class Filter:
    """A filter for one architecture."""

    def __init__(self, machine: str, **settings: bool) -> None:
        kept = {"own_pids": True, "own_files": True, "network": True, "is_root": False, "ptrace": True} | settings
        self.machine = machine
        self.code = seccomp.program(machine, guarded=(7, 8), **kept)

    def __call__(self, names: dict[str, tuple[int | None, int | None]], name: str, *arguments: int) -> int | None:
        number = names[name][list(ARCHITECTURES).index(self.machine)]
        return None if number is None else self.answer(number, *arguments)

    def answer(self, number: int, *arguments: int) -> int:
        return run(self.code, number, *arguments, architecture=ARCHITECTURES[self.machine])


def refusal(error: int) -> int:
    return 0x00050000 | error


@pytest.mark.parametrize("is_root", [True, False])
def test_calls_that_docker_blocks_are_refused(machine: str, is_root: bool) -> None:
    ask = Filter(machine, is_root=is_root)
    allowed = [
        name for name in DOCKER_BLOCKS if ask(DOCKER_BLOCKS, name) not in (None, refusal(EPERM), refusal(ENOSYS))
    ]
    assert allowed == []


def test_calls_that_programs_need_are_allowed(machine: str) -> None:
    ask = Filter(machine)
    assert [name for name in NEEDED if ask(NEEDED, name) not in (None, ALLOW)] == []


def test_calls_newer_than_the_table_fail_with_enosys(machine: str) -> None:
    ask = Filter(machine)
    assert {ask.answer(number) for number in (*range(BEYOND, 600), 0x7FFFFFFF, 0xFFFFFFFF)} == {refusal(ENOSYS)}


def test_x32_numbers_fail_with_enosys() -> None:
    ask = Filter("x86_64")
    assert {ask.answer(0x40000000 | number) for number in range(600)} == {refusal(ENOSYS)}


@pytest.mark.parametrize(("machine", "foreign"), [("x86_64", I386), ("aarch64", ARM), ("x86_64", 0xC00000B7), ("aarch64", 0xC000003E)])  # fmt: skip
def test_foreign_architecture_kills_the_process(machine: str, foreign: int) -> None:
    code = Filter(machine).code
    assert {run(code, number, architecture=foreign) for number in range(600)} == {KILL}


ARGUMENTS = {
    "clone": (56, 220),
    "ioctl": (16, 29),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "personality": (135, 92),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "mknodat": (259, 33),
    "mkdirat": (258, 34),
    "openat": (257, 56),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setscheduler": (144, 119),
    "kill": (62, 129),
    "tgkill": (234, 131),
    "pidfd_open": (434, 434),
}


@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        pytest.param("clone", (0x11,), ALLOW, id="a fork"),
        pytest.param("clone", (0x3D0F00,), ALLOW, id="a thread"),
        *[
            pytest.param("clone", (flag | 0x11,), refusal(EPERM), id=f"a clone with {name}")
            for name, flag in {
                "NEWNS": 0x20000,
                "NEWCGROUP": 0x2000000,
                "NEWUTS": 0x4000000,
                "NEWIPC": 0x8000000,
                "NEWUSER": 0x10000000,
                "NEWPID": 0x20000000,
                "NEWNET": 0x40000000,
            }.items()
        ],
        pytest.param("ioctl", (0, 0x5413), ALLOW, id="the size of a window"),
        *[
            pytest.param("ioctl", (0, high | request), refusal(EPERM), id=f"{name} with high word {high:#x}")
            for name, request in {
                "TIOCSTI": 0x5412,
                "TIOCLINUX": 0x541C,
                "TIOCSETD": 0x5423,
                "TIOCCONS": 0x541D,
            }.items()
            for high in (0, 1 << 32)
        ],
        *[pytest.param("socket", (family, 1), ALLOW, id=f"family {family}") for family in (1, 2, 10)],
        pytest.param("socket", (16, 3, 0), ALLOW, id="netlink for routes"),
        pytest.param("socket", (16, 3, 9), refusal(EAFNOSUPPORT), id="netlink for audit"),
        *[
            pytest.param("socket", (family, 3), refusal(EAFNOSUPPORT), id=f"a socket of {name}")
            for name, family in {"PACKET": 17, "VSOCK": 40, "ALG": 38, "BLUETOOTH": 31, "XDP": 44, "TIPC": 30}.items()
        ],
        pytest.param("socketpair", (1, 1), ALLOW, id="a pair"),
        pytest.param("socketpair", (30, 1), refusal(EAFNOSUPPORT), id="a pair of TIPC"),
        *[
            pytest.param("personality", (value,), ALLOW, id=f"personality {value:#x}")
            for value in (0, 8, 0x20000, 0x40000, 0xFFFFFFFF)
        ],
        *[
            pytest.param("personality", (value,), refusal(EPERM), id=f"personality {value:#x}")
            for value in (0x400000, 0x1000000, 0x800000)
        ],
        pytest.param("chmod", (0, 0o755), ALLOW, id="a plain mode"),
        pytest.param("chmod", (0, 0o4755), refusal(EPERM), id="chmod to set-uid"),
        pytest.param("fchmod", (0, 0o4755), refusal(EPERM), id="fchmod to set-uid"),
        pytest.param("fchmodat", (0, 0, 0o4755), refusal(EPERM), id="fchmodat to set-uid"),
        pytest.param("fchmodat2", (0, 0, 0o4755), refusal(EPERM), id="fchmodat2 to set-uid"),
        pytest.param("mknodat", (0, 0, 0o104755), refusal(EPERM), id="a node with set-uid"),
        pytest.param("openat", (0, 0, 0o101, 0o4755), refusal(EPERM), id="a new file with set-uid"),
        pytest.param("openat", (0, 0, 0o101, 0o644), ALLOW, id="a new file"),
        pytest.param("openat", (0, 0, 0, 0o4755), ALLOW, id="an open whose mode means nothing"),
        pytest.param("prlimit64", (0, 7), ALLOW, id="limits of its own"),
        pytest.param("prlimit64", (7, 7), refusal(EPERM), id="limits of the warden"),
        pytest.param("sched_setscheduler", (8,), refusal(EPERM), id="the keeper's scheduling"),
        pytest.param("setpriority", (0, 0), ALLOW, id="a priority of its own"),
        pytest.param("setpriority", (0, 7), refusal(EPERM), id="the warden's priority"),
        pytest.param("setpriority", (2, 0), refusal(EPERM), id="the priority of all of the user's"),
        pytest.param("ioprio_set", (3, 0), refusal(EPERM), id="the input priority of all of the user's"),
    ],
)
def test_calls_are_filtered_by_argument(machine: str, name: str, arguments: tuple[int, ...], answer: int) -> None:
    assert Filter(machine)(ARGUMENTS, name, *arguments) in (None, answer)


def test_root_cannot_set_the_setgid_bit(machine: str) -> None:
    assert Filter(machine, is_root=True)(ARGUMENTS, "fchmodat", 0, 0, 0o2755) == refusal(EPERM)
    assert Filter(machine, is_root=False)(ARGUMENTS, "fchmodat", 0, 0, 0o2755) == ALLOW


@pytest.mark.parametrize("name", ["kill", "tgkill", "pidfd_open"])
@pytest.mark.parametrize("who", [7, 8, -7, -8, -1])
def test_without_pid_namespace_warden_and_keeper_are_guarded(machine: str, name: str, who: int) -> None:
    assert Filter(machine, own_pids=False)(ARGUMENTS, name, who & 0xFFFFFFFF) == refusal(EPERM)
    assert Filter(machine, own_pids=False)(ARGUMENTS, name, 9) == ALLOW
    assert Filter(machine, own_pids=True)(ARGUMENTS, name, who & 0xFFFFFFFF) == ALLOW


@pytest.mark.parametrize("name", TRACING)
@pytest.mark.parametrize(
    ("own_pids", "ptrace", "answer"),
    [(True, True, ALLOW), (True, False, refusal(EPERM)), (False, True, refusal(EPERM)), (False, False, refusal(EPERM))],
)
def test_ptrace_needs_the_setting_and_a_pid_namespace(
    machine: str, name: str, own_pids: bool, ptrace: bool, answer: int
) -> None:
    assert Filter(machine, own_pids=own_pids, ptrace=ptrace)(TRACING, name) == answer


@pytest.mark.parametrize(
    ("settings", "families"),
    [
        pytest.param({}, {1, 2, 10}, id="all layers"),
        pytest.param({"network": False}, {1}, id="no network namespace"),
        pytest.param({"own_files": False}, {2, 10}, id="no mounts, so sockets of others could be reached"),
        pytest.param({"network": False, "own_files": False}, set(), id="neither"),
    ],
)
def test_filter_refuses_what_no_namespace_confines(machine: str, settings: dict[str, bool], families: set[int]) -> None:
    ask = Filter(machine, **settings)
    assert {family for family in range(64) if ask(ARGUMENTS, "socket", family, 1) == ALLOW} - {16} == families


@given(
    machine=st.sampled_from(sorted(ARCHITECTURES)),
    number=st.integers(0, 2**32 - 1),
    arguments=st.tuples(*[st.integers(0, 2**64 - 1)] * 6),
    architecture=st.one_of(st.sampled_from(sorted(ARCHITECTURES.values())), st.integers(0, 2**32 - 1)),
    own=st.booleans(),
)
def test_every_call_gets_a_known_answer(
    machine: str, number: int, arguments: tuple[int, ...], architecture: int, own: bool
) -> None:
    code = Filter(machine, own_pids=own, own_files=own, network=own).code
    answer = run(code, number, *arguments, architecture=architecture)
    if architecture != ARCHITECTURES[machine]:
        assert answer == KILL
    else:
        assert answer in (ALLOW, refusal(EPERM), refusal(ENOSYS), refusal(EAFNOSUPPORT))


# On the real kernel, in a child, since a filter cannot be removed.
FILTERED = """
import ctypes, mmap, os, sys
sys.path.append(sys.argv[1])
from corral.containment.kernel import seccomp
from corral.containment.kernel.syscalls import MACHINE, prctl
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
if sys.argv[2] == "filtered":
    prctl(38, 1)
    seccomp.install(seccomp.program(MACHINE, guarded=(1,), own_pids=True, own_files=True, network=True, is_root=False, ptrace=True))
if sys.argv[3] == "int80":
    # mov eax, 20 (getpid of i386); int 0x80; ret
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex("b814000000cd80c3"))
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    print(function() == os.getpid())
else:
    done = libc.syscall(ctypes.c_long(0x40000000 | 39))
    print(done == os.getpid(), ctypes.get_errno())
"""


def foreign_call(how: str, what: str) -> subprocess.CompletedProcess[str]:
    source = str(Path(corral.__file__).parents[1])
    return subprocess.run(
        [sys._base_executable, "-S", "-c", FILTERED, source, how, what], capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="only x86-64 has two more ABIs")
def test_call_by_int80_kills_the_process() -> None:
    bare = foreign_call("bare", "int80")
    # A kernel without 32-bit support sends another signal.
    assert (bare.returncode, bare.stdout) == (0, "True\n") or bare.returncode == -11
    assert foreign_call("filtered", "int80").returncode == (-31 if bare.returncode == 0 else -11)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="only x86-64 has two more ABIs")
def test_real_x32_call_fails_with_enosys() -> None:
    assert foreign_call("bare", "x32").stdout in ("True 0\n", f"False {ENOSYS}\n")
    assert foreign_call("filtered", "x32").stdout == f"False {ENOSYS}\n"


def test_filter_is_a_valid_program(machine: str) -> None:
    for own in (True, False):
        code = Filter(machine, own_pids=own, own_files=own, network=own, is_root=own, ptrace=own).code
        assert len(code) < 4096
        for place, (operation, if_true, if_false, _) in enumerate(code):
            assert place + 1 + max(if_true, if_false) < len(code) or operation == 0x06
            assert 0 <= min(if_true, if_false) <= max(if_true, if_false) < 256
        assert code[-1] == (0x06, 0, 0, ALLOW)
    assert seccomp.is_known(machine)


DEBUGGERS = {
    "gdb": ["gdb", "-nx", "-batch", "-ex", "run", "/bin/true"],
    "strace": ["strace", "-o", "trace", "/bin/true"],
}


@pytest.mark.parametrize("name", DEBUGGERS)
def test_debugger_works_only_with_the_setting(name: str, open_sandbox: Callable[..., Sandbox]) -> None:
    on = open_sandbox()
    if on.run(["sh", "-c", f"command -v {name}"]).exit_code != 0:
        pytest.skip(f"{name} is not installed")
    traced = on.run(DEBUGGERS[name], timeout_seconds=30)
    assert (traced.exit_code, traced.violations) == (0, ())
    assert b"exited normally" in traced.stdout or (on.run(["cat", "trace"]).stdout.count(b"execve") == 1)
    off = open_sandbox(containment=Containment(ptrace=False)).run(DEBUGGERS[name], timeout_seconds=30)
    assert b"exited normally" not in off.stdout
    assert [(v.kind, v.target, v.grant) for v in off.violations] == [("call", "ptrace", "containment.ptrace = true")]


def test_ptrace_setting_is_a_boolean(tmp_path: object) -> None:
    with pytest.raises(PolicyError, match=r"containment\.ptrace"):
        SandboxConfig(str(tmp_path), containment=Containment(ptrace=1))  # type: ignore[arg-type]
