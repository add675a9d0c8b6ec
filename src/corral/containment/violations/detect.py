"""What containment refused, as violations: in the kernel's own words, or by the command's, confirmed by what it could see.

What is read from a command's words is marked inferred. An error that the same user would have met outside is no violation.
"""

from __future__ import annotations

import os

from corral._lib import network_grants
from corral._lib.network_grants import Grants
from corral.containment.violations import error_patterns
from corral.containment.violations.visibility import CommandView, grantable_violation
from corral.model.call import Violation
from corral.policy.config import Limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from corral.containment.filesystem.view import View
    from corral.containment.violations.kernel_audit import Denial
    from corral.policy.config import SandboxConfig

MAX_VIOLATIONS = 5  # against a program that complains about every file
MAX_LINES = 100
MAX_LINE_CHARACTERS = 1000
_LIMITS = {
    b"Resource temporarily unavailable": ("process-limit", "processes"),
    b"Cannot allocate memory": ("memory-limit", "memory_bytes"),
    b"MemoryError": ("memory-limit", "memory_bytes"),
    b"std::bad_alloc": ("memory-limit", "memory_bytes"),
    b"Too many open files": ("open-files-limit", "open_files"),
}
_DEFAULTS = Limits()
_NEVER = "There is no grant for it; do the task without it, or ask the owner to run it."


def limit_hit(kind: str, field: str, limits: Limits, *, inferred: bool) -> Violation:
    """Return the violation of one bound of `limits`."""
    value, name = getattr(limits, field), f"limits.{field}"
    share = " of the machine's memory" if isinstance(value, float) else ""
    instead = f"Use less, or in smaller parts; the owner sets {name}."
    return Violation(kind, detail=f"{name} is {value}{share}", instead=instead, inferred=inferred, grant=name)


def infer_from_output(
    said: bytes, cwd: str, view: View, config: SandboxConfig, missing: tuple[str, ...]
) -> tuple[Violation, ...]:
    """Return what containment stopped, by the messages of the last lines."""
    found: dict[tuple[str, str], Violation] = {}
    for text, (kind, field) in _LIMITS.items():
        limit = getattr(config.limits, field)
        # Of a default, which hardly anything reaches, only the kernel and the meter are believed.
        if limit != getattr(_DEFAULTS, field) and limit is not None and text in said:
            found[kind, ""] = limit_hit(kind, field, config.limits, inferred=True)
    # Most of what programs print on stderr is no refusal, and is not taken apart.
    low = said.lower()
    if any(text in low for text in error_patterns.TRIGGERS):
        reader = _Reader(CommandView(view, config, missing), cwd)
        for line in said.decode("utf-8", "replace").splitlines()[-MAX_LINES:]:
            for violation in reader.read(line[:MAX_LINE_CHARACTERS]):
                found.setdefault(_told_once(violation), violation)
            if len(found) >= MAX_VIOLATIONS:
                break
    return tuple(_without_the_vaguer(found.values()))


def _told_once(violation: Violation) -> tuple[str, str]:
    """Return what makes a violation another one: of files in one directory, the first will do."""
    directory = os.path.dirname(violation.target) if violation.target.startswith("/") else violation.target
    return violation.kind, violation.grant if violation.kind == "write-outside" else directory


def _without_the_vaguer(found: Iterable[Violation]) -> list[Violation]:
    """Leave out a violation without a target where another of its kind has one: it is the same, told by another line."""
    named = {violation.kind for violation in found if violation.target}
    return [violation for violation in found if violation.target or violation.kind not in named]


