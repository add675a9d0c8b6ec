"""Defines every setting of a config and of a policy file: the values it takes, which value is tighter, and its meaning.

The config, the parser, the merge, the published schema and the documentation read this table.
"""

from __future__ import annotations

from corral.guard.rules.loader import hosts
from corral.model.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DECISIONS = ("allow", "ask", "deny")  # from loose to tight
TABLES = ("containment", "limits", "output", "audit", "asking")
DECISION_TABLES = ("effects", "groups")  # tables that give a decision to effects and groups of the built-in rules
LIST_KINDS = ("names", "patterns", "paths", "keys", "hosts", "headers", "agents", "ports")
BACKENDS = ("auto", "warden", "bubblewrap", "none")
# Hosts that can ask. Some of them do not tell their hooks whether a person answers.
ASKING_HOSTS = tuple(name for name, host in hosts().items() if host["questions"] != "nobody")
DEFAULT_PROFILE = "workspace"  # of the command line and hooks, where no file names one
DEFAULT_POSTURE = "balanced"  # likewise, where a person can answer
MAX_FILE_BYTES = 256 * 1024  # of a policy file
MAX_SECONDS = 1e9  # thirty years; against numbers that no clock of the kernel holds
MAX_LIMIT = 2**62  # against numbers that no limit of the kernel holds
MAX_SPILL_BYTES = 2**30  # of one output, against a disk full of saved output
MAX_HOLD_SECONDS = 1024  # most programs have given up long before
MAX_GRANTS = 1000  # network destinations; the proxy compares each request with all of them
NEEDS_BACKEND = "only runs confined commands, and backend is 'none'; set profile = 'strict', or another backend"
GPG_KEY = "gpg:"  # before the fingerprint of a key
_FINGERPRINT_DIGITS = (40, 64)
_NAME_KINDS = ("names", "patterns", "agents")
_ITEMS = {
    "names": "names",
    "patterns": "names",
    "agents": "names such as 'claude'",
    "paths": "absolute paths below /",
    "keys": "absolute paths below /, or gpg: and a fingerprint",
    "ports": "port numbers",
    "hosts": "texts such as 'index.example=192.0.2.1'",
    "headers": "texts such as 'index.example:443 Name: value'",
    "network": "destinations such as 'index.example:443'",
    "requests": "texts such as 'index.example:443 GET /path'",
}


class SettingSpec:
    """A setting. `tighter` says which values an untrusted file may set, given the present value.

    rank     `choices` are ordered from loose to tight; only a trusted file replaces one of `equal` by another of them
    lower    a smaller number; 0 is no limit, the loosest
    higher   a larger number; 0 is no limit, the loosest
    less     a smaller number; 0 is nothing, the tightest
    adds     a list of refusals; every file may add to it
    grants   a list of permissions; only a trusted file adds to it
    network  off is tighter than everything else, and a shorter list of destinations than a longer one
    owner    a list that only the user's own file may have; in a project's file it is an error, trusted or not
    free     no value is looser than another
    """

    __slots__ = ("choices", "description", "equal", "is_optional", "kind", "max", "min", "tighter")

    # Not a record: compiling the constructor of one takes longer than the hook may spend here.
    def __init__(
        self,
        kind: str,  # choice, switch, whole, share, seconds, network, ports, file, directory, requests, or one of LIST_KINDS
        tighter: str = "",
        description: str = "",
        choices: tuple[Any, ...] = (),
        equal: tuple[Any, ...] = (),
        *,
        min: int = 1,  # noqa: A002  of a whole number
        max: float = MAX_LIMIT,  # noqa: A002
        is_optional: bool = False,  # None in a config, 0 in a file: no limit
    ) -> None:
        self.kind = kind
        self.tighter = tighter
        self.description = description
        self.choices = choices
        self.equal = equal
        self.min = min
        self.max = MAX_SECONDS if kind == "seconds" else max
        self.is_optional = is_optional

    @property
    def takes_zero(self) -> bool:
        """Return whether a file may set it to 0."""
        return self.is_optional or self.min == 0


def _limit(description: str, tighter: str = "lower", kind: str = "whole") -> SettingSpec:
    return SettingSpec(kind, tighter, description, is_optional=True)


