"""Enters namespaces and maps ids into them. A namespace is never left again."""

from __future__ import annotations

import fcntl
import os
from _socket import AF_INET, AF_INET6, SOCK_DGRAM, inet_pton, socket
from _struct import pack, unpack_from

from corral.containment.kernel.layer import FORK, KEEPER, TREE, Attack, Layer, Remedy
from corral.containment.kernel.syscalls import call, write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FLAGS = {
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
CAUSES = ("namespace limit", "apparmor", "container", "filter", "not built")  # why the kernel refuses a namespace
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_SIOCSIFADDR, _SIOCSIFNETMASK = 0x8916, 0x891C
_LOOPBACK_INDEX = 1
# Beside 127.0.0.1 and ::1. Resolvers leave out a family, even for localhost, that has no other address (AI_ADDRCONFIG).
OWN_ADDRESSES = ("127.64.0.0", "fd63:6f72:7261:6c::1")


def unshare(*names: str) -> None:
    """Enter new namespaces. A new pid namespace begins with the next child."""
    call("unshare", sum(FLAGS[name] for name in names))


def map_all_ids(pid: int) -> None:
    """Map every id of this user namespace to itself in the child namespace of a process."""
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/self/{name}", "rb", buffering=0) as file:
            ranges = [line.split() for line in file.read().splitlines()]
        lines = b"".join(b"%b %b %b\n" % (inside, inside, count) for inside, _, count in ranges)
        write_file(f"/proc/{pid}/{name}", lines)


def map_own_id(uid: int, gid: int) -> None:
    """Map one user and one group to themselves in the user namespace just entered."""
    write_file("/proc/self/setgroups", b"deny")
    write_file("/proc/self/uid_map", b"%d %d 1\n" % (uid, uid))
    write_file("/proc/self/gid_map", b"%d %d 1\n" % (gid, gid))


def raise_loopback() -> None:
    """Bring up the loopback interface of a new network namespace."""
    sock = socket(AF_INET, SOCK_DGRAM)
    try:
        (flags,) = unpack_from("h", fcntl.ioctl(sock, _SIOCGIFFLAGS, pack("16sh22x", b"lo", 0)), 16)
        fcntl.ioctl(sock, _SIOCSIFFLAGS, pack("16sh22x", b"lo", flags | _IFF_UP))
    finally:
        sock.close()
    for address in OWN_ADDRESSES:
        try:
            add_loopback_address(address)
        except OSError:
            # A kernel that is not Linux's own may not add any. Only some programs miss them.
            continue


def add_loopback_address(address: str) -> None:
    """Give the loopback interface one more address. Raise OSError if the kernel does not, such as one without IPv6."""
    packed = inet_pton(AF_INET6 if ":" in address else AF_INET, address)
    if len(packed) == 4:
        # By an alias: the address of the interface itself is 127.0.0.1. Without the mask, all its class would be local.
        name = b"lo:" + packed.hex().encode()
        _configure(AF_INET, _SIOCSIFADDR, pack("16sHH4s16x", name, AF_INET, 0, packed))
        _configure(AF_INET, _SIOCSIFNETMASK, pack("16sHH4s16x", name, AF_INET, 0, b"\xff" * 4))
        return
    _configure(AF_INET6, _SIOCSIFADDR, pack("16sIi", packed, 128, _LOOPBACK_INDEX))


def _configure(family: int, what: int, request: bytes) -> None:
    sock = socket(family, SOCK_DGRAM)
    try:
        fcntl.ioctl(sock, what, request)
    finally:
        sock.close()


def enter_user() -> None:
    """Enter a user namespace that has this process's own ids and no others."""
    uid, gid = os.geteuid(), os.getegid()
    unshare("user")
    map_own_id(uid, gid)


def _enter_net(_: object) -> None:
    unshare("net")
    raise_loopback()


def _namespace(
    name: str, *, order: int, stage: int, keeps: str, without: str, self_test: Attack | str, **parts: Any
) -> Layer:
    """Return the layer of a namespace, with the parts that most namespaces have in common."""

    def enter(_: object) -> None:
        unshare(name)

    usual: dict[str, Any] = {
        "needs": ("user",),
        "probe": enter,
        "enter": enter,
        "bubblewrap": (f"--unshare-{name}",),
        "remedy": Remedy(CAUSES, f"CONFIG_{name.upper()}_NS", limit=f"user.max_{name}_namespaces"),
    }
    return Layer(name, order, keeps, without, stage=stage, self_test=self_test, namespace=name, **usual | parts)


LAYERS = (
    _namespace(
        "user",
        order=0,
        stage=KEEPER,  # then the keeper maps the ids, for which it may have to ask the host
        keeps="root inside is not root outside",
        without="No other namespace can be made: only Landlock and seccomp confine commands.",
        self_test="The other namespaces are built on it; by itself it stops no attack that another layer lets through.",
        needs=(),
        probe=lambda _: enter_user(),
        remedy=Remedy((*CAUSES, "user namespaces off"), "CONFIG_USER_NS", limit="user.max_user_namespaces"),
    ),
    _namespace(
        "pid",
        order=2,
        stage=FORK,
        keeps="the command cannot see, signal or trace other processes, and all its processes end together",
        without="Commands see other processes, and corral must search for the processes that they leave behind.",
        self_test=Attack("processes", "signal another process", "os.kill(facts['pid'], 18)\nreturn True", ("proc",)),
        needs=("user", "mount"),
        bubblewrap=("--unshare-pid", "--as-pid-1", "--die-with-parent"),
        is_evident=lambda _: os.getpid() == 1,
    ),
    _namespace(
        "net",
        order=4,
        stage=KEEPER,
        keeps="only a private loopback device exists",
        without="Commands get no internet sockets at all, so tests with local servers fail.",
        self_test=Attack(
            "network",
            "reach a server on this machine",
            "import socket\nreturn socket.create_connection(('127.0.0.1', facts['tcp']), 1)",
            needs=("no network",),
        ),
        probe=_enter_net,
        enter=_enter_net,
        unwanted_with_network=True,
    ),
    _namespace(
        "ipc",
        order=5,
        stage=TREE,
        keeps="no shared memory or semaphores of other programs",
        without="Commands share System V memory, semaphores and queues with other processes of the user.",
        self_test=Attack(
            "kernel", "find shared memory by its key", "return done(libc.shmget(facts['key'], 0, 0)) >= 0"
        ),
    ),
    _namespace(
        "uts",
        order=6,
        stage=TREE,
        keeps="the machine's name cannot be changed",
        without="Only missing privileges keep a command from changing the machine's name.",
        self_test=Attack(
            "kernel",
            "name the machine anew",
            "name = os.uname().nodename.encode()\nreturn done(libc.sethostname(name, len(name))) == 0",
            ("seccomp",),
            ("root",),
        ),
    ),
    _namespace(
        "cgroup",
        order=7,
        stage=TREE,
        keeps="the machine's cgroups are not visible",
        without="Commands can read the paths of the machine's control groups.",
        self_test="Control groups are seen in /sys only, which the tree of a command does not have.",
        remedy=Remedy(CAUSES, "CONFIG_CGROUPS", limit="user.max_cgroup_namespaces"),
        is_supported=lambda: os.path.exists("/proc/self/ns/cgroup"),
    ),
)
