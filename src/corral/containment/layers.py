"""The layers that hold a command, as a table; which of them this machine gives, found by trying; and what that comes to.

Nothing weakens silently: what is wanted and missing is named in every result.
"""

from __future__ import annotations

import os
from errno import ENOSYS

from corral.containment import landlock, mounts, namespaces, privileges, seccomp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

# name: what it keeps, and which layers it stands on
LAYERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "user": ("rights over anything but the owner's own files are gone", ()),
    "mount": ("only the project, scratch and the system's programs exist", ("user",)),
    "pid": ("no other process can be seen, signalled or traced, and all of a command ends at once", ("user", "mount")),
    "proc": ("/proc shows the command's own processes alone", ("pid",)),
    "net": ("there is no network but the sandbox's own loopback", ("user",)),
    "ipc": ("no shared memory or semaphores of others", ("user",)),
    "uts": ("the machine's name cannot be changed", ("user",)),
    "cgroup": ("the machine's control groups are not seen", ("user",)),
    "landlock": ("files are opened by rule, whatever the mounts allow", ()),
    "seccomp": ("the kernel's rarely needed calls are closed", ()),
    "privileges": ("no capability, and none to be gained by any program", ()),
    "limits": ("no core dumps, and the limits of the config", ()),
}
_MINIMAL = (("bind", "/usr", "/usr", "ro"), ("pin", "/usr", "", ""))


def wanted(network: str) -> tuple[str, ...]:
    """Return the layers that a config asks for."""
    return tuple(name for name in LAYERS if name != "net" or network == "off")


def downgrade(wanted: Collection[str], available: Collection[str]) -> tuple[str, tuple[str, ...]]:
    """Return how much holds, `full`, `partial` or `none`, and which of the wanted layers are missing."""
    usable = {name for name in wanted if _stands(name, available)}
    missing = tuple(name for name in LAYERS if name in wanted and name not in usable)
    # Rights and limits alone keep no file and no process of the owner's.
    if not usable - {"privileges", "limits"}:
        return "none", missing
    return ("partial" if missing else "full"), missing


def _stands(name: str, available: Collection[str]) -> bool:
    return name in available and all(_stands(below, available) for below in LAYERS[name][1])


def probe(stage: str) -> set[str]:
    """Try every layer in children that end at once, each in the way it will be used, and return those that hold."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(told)
            _try_all(stage, tell)
        except OSError:
            # What does not hold here has been left out of what was told.
            os._exit(0)
        finally:
            os._exit(1)
    os.close(tell)
    with open(told, "rb") as file:
        found = set(file.read().decode().split())
    os.waitpid(child, 0)
    return found | {"privileges", "limits"}


def _try_all(stage: str, tell: int) -> None:
    _holds(lambda: _try_rules(tell))
    uid, gid = os.geteuid(), os.getegid()
    namespaces.unshare("user")
    namespaces.write_own_id(uid, gid)
    os.write(tell, b"user ")
    for name in ("net", "ipc", "uts", "cgroup"):
        try:
            namespaces.unshare(name)
            if name == "net":
                namespaces.raise_loopback()
        except OSError:
            continue
        os.write(tell, name.encode() + b" ")
    if not _holds(lambda: _try_tree(stage, own_proc=False)):
        return
    os.write(tell, b"mount ")
    namespaces.unshare("pid")
    # The first child is the new namespace's first process, and with its end the namespace is spent.
    if _holds(lambda: _try_tree(stage, own_proc=True)):
        os.write(tell, b"pid proc ")
    else:
        os.write(tell, b"pid ")


def _try_rules(tell: int) -> None:
    # In a child of their own, since neither is ever taken off again.
    privileges.gain_nothing()
    for name, attempt in (("landlock", _try_landlock), ("seccomp", _try_seccomp)):
        try:
            attempt()
        except OSError:
            continue
        os.write(tell, name.encode() + b" ")


def _try_landlock() -> None:
    if not landlock.version():
        raise OSError(ENOSYS, "this kernel has no Landlock")
    landlock.confine((("/", "write"),), deny_tcp=False)


def _try_seccomp() -> None:
    if not seccomp.is_known():
        raise OSError(ENOSYS, "there is no table of calls for this machine")
    # One instruction: the whole filter differs in length alone.
    seccomp.install([seccomp.ALLOW_ALL])


def _try_tree(stage: str, *, own_proc: bool) -> None:
    # Not the unshare alone: where AppArmor restricts user namespaces, only the first mount fails.
    namespaces.unshare("mount")
    mounts.enter(_MINIMAL, stage, own_proc=own_proc)


def _holds(attempt: Callable[[], None]) -> bool:
    child = os.fork()
    if child == 0:
        try:
            attempt()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
