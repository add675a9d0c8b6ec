"""Explains why a layer is missing and how to get it, by a table over the kernel's error and the machine's settings.

The settings only explain. Entering a layer has shown whether it holds.
"""

from __future__ import annotations

from errno import EACCES, EINVAL, ENOSPC, ENOSYS, EPERM

from corral._lib.records import Record, frozen
from corral.apps.doctor.check import Fix
from corral.containment.layers import LAYERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.apps.doctor.facts import Facts, Refusal

ENOUGH_NAMESPACES = 28633
_KEPT = "sudo tee /etc/sysctl.d/60-corral.conf && sudo sysctl --system"
_USUAL_MODULES = "lockdown,yama,integrity,apparmor"


@frozen
class _Row(Record):
    cause: str  # matches the `causes` of a layer's remedy
    numbers: tuple[int, ...]  # errno values; empty for any
    applies: Callable[[Facts], bool]
    fix: Callable[[Facts, str], Fix]


def fixes(layer: str, refusal: Refusal, facts: Facts) -> tuple[Fix, ...]:
    """Return the ways to get a layer that the kernel refused, the most specific first."""
    remedy = LAYERS[layer].remedy
    modules = ",".join(name for name in facts.security_modules.split(",") if name) or _USUAL_MODULES
    found = [
        Fix(why, command.format(security_modules=modules))
        for number, why, command in remedy.advice
        if number == refusal.number
    ]
    found += [
        row.fix(facts, layer)
        for row in _ROWS
        if row.cause in remedy.causes and (not row.numbers or refusal.number in row.numbers) and row.applies(facts)
    ]
    return tuple(found) or (Fix(f"The kernel answered {refusal.words}, for an unknown reason."),)


def _set(name: str, value: object) -> str:
    return f"echo {name}={value} | {_KEPT}"


def _too_few(facts: Facts, layer: str) -> Fix:
    name = LAYERS[layer].remedy.limit
    why = f"{name} is {facts.settings.get(name) or 'unknown'}: the limit of these namespaces is reached."
    return Fix(why, _set(name, ENOUGH_NAMESPACES))


def _apparmor(_: Facts, __: str) -> Fix:
    return Fix(
        "AppArmor takes all rights from user namespaces (kernel.apparmor_restrict_unprivileged_userns is 1). A profile for a small "
        "launcher gives them back to corral, and to no other program. This prints it, and how to load it:",
        "corral doctor --emit apparmor",
    )


def _debian(_: Facts, __: str) -> Fix:
    name = "kernel.unprivileged_userns_clone"
    return Fix(f"{name} is 0: only root can create user namespaces.", _set(name, 1))


def _emitted(target: str, why: str) -> Callable[[Facts, str], Fix]:
    why = f"{why} This prints what allows the least that corral needs, and how to use it:"
    return lambda _, __: Fix(why, f"corral doctor --emit {target}")


def _filtered(_: Facts, __: str) -> Fix:
    return Fix("A seccomp filter forbids it: corral itself runs inside a sandbox. Run it outside.")


def _covered(facts: Facts, _: str) -> Fix:
    shown = " ".join(facts.proc_covers[:3])
    why = f"Something is mounted over parts of /proc ({shown}), and then the kernel refuses to mount a new one."
    return Fix(why, "" if facts.container else f"sudo umount {' '.join(facts.proc_covers)}")


def _not_built(facts: Facts, layer: str) -> Fix:
    option, since = LAYERS[layer].remedy.kernel_option, LAYERS[layer].remedy.since
    newer = f", or is older than {since}" if since else ""
    return Fix(
        f"The kernel {facts.kernel} was built without {option}{newer}. Boot another kernel. This shows how a kernel was built:",
        f"grep {option} /boot/config-$(uname -r)",
    )


def _no_table(facts: Facts, _: str) -> Fix:
    return Fix(f"corral knows the system calls of x86_64 and aarch64, and this machine is {facts.machine}.")


def _in(kind: str) -> Callable[[Facts], bool]:
    return lambda facts: facts.container == kind


_ROWS = (
    _Row("namespace limit", (ENOSPC,), lambda _: True, _too_few),
    _Row("user namespaces off", (EPERM,), lambda f: f.settings.get("kernel.unprivileged_userns_clone") == "0", _debian),
    _Row(
        "apparmor",
        (EPERM, EACCES),
        lambda f: f.settings.get("kernel.apparmor_restrict_unprivileged_userns") == "1",
        _apparmor,
    ),
    _Row("proc covered", (EPERM,), lambda f: bool(f.proc_covers), _covered),
    _Row("container", (EPERM, EACCES), _in("docker"), _emitted("docker", "Docker forbids it in a container.")),
    _Row("container", (EPERM, EACCES), _in("podman"), _emitted("podman", "Podman forbids it in a container.")),
    _Row("container", (EPERM, EACCES), _in("kubernetes"), _emitted("kubernetes", "Kubernetes forbids it in a pod.")),
    _Row("filter", (EPERM,), lambda f: f.is_filtered and not f.container, _filtered),
    _Row("no table", (ENOSYS,), lambda f: f.machine not in ("x86_64", "aarch64"), _no_table),
    _Row("not built", (ENOSYS, EINVAL), lambda f: f.machine in ("x86_64", "aarch64"), _not_built),
)
CAUSES = frozenset(row.cause for row in _ROWS)