SETTINGS = {
    "profile": SettingSpec("choice", "rank", "The profile that the other settings change.", ("workspace", "strict")),
    "posture": SettingSpec(
        "choice", "rank", "Which bounded openings of the sandbox are given or asked about. It has no effect under strict.", ("open", "balanced", "locked")
    ),
    "timeout_seconds": _limit("Wall-clock time of a command; 0 is no limit.", kind="seconds"),
    "max_output_bytes": SettingSpec("whole", "less", "Bytes of each output that the result keeps.", min=0),
    "denylist": SettingSpec("names", "adds", "Programs that are refused by name, in addition to those of the profile."),
    "interpreters": SettingSpec("names", "adds", "Programs whose -c or -e option takes code, besides the built-in ones."),
    "environment": SettingSpec("patterns", "grants", "Variables that commands see, besides PATH and similar; * at the end matches any suffix."),
    "host_questions": SettingSpec(
        "names", "owner",
        "Hosts whose own prompt may answer corral's questions: about openings, and every question of a host that does not say whether a person "
        "answers. Only your own policy file may set this.",
        ASKING_HOSTS,
    ),
    "sessions": SettingSpec(
        "switch", "owner",
        "Run the commands of an agent in a session: one sandbox for all of them, instead of one for each. Only your own policy file may set this.",
        (True, False),
    ),
    "publish": SettingSpec(
        "ports", "grants", "Ports that each session publishes on this machine's loopback, for the user's browser: inside PORT, outside 127.0.0.1:PORT.",
    ),
    "signing_keys": SettingSpec(
        "keys", "owner",
        "Keys with which corral signs the commits and tags of commands: the path of an SSH key, or gpg: and the fingerprint of a gpg key. The first "
        "one is used if git names no other. Only your own policy file may set this.",
    ),
    "containment.backend": SettingSpec(
        "choice", "rank", "The program that confines commands.", ("none", "auto", "warden", "bubblewrap"), ("auto", "warden", "bubblewrap")
    ),
    "containment.network": SettingSpec("network", "network", "The network: everything, nothing, or the listed destinations.", ("on", "off")),
    "containment.hosts": SettingSpec("hosts", "grants", "Addresses of granted names, as name=address, used instead of the DNS."),
    "containment.local": SettingSpec(
        "ports", "grants", "Ports of this machine's loopback that commands reach as their own: inside, 127.0.0.1:PORT is this machine's.",
    ),
    "containment.inject": SettingSpec(
        "headers", "grants", "Headers that the proxy adds to plain HTTP, as name:port[/path] Header: value. ${NAME} is a variable of the user's environment."
    ),
    "containment.agents": SettingSpec("agents", "grants", "Agents that may run in a sandbox with the grants of their profile, without a question."),
    "containment.read": SettingSpec("paths", "grants", "Paths that commands may read, besides the project and the system."),
    "containment.write": SettingSpec("paths", "grants", "Paths that commands may write, besides the project."),
    "containment.project": SettingSpec("choice", "rank", "Whether commands may change the project.", ("read-write", "read-only")),
    "containment.scratch": SettingSpec(
        "choice", "rank", "Which commands share /tmp and HOME: all of the project (HOME only with the same grants), or those of one sandbox.",
        ("project", "sandbox"),
    ),
    "containment.destructive": SettingSpec(
        "choice", "rank", "How calls that cannot be undone are handled: ask first, or try them in a transaction whose changes the user reviews.",
        ("try", "ask"),
    ),
    "containment.accept_partial": SettingSpec("switch", "rank", "Run commands although the kernel lacks some layers.", (True, False)),
    "containment.ptrace": SettingSpec("switch", "rank", "Let debuggers attach to the command's own processes.", (True, False)),
    "containment.unsigned_commits": SettingSpec(
        "choice", "rank", "Commits of commands where your git signs yours and no key signs for commands: made unsigned and reported, or refused.",
        ("report", "refuse"),
    ),
    "limits.cpu_seconds": _limit("Processor time of a command and all processes it starts."),
    "limits.memory_bytes": _limit("Memory of a command and all processes it starts; 0.5 is half of the machine's memory.", kind="share"),
    "limits.processes": _limit("Processes and threads that exist at the same time."),
    "limits.open_files": _limit("Open files of each process."),
    "limits.file_size_bytes": _limit("Size of each file that a command writes."),
    "limits.disk_bytes": _limit("Disk space that a command may fill."),
    "limits.free_disk_bytes": _limit("Disk space that must stay free.", "higher"),
    "limits.free_inodes": _limit("Inodes that must stay free: each file and directory takes one.", "higher"),
    "limits.connections": _limit("Connections through the proxy at the same time."),
    "limits.network_bytes": _limit("Bytes through the proxy, in both directions."),
    "output.keep": SettingSpec("choice", "free", "The part of a long output that the result keeps.", ("both", "head", "tail")),
    "output.silence_seconds": _limit("Time for which a command may print nothing; 0 is no limit.", kind="seconds"),
    "output.drain_seconds": SettingSpec("seconds", "lower", "Time that corral waits for output of background processes after the command has ended."),
    "output.spill_bytes": SettingSpec(
        "whole", "less", "Bytes of a truncated output that are saved in the commands' /tmp; 0 saves nothing.", max=MAX_SPILL_BYTES, is_optional=True
    ),
    "audit.required": SettingSpec("switch", "rank", "Refuse calls that cannot be written to the audit log.", (False, True)),
    "asking.hold_seconds": SettingSpec(
        "whole", "less", "Seconds for which a connection to a destination that is not granted waits while you are asked; 0 refuses it at once.",
        min=0, max=MAX_HOLD_SECONDS,
    ),
}  # fmt: skip
# A file cannot set these: they belong to a single call.
CALL_SETTINGS = {
    "containment.settings": SettingSpec("paths"),
    "containment.publish": SettingSpec("ports"),
    "containment.broker": SettingSpec("directory"),
    "containment.listings": SettingSpec("directory"),
    "containment.credentials": SettingSpec("paths"),
    "containment.requests": SettingSpec("requests"),
    "containment.sent_bytes": SettingSpec("whole", is_optional=True),
    "output.directory_file": SettingSpec("file", is_optional=True),
    "output.exports_file": SettingSpec("file", is_optional=True),
    "output.exported": SettingSpec("names"),
    "output.text_file": SettingSpec("file", is_optional=True),
}
CONFIG_FIELDS = {"interpreters": "interpreter_block", "environment": "env_allowlist"}  # fields with another name


