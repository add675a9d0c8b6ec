"""Types and helpers that the hosts' protocols share.

Parses JSON without the json package, because that imports `re` and `enum`, which take as long as the whole hook may.
"""

from __future__ import annotations

from _json import make_scanner

from corral._lib.json_text import dumps
from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

SHELL, WRITE, READ = "shell", "write", "read"
# The answerer of a question. UNKNOWN: the host does not tell its hooks whether it asks a person or answers by itself,
# so corral asks only if the user's policy names the host in `host_questions`.
NOBODY, PERSON, UNKNOWN = "nobody", "person", "unknown"
REFUSED_STATUS = 2
MAX_REASON = 4000  # characters; some hosts cut long reasons, the others at 10,000
_GLOB_CHARACTERS = "*?[{(!"
_NOTHING: dict[str, Any] = {}
_SESSION_KEYS = ("session_id", "sessionId", "sessionID", "conversation_id")
_INFINITE = (float("inf"), float("-inf"))
# Payload keys of programs that also load hooks written for other hosts.
_FOREIGN_KEYS = {
    "turn_id": "Codex",
    "conversation_id": "Cursor",
    "workspace_roots": "Cursor",
    "cursor_version": "Cursor",
    "workspaceRoot": "Grok",
    "toolInput": "Grok",
    "preToolUse": "Cline",
}
_EVENTS = frozenset({"PreToolUse", "BeforeTool", "preToolUse", "beforeShellExecution"})
_SHELLS = frozenset({
    "bash", "shell", "sh", "execute", "execute_command", "run_command", "run_in_terminal", "run_shell_command", "run_terminal_cmd",
    "local_shell", "exec_command", "shell_command", "terminal", "powershell", "pwsh",
})  # fmt: skip
# Without a space after the colon: some hosts accept a header without it.
_PATCH_HEADERS = ("*** Add File:", "*** Update File:", "*** Delete File:", "*** Move to:")


class BadPayload(Exception):
    """The payload is not a call in the host's protocol."""


@frozen
class ToolCall(Record):
    """A call of a host's tool: shell text, or the files that a file tool reads or writes."""

    kind: str  # SHELL, WRITE or READ
    cwd: str
    root: str = ""  # the project root, if the host names it
    host: str = ""  # the host's name; `decide.judge` sets it
    process: int = 0  # the one that started the hook; 0 is this process's parent
    session: str = ""  # the host's id of the agent's session; `respond` sets it
    text: str = ""
    paths: tuple[str, ...] = ()
    given: Mapping[str, Any] = _NOTHING  # the tool's input, repeated in an answer that rewrites the command
    rewrites: bool = False  # the host can run another command instead of this one
    asks: str = NOBODY  # the answerer of a question about this call: NOBODY, PERSON or UNKNOWN
    keeps: str = ""  # the state that the host's shell keeps for the next command: "", "directory" or "exports"
    base: str = (
        ""  # where the search for the project root starts, if not at `cwd`: an agent chooses `cwd`, but not this
    )
    is_typed: bool = False  # the host types the text into a running shell session
    are_patterns: bool = False  # the paths are glob patterns


class Answer:
    """The hook's decision on one call. `command` runs instead of the call's own, and `moved` replaces paths, on hosts that can rewrite."""

    __slots__ = ("command", "decision", "moved", "reason")

    def __init__(self, decision: str, reason: str = "", command: str = "", moved: Mapping[str, str] = _NOTHING) -> None:
        self.decision = decision
        self.reason = _without_escapes(reason[:MAX_REASON]) or (
            "" if decision == "allow" else "corral refused the call."
        )
        self.command = command
        self.moved = moved


def is_answered(call: ToolCall, host_questions: Collection[str]) -> bool:
    """Say whether a person answers a question about this call."""
    return call.asks == PERSON or (call.asks == UNKNOWN and call.host in host_questions)


def why_not_asked(call: ToolCall, environ: Mapping[str, str]) -> str:
    """Return why the hook refuses instead of asking, and how the user can change that."""
    if call.asks != UNKNOWN:
        return "corral cannot ask the user here, so the call is refused."
    from corral.policy.loader import user_policy_path  # noqa: PLC0415  most calls need no question

    return (
        f"corral cannot tell whether a person answers {call.host}'s questions, so it refuses instead. "
        f'If you answer them yourself, add this to the top of {user_policy_path(environ)}: host_questions = ["{call.host}"]'
    )


