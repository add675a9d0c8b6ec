"""What a host asks and what it is answered, whatever its protocol. JSON is read without the json package.

That package loads `re` and `enum`, which take as long as the whole hook may.
"""

from __future__ import annotations

from _json import make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

SHELL, WRITE, READ = "shell", "write", "read"
# Who answers a question of corral's: no person, a person, or a person if the user's own policy says so (host_questions),
# because the host does not tell its hooks whether it asks or answers by itself.
NOBODY, PERSON, UNKNOWN = "nobody", "person", "unknown"
MAX_REASON = 4000  # characters; the hosts cut at 10,000 and some at less
_INFINITE = (float("inf"), float("-inf"))
# Keys by which the envelope of another host is known, and tools that run commands elsewhere.
_OTHERS = {
    "turn_id": "Codex",
    "conversation_id": "Cursor",
    "workspace_roots": "Cursor",
    "cursor_version": "Cursor",
    "workspaceRoot": "Grok",
    "toolInput": "Grok",
    "preToolUse": "Cline",
}
GLOB_CHARACTERS = "*?[{(!"  # signs by which a part of a path is a pattern
_SHELLS = frozenset({
    "bash", "shell", "sh", "execute", "execute_command", "run_command", "run_in_terminal", "run_shell_command", "run_terminal_cmd",
    "local_shell", "exec_command", "shell_command", "terminal", "powershell", "pwsh",
})  # fmt: skip
_PATCH_HEADS = (
    "*** Add File:",
    "*** Update File:",
    "*** Delete File:",
    "*** Move to:",
)  # some hosts need no blank after it


class BadPayload(Exception):
    """The host sent something that is no call of its protocol."""


class ToolCall:
    """One call of a host's tool, shell text or files, and what the host can make of an answer.

    `asks` is who answers a question: NOBODY, PERSON or UNKNOWN. `keeps` is what its shell keeps for the next command: nothing,
    the `directory`, or also the `exports`. `base` is where the host works, by which the project is found if no root is named:
    what an agent chooses for a call chooses no project.
    """

    __slots__ = (
        *(
            "are_patterns",
            "asks",
            "base",
            "cwd",
            "given",
            "host",
            "is_typed",
            "keeps",
            "kind",
            "paths",
            "rewrites",
            "root",
        ),
        "text",
    )

    def __init__(
        self,
        kind: str,
        cwd: str,
        root: str = "",
        *,
        text: str = "",
        paths: tuple[str, ...] = (),
        given: dict[str, Any] | None = None,
        rewrites: bool = False,
        asks: str = NOBODY,
        keeps: str = "",
        base: str = "",
        is_typed: bool = False,
        host: str = "",
        are_patterns: bool = False,
    ) -> None:
        self.kind = kind
        self.cwd = cwd
        self.root = root
        self.text = text
        self.paths = paths
        self.given = given or {}
        self.rewrites = rewrites
        self.asks = asks
        self.keeps = keeps
        self.base = base or cwd
        self.is_typed = is_typed
        self.host = host
        self.are_patterns = are_patterns


class Answer:
    """The verdict as a host is told it. `command` is what is to run instead, where the host can rewrite."""

    __slots__ = ("command", "decision", "reason")

    def __init__(self, decision: str, reason: str = "", command: str = "") -> None:
        self.decision = decision
        self.reason = _calm(reason[:MAX_REASON]) or ("" if decision == "allow" else "corral refused the call.")
        self.command = command


def _calm(text: str) -> str:
    """Return a reason that drives no terminal: a host may show it to the person whom it asks."""
    if text.isascii() and text.replace("\n", " ").isprintable():
        return text
    from corral._lib.terminal import printable  # noqa: PLC0415  most reasons are plain

    return "\n".join(map(printable, text.split("\n")))


class HookOutput:
    """What the hook prints, and its exit code."""

    __slots__ = ("status", "stderr", "stdout")

    def __init__(self, stdout: str = "", stderr: str = "", status: int = 0) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self.status = status


