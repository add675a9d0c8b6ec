"""The layers that hold a command, as a table; which of them this machine gives, found by trying; and what that comes to.

Nothing weakens silently: what is wanted and missing is named in every result.
"""

from __future__ import annotations

import os
from errno import ENOSYS

from corral.containment.kernel import capabilities, landlock, mounts, namespaces, seccomp
from corral.containment.kernel.syscalls import MACHINE, call
from corral.containment.plan import Step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

# name: what it keeps, and which layers it stands on
LAYERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "user": ("no privileges beyond your own files", ()),
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
# Where there is a kernel there are these; the rest is found by trying.
_ALWAYS = ("privileges", "limits")
_MINIMAL = (Step("bind", "/usr", "/usr", "ro"), Step("pin", "/usr"))


def wanted(network: object) -> tuple[str, ...]:
    """Return the layers that a config asks for."""
    return tuple(name for name in LAYERS if name != "net" or network != "on")


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
    """Return the layers that hold on this machine."""
    return {name for name, refusal in attempt(stage).items() if refusal is None}


def attempt(stage: str) -> dict[str, OSError | None]:
    """Try every layer in children that end at once, each in the way it will be used; return what spoke against each."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(told)
            _try_all(stage, tell)
        finally:
            os._exit(0)
    os.close(tell)
    with open(told, encoding="utf-8", errors="replace") as file:
        answers = [line.rstrip("\n").split(" ", 2) for line in file]
    os.waitpid(child, 0)
    found = {name: OSError(int(number), words) if words else None for name, number, words in answers}
    untried = {name: OSError(0, "it was not tried") for name in LAYERS if name not in _ALWAYS}
    return untried | dict.fromkeys(_ALWAYS) | found


def _try_all(stage: str, tell: int) -> None:
    if _tell(tell, "user", _try_user):
        for name in ("net", "ipc", "uts", "cgroup"):
            _tell(tell, name, _trial_of(name))
        if (
            _in_child(lambda: _tell(tell, "mount", lambda: _try_tree(stage, own_proc=False)))
            # The first child is the new namespace's first process, and with its end the namespace is spent.
            and _tell(tell, "pid", lambda: namespaces.unshare("pid"))
        ):
            _in_child(lambda: _tell(tell, "proc", lambda: _try_tree(stage, own_proc=True)))
    capabilities.set_no_new_privs()
    _tell(tell, "landlock", lambda: _try_landlock(stage))
    _tell(tell, "seccomp", _try_seccomp)


def _tell(tell: int, name: str, trial: Callable[[], None]) -> bool:
    """Tell how a trial went: the name, the kernel's number and its words; no words where it went well."""
    words, number = "", 0
    try:
        trial()
    except OSError as error:
        words, number = f"{error.strerror}{f': {error.filename}' if error.filename else ''}", error.errno or 0
    os.write(tell, f"{name} {number} {words}\n".encode("utf-8", "replace"))
    return not words


def _in_child(trial: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if trial() else 1)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _try_user() -> None:
    uid, gid = os.geteuid(), os.getegid()
    namespaces.unshare("user")
    namespaces.map_own_id(uid, gid)


def _trial_of(name: str) -> Callable[[], None]:
    def trial() -> None:
        namespaces.unshare(name)
        if name == "net":
            namespaces.raise_loopback()

    return trial


def _try_tree(stage: str, *, own_proc: bool) -> None:
    # Not the unshare alone: where AppArmor restricts user namespaces, only the first mount fails.
    namespaces.unshare("mount")
    mounts.enter(_MINIMAL, stage, {}, own_proc=own_proc)


def _try_landlock(stage: str) -> None:
    landlock.confine((("/", "read"),), deny_tcp=False)
    try:
        os.close(os.open(f"{stage}/probe", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except PermissionError:
        return
    os.unlink(f"{stage}/probe")
    raise OSError(0, "landlock: a file was made against its rules")


def _try_seccomp() -> None:
    if not seccomp.is_known():
        raise OSError(ENOSYS, f"seccomp: there is no table for {MACHINE}")
    is_root = os.geteuid() == 0
    seccomp.install(
        seccomp.program(MACHINE, guarded=(), own_pids=True, own_files=True, network=True, is_root=is_root, ptrace=True)
    )
    try:
        # Of no namespace: without a filter that does nothing, and is allowed to everybody.
        call("unshare", 0)
    except PermissionError:
        return
    raise OSError(0, "seccomp: a call went through against the filter")