def _without_escapes(text: str) -> str:
    """Escape control characters: a host may print the reason on a terminal."""
    if text.isascii() and text.replace("\n", " ").isprintable():
        return text
    from corral._lib.terminal import printable  # noqa: PLC0415  most reasons are plain

    return "\n".join(map(printable, text.split("\n")))


@frozen
class HookOutput(Record):
    """The hook's output and exit code."""

    stdout: str = ""
    stderr: str = ""
    status: int = 0


def json_output(body: Mapping[str, object], answer: Answer) -> HookOutput:
    """Return a JSON answer. A refusal is also on stderr and in the exit code, for hosts that ignore the JSON."""
    if answer.decision == "deny":
        return HookOutput(dumps(body) + "\n", f"{answer.reason}\n", REFUSED_STATUS)
    return HookOutput(dumps(body) + "\n")


def plugin_output(answer: Answer, _call: ToolCall | None) -> HookOutput:
    """Return an answer in the protocol of our own plugins, for hosts that have plugins instead of hooks."""
    if answer.decision == "allow":
        made = {"decision": "allow", "command": answer.command}
        return json_output(made, answer) if answer.command else HookOutput()
    return json_output({"decision": "deny", "reason": answer.reason}, Answer("deny", answer.reason))


def plugin_payload(_event: str, given: dict[str, Any], root: str) -> dict[str, Any]:
    """Return a shell call in the protocol of our own plugins."""
    return {"tool_name": "bash", "tool_input": given, "cwd": root}


def _finite(text: str) -> float:
    value = float(text)
    if value in _INFINITE:
        # JSON cannot express infinity, and a host that cannot parse our answer runs the call.
        raise BadPayload(f"the number {text[:20]} in the payload is too large")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        # Parsers differ in which duplicate wins: the host could run a command that was not checked.
        raise BadPayload("an object in the payload has a duplicate key")
    return made


class _Settings:
    """The settings that the C scanner reads from its decoder."""

    strict = False  # a command may contain a newline that the host did not escape
    object_hook = None
    object_pairs_hook = staticmethod(_object)
    parse_float, parse_int = staticmethod(_finite), int

    @staticmethod
    def parse_constant(name: str) -> None:
        raise BadPayload(f"the payload contains {name}, which is not JSON")


_settings: Any = _Settings()
_scan = make_scanner(_settings)


def loads(data: bytes) -> dict[str, Any]:
    """Parse a JSON object; raise BadPayload for anything else."""
    try:
        text = data.decode("utf-8").removeprefix("\ufeff").strip()
        value, end = _scan(text, 0)
    except BadPayload:
        raise
    except (StopIteration, ValueError, RecursionError, IndexError, SystemError):
        # SystemError: the scanner looks for JSONDecodeError, which is undefined without the json package.
        raise BadPayload("the payload is not JSON") from None
    if text[end:].strip() or not isinstance(value, dict):
        raise BadPayload("the payload is not a single JSON object")
    return value


def text_at(payload: Mapping[str, Any], *path: str) -> str:
    """Return the string at a path of keys; raise BadPayload if it is missing."""
    value: Any = payload
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if not isinstance(value, str):
        raise BadPayload(f"the payload has no string at {'.'.join(path)}")
    return value


def session_of(payload: Mapping[str, Any]) -> str:
    """Return the host's id of the agent's session, or ""."""
    found = next((payload[key] for key in _SESSION_KEYS if key in payload), "")
    return found if isinstance(found, str) else ""


