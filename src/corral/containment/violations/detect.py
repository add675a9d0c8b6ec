"""Reports refusals of the containment as violations: from the kernel's audit records, or inferred from the command's error messages.

An inferred violation is checked against the paths that the command could see. An error that the same user would get outside the sandbox is
not a violation.
"""

from __future__ import annotations

import os

from corral._lib.network import network_grants
from corral._lib.network.listening_sockets import is_served_in_another_namespace, listening_users
from corral._lib.network.local_ports import never_granted
from corral._lib.network.name_addresses import NameAddresses, is_name_address
from corral.containment.violations import error_patterns
from corral.containment.violations.removed_variables import missed_variables
from corral.containment.violations.visibility import CommandView, grantable_violation, is_locked
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
_NO_GRANT = "No grant allows it. Do the task without it, or ask the user to run it."
_WRITES = ("fs.write", "fs.make", "fs.remove", "fs.truncate", "fs.refer")


def limit_hit(kind: str, field: str, limits: Limits, *, inferred: bool) -> Violation:
    """Return the violation of one of the `limits`."""
    value, name = getattr(limits, field), f"limits.{field}"
    share = " of the machine's memory" if isinstance(value, float) else ""
    instead = f"Use less, or work in smaller parts; the user can raise {name}."
    return Violation(kind, detail=f"{name} is {value}{share}", instead=instead, inferred=inferred, grant=name)


def infer_from_output(
    said: bytes, cwd: str, view: View, config: SandboxConfig, missing: tuple[str, ...], *, warden: int = 0
) -> tuple[Violation, ...]:
    """Return the refusals of the containment, according to the last lines of a command's output. `warden` ran the command."""
    found: dict[tuple[str, str], Violation] = {}
    for text, (kind, field) in _LIMITS.items():
        limit = getattr(config.limits, field)
        # Commands hardly ever reach a default limit: for those only the kernel and the meter are believed.
        if limit != getattr(_DEFAULTS, field) and limit is not None and text in said:
            found[kind, ""] = limit_hit(kind, field, config.limits, inferred=True)
    # Most output reports no refusal, and is not split into lines.
    low = said.lower()
    if any(text in low for text in error_patterns.TRIGGERS):
        reader = _MessageReader(CommandView(view, config, missing), cwd, warden)
        for line in said.decode("utf-8", "replace").splitlines()[-MAX_LINES:]:
            for violation in reader.read(line[:MAX_LINE_CHARACTERS]):
                found.setdefault(_deduplication_key(violation), violation)
            if len(found) >= MAX_VIOLATIONS:
                break
    for violation in missed_variables(said, config, os.environ):
        found.setdefault((violation.kind, violation.target), violation)
    # One without a target is the same refusal as another of its kind, reported by another line.
    named = {violation.kind for violation in found.values() if violation.target}
    return tuple(violation for violation in found.values() if violation.target or violation.kind not in named)


def _deduplication_key(violation: Violation) -> tuple[str, str]:
    # Of several files in one directory, the first is enough.
    directory = os.path.dirname(violation.target) if violation.target.startswith("/") else violation.target
    return violation.kind, violation.grant if violation.kind == "write-outside" else directory


