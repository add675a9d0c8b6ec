"""Every key that a policy file may have: what it takes, which value is the tighter one, and what it means.

The parser, the merge, the published schema and the documentation all read this table; a setting that is not here is in no file.
"""

from __future__ import annotations

from corral.policy.config import BACKENDS, MAX_LIMIT, MAX_SECONDS, MAX_SPILL_BYTES, QUIET_HOSTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DECISIONS = ("allow", "ask", "deny")  # from loose to tight
TABLES = ("containment", "limits", "output", "audit")
DECISION_TABLES = ("effects", "groups")  # tables whose keys are those of the rules, and whose values are decisions
LIST_KINDS = ("names", "patterns", "paths", "hosts", "headers", "agents")


class SettingSpec:
    """One key. `tighter` is the table of strictness: which values an untrusted file may set, given the one that holds.

    rank     `choices` stand from loose to tight; those in `equal` are neither, and only the owner changes one for another
    lower    a smaller number; 0 is no bound, the loosest
    higher   a larger number; 0 is no bound, the loosest
    less     a smaller number; 0 is none at all, the tightest
    adds     a list of refusals, to which anyone may add
    grants   a list of permissions, to which only the owner adds
    network  off is tighter than anything, and a shorter list of destinations than a longer one
    owner    a list that only the owner's own file may have; a project's file that has it is an error, trusted or not
    free     neither value reaches further than the other
    """

    __slots__ = ("choices", "equal", "kind", "most", "tighter", "what", "zero")

    def __init__(
        self,
        kind: str,  # choice, switch, whole, share, seconds, network, or one of LISTS
        tighter: str,
        what: str,
        choices: tuple[Any, ...] = (),
        equal: tuple[Any, ...] = (),
        *,
        most: float = 0,  # of a number
        zero: bool = False,  # whether 0 may be written
    ) -> None:
        # No record: making the constructor of one takes longer than a hook has for all of this.
        self.kind = kind
        self.tighter = tighter
        self.what = what
        self.choices = choices
        self.equal = equal
        self.most = most
        self.zero = zero


