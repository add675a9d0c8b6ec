"""Defines the config of a sandbox. A config that exists is valid: building an invalid one raises PolicyError with the field's name."""

from __future__ import annotations

import os

from corral._lib.records import Record, frozen
from corral.guard.rules.loader import Profile, default_denylist, default_interpreter_block, profile_named, profile_names
from corral.model.errors import PolicyError
from corral.policy.settings import CONFIG_FIELDS, check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import Any, Self

    from corral.model.grant import Grant
    from corral.policy.answers.family_grants import PolicyGrant

DEFAULT_MAX_OUTPUT_BYTES = 64 * 1024
DEFAULT_HOLD_SECONDS = 45  # of the command line; pip, go, npm, curl, git and cargo wait for at least a minute
DEFAULT_TIMEOUT_SECONDS = 30.0
DEFAULT_ENV_ALLOWLIST = frozenset({"PATH", "HOME", "LANG", "LC_*", "TERM", "TZ", "TMPDIR"})
DEFAULT_MEMORY_SHARE = 0.75  # of the machine's memory, so that other programs keep running
DEFAULT_PROCESSES = 4096  # against a fork bomb; the largest builds and browsers stay below
DEFAULT_FREE_DISK_BYTES = 1024**3  # against a full disk
DEFAULT_FREE_INODES = 100_000  # against a disk that can hold no more files
DEFAULT_CONNECTIONS = 1024  # through the proxy at the same time, against a command that opens them without end
# Prefixes of variables from which programs load code. A pattern in `env_allowlist` does not match them; only their exact name does.
LOADER_VARIABLES = (
    "LD_", "DYLD_", "PYTHON", "BASH_", "ENV", "NODE_", "PERL", "RUBY", "GIT_", "JAVA", "_JAVA", "JDK_", "LUA_", "PHP", "PROMPT_COMMAND", "PS4",
)  # fmt: skip


def checked_root(value: object) -> str:
    """Return the real path of a project's directory. Raise PolicyError where there is no such directory."""
    if not isinstance(value, (str, os.PathLike)):
        raise PolicyError(f"project_root must be a path, not {value!r}")
    try:
        path = os.path.realpath(os.fspath(value)) if os.fspath(value) else ""
    except (OSError, ValueError):  # a NUL, a lone surrogate, or a deleted current directory
        path = ""
    if not isinstance(path, str) or not os.path.isdir(path):
        raise PolicyError(f"project_root {value!r} is not an existing directory; create it first or name another")
    if path == "/":
        raise PolicyError("project_root must not be the file system's root: everything would be inside the project")
    return path


def _profile(value: object) -> str | Profile:
    if isinstance(value, Profile):
        known = profile_named("strict")
        if set(value.effects) != set(known.effects) or set(value.groups) != set(known.groups):
            raise PolicyError(
                "profile must decide every effect and group; make it with corral.guard.rules.loader.parse_profile"
            )
        return value
    if not isinstance(value, str) or value not in profile_names():
        raise PolicyError(f"profile {value!r} is unknown; choose one of {', '.join(profile_names())} or pass a Profile")
    return value


def _check_fields(record: Record, table: str) -> None:
    for name in record._fields:
        object.__setattr__(record, name, check(f"{table}.{name}", getattr(record, name)))


