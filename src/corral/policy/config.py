"""The owner's choices, merged and checked. A config that exists is valid; a PolicyError names the field that is not."""

from __future__ import annotations

import os

from corral._lib.records import Record, frozen
from corral.guard.rules.loader import Profile, default_denylist, default_interpreter_block, profile_named, profile_names
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any, Self

DEFAULT_MAX_OUTPUT_BYTES = 64 * 1024
DEFAULT_TIMEOUT_SECONDS = 30.0
DEFAULT_ENV_ALLOWLIST = frozenset({"PATH", "HOME", "LANG", "LC_*", "TERM", "TZ", "TMPDIR"})
BACKENDS = ("auto", "warden", "bubblewrap", "none")
DEFAULT_MEMORY_SHARE = 0.75  # of the machine; so that what else runs there goes on
DEFAULT_PROCESSES = 4096  # against a fork bomb; the largest builds and browsers stay below
DEFAULT_FREE_DISK_BYTES = 1024**3  # against a disk that is full for everybody else
MAX_SECONDS = 1e9  # thirty years; against numbers that no clock of the kernel holds
DEFAULT_CONNECTIONS = 1024  # through the proxy at a time; against a command that opens them without end
MAX_GRANTS = 1000  # of the network; each request is compared with all
MAX_SPILL_BYTES = 2**30  # of one output; against a disk full of them
QUIET_HOSTS = ("copilot", "cursor")  # they do not tell their hooks whether a person answers a question
MAX_LIMIT = 2**62  # against numbers that no limit of the kernel holds
# What a program loads code from, whatever the owner lists by pattern: only an exact name lets one of these through.
LOADER_VARIABLES = (
    "LD_", "DYLD_", "PYTHON", "BASH_", "ENV", "NODE_", "PERL", "RUBY", "GIT_", "JAVA", "_JAVA", "JDK_", "LUA_", "PHP", "PROMPT_COMMAND", "PS4",
)  # fmt: skip


def checked_root(value: object) -> str:
    """Return a project's directory through every link; PolicyError where it is none."""
    if not isinstance(value, (str, os.PathLike)):
        raise PolicyError(f"project_root must be a path, not {value!r}")
    try:
        path = os.path.realpath(os.fspath(value)) if os.fspath(value) else ""
    except (OSError, ValueError):  # a NUL, a lone surrogate, or a current directory that is gone
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


def _names(field: str, value: object) -> frozenset[str]:
    if isinstance(value, (str, bytes)):
        raise PolicyError(
            f"{field} must be a collection of names, not the single string {value!r}; write {{{value!r}}}"
        )
    try:
        names: frozenset[str] = frozenset(value)  # type: ignore[call-overload]  # what is no collection says so below
    except TypeError:
        raise PolicyError(f"{field} must be a collection of names, not {value!r}") from None
    for name in names:
        if not isinstance(name, str) or not name or "/" in name or "\0" in name or name != name.strip():
            raise PolicyError(f"{field} holds {name!r}; it takes plain names such as 'rm', without paths or spaces")
    return names


def _paths(field: str, value: object) -> tuple[str, ...]:
    try:
        paths: tuple[Any, ...] = () if isinstance(value, (str, bytes)) else tuple(value)  # type: ignore[arg-type]  # any collection is welcome
    except TypeError:
        paths = ()
    sound = all(isinstance(p, str) and p.startswith("/") and "\0" not in p and p.strip("/") for p in paths)
    if not sound or (not paths and value not in ((), [], set(), frozenset())):
        raise PolicyError(f"{field} must be a collection of absolute paths below the root, not {value!r}")
    return paths


def _network(value: object) -> str | tuple[str, ...]:
    """Return `off`, `on`, or the destinations that are granted, each in its canonical form and once."""
    if isinstance(value, str) or not isinstance(value, (list, tuple, set, frozenset)):
        if value in ("off", "on"):
            return str(value)
        raise PolicyError(
            f"containment.network must be off, on, or a list of destinations such as 'index.example:443', not {value!r}"
        )
    from corral._lib import network_grants as destinations  # noqa: PLC0415  most configs name none, and every hook would wait for it

    try:
        granted = tuple(dict.fromkeys(destinations.parse_grant(item) for item in value))
    except ValueError as error:
        raise PolicyError(f"containment.network is not right: {error}") from None
    if len(granted) > MAX_GRANTS:
        raise PolicyError(f"containment.network has more than {MAX_GRANTS} destinations")
    return granted or "off"