SETTINGS = {
    "profile": SettingSpec("choice", "rank", "What the other settings start from.", ("workspace", "strict")),
    "timeout_seconds": SettingSpec(
        "seconds", "lower", "How long a command may take; 0 is without end.", most=MAX_SECONDS, zero=True
    ),
    "max_output_bytes": SettingSpec(
        "whole", "less", "How much of each output is kept in the result.", most=MAX_LIMIT, zero=True
    ),
    "denylist": SettingSpec("names", "adds", "Programs that are refused by name, besides those that the profile refuses."),
    "interpreters": SettingSpec("names", "adds", "Programs whose -c or -e is inline code, besides those that are known."),
    "environment": SettingSpec("patterns", "grants", "Variables that commands see besides PATH and its like; * ends a prefix."),
    "host_questions": SettingSpec(
        "names", "owner",
        "Hosts (cursor, copilot) whose questions you answer yourself. These hosts do not say whether a person answers. Only your own policy file may set this.",
        QUIET_HOSTS,
    ),
    "containment.backend": SettingSpec(
        "choice", "rank", "What holds commands.", ("none", *(b for b in BACKENDS if b != "none")), ("auto", "warden", "bubblewrap")
    ),
    "containment.network": SettingSpec(
        "network", "network", "What commands reach: all, nothing, or the destinations that are listed.", ("on", "off")
    ),
    "containment.hosts": SettingSpec("hosts", "grants", "Where granted names lie, name=address, instead of what the DNS says."),
    "containment.inject": SettingSpec(
        "headers", "grants", "Headers that the proxy adds to plain HTTP, name:port Header: value; ${NAME} is the owner's variable."
    ),
    "containment.agents": SettingSpec("agents", "grants", "Agents that may be run whole, with what their profile says, unasked."),
    "containment.read": SettingSpec("paths", "grants", "Paths that commands may read besides the project and the system."),
    "containment.write": SettingSpec("paths", "grants", "Paths that commands may write besides the project."),
    "containment.project": SettingSpec("choice", "rank", "Whether commands may change the project.", ("read-write", "read-only")),
    "containment.scratch": SettingSpec(
        "choice", "rank", "Whose /tmp and HOME are: all commands' of the project, or one sandbox's.", ("project", "sandbox")
    ),
    "containment.destructive": SettingSpec(
        "choice", "rank", "What becomes of calls that cannot be taken back: ask, or try in a transaction whose changes wait for the owner.",
        ("try", "ask"),
    ),
    "containment.accept_partial": SettingSpec("switch", "rank", "Run where the kernel lacks some layers.", (True, False)),
    "containment.ptrace": SettingSpec("switch", "rank", "Let debuggers work on the command's own processes.", (True, False)),
    "limits.cpu_seconds": SettingSpec("whole", "lower", "Processor time of a command and all it starts.", most=MAX_LIMIT, zero=True),
    "limits.memory_bytes": SettingSpec(
        "share", "lower", "Memory of a command and all it starts; 0.5 is half of the machine's.", most=MAX_LIMIT, zero=True
    ),
    "limits.processes": SettingSpec("whole", "lower", "Processes and threads at a time.", most=MAX_LIMIT, zero=True),
    "limits.open_files": SettingSpec("whole", "lower", "Open files of each process.", most=MAX_LIMIT, zero=True),
    "limits.file_size_bytes": SettingSpec("whole", "lower", "Size of each file that is written.", most=MAX_LIMIT, zero=True),
    "limits.disk_bytes": SettingSpec("whole", "lower", "Disk that a command may fill.", most=MAX_LIMIT, zero=True),
    "limits.free_disk_bytes": SettingSpec("whole", "higher", "Disk that stays free for everybody else.", most=MAX_LIMIT, zero=True),
    "limits.connections": SettingSpec("whole", "lower", "Connections through the proxy at a time.", most=MAX_LIMIT, zero=True),
    "limits.network_bytes": SettingSpec("whole", "lower", "Bytes through the proxy, both ways.", most=MAX_LIMIT, zero=True),
    "output.keep": SettingSpec("choice", "free", "Which part of a long output is kept.", ("both", "head", "tail")),
    "output.silence_seconds": SettingSpec(
        "seconds", "lower", "How long a command may print nothing; 0 is without end.", most=MAX_SECONDS, zero=True
    ),
    "output.drain_seconds": SettingSpec(
        "seconds", "lower", "How long output of background processes is waited for.", most=MAX_SECONDS
    ),
    "output.spill_bytes": SettingSpec(
        "whole", "less", "How much of a cut output is saved in the commands' /tmp; 0 is nothing.", most=MAX_SPILL_BYTES, zero=True
    ),
    "audit.required": SettingSpec("switch", "rank", "Refuse what cannot be written to the owner's log.", (False, True)),
}  # fmt: skip
# What no file sets: the project is where the file lies, and these belong to a single call.
NOT_IN_FILES = (
    "project_root",
    "containment.settings",
    "containment.publish",
    "output.directory_file",
    "output.exports_file",
    "output.text_file",
)
CONFIG_FIELDS = {
    "interpreters": "interpreter_block",
    "environment": "env_allowlist",
}  # where the config has another word


def is_tighter(key: str, value: Any, held: Any) -> bool:
    """Say whether a value is no looser than the one that holds; both as a file writes them. Lists are the merge's business."""
    row = SETTINGS[key]
    if value == held or row.tighter in ("free", "adds"):
        return True
    if row.tighter == "rank":
        if value in row.equal and held in row.equal:
            return False
        return bool(row.choices.index(value) > row.choices.index(held))
    if row.tighter == "network":
        if isinstance(value, str) or isinstance(held, str):
            # Not a list under `on`: by name some calls are allowed that are refused where all is granted.
            return bool(value == "off")
        from corral._lib.network_grants import Grants  # noqa: PLC0415  for policies that name some

        grants = Grants(held)
        return all(grants.include(text) for text in value)
    if row.tighter == "less":
        return bool(value <= held)
    if row.tighter == "lower":
        return bool(value and (not held or value <= held))
    if row.tighter == "higher":
        return bool(value and value >= (held or 0))
    return False