@frozen
class Containment(Record):
    """The confinement of a command, and its access to paths and network besides the project."""

    backend: str = "auto"
    network: str | Collection[str] = "off"  # off, on, or a list of destinations
    hosts: Collection[str] = ()  # `name=address`: the address of a granted name, used instead of the DNS
    local: Collection[int] = ()  # ports of the host's loopback: inside, 127.0.0.1:PORT is the host's
    inject: Collection[
        str
    ] = ()  # `name:port Header: value`: a header that the proxy adds, to one path or to all, which no command can read
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    publish: Collection[int] = ()  # ports on the sandbox's loopback that the host can connect to
    broker: str = ""  # the host's directory with the socket and the stubs of a broker, shown at /run/corral
    listings: str = ""  # the host's directory with the copies of listed directories, which `grants` name
    credentials: tuple[
        str, ...
    ] = ()  # files that only the broker's box for one program sees; see path_grants.box_credentials
    requests: tuple[
        str, ...
    ] = ()  # `name:port METHOD /path`: single requests that the proxy lets through, besides the network
    sent_bytes: int | None = None  # of a call that may only download: bytes that it may send through the proxy
    settings: tuple[str, ...] = ()  # settings directories of an agent that runs in the sandbox; see agents/
    agents: Collection[str] = ()  # agents that get the grants of their profile without a question
    project: str = "read-write"
    scratch: str = "sandbox"  # /tmp and HOME are removed with the sandbox, or kept for the project's next sandbox
    destructive: str = "ask"  # calls that cannot be undone follow the profile, or run in a transaction
    accept_partial: bool = False  # the user accepts that some layers are missing
    ptrace: bool = True  # debuggers may attach to the command's own processes
    unsigned_commits: str = "report"  # where the user's git signs commits, and no key signs for commands

    def _validate(self) -> None:
        _check_fields(self, "containment")
        for port in self.publish:
            if self.local and port in self.local:
                raise PolicyError(
                    f"port {port} is in containment.local and in containment.publish; it can go one way only"
                )

    @property
    def reach(self) -> str:
        """The network in one word: off, on, or named."""
        return self.network if isinstance(self.network, str) else "named"

    @property
    def destinations(self) -> tuple[str, ...]:
        """The destinations that are granted by name; empty where the network is off or on."""
        return () if isinstance(self.network, str) else tuple(self.network)

    @property
    def local_ports(self) -> tuple[int, ...]:
        """The ports of the host's loopback that are granted, also as `127.0.0.1:PORT` in `network`."""
        if not self.local and isinstance(self.network, str):
            return ()
        from corral._lib.network.local_ports import loopback_ports  # noqa: PLC0415  most configs have none

        found = () if self.network == "on" else (*self.local, *loopback_ports(self.destinations))
        return tuple(port for port in dict.fromkeys(found) if port not in self.publish)


@frozen
class Limits(Record):
    """Limits on one command and all processes it starts, together. None means no limit.

    `open_files` applies to each process and `file_size_bytes` to each file; `connections` and `network_bytes` apply to the
    sandbox's proxy. The defaults only keep the machine usable.
    """

    cpu_seconds: int | None = None
    memory_bytes: int | float | None = DEFAULT_MEMORY_SHARE
    processes: int | None = DEFAULT_PROCESSES
    open_files: int | None = None
    file_size_bytes: int | None = None
    disk_bytes: int | None = None
    free_disk_bytes: int | None = DEFAULT_FREE_DISK_BYTES
    free_inodes: int | None = DEFAULT_FREE_INODES
    connections: int | None = DEFAULT_CONNECTIONS
    network_bytes: int | None = None

    def _validate(self) -> None:
        _check_fields(self, "limits")


@frozen
class Output(Record):
    """Which part of a long output is kept, and for how long a command may be silent."""

    keep: str = "both"
    silence_seconds: float | None = None
    drain_seconds: float = 0.2  # time to wait for output of background processes after the command has ended
    spill_bytes: int | None = None  # bytes of a truncated output that are saved in the commands' /tmp
    directory_file: str | None = None  # shell text writes its last working directory here
    exports_file: str | None = None  # shell text writes its last environment here
    exported: Collection[
        str
    ] = ()  # variables that earlier commands exported; commands receive them, besides the allowlist
    text_file: str | None = None  # holds shell text that is too long for an argument; it is removed once it is read

    def _validate(self) -> None:
        _check_fields(self, "output")


@frozen
class Audit(Record):
    """`required`: the command line and hooks refuse calls while the audit log cannot be written."""

    required: bool = True

    def _validate(self) -> None:
        _check_fields(self, "audit")


@frozen
class Asking(Record):
    """`hold_seconds`: how long a connection to a destination that is not granted waits for `on_hold`; 0 refuses it at once."""

    hold_seconds: int = 0

    def _validate(self) -> None:
        _check_fields(self, "asking")


