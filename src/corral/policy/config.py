"""Defines the config of a sandbox. A config that exists is valid: building an invalid one raises PolicyError with the field's name."""

from __future__ import annotations

import os

from corral._lib.records import Record, frozen
from corral.guard.rules.loader import Profile, default_denylist, default_interpreter_block, profile_named, profile_names
from corral.model.errors import PolicyError
from corral.policy.settings import CONFIG_FIELDS, check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any, Self

DEFAULT_MAX_OUTPUT_BYTES = 64 * 1024
DEFAULT_TIMEOUT_SECONDS = 30.0
DEFAULT_ENV_ALLOWLIST = frozenset({"PATH", "HOME", "LANG", "LC_*", "TERM", "TZ", "TMPDIR"})
DEFAULT_MEMORY_SHARE = 0.75  # of the machine's memory, so that other programs keep running
DEFAULT_PROCESSES = 4096  # against a fork bomb; the largest builds and browsers stay below
DEFAULT_FREE_DISK_BYTES = 1024**3  # against a full disk
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
    inject: Collection[str] = ()  # `name:port Header: value`: a header that the proxy adds, which no command can read
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    publish: Collection[int] = ()  # ports on the sandbox's loopback that the host can connect to
    settings: tuple[str, ...] = ()  # settings directories of an agent that runs in the sandbox; see agents/
    agents: Collection[str] = ()  # agents that get the grants of their profile without a question
    project: str = "read-write"
    scratch: str = "sandbox"  # /tmp and HOME are removed with the sandbox, or kept for the project's next sandbox
    destructive: str = "ask"  # calls that cannot be undone follow the profile, or run in a transaction
    accept_partial: bool = False  # the user accepts that some layers are missing
    ptrace: bool = True  # debuggers may attach to the command's own processes

    def _validate(self) -> None:
        _check_fields(self, "containment")

    @property
    def reach(self) -> str:
        """The network in one word: off, on, or named."""
        return self.network if isinstance(self.network, str) else "named"

    @property
    def destinations(self) -> tuple[str, ...]:
        """The destinations that are granted by name; empty where the network is off or on."""
        return () if isinstance(self.network, str) else tuple(self.network)


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
class SandboxConfig(Record):
    """The merged policy of one sandbox."""

    project_root: str = "."
    max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES
    timeout_seconds: float | None = DEFAULT_TIMEOUT_SECONDS
    denylist: Collection[str] | None = None  # None: the profile's
    interpreter_block: Collection[str] | None = None
    profile: str | Profile = "strict"
    env_allowlist: Collection[str] = DEFAULT_ENV_ALLOWLIST
    host_questions: Collection[str] = ()  # hosts whose questions the user answers, of QUIET_HOSTS
    containment: Containment = Containment()
    limits: Limits = Limits()
    output: Output = Output()
    audit: Audit = Audit()

    def _validate(self) -> None:
        put = object.__setattr__
        put(self, "project_root", checked_root(self.project_root))
        put(self, "profile", _profile(self.profile))
        has_default = {"denylist": self.denylist is None, "interpreters": self.interpreter_block is None}
        if self.denylist is None:
            put(self, "denylist", default_denylist(self.rules))
        if self.interpreter_block is None:
            put(self, "interpreter_block", default_interpreter_block())
        for key in ("max_output_bytes", "timeout_seconds", "denylist", "interpreters", "environment", "host_questions"):
            name = CONFIG_FIELDS.get(key, key)
            if not has_default.get(key):
                put(self, name, check(key, getattr(self, name), name=name))
        for name, kind in (("containment", Containment), ("limits", Limits), ("output", Output), ("audit", Audit)):
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

    @property
    def rules(self) -> Profile:
        """The profile as a record."""
        return profile_named(self.profile) if isinstance(self.profile, str) else self.profile