def _number(text: str) -> float:
    value = float(text)
    if value in _INFINITE:
        # It could not be repeated in an answer: a host that cannot read the answer lets the call run.
        raise BadPayload(f"the payload holds a number that is none: {text[:20]}")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        # Readers differ in which of the two counts: what is judged could be one, and what runs the other.
        raise BadPayload("a name stands twice in an object of the payload")
    return made


class _Settings:
    """What the C scanner asks of its decoder."""

    strict = False  # a command may hold a line break that the host did not escape
    object_hook = None
    object_pairs_hook = staticmethod(_object)
    parse_float, parse_int = staticmethod(_number), int

    @staticmethod
    def parse_constant(name: str) -> None:
        raise BadPayload(f"the payload holds {name}, which is no JSON")


_settings: Any = _Settings()
_scan = make_scanner(_settings)


def loads(data: bytes) -> dict[str, Any]:
    """Return a JSON object; BadPayload for anything else."""
    try:
        text = data.decode("utf-8").removeprefix("\ufeff").strip()
        value, end = _scan(text, 0)
    except BadPayload:
        raise
    except (StopIteration, ValueError, RecursionError, IndexError, SystemError):
        # The last is how the scanner fails to find the exception that the json package would define.
        raise BadPayload("the payload is no JSON") from None
    if text[end:].strip() or not isinstance(value, dict):
        raise BadPayload("the payload is no single JSON object")
    return value


def text_at(payload: Mapping[str, Any], *path: str) -> str:
    """Return a text that must be there; BadPayload names what is missing."""
    value: Any = payload
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if not isinstance(value, str):
        raise BadPayload(f"the payload has no text at {'.'.join(path)}")
    return value


def object_at(payload: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an object that must be there."""
    value = payload.get(name)
    if not isinstance(value, dict):
        raise BadPayload(f"the payload has no object at {name}")
    return value


def paths_at(given: Mapping[str, Any], keys: tuple[str, ...], *, needed: bool) -> tuple[str, ...]:
    """Return the paths that stand at any of these keys, since versions of a host differ; a tool that writes needs one."""
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


def searched_directories(given: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the directories that a search for names looks in: those at the keys, and the one that the pattern itself names."""
    folders = paths_at(given, keys, needed=False)
    found: list[str] = []
    for pattern in paths_at(given, ("pattern", "glob_pattern"), needed=False):
        parts = pattern.split("/")
        plain = next(
            (n for n, part in enumerate(parts) if any(sign in part for sign in GLOB_CHARACTERS)), len(parts) - 1
        )
        rest = "/".join(parts[plain:])
        if ".." in rest or any(f"{sign}/" in rest for sign in "{,(|"):  # alternatives may lead anywhere
            found.append("/")
        elif plain:
            above = "/".join(parts[:plain]) or "/"
            found += [above if above[0] in "/~" else f"{folder}/{above}" for folder in folders or (".",)]
    return (*folders, *found)


def patched_files(patch: str) -> tuple[str, ...]:
    """Return the files that a patch in the format of apply_patch adds, changes, deletes or moves to."""
    # Not splitlines, for which a path ends at characters that a path may hold.
    lines = [line.strip() for line in patch.split("\n")]
    files = tuple(line[len(head) :].strip() for line in lines for head in _PATCH_HEADS if line.startswith(head))
    if not files:
        raise BadPayload("the patch names no file")
    return files


def resolve_directory(folder: object, cwd: str) -> str:
    """Return the directory that a tool's own argument names, or the working directory."""
    if not isinstance(folder, str) or not folder:
        return cwd
    return folder if folder.startswith("/") else f"{cwd}/{folder}"


def refuse_other_hosts(payload: Mapping[str, Any], own: tuple[str, ...] = ()) -> None:
    """Raise for the envelope of another host: some load hooks that were written for their neighbours."""
    for key, host in _OTHERS.items():
        if key in payload and key not in own:
            raise BadPayload(f"it is a call of {host}, which this hook does not speak; see: corral install --help")


def refuse_unknown_shell(tool: str) -> None:
    """Let the call of a tool pass that is not corral's to judge; raise for one that runs commands under another name."""
    if tool.lower() in _SHELLS:
        raise BadPayload(f"{tool} runs commands, and is not known here")
