"""What the kernel refused, as far as a command's own words tell: each is confirmed against what the command could see, and marked inferred."""

from __future__ import annotations

import os

from corral.model import Violation
from corral.places import inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.config import SandboxConfig
    from corral.containment.view import View

MAX_VIOLATIONS = 5  # against a program that complains about every file
MAX_LINES = 200
_REFUSED = ("Read-only file system", "Permission denied", "Operation not permitted", "Device or resource busy")
_LIMITS = {
    b"Resource temporarily unavailable": ("process-limit", "processes"),
    b"Cannot allocate memory": ("memory-limit", "memory_bytes"),
    b"MemoryError": ("memory-limit", "memory_bytes"),
    b"std::bad_alloc": ("memory-limit", "memory_bytes"),
    b"Too many open files": ("open-files-limit", "open_files"),
}
_HIDDEN = "No such file or directory"
_UNREACHABLE = (
    *("Network is unreachable", "Could not resolve host", "Temporary failure in name resolution"),
    *("Name or service not known", "getaddrinfo EAI_AGAIN", "getaddrinfo ENOTFOUND"),
)


def infer(stderr: bytes, cwd: str, view: View, config: SandboxConfig) -> tuple[Violation, ...]:
    """Return what containment stopped, by the messages of the last lines."""
    found: dict[str, Violation] = {}
    network, limits = config.containment.network, config.limits
    for text, (kind, field) in _LIMITS.items():
        if getattr(limits, field) is not None and text in stderr:
            found[kind] = Violation(kind, detail=f"limits.{field} is {getattr(limits, field)}", inferred=True)
    for line in stderr.decode("utf-8", "replace").splitlines()[-MAX_LINES:]:
        for violation in _in_line(line, cwd, view, network):
            found.setdefault(violation.kind + violation.target, violation)
        if len(found) >= MAX_VIOLATIONS:
            break
    return tuple(found.values())


def _in_line(line: str, cwd: str, view: View, network: str) -> Iterator[Violation]:
    if network == "off" and any(text in line for text in _UNREACHABLE):
        yield Violation(
            "network",
            detail="the sandbox has no network but its own loopback",
            instead="The owner grants it: containment.network = 'on'.",
            inferred=True,
        )
    refused = next((text for text in _REFUSED if text in line), "")
    if not refused and _HIDDEN not in line:
        return
    for path in _paths(line, cwd):
        violation = _refusal(path, refused, view) if refused else _absence(path, view)
        if violation is not None:
            yield violation
            return


def _paths(line: str, cwd: str) -> Iterator[str]:
    """Return the words of a message that could be paths, those in quotes first."""
    for quote in ("'", '"', "`", "\u2018"):
        for word in line.replace("\u2019", "\u2018").split(quote)[1::2]:
            yield os.path.normpath(os.path.join(cwd, word))
    for word in reversed(line.replace(": ", " ").replace(",", " ").split()):
        if "/" in word or "." in word:
            yield os.path.normpath(os.path.join(cwd, word.strip("'\"`:;()[]")))


def _refusal(path: str, refused: str, view: View) -> Violation | None:
    for kept in view.protected.readonly:
        if inside(path, kept):
            detail = "what is written there runs later outside the sandbox"
            instead = "Leave it as it is, or ask the owner to change it."
            return Violation("protected", path, detail, instead, inferred=True)
    if refused == "Device or resource busy":
        if any(inside(kept, path) for kept in (*view.protected.readonly, *view.protected.pinned)):
            detail = "it holds protected files, and cannot be renamed or removed"
            return Violation("protected", path, detail, "Leave it where it is.", inferred=True)
        return None
    if any(inside(path, root) for root in view.writable) or not any(inside(path, root) for root in view.readable):
        return None
    # Refused outside too, where the owner has no right to it, is no refusal of ours.
    if refused != "Read-only file system" and not os.access(path, os.W_OK):
        return None
    instead = f"Write inside the project or /tmp; the owner grants more: containment.write = [{path!r}]."
    return Violation("write-outside", path, "it is read-only for commands", instead, inferred=True)


def _absence(path: str, view: View) -> Violation | None:
    if any(inside(path, root) for root in (*view.readable, *view.writable)) or path.startswith(("/proc/", "/dev/")):
        return None
    if not os.path.lexists(path):
        return None
    instead = f"Work inside the project; the owner grants more: containment.read = [{path!r}]."
    return Violation("hidden", path, "it exists outside, and commands do not see it", instead, inferred=True)