def object_at(payload: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the object at a key; raise BadPayload if it is missing."""
    value = payload.get(name)
    if not isinstance(value, dict):
        raise BadPayload(f"the payload has no object at {name}")
    return value


def paths_at(given: Mapping[str, Any], keys: tuple[str, ...], *, needed: bool) -> tuple[str, ...]:
    """Return the paths at any of these keys (versions of a host differ); if `needed`, raise BadPayload when there are none."""
    found: list[str] = []
    for key in keys:
        value = given.get(key)
        if isinstance(value, str) and value:
            found.append(value)
        elif isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            found += value
        elif value is not None and value != "":
            raise BadPayload(f"the payload has no path at {key}")
    if needed and not found:
        raise BadPayload(f"the payload has no path at {' or '.join(keys)}")
    return tuple(found)


def split_pattern(pattern: str, *, keeps_name: bool = False) -> tuple[str, str, bool]:
    """Split a glob pattern into its literal directory and the rest; say whether the rest may leave that directory.

    If `keeps_name`, the last component belongs to the rest even when it is literal.
    """
    parts = pattern.split("/")
    default = len(parts) - keeps_name
    plain = next((n for n, part in enumerate(parts) if any(sign in part for sign in _GLOB_CHARACTERS)), default)
    rest = "/".join(parts[plain:])
    # An alternative may be an absolute path: `{a,/etc}/*`.
    leaves = ".." in rest or any(f"{sign}/" in rest for sign in "{,(|")
    return "/".join(parts[:plain]) or ("/" if plain else ""), rest, leaves


def searched_directories(given: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the directories that a file-name search reads: those at the keys, and the literal part of its pattern."""
    folders = paths_at(given, keys, needed=False)
    found: list[str] = []
    for pattern in paths_at(given, ("pattern", "glob_pattern"), needed=False):
        above, _, leaves = split_pattern(pattern, keeps_name=True)
        if leaves:
            found.append("/")
        elif above:
            found += [above if above[0] in "/~" else f"{folder}/{above}" for folder in folders or (".",)]
    return (*folders, *found)


def patched_files(patch: str) -> tuple[str, ...]:
    """Return the files that a patch in the apply_patch format adds, changes, deletes or moves to."""
    # str.splitlines() also splits at characters that a path may contain, such as U+2028.
    lines = [line.strip() for line in patch.split("\n")]
    files = tuple(line[len(head) :].strip() for line in lines for head in _PATCH_HEADERS if line.startswith(head))
    if not files:
        raise BadPayload("the patch names no file")
    return files


def file_call(
    tool: str,
    given: Mapping[str, Any],
    where: tuple[str, str],
    writes: Mapping[str, tuple[str, ...]],
    reads: Mapping[str, tuple[str, ...]],
    *,
    asks: str = NOBODY,
) -> ToolCall:
    """Return the call of a file tool. `where` is (cwd, root); `writes` and `reads` map a tool to the keys of its paths."""
    if tool in writes:
        return ToolCall(WRITE, *where, paths=paths_at(given, writes[tool], needed=True), asks=asks)
    keys = reads[tool]
    is_glob = tool.lower() == "glob"
    return ToolCall(
        READ, *where, paths=searched_directories(given, keys) if is_glob else paths_at(given, keys, needed=False)
    )


def resolve_directory(folder: object, cwd: str) -> str:
    """Return the directory that a tool's input names, or `cwd` if it names none."""
    if not isinstance(folder, str) or not folder:
        return cwd
    return folder if folder.startswith("/") else f"{cwd}/{folder}"


def refuse_other_hosts(payload: Mapping[str, Any], own: tuple[str, ...] = ()) -> None:
    """Raise BadPayload if the payload has another host's keys: some hosts also load hooks that were installed for others."""
    for key, host in _FOREIGN_KEYS.items():
        if key in payload and key not in own:
            raise BadPayload(f"this is a call of {host}, which this hook does not serve; see: corral install --help")


def is_own_event(payload: Mapping[str, Any], *own: str) -> bool:
    """Say whether the payload is of one of these events; raise BadPayload for another host's event."""
    event = text_at(payload, "hook_event_name")
    if event not in own and (event in _EVENTS or (event[:1].islower() and own[0][:1].isupper())):
        raise BadPayload(f"{event} is an event of another host")
    return event in own


def is_judged(tool: str, tools: tuple[str, ...]) -> bool:
    """Say whether corral checks calls of this tool; raise BadPayload for an unknown tool that runs commands."""
    if tool not in tools and tool.lower() in _SHELLS:
        raise BadPayload(f"{tool} runs commands, and corral does not know this tool of the host")
    return tool in tools


NOT_GUARDED = Answer("allow")  # for a call of a project that the user has paused: the host decides alone
