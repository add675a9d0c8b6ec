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
_DOCKER = "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"
_PODMAN = "--security-opt seccomp=unconfined --security-opt unmask=ALL"
_POD = "kubectl patch deployment NAME --patch"
_POD_SPEC = (
    '{"spec":{"template":{"spec":{"hostUsers":false,"containers":[{"name":"NAME","securityContext":'
    '{"procMount":"Unmasked","seccompProfile":{"type":"Unconfined"}}}]}}}}'
)
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


def _apparmor(facts: Facts, _: str) -> Fix:
    rules = f"abi <abi/4.0>,\\nprofile corral {facts.interpreter} flags=(unconfined) {{\\n  userns,\\n}}\\n"
    return Fix(
        "AppArmor takes all rights from user namespaces (kernel.apparmor_restrict_unprivileged_userns is 1). A profile gives them back to "
        "this interpreter and to every program that it runs.",
        f"printf '{rules}' | sudo tee /etc/apparmor.d/corral && sudo apparmor_parser -r /etc/apparmor.d/corral",
    )


def _debian(_: Facts, __: str) -> Fix:
    name = "kernel.unprivileged_userns_clone"
    return Fix(f"{name} is 0: only root can create user namespaces.", _set(name, 1))


def _docker(_: Facts, __: str) -> Fix:
    return Fix(
        "Docker forbids it in a container. These options allow it, and confine the container itself less.",
        f"docker run {_DOCKER} IMAGE",
    )


def _podman(_: Facts, __: str) -> Fix:
    return Fix("Podman forbids it in a container.", f"podman run {_PODMAN} IMAGE")


def _pod(_: Facts, __: str) -> Fix:
    return Fix("Kubernetes forbids it in a pod.", f"{_POD} '{_POD_SPEC}'")


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
    _Row("container", (EPERM, EACCES), _in("docker"), _docker),
    _Row("container", (EPERM, EACCES), _in("podman"), _podman),
    _Row("container", (EPERM, EACCES), _in("kubernetes"), _pod),
    _Row("filter", (EPERM,), lambda f: f.is_filtered and not f.container, _filtered),
    _Row("no table", (ENOSYS,), lambda f: f.machine not in ("x86_64", "aarch64"), _no_table),
    _Row("not built", (ENOSYS, EINVAL), lambda f: f.machine in ("x86_64", "aarch64"), _not_built),
)
CAUSES = frozenset(row.cause for row in _ROWS)
