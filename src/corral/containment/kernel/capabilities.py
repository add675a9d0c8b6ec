"""Drops capabilities for good, for this process and all that it starts, so that no setuid program brings them back."""

from __future__ import annotations

import os
import resource
from _struct import pack
from errno import EINVAL

from corral.containment.kernel.layer import RIGHTS, Attack, Layer, Remedy
from corral.containment.kernel.process_tree import hide
from corral.containment.kernel.syscalls import prctl, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.containment.plan import WardenPlan

_PR_CAPBSET_DROP, _PR_SET_SECUREBITS, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 24, 28, 38, 47
_AMBIENT_RAISE, _AMBIENT_CLEAR_ALL = 2, 4
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63
_SETPCAP = 8
# NOROOT, NO_SETUID_FIXUP and NO_CAP_AMBIENT_RAISE, each locked.
_SECUREBITS = 0b11001111
_JOIN_SESSION_KEYRING = 1
# CHOWN, DAC_OVERRIDE, FOWNER, FSETID: root keeps these, because in containers its project may belong to another user.
FILE_CAPABILITIES = (0, 1, 3, 4)


def join_empty_keyring() -> None:
    """Join a new session keyring, so that commands cannot read the keys of the host's."""
    try:
        syscall("keyctl", _JOIN_SESSION_KEYRING, None, 0, 0, 0)
    except OSError:
        # A kernel without keyrings, or a container that refuses the call. Then commands cannot reach a keyring either.
        return


def disable_core_dumps() -> None:
    """Disable core dumps: a core_pattern that is a pipe would run a program outside the sandbox."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def drop(kept: tuple[int, ...]) -> None:
    """Drop all capabilities for good, except those in `kept`."""
    mask = sum(1 << number for number in kept)
    prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    if _holds(_SETPCAP):
        for number in range(_LAST_CAPABILITY + 1):
            if number not in kept:
                try:
                    prctl(_PR_CAPBSET_DROP, number)
                except OSError as error:
                    if error.errno != EINVAL:
                        raise
                    # The number is beyond the last capability of this kernel.
                    break
        if kept:
            _capset(mask | 1 << _SETPCAP, mask | 1 << _SETPCAP, mask)
            for number in kept:
                prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, number)
        prctl(_PR_SET_SECUREBITS, _SECUREBITS)
    _capset(mask, mask, mask)


def set_no_new_privs() -> None:
    """Make execve() ignore setuid bits and file capabilities from now on."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def _holds(number: int) -> bool:
    with open("/proc/self/status", "rb", buffering=0) as file:
        line = next(line for line in file.read().splitlines() if line.startswith(b"CapEff:"))
    return bool(int(line.split()[1], 16) >> number & 1)


def _capset(effective: int, permitted: int, inheritable: int) -> None:
    header = pack("=Ii", _CAPABILITY_VERSION_3, 0)
    low, high = 0xFFFFFFFF, 32
    words = (
        *(effective & low, permitted & low, inheritable & low),
        *(effective >> high, permitted >> high, inheritable >> high),
    )
    syscall("capset", header, pack("=6I", *words))


def _enter(plan: WardenPlan) -> None:
    join_empty_keyring()
    set_no_new_privs()
    drop(FILE_CAPABILITIES if plan.all_ids_mapped and os.geteuid() == 0 else ())
    # Last, since an undumpable process cannot open all of its own files in /proc.
    hide()


LAYERS = (
    Layer(
        "privileges",
        10,
        keeps="no capabilities, and no program can gain any",
        without="A program could gain rights that its user does not have.",
        needs=(),
        probe=None,
        stage=RIGHTS,
        enter=_enter,
        bubblewrap=("--cap-drop", "ALL"),
        enters_in_bubblewrap=True,
        is_evident=lambda status: status.get(b"NoNewPrivs") == b"1",
        remedy=Remedy(),
        self_test=Attack("kernel", "become another user", "os.setuid(1)\nreturn True", needs=("root",)),
        confines=False,
    ),
)
