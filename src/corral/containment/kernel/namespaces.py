"""Entering namespaces and mapping ids into them. What is entered is never left."""

from __future__ import annotations

import fcntl
import os
from _socket import AF_INET, SOCK_DGRAM, socket
from _struct import pack, unpack_from

from corral.containment.kernel.syscalls import call

FLAGS = {
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def unshare(*names: str) -> None:
    """Enter new namespaces; a new pid namespace begins with the next child."""
    flags = 0
    for name in names:
        flags |= FLAGS[name]
    if flags:
        call("unshare", flags)


def map_all_ids(pid: int) -> None:
    """Map every id of this user namespace to itself in that of a process, which must be a child namespace."""
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/self/{name}", "rb", buffering=0) as file:
            ranges = [line.split() for line in file.read().splitlines()]
        lines = b"".join(b"%b %b %b\n" % (inside, inside, count) for inside, _, count in ranges)
        _write(f"/proc/{pid}/{name}", lines)


def map_own_id(uid: int, gid: int) -> None:
    """Map one user and one group to themselves in the user namespace just entered."""
    _write("/proc/self/setgroups", b"deny")
    _write("/proc/self/uid_map", b"%d %d 1\n" % (uid, uid))
    _write("/proc/self/gid_map", b"%d %d 1\n" % (gid, gid))


def raise_loopback() -> None:
    """Bring up the loopback interface of a new network namespace."""
    sock = socket(AF_INET, SOCK_DGRAM)
    try:
        (flags,) = unpack_from("h", fcntl.ioctl(sock, _SIOCGIFFLAGS, pack("16sh22x", b"lo", 0)), 16)
        fcntl.ioctl(sock, _SIOCSIFFLAGS, pack("16sh22x", b"lo", flags | _IFF_UP))
    finally:
        sock.close()


def _write(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
