"""What programs print when the kernel refuses them something, as tables: which refusal, of what call, host or path.

Words only: whether a refusal is the sandbox's own is decided elsewhere, by what the command could see.
"""

from __future__ import annotations

from corral.frozen import Record, frozen
from corral.pattern import pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# In lower case, as Go and Node write them.
REFUSALS = {
    "read-only file system": "EROFS",
    "device or resource busy": "EBUSY",
    "permission denied": "EACCES",
    "operation not permitted": "EPERM",
    "no such file": "ENOENT",
    "directory nonexistent": "ENOENT",
    "accessdeniedexception": "EACCES",
    "nosuchfileexception": "ENOENT",
}
NO_NETWORK = (
    *("network is unreachable", "network unreachable", "could not resolve host", "couldn't resolve host"),
    *("temporary failure in name resolution", "temporary failure resolving", "name or service not known"),
    *("unable to resolve host address", "failed to resolve", "unknownhostexception", "failed to connect to"),
    *("could not translate host name", "dial tcp: lookup", "failed to lookup address", "bad address"),
    *("failed to establish a new connection", "connect enetunreach", "getaddrinfo enotfound", "eai_again"),
)
NO_FAMILY = "address family not supported"
# What a text must hold one of to be looked at.
TRIGGERS = tuple(
    text.encode()
    for text in (
        *(*REFUSALS, *NO_NETWORK, NO_FAMILY, "bad system call", "superuser", "must be root", "docker daemon"),
        *("permission to", "permissions to", "no new privileges", "function not implemented", "could not trace"),
    )
)


@frozen
class Refused(Record):
    """A call that is closed to commands: its name, and whether it is closed to all but root anyway."""

    call: str
    why: str
    needs_root: bool = False


_DENIED = r"(?:operation not permitted|permission denied)"
_CLOSED = r"(?:operation not permitted|permission denied|function not implemented)"
_MOUNT = "commands see a file system that is put together before they start"
_NAMESPACE = Refused("unshare", "a command enters no namespaces of its own")
_MODULES = Refused("init_module", "the kernel's modules cannot be changed", needs_root=True)
_NETWORK = Refused("netlink", "the network's settings cannot be changed", needs_root=True)
_PRIVILEGE = Refused("setuid", "no program gains rights by being started", needs_root=True)
_RAW = Refused("socket", "raw and packet sockets are closed to commands", needs_root=True)
_TRACE = Refused("ptrace", "a command traces no process")
_TABLE = (
    (rf"\bunshare(?:\(\w*\))?\b.*{_DENIED}", _NAMESPACE),
    (rf"creat\w+ (?:a )?new (?:user )?namespace.*{_DENIED}", _NAMESPACE),
    (r"no permissions to create (?:a )?new namespace", _NAMESPACE),
    (rf"^nsenter: .*{_DENIED}|\bsetns\b.*{_DENIED}", Refused("setns", "a command enters no others' namespaces", True)),
    (rf"^(?:mount|umount|fusermount3?): .*(?:{_DENIED}|superuser|must be root)", Refused("mount", _MOUNT, True)),
    (rf"\b(?:mount|umount2?|move_mount|open_tree|fsopen)\(\).*{_DENIED}", Refused("mount", _MOUNT, True)),
    (rf"\bpivot_root\b.*{_DENIED}", Refused("pivot_root", _MOUNT, True)),
    (rf"^chroot: .*{_DENIED}", Refused("chroot", "a command keeps the root it has", True)),
    (rf"\bPTRACE_\w+\b.*{_DENIED}|\bptrace(?:\([^)]*\))?: {_DENIED}", _TRACE),
    (rf"could not trace the inferior|\bprocess_vm_(?:readv|writev)\b.*{_DENIED}", _TRACE),
    (
        rf"perf_event_open\b.*{_CLOSED}|no permission to enable .* event|perf_event_paranoid",
        Refused("perf_event_open", "the kernel's counters are closed to commands"),
    ),
    (rf"\bio_uring\w*\b.*{_CLOSED}", Refused("io_uring_setup", "io_uring is closed to commands")),
    (rf"\buserfaultfd\b.*{_CLOSED}", Refused("userfaultfd", "it is closed to commands")),
    (rf"\bbpf(?:\(\w*\))?\b.*{_CLOSED}", Refused("bpf", "it is closed to commands", True)),
    (rf"\b(?:keyctl|add_key|request_key)\w*\b.*{_CLOSED}", Refused("keyctl", "keyrings are closed to commands")),
    (rf"\bmq_open\b.*{_CLOSED}", Refused("mq_open", "message queues are closed to commands")),
    (rf"^dmesg: .*{_DENIED}", Refused("syslog", "the kernel's log is closed to commands", True)),
    (rf"^(?:date: cannot set date|hwclock): .*{_DENIED}", Refused("clock_settime", "the clock cannot be set", True)),
    (rf"^hostname: (?:you must be root|.*{_DENIED})", Refused("sethostname", "the machine's name is fixed", True)),
    (rf"^RTNETLINK answers: {_DENIED}|^(?:iptables|nft|ip6tables)\b.*(?:{_DENIED}|must be root)", _NETWORK),
    (rf"^(?:insmod|modprobe|rmmod): .*{_DENIED}", _MODULES),
    (rf"^swap(?:on|off): .*{_DENIED}", Refused("swapon", "swap is the machine's", True)),
    (r"^(?:su|sudo|newgrp|pkexec|doas)\b.*(?:operation not permitted|no new privileges|cannot set groups)", _PRIVILEGE),
    (rf"\bCAP_\w+\b.*{_DENIED}", Refused("capset", "a command gains no capability", True)),
    (rf"^mknod: .*{_DENIED}", Refused("mknod", "a command makes no device", True)),
    (rf"^ping: .*(?:socket|SOCK_RAW).*{_DENIED}|^(?:tcpdump|nmap|arping|dumpcap): .*{_DENIED}", _RAW),
    (
        r"(?:^|: )(?:line \d+: +)?(?:\d+ )?bad system call\b",
        Refused("foreign ABI", "calls of another architecture, as 32-bit programs make them, end the process"),
    ),
)
CALLS = tuple((pattern(f"(?i){text}"), refused) for text, refused in _TABLE)
# A change of mode that the kernel refuses to the file's own user is one of the bits that lend rights.
MODE_CHANGE = pattern(rf"(?i)(?:changing permissions of|cannot change mode|chmod).*{_DENIED}")
SET_ID = Refused("chmod", "a file that lends its owner's rights could be run outside")
DOCKER_SOCKET = pattern(r"(?i)docker daemon(?: socket)? at unix://(/[^\s'\"]+?)\.?(?:\s|$)")