def check(key: str, value: Any, *, name: str = "", none: str = "None") -> Any:
    """Return the canonical form of a config's value. Raise PolicyError where it is invalid; `name` is the field's name there."""
    spec = SETTINGS.get(key) or CALL_SETTINGS[key]
    kind, name = spec.kind, name or key
    if (value is None and spec.is_optional) or (
        value == () and kind in ("paths", "keys", "hosts", "headers", "ports", "agents", "requests")
    ):
        return value
    if kind in ("choice", "switch"):
        check_choice(name, value, spec.choices)
        return value
    if kind in ("whole", "share", "seconds"):
        return _check_number(name, spec, value, none)
    if kind in ("file", "directory"):
        return value if value == "" and kind == "directory" else check_item(key, value)
    if kind == "network" and isinstance(value, str) and value in spec.choices:
        return value
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise PolicyError(f"{name} must be {list_of(kind)}, not {value!r}")
    items = tuple(value)
    if kind not in _NAME_KINDS or spec.choices or not _are_plain_names(items):
        items = tuple(dict.fromkeys([check_item(key, item, name) for item in items]))
    if kind == "network":
        if len(items) > MAX_GRANTS:
            raise PolicyError(f"{name} has more than {MAX_GRANTS} destinations")
        return items or "off"
    if kind == "agents":
        return tuple(sorted(items))
    return frozenset(items) if kind in ("names", "patterns") else items


def list_of(kind: str) -> str:
    """Return a description of the lists that a kind of setting takes."""
    return f"{'on, off, or ' if kind == 'network' else ''}a list of {_ITEMS[kind]}"