class _MessageReader:
    def __init__(self, view: CommandView, cwd: str, warden: int) -> None:
        self.view = view
        self.cwd = cwd
        self.warden = warden

    def read(self, line: str) -> Iterator[Violation]:
        """Yield the violations that one line reports: of a system call, else of a host, else of a path."""
        call = error_patterns.call_in(line)
        if call:
            yield from self._closed_call(call)
            return
        docker = error_patterns.DOCKER_SOCKET.search(line)
        if docker:
            if os.path.exists(docker[1]):
                why = "access to the container engine is root access to the machine"
                yield Violation("hidden", docker[1], why, _NO_GRANT, inferred=True)
        elif self.view.config.containment.network != "on" and (port := self._port(line)) is not None:
            yield port
        elif self.view.config.containment.network != "on" and self._is_cut_off(line):
            host = error_patterns.host_in(line)
            if not error_patterns.is_loopback(host):
                yield unreachable(host, self.view.config, inferred=True)
        elif self.view.config.containment.destinations and (other := self._other_port(line)) is not None:
            yield other
        else:
            error = error_patterns.refusal_in(line)
            if error:
                yield from self._path(line, error)

    def _is_cut_off(self, line: str) -> bool:
        if error_patterns.has_no_network(line):
            return True
        # Without a network namespace the seccomp filter refuses internet sockets, and only then.
        return "net" in self.view.missing and error_patterns.NO_FAMILY in line.lower()

    def _port(self, line: str) -> Violation | None:
        """Return the violation of a line about a port of loopback: it is this machine's inside, or it could be."""
        containment = self.view.config.containment
        local = containment.local_ports
        named = [int(text.rpartition(":")[2]) for text in containment.destinations]
        taken = error_patterns.taken_port_in(line, (*local, *named)) if local or named else None
        if taken in local or (taken == 0 and len(local) == 1):
            port = taken or local[0]
            detail = "this port is the host machine's inside, because the policy opens it to commands"
            return Violation("network", f"127.0.0.1:{port}", detail, "Listen on another port.", inferred=True)
        if taken in named:
            detail = "the sandbox listens on this port for granted names, so no server can have it on all addresses"
            return Violation("network", f"0.0.0.0:{taken}", detail, "Listen on 127.0.0.1 alone.", inferred=True)
        port = error_patterns.local_port_in(line)
        if not port or port in local:
            return None
        target = f"127.0.0.1:{port}"
        if not listening_users("127.0.0.1", port):
            return self._other_sandbox(target, port)
        detail = "a server of the host machine listens there, and the sandbox's loopback is its own"
        never = never_granted(port)
        if never:
            return Violation(
                "network", target, f"{detail}; it is never opened to commands: {never}", _NO_GRANT, inferred=True
            )
        grant = f"containment.local = [{port}]"
        return grantable_violation("network", target, detail, "Start the server inside", grant, inferred=True)

    def _other_port(self, line: str) -> Violation | None:
        """Return the violation of a connection to a granted host at a port that is not granted: nothing listens there."""
        containment = self.view.config.containment
        grants = network_grants.Grants(containment.destinations)
        try:
            host, port = network_grants.parse_authority(error_patterns.unanswered_host_in(line))
        except ValueError:
            return None
        # Some programs print the address that stands for the name.
        host = (NameAddresses(containment.destinations).name(host) if is_name_address(host) else "") or host
        if grants.covering(host, port) or not grants.covers(host, None):
            return None
        place = network_grants.format_destination(host, port)
        instead, grant = "Use a granted port", f'containment.network = ["{place}"]'
        return grantable_violation(
            "network", place, "it is granted at another port only", instead, grant, inferred=True
        )

    def _other_sandbox(self, target: str, port: int) -> Violation | None:
        """Return the violation of a command that looks for the server of another one, which an agent left in the background."""
        if self.view.config.sessions or not is_served_in_another_namespace(port, self.warden):
            return None
        detail = "a server in another sandbox listens there, and each command has a loopback of its own"
        instead = "Start the server in the command that uses it"
        return grantable_violation("network", target, detail, instead, "sessions = true", inferred=True)

    def _closed_call(self, call: str) -> Iterator[Violation]:
        why, needs_root = error_patterns.CALLS[call]
        if call == "ptrace" and not self.view.config.containment.ptrace:
            grant = "containment.ptrace = true"
            yield grantable_violation("call", call, why, "Work without a debugger", grant, inferred=True)
        elif not needs_root or os.geteuid() == 0:
            yield Violation("call", call, why, _NO_GRANT, inferred=True)

    def _path(self, line: str, error: str) -> Iterator[Violation]:
        words = list(error_patterns.paths_in(line))
        paths = (path for word in words for path in self._places(word))
        if error == "EPERM" and error_patterns.MODE_CHANGE.search(line):
            if any(_is_own(path) for path in paths):
                yield from self._closed_call("chmod")
            return
        for path in paths:
            violation = self.view.absent(path) if error == "ENOENT" else self.view.refused(path, error)
            if violation is not None:
                yield violation
                return
            if error == "EACCES" and is_locked(path):
                return  # its own mode explains the message
        if error_patterns.READ_ONLY.search(line) and not any(word.startswith("/") for word in words):
            # tar names a member of the archive, and perl names nothing: the kernel refused a path that is not known.
            detail, instead = "a path that is read-only for commands", "Write inside the project or /tmp"
            yield grantable_violation("write-outside", "", detail, instead, "containment.write", inferred=True)

    def _places(self, word: str) -> Iterator[str]:
        """Yield the paths that a word can mean. Programs name files from their working directory, git from the project root."""
        if len(word) < 4096 and "\0" not in word:
            for directory in dict.fromkeys((self.cwd, self.view.config.project_root)):
                yield os.path.normpath(os.path.join(directory, word))
                if word.startswith("/"):
                    return