_HOST = r"\[?([A-Za-z0-9_](?:[A-Za-z0-9_.:-]*[A-Za-z0-9_])?)\]?"
HOSTS = tuple(
    pattern(f"(?i){text}")
    for text in (
        rf"could(?: not|n't) resolve host(?:name| name \(could not resolve host)?:? {_HOST}",
        rf"unable to resolve host address [‘'\"]{_HOST}",
        rf"temporary failure resolving [‘'\"]{_HOST}",
        rf"failed to resolve [‘'\"]{_HOST}",
        rf"failed to resolve address for {_HOST}",
        rf"could not translate host name [‘'\"]{_HOST}",
        rf"bad address [‘'\"]{_HOST}",
        rf"getaddrinfo (?:EAI_AGAIN|ENOTFOUND) {_HOST}",
        rf"UnknownHostException: {_HOST}",
        rf"connect ENETUNREACH {_HOST}",
        rf"connect to host {_HOST} port (\d+)",
        r"failed to connect to ([\w.-]+)(?: \([^)]*\))? port (\d+)",
        r"failed to connect to ([\w.-]+)()",
        r"connecting to ([\w.-]+?):(\d+)",
        r"connecting to ([\w.-]+) \(",
        rf"HTTPS?Connection(?:Pool)?\(host='{_HOST}', port=(\d+)",
        rf"dial tcp: lookup {_HOST}",
        r"dial tcp ([\w.-]+|\[[^\]]+\]):(\d+)",
        rf"unable to look up {_HOST}",
        rf"ping: {_HOST}: (?:temporary failure|name or service)",
        r"hostname: '([^']+)'",
    )
)
READ_ONLY = pattern(r"(?i)(?:^|: )read-only file system(?: at \S+ line \d+)?\.?$")
_ADDRESS = pattern(r"(?i)\d+(?:\.\d+){3}$|[0-9a-f:]*:[0-9a-f:]*:[0-9a-f:]*$")
_LOOPBACK = pattern(r"(?i)(?:localhost|127(?:\.\d+){3}|::1|0\.0\.0\.0)$")
_QUOTED = pattern(r"(?<!\w)['\"`]([^'\"`]+)['\"`]|[‘“]([^’”]+)[’”]")
_NOISE = pattern(r"(?i)\[Errno \d+\]|\(os error \d+\)|\bat \S+ line \d+\.?|line \d+$| \([a-z -]+\)$")


def refusal_in(line: str) -> str:
    """Return the name of the error that a line tells of, or nothing."""
    low = line.lower()
    return next((name for text, name in REFUSALS.items() if text in low), "")


def call_in(line: str) -> Refused | None:
    """Return the closed call that a line tells of."""
    return next((refused for said, refused in CALLS if said.search(line)), None)


def has_no_network(line: str) -> bool:
    """Say whether a line complains of a missing network, and not of a server that does not answer."""
    low = line.lower()
    if not any(text in low for text in NO_NETWORK):
        return False
    if "connection refused" in low and "lookup" not in low:
        return False
    if "failed to connect to" in low or "bad address" in low:
        # A name that was found lies on loopback, since there is nobody else to ask for one; EFAULT is "bad address" too.
        return "bad address '" in low or bool(_ADDRESS.match(_without_port(host_in(line))))
    return True


def _without_port(host: str) -> str:
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def is_loopback(host: str) -> bool:
    """Say whether a host is the machine itself."""
    return bool(_LOOPBACK.match(_without_port(host)))


def host_in(line: str) -> str:
    """Return the host that a line names, with its port where it says one; nothing where it names none."""
    for said in HOSTS:
        found = said.search(line)
        if found:
            host, *port = found.groups()
            return ":".join(part.strip("[]") for part in (host, *port) if part)
    return ""


def paths_in(line: str) -> Iterator[str]:
    """Return what could be a path in a line, the likeliest first: quoted, then by colons from the error backwards."""
    for found in _QUOTED.finditer(line):
        yield found[1] or found[2]
    segments = [segment.strip() for segment in _NOISE.sub("", line).split(": ")]
    # The first is who speaks, as /usr/bin/ld does, unless nobody else is named.
    for segment in [*reversed(segments[1:]), segments[0]]:
        words = [word.strip("'\"`()[],;:‘’“”") for word in segment.split()]
        if segment.startswith("/"):
            yield segment.rstrip(":.")
        yield from (word for word in reversed(words) if "/" in word)
        if len(words) == 1:
            yield words[0]