def check_item(key: str, item: Any, name: str = "") -> Any:
    """Return the canonical form of one item of a list. Raise PolicyError where it is invalid."""
    spec = SETTINGS.get(key) or CALL_SETTINGS[key]
    kind, name = spec.kind, name or key
    if kind == "requests":
        from corral._lib.network.request_grants import request_grant  # noqa: PLC0415  only calls with a transport have one

        try:
            return request_grant(item)
        except ValueError as error:
            raise PolicyError(f"{name}: {error}") from None
    if kind in ("network", "hosts", "headers"):
        from corral._lib.network import network_grants  # noqa: PLC0415  most configs have none

        parsers = {
            "network": network_grants.parse_grant,
            "hosts": network_grants.host_entry,
            "headers": network_grants.injection,
        }
        try:
            made = parsers[kind](item)
            if kind == "network":
                from corral._lib.network.local_ports import check_destination  # noqa: PLC0415  as above

                check_destination(made)
        except ValueError as error:
            raise PolicyError(f"{name}: {error}") from None
        return made
    if spec.choices:
        check_choice(name, item, spec.choices)
    elif kind == "ports":
        if type(item) is not int or not 0 < item < 65536:
            raise PolicyError(f"{name} contains {item!r}; a port is a whole number from 1 to 65535")
        if key == "containment.local":
            _check_local(name, item)
    elif kind == "keys" and isinstance(item, str) and item.startswith(GPG_KEY):
        # The whole fingerprint: other keys can be made with the same last digits.
        if len(item) - len(GPG_KEY) not in _FINGERPRINT_DIGITS or item[len(GPG_KEY) :].strip("0123456789ABCDEFabcdef"):
            raise PolicyError(
                f"{name} contains {item!r}; it takes the whole fingerprint, as gpg --list-secret-keys prints it"
            )
    elif kind in ("paths", "keys", "file", "directory"):
        if not isinstance(item, str) or not item.startswith("/") or "\0" in item or not item.strip("/"):
            raise PolicyError(f"{name} contains {item!r}; it takes {_ITEMS['keys' if kind == 'keys' else 'paths']}")
    elif not _are_plain_names((item,)):
        raise PolicyError(f"{name} contains {item!r}; it takes plain names such as 'rm', without paths or spaces")
    return item


def _check_local(name: str, port: int) -> None:
    from corral._lib.network.local_ports import check_port  # noqa: PLC0415  most configs have none

    try:
        check_port(port)
    except ValueError as error:
        raise PolicyError(f"{name}: {error}") from None


def _are_plain_names(items: tuple[Any, ...]) -> bool:
    # All at once: a denylist has hundreds of names, and every change of a config checks it.
    if not set(map(type, items)) <= {str} and not all(isinstance(item, str) for item in items):
        return False
    text = "".join(items)
    return "" not in items and "/" not in text and "\0" not in text and list(map(str.strip, items)) == list(items)


def check_choice(name: str, value: object, choices: tuple[Any, ...]) -> None:
    """Raise PolicyError unless the value is one of the choices, which are texts or booleans."""
    if not isinstance(value, (str, bool)) or value not in choices:
        words = ", ".join(repr(choice) if isinstance(choice, str) else str(choice).lower() for choice in choices)
        raise PolicyError(f"{name} must be one of {words}, not {value!r}")


def _check_number(name: str, spec: SettingSpec, value: Any, none: str) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if spec.kind == "seconds":
        if is_number and 0 < value <= spec.max:
            return value
        wanted = f"a number above 0 and at most {spec.max:g}"
    else:
        if is_number and isinstance(value, int) and spec.min <= value <= spec.max:
            return value
        if is_number and isinstance(value, float) and spec.kind == "share" and 0 < value <= 1:
            return value
        share = ", or a share of the machine's memory such as 0.5" if spec.kind == "share" else ""
        wanted = f"a whole number from {spec.min} to 2**{int(spec.max).bit_length() - 1}{share}"
    raise PolicyError(f"{name} must be {wanted}{f', or {none}' if spec.is_optional else ''}, not {value!r}")


def is_tighter(key: str, value: Any, present: Any) -> bool:
    """Return whether a value is no looser than the present one, both as a file writes them. The merge compares lists itself."""
    spec = SETTINGS[key]
    if value == present or spec.tighter in ("free", "adds"):
        return True
    if spec.tighter == "rank":
        if value in spec.equal and present in spec.equal:
            return False
        return bool(spec.choices.index(value) > spec.choices.index(present))
    if spec.tighter == "network":
        if isinstance(value, str) or isinstance(present, str):
            # A list is not tighter than `on`: a named destination allows some calls that `on` refuses.
            return bool(value == "off")
        from corral._lib.network.network_grants import Grants  # noqa: PLC0415  most policies name no destination

        grants = Grants(present)
        return all(grants.include(text) for text in value)
    if spec.tighter == "less":
        return bool(value <= present)
    if spec.tighter == "lower":
        return bool(value and (not present or value <= present))
    if spec.tighter == "higher":
        return bool(value and value >= (present or 0))
    return False