@frozen
class SandboxConfig(Record):
    """The merged policy of one sandbox."""

    project_root: str = "."
    max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES
    timeout_seconds: float | None = DEFAULT_TIMEOUT_SECONDS
    denylist: Collection[str] | None = None  # None: the profile's
    interpreter_block: Collection[str] | None = None
    profile: str | Profile = "strict"
    posture: str = "locked"  # which grants are given or asked about, where the kernel contains the command
    env_allowlist: Collection[str] = DEFAULT_ENV_ALLOWLIST
    host_questions: Collection[str] = ()  # hosts whose prompt may answer, of ASKING_HOSTS
    sessions: bool = False  # whether hooks run an agent's commands in a session
    publish: Collection[int] = ()  # ports that each session publishes
    signing_keys: tuple[str, ...] = ()  # of SSH or gpg, that sign the commits and tags of commands
    containment: Containment = Containment()
    limits: Limits = Limits()
    output: Output = Output()
    audit: Audit = Audit()
    asking: Asking = Asking()
    grants: tuple[Grant, ...] = ()  # the openings of a single call; see `with_grants`
    policy_grants: tuple[PolicyGrant, ...] = ()  # the [[grant]] entries of the user's own policy

    def _validate(self) -> None:
        put = object.__setattr__
        put(self, "project_root", checked_root(self.project_root))
        put(self, "profile", _profile(self.profile))
        has_default = {"denylist": self.denylist is None, "interpreters": self.interpreter_block is None}
        if self.denylist is None:
            put(self, "denylist", default_denylist(self.rules))
        if self.interpreter_block is None:
            put(self, "interpreter_block", default_interpreter_block())
        for key in (
            "posture",
            "max_output_bytes",
            "timeout_seconds",
            "denylist",
            "interpreters",
            "environment",
            "host_questions",
            "sessions",
            "publish",
            "signing_keys",
        ):
            name = CONFIG_FIELDS.get(key, key)
            if not has_default.get(key):
                put(self, name, check(key, getattr(self, name), name=name))
        for name, kind in (
            ("containment", Containment),
            ("limits", Limits),
            ("output", Output),
            ("audit", Audit),
            ("asking", Asking),
        ):
            if not isinstance(getattr(self, name), kind):
                raise PolicyError(f"{name} must be an instance of {kind.__name__}, not {getattr(self, name)!r}")

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed. Lists that came from the old profile come from the new one."""
        if "profile" in changes:
            for name, default in (
                ("denylist", default_denylist(self.rules)),
                ("interpreter_block", default_interpreter_block()),
            ):
                if getattr(self, name) == default:
                    changes.setdefault(name, None)
        return Record.replace(self, **changes)  # not super(): the metaclass rebuilds the class

    def with_grants(self, grants: Iterable[Grant]) -> Self:
        """Return the config of a single call that also gets these openings. Raise PolicyError for one that is never given."""
        from corral.model.grant import CREATE, LOCAL, NETWORK, PUBLISH, READ, WRITE, unique_grants  # noqa: PLC0415  most calls need none

        given = unique_grants((*self.grants, *grants))
        targets = {
            kind: [grant.target for grant in given if grant.kind == kind]
            for kind in (NETWORK, READ, WRITE, CREATE, LOCAL, PUBLISH)
        }
        targets[WRITE] += targets[CREATE]
        if targets[READ] or targets[WRITE]:
            from corral.policy.path_grants import refuse_path  # noqa: PLC0415  most calls need no path

            for verb in (READ, WRITE):
                for path in targets[verb]:
                    refuse_path(verb, path, self.project_root, os.environ)
        now = self.containment
        changes: dict[str, Any] = {
            "read": tuple(dict.fromkeys((*now.read, *targets[READ]))),
            "write": tuple(dict.fromkeys((*now.write, *targets[WRITE]))),
            "local": tuple(dict.fromkeys((*now.local, *map(int, targets[LOCAL])))),
            "publish": tuple(dict.fromkeys((*now.publish, *map(int, targets[PUBLISH])))),
        }
        if targets[NETWORK] and now.network != "on":
            changes["network"] = tuple(dict.fromkeys((*now.destinations, *targets[NETWORK])))
        return self.replace(grants=given, containment=now.replace(**changes))

    @property
    def opens(self) -> bool:
        """True if openings can be given or asked about: the posture allows it, and the kernel contains the command."""
        return self.posture != "locked" and self.rules.needs_containment and self.containment.backend != "none"

    @property
    def rules(self) -> Profile:
        """The profile as a record."""
        return profile_named(self.profile) if isinstance(self.profile, str) else self.profile
