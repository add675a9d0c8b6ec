"""Tables of the messages that programs print when the kernel refuses a system call, a host or a path.

This only reads text. `visibility` decides whether the sandbox caused the refusal.
"""

from __future__ import annotations

from corral._lib.lazy_regex import pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

# In lower case, which Go and Node use.
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
    "dns resolution failed",
)
ADDRESS_TAKEN = ("address already in use", "eaddrinuse", "address in use")
NOT_ANSWERED = (
    "connection refused",
    "econnrefused",
    "couldn't connect to server",
    "could not connect to server",
    "can't connect to",
    " refused. ",
)
NO_FAMILY = "address family not supported"
# Output without any of these is not examined further.
TRIGGERS = tuple(
    text.encode()
    for text in (
        *(
            *REFUSALS,
            *NO_NETWORK,
            *ADDRESS_TAKEN,
            *NOT_ANSWERED,
            NO_FAMILY,
            "bad system call",
            "superuser",
            "must be root",
            "docker daemon",
        ),
        *("permission to", "permissions to", "no new privileges", "function not implemented", "could not trace"),
    )
)
# System calls that are closed to commands: the reason, and whether only root may use them outside the sandbox too.
CALLS = {
    "unshare": ("commands cannot create namespaces", False),
    "setns": ("commands cannot enter other namespaces", True),
    "mount": ("commands cannot change mounts", True),
    "pivot_root": ("commands cannot change mounts", True),
    "chroot": ("commands cannot change their root directory", True),
    "ptrace": ("commands cannot trace processes", False),
    "perf_event_open": ("performance counters are closed to commands", False),
    "io_uring_setup": ("io_uring is closed to commands", False),
    "userfaultfd": ("userfaultfd is closed to commands", False),
    "bpf": ("bpf is closed to commands", True),
    "keyctl": ("kernel keyrings are closed to commands", False),
    "mq_open": ("message queues are closed to commands", False),
    "syslog": ("the kernel log is closed to commands", True),
    "clock_settime": ("commands cannot set the clock", True),
    "sethostname": ("commands cannot set the host name", True),
    "netlink": ("commands cannot change network settings", True),
    "init_module": ("commands cannot load or unload kernel modules", True),
    "swapon": ("commands cannot change swap", True),
    "setuid": ("set-user-ID programs gain no privileges in the sandbox", True),
    "capset": ("commands cannot gain capabilities", True),
    "mknod": ("commands cannot create devices", True),
    "socket": ("raw and packet sockets are closed to commands", True),
    "chmod": ("another user could run a set-user-ID file outside the sandbox", False),
    "foreign ABI": ("system calls of another architecture, such as those of 32-bit programs, end the process", False),
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
# If the kernel refuses a mode change to the file's owner, the mode has a set-user-ID or set-group-ID bit.
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
        rf"DNS resolution failed for {_HOST}",
        rf"could not translate host name [‘'\"]{_HOST}",
        rf"bad address [‘'\"]{_HOST}",
        rf"getaddrinfo (?:EAI_AGAIN|ENOTFOUND) {_HOST}",
        rf"UnknownHostException: {_HOST}",
        rf"connect E(?:NETUNREACH|CONNREFUSED) {_HOST}",
        rf"connect to (?:host )?{_HOST}(?: \([^)]*\))? port (\d+)",
        rf"failed to connect to {_HOST}()",
        rf"connection to server at \"{_HOST}\"(?: \([^)]*\))?, port (\d+)",
        rf"could not connect to \w+ at {_HOST}",
        rf"can't connect to [\w ]+ on ['\"]{_HOST}",
        rf"connection to {_HOST} refused",
        r"connecting to ([\w.-]+) \([^)]*\)\|[^|]*\|:(\d+)",
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
_LOCAL_PORT = pattern(
    r"(?i)(?<![\w.])(?:localhost|127\.0\.0\.1|::1)['\"\]|]?(?: \([0-9a-f.:]+\))?(?::|,? port:? )['\"]?(\d{1,5})\b"
)
_NUMBER = pattern(r"(?<![\w.])\d{1,5}(?![\w.])|(?<=:)\d{1,5}\b")
_QUOTED = pattern(r"(?<!\w)['\"`]([^'\"`]+)['\"`]|[‘“]([^’”]+)[’”]")
_NOISE = pattern(r"(?i)\[Errno \d+\]|\(os error \d+\)|\bat \S+ line \d+\.?|line \d+$| \([a-z -]+\)$")


def refusal_in(line: str) -> str:
    """Return the errno name that a line reports, or ""."""
    low = line.lower()
    return next((name for text, name in REFUSALS.items() if text in low), "")


def call_in(line: str) -> str:
    """Return the key in CALLS of the system call that a line reports as refused, or ""."""
    low = line.lower()
    if not any(text in low for text in _CLOSED_WORDS):
        return ""
    return next((call for said, call in _SAID if said.search(line)), "")


def has_no_network(line: str) -> bool:
    """Say whether a line reports a missing network, and not a server that does not answer."""
    low = line.lower()
    if not any(text in low for text in NO_NETWORK):
        return False
    if "connection refused" in low and "lookup" not in low:
        return False
    if "failed to connect to" in low or "bad address" in low:
        # A name that was resolved is on loopback, because the sandbox has no resolver. "bad address" can also mean EFAULT.
        return "bad address '" in low or bool(_ADDRESS.match(_without_port(host_in(line))))
    return True


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def is_loopback(host: str) -> bool:
    """Say whether a host is on loopback."""
    return bool(_LOOPBACK.match(_without_port(host)))


def host_in(line: str) -> str:
    """Return the host that a line names, with its port if the line has one, or ""."""
    for said in HOSTS:
        found = said.search(line)
        if found:
            host, *port = (part.strip("[]") for part in found.groups() if part)
            return ":".join((f"[{host}]" if ":" in host and port else host, *port))
    return ""


def unanswered_host_in(line: str) -> str:
    """Return the host and port at which no server answered, as a line reports it, or ""."""
    return host_in(line) if any(text in line.lower() for text in NOT_ANSWERED) else ""


def local_port_in(line: str) -> int:
    """Return the port of loopback at which no server answered, as a line reports it, or 0."""
    if not any(text in line.lower() for text in NOT_ANSWERED):
        return 0
    found = _LOCAL_PORT.search(line)
    return int(found[1]) if found else 0


def taken_port_in(line: str, ports: Collection[int]) -> int | None:
    """Return which of some ports a line reports as taken; 0 if it reports one without a number, and None if it reports none."""
    if not any(text in line.lower() for text in ADDRESS_TAKEN):
        return None
    numbers = [int(found[0]) for found in _NUMBER.finditer(line)]
    named = [port for port in ports if port in numbers]
    if named:
        return named[0]
    return 0 if not any(number >= 1024 for number in numbers) else None


def paths_in(line: str) -> Iterator[str]:
    """Yield the words of a line that could be a path, the likeliest first: quoted ones, then from the error backwards."""
    for found in _QUOTED.finditer(line):
        yield found[1] or found[2]
    segments = [segment.strip() for segment in _NOISE.sub("", line).split(": ")]
    # The first segment is usually the program's name, such as /usr/bin/ld, so it comes last.
    for segment in [*reversed(segments[1:]), segments[0]]:
        words = [word.strip("'\"`()[],;:‘’“”") for word in segment.split()]
        if segment.startswith("/"):
            yield segment.rstrip(":.")
        yield from (word for word in reversed(words) if "/" in word)
        if len(words) == 1:
            yield words[0]
