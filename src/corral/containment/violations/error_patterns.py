"""What programs print when the kernel refuses them something, as tables: which refusal, of what call, host or path.

Words only: whether a refusal is the sandbox's own is decided elsewhere, by what the command could see.
"""

from __future__ import annotations

from corral._lib.lazy_regex import pattern

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


# What is closed to commands: why, and whether outside too only root may have it.
CALLS = {
    "unshare": ("a command enters no namespaces of its own", False),
    "setns": ("a command enters no others' namespaces", True),
    "mount": ("commands see a file system that is put together before they start", True),
    "pivot_root": ("commands see a file system that is put together before they start", True),
    "chroot": ("a command keeps the root it has", True),
    "ptrace": ("a command traces no process", False),
    "perf_event_open": ("the kernel's counters are closed to commands", False),
    "io_uring_setup": ("io_uring is closed to commands", False),
    "userfaultfd": ("it is closed to commands", False),
    "bpf": ("it is closed to commands", True),
    "keyctl": ("keyrings are closed to commands", False),
    "mq_open": ("message queues are closed to commands", False),
    "syslog": ("the kernel's log is closed to commands", True),
    "clock_settime": ("the clock cannot be set", True),
    "sethostname": ("the machine's name is fixed", True),
    "netlink": ("the network's settings cannot be changed", True),
    "init_module": ("the kernel's modules cannot be changed", True),
    "swapon": ("swap is the machine's", True),
    "setuid": ("no program gains rights by being started", True),
    "capset": ("a command gains no capability", True),
    "mknod": ("a command makes no device", True),
    "socket": ("raw and packet sockets are closed to commands", True),
    "chmod": ("a file that lends its owner's rights could be run outside", False),
    "foreign ABI": ("calls of another architecture, as 32-bit programs make them, end the process", False),
}
_CLOSED_WORDS = (
    *("not permitted", "permission", "not implemented", "superuser", "must be root", "new privileges", "set groups"),
    *("trace the inferior", "bad system call", "perf_event_paranoid"),
)
_DENIED = r"(?:operation not permitted|permission denied)"
_CLOSED = r"(?:operation not permitted|permission denied|function not implemented)"
_SAID = tuple(
    (pattern(f"(?i){text}"), call)
    for text, call in (
        (rf"\bunshare(?:\(\w*\))?\b.*{_DENIED}", "unshare"),
        (rf"creat\w+ (?:a )?new (?:user )?namespace.*{_DENIED}", "unshare"),
        (r"no permissions to create (?:a )?new namespace", "unshare"),
        (rf"^nsenter: .*{_DENIED}|\bsetns\b.*{_DENIED}", "setns"),
        (rf"^(?:mount|umount|fusermount3?): .*(?:{_DENIED}|superuser|must be root)", "mount"),
        (rf"\b(?:mount|umount2?|move_mount|open_tree|fsopen)\(\).*{_DENIED}", "mount"),
        (rf"\bpivot_root\b.*{_DENIED}", "pivot_root"),
        (rf"^chroot: .*{_DENIED}", "chroot"),
        (rf"\bPTRACE_\w+\b.*{_DENIED}|\bptrace(?:\([^)]*\))?: {_DENIED}", "ptrace"),
        (rf"could not trace the inferior|\bprocess_vm_(?:readv|writev)\b.*{_DENIED}", "ptrace"),
        (rf"perf_event_open\b.*{_CLOSED}|no permission to enable .* event|perf_event_paranoid", "perf_event_open"),
        (rf"\bio_uring\w*\b.*{_CLOSED}", "io_uring_setup"),
        (rf"\buserfaultfd\b.*{_CLOSED}", "userfaultfd"),
        (rf"\bbpf(?:\(\w*\))?\b.*{_CLOSED}", "bpf"),
        (rf"\b(?:keyctl|add_key|request_key)\w*\b.*{_CLOSED}", "keyctl"),
        (rf"\bmq_open\b.*{_CLOSED}", "mq_open"),
        (rf"^dmesg: .*{_DENIED}", "syslog"),
        (rf"^(?:date: cannot set date|hwclock): .*{_DENIED}", "clock_settime"),
        (rf"^hostname: (?:you must be root|.*{_DENIED})", "sethostname"),
        (rf"^RTNETLINK answers: {_DENIED}|^(?:iptables|nft|ip6tables)\b.*(?:{_DENIED}|must be root)", "netlink"),
        (rf"^(?:insmod|modprobe|rmmod): .*{_DENIED}", "init_module"),
        (rf"^swap(?:on|off): .*{_DENIED}", "swapon"),
        (
            r"^(?:su|sudo|newgrp|pkexec|doas)\b.*(?:operation not permitted|no new privileges|cannot set groups)",
            "setuid",
        ),
        (rf"\bCAP_\w+\b.*{_DENIED}", "capset"),
        (rf"^mknod: .*{_DENIED}", "mknod"),
        (rf"^ping: .*(?:socket|SOCK_RAW).*{_DENIED}|^(?:tcpdump|nmap|arping|dumpcap): .*{_DENIED}", "socket"),
        (r"(?:^|: )(?:line \d+: +)?(?:\d+ )?bad system call\b", "foreign ABI"),
    )
)
# A change of mode that the kernel refuses to the file's own user is one of the bits that lend rights.
MODE_CHANGE = pattern(rf"(?i)(?:changing permissions of|cannot change mode|chmod).*{_DENIED}")
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


def call_in(line: str) -> str:
    """Return the closed call that a line tells of, by its name in the table, or nothing."""
    low = line.lower()
    if not any(text in low for text in _CLOSED_WORDS):
        return ""
    return next((call for said, call in _SAID if said.search(line)), "")


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
