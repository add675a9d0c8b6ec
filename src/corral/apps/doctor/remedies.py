"""Why a layer is missing, and what would bring it: a table, read by what the kernel said and by the machine's settings.

The settings only explain. Whether a layer holds is what entering it showed.
"""

from __future__ import annotations

from errno import EACCES, EINVAL, ENOSPC, ENOSYS, EPERM

from corral._lib.records import Record, frozen
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
class Fix(Record):
    """One way to a missing thing: why it is missing, and the command that brings it, if a command does."""

    why: str
    command: str = ""


@frozen
class _Row(Record):
    cause: str  # as the `causes` of a layer's remedy name it
    numbers: tuple[int, ...]  # of the kernel's errors; none for any
    applies: Callable[[Facts], bool]
    fix: Callable[[Facts, str], Fix]


def fixes(layer: str, refusal: Refusal, facts: Facts) -> tuple[Fix, ...]:
    """Return the ways to a layer that the kernel refused, the most particular first."""
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
    return tuple(found) or (Fix(f"The kernel said {refusal.words}, and nothing here explains it."),)


def _set(name: str, value: object) -> str:
    return f"echo {name}={value} | {_KEPT}"


def _too_few(facts: Facts, layer: str) -> Fix:
    name = LAYERS[layer].remedy.limit
    why = f"{name} is {facts.settings.get(name) or 'unknown'}: no more of these namespaces may be made."
    return Fix(why, _set(name, ENOUGH_NAMESPACES))


def _apparmor(facts: Facts, _: str) -> Fix:
    rules = f"abi <abi/4.0>,\\nprofile corral {facts.interpreter} flags=(unconfined) {{\\n  userns,\\n}}\\n"
    return Fix(
        "AppArmor takes all rights from user namespaces (kernel.apparmor_restrict_unprivileged_userns is 1). A profile gives them back to "
        "this interpreter, and to every program that it runs.",
        f"printf '{rules}' | sudo tee /etc/apparmor.d/corral && sudo apparmor_parser -r /etc/apparmor.d/corral",
    )


def _debian(_: Facts, __: str) -> Fix:
    name = "kernel.unprivileged_userns_clone"
    return Fix(f"{name} is 0: only root may make user namespaces.", _set(name, 1))


def _docker(_: Facts, __: str) -> Fix:
    return Fix(
        "Docker forbids it to what runs in a container. So started, the container itself is held by less.",
        f"docker run {_DOCKER} IMAGE",
    )


def _podman(_: Facts, __: str) -> Fix:
    return Fix("Podman forbids it to what runs in a container.", f"podman run {_PODMAN} IMAGE")


def _pod(_: Facts, __: str) -> Fix:
    return Fix("Kubernetes forbids it to what runs in a pod.", f"{_POD} '{_POD_SPEC}'")


def _filtered(_: Facts, __: str) -> Fix:
    return Fix("A filter on system calls forbids it: corral runs inside a sandbox, its own or another. Run it outside.")


def _covered(facts: Facts, _: str) -> Fix:
    shown = " ".join(facts.proc_covers[:3])
    why = f"Something is mounted over parts of /proc ({shown}), and then the kernel gives nobody a new one."
    return Fix(why, "" if facts.container else f"sudo umount {' '.join(facts.proc_covers)}")


def _not_built(facts: Facts, layer: str) -> Fix:
    option, since = LAYERS[layer].remedy.kernel_option, LAYERS[layer].remedy.since
    newer = f", or is older than {since}" if since else ""
    return Fix(
        f"The kernel {facts.kernel} was built without {option}{newer}. Boot another; this shows how a kernel was built:",
        f"grep {option} /boot/config-$(uname -r)",
    )


def _no_table(facts: Facts, _: str) -> Fix:
    return Fix(f"corral has tables of system calls for x86_64 and aarch64, and this machine is {facts.machine}.")


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