def _is_own(path: str) -> bool:
    try:
        return os.geteuid() in (0, os.lstat(path).st_uid)
    except OSError:
        return False


def unreachable(host: str, config: SandboxConfig, *, inferred: bool) -> Violation:
    """Return the violation of a connection that found no network."""
    detail = "the sandbox has no network except its own loopback"
    instead, grant = "Use files in the project or servers on the sandbox's loopback", "containment.network = 'on'"
    if config.containment.destinations:
        instead = "Use a program that supports the proxy in HTTPS_PROXY or ALL_PROXY to reach granted destinations"
        grant = "containment.network"
        if _is_granted(host, config):
            return Violation("network", host, detail, f"{instead}.", inferred=inferred)
        instead = "Use files in the project or a granted destination"
    return grantable_violation("network", host, detail, instead, _grant_of(host) or grant, inferred=inferred)


def _grant_of(host: str) -> str:
    """Return the grant of a host and a port, or "" if a message has no port."""
    try:
        return f'containment.network = ["{network_grants.parse_grant(host)}"]'
    except ValueError:
        return ""


def with_ports(found: Iterable[Violation], guessed: Iterable[Violation]) -> tuple[Violation, ...]:
    """Return violations, with the ports of refused names that the command's messages tell: a DNS query has none."""
    named = {name: port for name, _, port in (v.target.rpartition(":") for v in guessed if v.kind == "network") if name}
    return tuple(
        _with_port(each, named[each.target]) if each.grant.endswith(':PORT"]') and each.target in named else each
        for each in found
    )


def _with_port(violation: Violation, port: str) -> Violation:
    target, grant = f"{violation.target}:{port}", violation.grant.replace(":PORT", f":{port}")
    return violation.replace(target=target, instead=violation.instead.replace(violation.grant, grant), grant=grant)


def _is_granted(text: str, config: SandboxConfig) -> bool:
    name, _, number = text.rpartition(":") if text.count(":") == 1 else (text, "", "")
    try:
        port = network_grants.parse_port(number) if number else None
        return network_grants.Grants(config.containment.destinations).covers(network_grants.parse_host(name), port)
    except ValueError:
        return False


def from_audit_records(denials: Iterable[Denial], view: View, config: SandboxConfig) -> tuple[Violation, ...]:
    """Return violations for the refusals that the kernel's audit records name. These are not inferred."""
    command_view = CommandView(view, config, ())
    found: dict[tuple[str, str], Violation] = {}
    for denial in denials:
        first = denial.blockers[0] if denial.blockers else ""
        if first.startswith("net."):
            violation = unreachable(denial.target, config, inferred=False)
        elif first.startswith("scope.") or first in ("fs.make_char", "fs.make_block", "fs.ioctl_dev", "ptrace"):
            violation = Violation("call", first, denial.target, _NO_GRANT)
        else:
            is_write = any(blocker.startswith(_WRITES) for blocker in denial.blockers)
            violation = command_view.by_audit(denial.target, writes=is_write)
        found.setdefault((violation.kind, violation.target), violation)
    return tuple(found.values())[:MAX_VIOLATIONS]


def ended_by_filter(fields: dict[str, str]) -> Violation:
    """Return the violation of a process that the seccomp filter killed. `fields` are those of its audit record, if any."""
    detail = error_patterns.CALLS["foreign ABI"][0]
    if "syscall" in fields:
        arch, program = fields.get("arch", "unknown"), fields.get("exe", "the process")
        detail += f": {program} made call {fields['syscall']} of architecture {arch}"
    return Violation("call", "foreign ABI", detail, "Use a program built for this machine.", inferred=True)