class _Reader:
    def __init__(self, sight: CommandView, cwd: str) -> None:
        self.sight = sight
        self.cwd = cwd

    def read(self, line: str) -> Iterator[Violation]:
        """Return what one line tells of: a closed call, else a host, else a path."""
        call = error_patterns.call_in(line)
        if call:
            yield from self._closed(call)
            return
        docker = error_patterns.DOCKER_SOCKET.search(line)
        if docker:
            yield from self._docker(docker[1])
        elif self.sight.config.containment.network != "on" and self._is_cut_off(line):
            host = error_patterns.host_in(line)
            if not error_patterns.is_loopback(host):
                yield unreachable(host, self.sight.config, inferred=True)
        else:
            error = error_patterns.refusal_in(line)
            if error:
                yield from self._path(line, error)

    def _is_cut_off(self, line: str) -> bool:
        if error_patterns.has_no_network(line):
            return True
        # Where there is no network namespace the filter refuses internet sockets, and only there.
        return "net" in self.sight.missing and error_patterns.NO_FAMILY in line.lower()

    def _closed(self, call: str) -> Iterator[Violation]:
        why, needs_root = error_patterns.CALLS[call]
        if call == "ptrace" and not self.sight.config.containment.ptrace:
            yield grantable_violation(
                "call", call, why, "Do without a debugger", "containment.ptrace = true", inferred=True
            )
        elif not needs_root or os.geteuid() == 0:
            yield Violation("call", call, why, _NEVER, inferred=True)

    def _docker(self, path: str) -> Iterator[Violation]:
        if os.path.exists(path):
            why = "who reaches it has all of the machine"
            yield Violation("hidden", path, why, _NEVER, inferred=True)

    def _path(self, line: str, error: str) -> Iterator[Violation]:
        if error == "EPERM" and error_patterns.MODE_CHANGE.search(line):
            owned = (path for word in error_patterns.paths_in(line) for path in self._places(word))
            if any(_is_own(path) for path in owned):
                yield from self._closed("chmod")
            return
        words = list(error_patterns.paths_in(line))
        for word in words:
            for path in self._places(word):
                violation = self.sight.absent(path) if error == "ENOENT" else self.sight.refused(path, error)
                if violation is not None:
                    yield violation
                    return
        if error_patterns.READ_ONLY.search(line) and not any(word.startswith("/") for word in words):
            # As tar says it of a member, and perl of nothing: the kernel has refused, and nobody says where.
            detail, instead = "something that is read-only for commands", "Write inside the project or /tmp"
            yield grantable_violation("write-outside", "", detail, instead, "containment.write", inferred=True)

    def _places(self, word: str) -> Iterator[str]:
        """Return where a word of a message can lie: programs name files from their own directory, git from the project's."""
        if len(word) < 4096 and "\0" not in word:
            for directory in dict.fromkeys((self.cwd, self.sight.config.project_root)):
                yield os.path.normpath(os.path.join(directory, word))
                if word.startswith("/"):
                    return


def _is_own(path: str) -> bool:
    try:
        return os.geteuid() in (0, os.lstat(path).st_uid)
    except OSError:
        return False


def unreachable(host: str, config: SandboxConfig, *, inferred: bool) -> Violation:
    """Return the violation of a connection where there is no network."""
    detail = "the sandbox has no network but its own loopback"
    if config.containment.destinations:
        instead = (
            "Use a program that takes the proxy of HTTPS_PROXY or ALL_PROXY, through which what is granted is reached"
        )
        if _is_granted(host, config):
            return Violation("network", host, detail, f"{instead}.", inferred=inferred)
        return grantable_violation("network", host, detail, instead, "containment.network", inferred=inferred)
    instead = "Use what is in the project or on the sandbox's own loopback"
    return grantable_violation("network", host, detail, instead, "containment.network = 'on'", inferred=inferred)


def _is_granted(text: str, config: SandboxConfig) -> bool:
    name, _, number = text.rpartition(":") if text.count(":") == 1 else (text, "", "")
    try:
        port = network_grants.parse_port(number) if number else None
        return Grants(config.containment.destinations).covers(network_grants.parse_host(name), port)
    except ValueError:
        return False


_WRITES = ("fs.write", "fs.make", "fs.remove", "fs.truncate", "fs.refer")


def from_audit_records(denials: Iterable[Denial], view: View, config: SandboxConfig) -> tuple[Violation, ...]:
    """Return violations for what the kernel's audit records name; these are not inferred."""
    sight = CommandView(view, config, ())
    found: dict[tuple[str, str], Violation] = {}
    for denial in denials:
        first = denial.blockers[0] if denial.blockers else ""
        if first.startswith("net."):
            violation = unreachable(denial.target, config, inferred=False)
        elif first.startswith("scope.") or first in ("fs.make_char", "fs.make_block", "fs.ioctl_dev", "ptrace"):
            violation = Violation("call", first, denial.target, _NEVER)
        else:
            violation = sight.by_rule(denial.target, writes=any(b.startswith(_WRITES) for b in denial.blockers))
        found.setdefault((violation.kind, violation.target), violation)
    return tuple(found.values())[:MAX_VIOLATIONS]


def ended_by_filter(fields: dict[str, str]) -> Violation:
    """Return the violation of a process that the filter ended, with what the kernel's record says of it, if there is one."""
    detail = error_patterns.CALLS["foreign ABI"][0]
    if "syscall" in fields:
        detail += (
            f": number {fields['syscall']} of architecture {fields.get('arch', 'unknown')} by {fields.get('exe', 'it')}"
        )
    return Violation("call", "foreign ABI", detail, "Use a program built for this machine.", inferred=True)