def _texts(field: str, value: object, form: str) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, (list, tuple, set, frozenset)):
        raise PolicyError(f"{field} must be a collection of texts, not {value!r}")
    if not value:
        return ()
    from corral._lib import network_grants as destinations  # noqa: PLC0415  as above

    canonical = getattr(destinations, form)
    try:
        return tuple(dict.fromkeys(canonical(item) for item in value))
    except ValueError as error:
        raise PolicyError(f"{field} is not right: {error}") from None


def _ports(value: object) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise PolicyError(f"containment.publish must be a collection of ports, not {value!r}")
    for port in value:
        if type(port) is not int or not 0 < port < 65536:
            raise PolicyError(f"containment.publish holds {port!r}; a port is a whole number from 1 to 65535")
    return tuple(dict.fromkeys(value))


def _positive(field: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= MAX_SECONDS:
        raise PolicyError(f"{field} must be a number above 0 and at most {MAX_SECONDS:g}, or None, not {value!r}")


def _one_of(field: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise PolicyError(f"{field} must be one of {', '.join(choices)}, not {value!r}")


@frozen
class Containment(Record):
    """How the command is held: which backend, what it reaches besides the project."""

    backend: str = "auto"
    network: str | Collection[str] = "off"  # off, on, or the destinations that are granted by name
    hosts: Collection[str] = ()  # `name=address`: where a granted name lies, instead of what the DNS says
    inject: Collection[str] = ()  # `name:port Header: value`: what the proxy adds, so that no command has to know it
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    publish: Collection[int] = ()  # ports of the sandbox's loopback that the machine's own reaches
    settings: tuple[str, ...] = ()  # an agent's own, where that agent is what runs; see agents/
    agents: Collection[str] = ()  # those that may have what their profile says, and nobody is asked
    project: str = "read-write"
    scratch: str = (
        "sandbox"  # whose /tmp and HOME are: they end with the sandbox, or last for the next one of the project
    )
    destructive: str = (
        "ask"  # what becomes of calls that cannot be taken back: as the profile says, or in a transaction
    )
    accept_partial: bool = False  # the owner's word that less than all layers will do
    ptrace: bool = True  # debuggers, on the command's own processes

    def _validate(self) -> None:
        for name in ("accept_partial", "ptrace"):
            if not isinstance(getattr(self, name), bool):
                raise PolicyError(f"containment.{name} must be True or False, not {getattr(self, name)!r}")
        _one_of("containment.backend", self.backend, BACKENDS)
        object.__setattr__(self, "network", _network(self.network))
        object.__setattr__(self, "hosts", _texts("containment.hosts", self.hosts, "host_entry"))
        object.__setattr__(self, "inject", _texts("containment.inject", self.inject, "injection"))
        _one_of("containment.project", self.project, ("read-write", "read-only"))
        _one_of("containment.scratch", self.scratch, ("sandbox", "project"))
        _one_of("containment.destructive", self.destructive, ("ask", "try"))
        object.__setattr__(self, "publish", _ports(self.publish))
        object.__setattr__(self, "agents", tuple(sorted(_names("containment.agents", self.agents))))
        for name in ("read", "write", "settings"):
            object.__setattr__(self, name, _paths(f"containment.{name}", getattr(self, name)))

    @property
    def reach(self) -> str:
        """The network in a word: off, on, or named."""
        return self.network if isinstance(self.network, str) else "named"

    @property
    def destinations(self) -> tuple[str, ...]:
        """The destinations that are granted by name; none where the network is off, or on for all."""
        return () if isinstance(self.network, str) else tuple(self.network)


@frozen
class Limits(Record):
    """Bounds on what one command and all it starts may use together; None is no bound of ours.

    `open_files` and `file_size_bytes` hold for each process and each file, `connections` and `network_bytes` for all that goes
    through the sandbox's proxy. The defaults keep the machine usable, no more.
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
        for name in self._fields:
            value = getattr(self, name)
            if name == "memory_bytes" and isinstance(value, float) and 0 < value <= 1:
                continue
            if value is not None and (
                not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_LIMIT
            ):
                share = ", or a share of the machine's memory such as 0.5" * (name == "memory_bytes")
                raise PolicyError(
                    f"limits.{name} must be a whole number from 1 to 2**62{share}, or None, not {value!r}"
                )


@frozen
class Output(Record):
    """Which part of a long output is kept, and how long silence may last."""

    keep: str = "both"
    silence_seconds: float | None = None
    drain_seconds: float = 0.2  # how long what a background child still prints is waited for after the command's end
    spill_bytes: int | None = None  # saved in the commands' /tmp of an output that is cut
    directory_file: str | None = None  # where shell text that comes to its end leaves the directory it is in then
    exports_file: str | None = None  # the same for its environment
    text_file: str | None = (
        None  # where shell text lies that is too long for an argument; it is removed when it is read
    )

    def _validate(self) -> None:
        _one_of("output.keep", self.keep, ("both", "head", "tail"))
        _positive("output.silence_seconds", self.silence_seconds)
        _positive("output.drain_seconds", self.drain_seconds)
        if self.spill_bytes is not None and (
            type(self.spill_bytes) is not int or not 0 < self.spill_bytes <= MAX_SPILL_BYTES
        ):
            raise PolicyError(
                f"output.spill_bytes must be a whole number from 1 to 2**30, or None, not {self.spill_bytes!r}"
            )
        for name in ("directory_file", "exports_file", "text_file"):
            if getattr(self, name) is not None:
                _paths(f"output.{name}", (getattr(self, name),))


@frozen
class Audit(Record):
    """What becomes of calls where the owner's log cannot be written: on the command line and in hooks, they are refused."""

    required: bool = True

    def _validate(self) -> None:
        if not isinstance(self.required, bool):
            raise PolicyError(f"audit.required must be True or False, not {self.required!r}")


@frozen
class SandboxConfig(Record):
    """The merged policy of one sandbox."""

    project_root: str = "."
    max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES
    timeout_seconds: float | None = DEFAULT_TIMEOUT_SECONDS
    denylist: Collection[str] | None = None  # None: what the profile names
    interpreter_block: Collection[str] | None = None
    profile: str | Profile = "strict"
    env_allowlist: Collection[str] = DEFAULT_ENV_ALLOWLIST
    host_questions: Collection[str] = ()  # hosts whose questions a person answers, of QUIET_HOSTS
    containment: Containment = Containment()
    limits: Limits = Limits()
    output: Output = Output()
    audit: Audit = Audit()

    def _validate(self) -> None:
        put = object.__setattr__
        put(self, "project_root", checked_root(self.project_root))
        if (
            not isinstance(self.max_output_bytes, int)
            or isinstance(self.max_output_bytes, bool)
            or self.max_output_bytes < 0
        ):
            raise PolicyError(f"max_output_bytes must be a whole number of at least 0, not {self.max_output_bytes!r}")
        _positive("timeout_seconds", self.timeout_seconds)
        put(self, "profile", _profile(self.profile))
        if self.denylist is None:
            put(self, "denylist", default_denylist(self.rules))
        else:
            put(self, "denylist", _names("denylist", self.denylist))
        if self.interpreter_block is None:
            put(self, "interpreter_block", default_interpreter_block())
        else:
            put(self, "interpreter_block", _names("interpreter_block", self.interpreter_block))
        put(self, "env_allowlist", _names("env_allowlist", self.env_allowlist))
        put(self, "host_questions", _names("host_questions", self.host_questions))
        for name in self.host_questions:
            _one_of("host_questions", name, QUIET_HOSTS)
        for name, kind in (("containment", Containment), ("limits", Limits), ("output", Output), ("audit", Audit)):
            if not isinstance(getattr(self, name), kind):
                raise PolicyError(f"{name} must be a {kind.__name__}, not {getattr(self, name)!r}")

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed; lists that the profile gave are the new profile's."""
        if "profile" in changes:
            for name, default in (
                ("denylist", default_denylist(self.rules)),
                ("interpreter_block", default_interpreter_block()),
            ):
                if getattr(self, name) == default:
                    changes.setdefault(name, None)
        return Record.replace(self, **changes)  # not super(): `frozen` makes the class anew

    @property
    def rules(self) -> Profile:
        """The profile as a record, whichever way it was named."""
        return profile_named(self.profile) if isinstance(self.profile, str) else self.profile
