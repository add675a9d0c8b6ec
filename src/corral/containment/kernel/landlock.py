"""Restricts file access by path with Landlock, at the version that the kernel has."""

from __future__ import annotations

import os
import stat
from _struct import pack
from errno import EOPNOTSUPP

from corral.containment.kernel.capabilities import set_no_new_privs
from corral.containment.kernel.landlock_tree import closed_paths, spread
from corral.containment.kernel.layer import RULES, Attack, Layer, Remedy
from corral.containment.kernel.syscalls import open_verified, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.containment.plan import WardenPlan

_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
_REMOVE = 1 << 4 | 1 << 5
_MAKE = 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 12  # all but devices
_MAKE_DEVICE = 1 << 6 | 1 << 11
_REFER, TRUNCATE, IOCTL_DEV, _RESOLVE_UNIX = 1 << 13, 1 << 14, 1 << 15, 1 << 16
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV | _RESOLVE_UNIX
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2
_TCP = 1 | 2
_LOG_NEW_EXEC_ON, _ALL_THREADS = 1 << 1, 1 << 3

RIGHTS = {
    "list": READ_DIR,
    "read": EXECUTE | READ_FILE | READ_DIR,
    # With sockets: commands of one warden must reach servers of another, which is a different Landlock domain.
    "write": EXECUTE | WRITE_FILE | READ_FILE | READ_DIR | _REMOVE | _MAKE | _REFER | TRUNCATE | _RESOLVE_UNIX,
    "terminal": WRITE_FILE | READ_FILE | READ_DIR | IOCTL_DEV,
    "process": WRITE_FILE | READ_FILE | READ_DIR | TRUNCATE,
}
# The rights by the Landlock version that introduced them.
_FILES_SINCE = {
    1: RIGHTS["read"] | RIGHTS["write"] & ~(_REFER | TRUNCATE | _RESOLVE_UNIX) | _MAKE_DEVICE,
    2: _REFER,
    3: TRUNCATE,
    5: IOCTL_DEV,
    9: _RESOLVE_UNIX,
}


def version() -> int:
    """Return the Landlock version of this kernel, or 0."""
    try:
        return syscall("landlock_create_ruleset", None, 0, _CREATE_RULESET_VERSION)
    except OSError:
        return 0


def handled_files(abi: int) -> int:
    """Return the file rights that a version knows."""
    handled = 0
    for since, rights in _FILES_SINCE.items():
        if abi >= since:
            handled |= rights
    return handled


def attributes(abi: int, *, deny_tcp: bool) -> bytes:
    """Return `struct landlock_ruleset_attr` in the size that a version accepts."""
    attr = pack("=Q", handled_files(abi))
    if abi >= 4:
        attr += pack("=Q", _TCP if deny_tcp else 0)
    if abi >= 6:
        attr += pack("=Q", _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS)
    return attr


def restrict_flags(abi: int, *, logged: bool) -> int:
    """Return the flags of landlock_restrict_self() for a version. `logged` is for a host that reads audit records."""
    flags = 0
    if abi >= 7 and logged:
        # By default the kernel logs only the denials of the warden itself, and not those of the programs it executes.
        flags |= _LOG_NEW_EXEC_ON
    if abi >= 8:
        flags |= _ALL_THREADS
    return flags


def confine(
    rules: Sequence[tuple[str, str]],
    *,
    deny_tcp: bool,
    logged: bool = False,
    known: Mapping[str, Sequence[int]] | None = None,
) -> None:
    """Allow only the given rules, each a path and its rights. `deny_tcp` is for a process in the host's network.

    `known` is given where the process has no tree of its own. Then a rule whose path leads through a link, or to another
    directory than the known one, is an error. A path that is gone needs no rule.
    """
    abi = version()
    files = handled_files(abi)
    attr = attributes(abi, deny_tcp=deny_tcp)
    ruleset = syscall("landlock_create_ruleset", attr, len(attr), 0)
    for path, rights in rules:
        _allow(ruleset, path, RIGHTS[rights] & files, known)
    syscall("landlock_restrict_self", ruleset, restrict_flags(abi, logged=logged))
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int, known: Mapping[str, Sequence[int]] | None) -> None:
    # In a tree that bubblewrap has made, the filter already refuses openat2().
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC) if known is None else open_verified(path, known)
    except FileNotFoundError:
        if known is None or path in known:
            raise
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        syscall("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)


_START_WITH_LANDLOCK = (
    "echo 'GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT lsm=landlock,{security_modules}\"'"
    " | sudo tee /etc/default/grub.d/corral.cfg && sudo update-grub && sudo reboot"
)


def _enter(plan: WardenPlan) -> None:
    has_tree = "mount" in plan.layers
    rules = plan.host.rules if has_tree else plan.host.rules_without_mounts
    if not has_tree:
        rules = tuple(spread(rules, closed_paths(plan.host.steps, rules)))
    set_no_new_privs()
    confine(
        rules,
        deny_tcp="net" not in plan.layers and plan.host.network != "on",
        logged=plan.host.is_audited,
        known=None if has_tree else plan.known,
    )


def _probe(stage: str) -> None:
    set_no_new_privs()
    confine((("/", "read"),), deny_tcp=False)
    try:
        os.close(os.open(f"{stage}/probe", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except PermissionError:
        return
    os.unlink(f"{stage}/probe")
    raise OSError(0, "landlock: a file was made against its rules")


LAYERS = (
    Layer(
        "landlock",
        8,
        keeps="a second check of every file access, besides the mounts",
        without="Only mounts protect files: if one is wrong, nothing stands behind it.",
        needs=(),
        probe=_probe,
        stage=RULES,
        enter=_enter,
        bubblewrap="entered by the warden",
        enters_in_bubblewrap=True,
        is_supported=lambda: version() > 0,
        remedy=Remedy(
            ("container", "filter", "not built"),
            "CONFIG_SECURITY_LANDLOCK",
            "5.13",
            advice=(
                (
                    EOPNOTSUPP,
                    "Landlock is built in, but the kernel was started without it: it is not in lsm= of its command line.",
                    _START_WITH_LANDLOCK,
                ),
            ),
        ),
        self_test=Attack(
            "files", "make a file outside", "return open(facts['outside'] + '/made', 'x').write('x')", ("mount",)
        ),
    ),
)
