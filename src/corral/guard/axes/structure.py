"""The structure axis: the shape of the call itself, what cannot be parsed, and what cannot be proven. Pure."""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral.guard.axes.findings import AXIS_OF, finding, shown
from corral.model.call import Axis, Call, Decision, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from re import Match

    from corral.guard.analysis.command import Command
    from corral.policy.config import SandboxConfig

MAX_ARGUMENTS = 10_000  # against a call that takes longer than a second to judge
MAX_ARGUMENT_BYTES = 1024 * 1024
_METACHARACTERS_BEGIN = frozenset(";|&<>`\n$")
_METACHARACTERS = pattern(r"[;|&<>`\n]|\$[({]")
# Bytes that no shell text needs, and characters that make text look like another.
_DECEPTIVE = pattern("[\x01-\x08\x0b\x0c\x0e-\x1f\x7f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


def judge(acts: list[Command], config: SandboxConfig) -> list[Finding]:
    """Return a finding for every part that cannot be parsed or proven and that the profile does not allow."""
    decisions = config.rules.effects
    return [
        finding(key, decisions[key], act, word, detail)
        for act in acts
        for key, word, detail in act.effects
        if AXIS_OF.get(key) is Axis.STRUCTURE and decisions[key] != Decision.ALLOW
    ]


def refuse(call: Call) -> Finding | None:
    """Return why a call has no shape that could be judged at all, or None."""
    argv = call.argv
    if isinstance(argv, str):
        if not call.shell and argv.strip() and argv.split() != [argv]:
            return _refusal(
                "string",
                "A string was given where a list of arguments is expected.",
                argv,
                "Pass a list, or shell=True.",
            )
        parts: Sequence[object] = (argv,)
    elif isinstance(argv, (list, tuple)):
        parts = argv
        if call.shell and len(parts) != 1:
            return _refusal(
                "list", "With shell=True one string is expected, not a list.", "", "Pass the command as one string."
            )
    else:
        return _refusal(
            "type", f"The call must be a list of strings, not {type(argv).__name__}.", "", "Pass a list of strings."
        )
    if not parts or parts[0] == "" or (isinstance(argv, str) and not argv.strip()):
        return _refusal("empty", "The call is empty: there is no command in it.", "", "Name the command to run.")
    if len(parts) > MAX_ARGUMENTS:
        return _refusal(
            "size", f"The call has more than {MAX_ARGUMENTS} arguments.", "", "Split it into several calls."
        )
    for index, part in enumerate(parts):
        if not isinstance(part, str):
            return _refusal(
                "type",
                f"Argument {index} is {type(part).__name__}, not a string.",
                repr(part),
                "Pass strings or paths.",
                index,
            )
        if "\0" in part:
            return _refusal("nul", f"Argument {index} holds a NUL byte.", part, "Remove it.", index)
        if len(part) > MAX_ARGUMENT_BYTES:
            return _refusal(
                "size", f"Argument {index} is longer than {MAX_ARGUMENT_BYTES} bytes.", "", "Write it to a file.", index
            )
    if call.cwd is not None and (not isinstance(call.cwd, str) or "\0" in call.cwd):
        return _refusal("cwd", "The working directory is not a path.", "", "Pass a path inside the project.")
    if call.env is not None and not isinstance(call.env, dict):
        return _refusal("env", f"The environment must be a mapping, not {type(call.env).__name__}.", "", "Pass a dict.")
    for name, value in (call.env or {}).items():
        if not isinstance(name, str) or not isinstance(value, str) or not name or "=" in name or "\0" in name + value:
            return _refusal(
                "env", f"The environment holds {name!r}, which is no plain NAME and value.", "", "Pass plain strings."
            )
    return None


def _refusal(rule: str, reason: str, text: str, instead: str, argument: int | None = None) -> Finding:
    return Finding(
        Axis.STRUCTURE, f"structure-{rule}", Decision.DENY, reason, shown(text), 0, len(text), argument, instead
    )


def deceptive(text: str) -> Match[str] | None:
    """Return the first character that hides what the text says."""
    if text.isascii() and _without_breaks(text).isprintable():
        return None
    return _DECEPTIVE.search(text)


def _without_breaks(text: str) -> str:
    return text.replace("\n", "").replace("\t", "") if "\n" in text or "\t" in text else text


def metacharacter(text: str) -> Match[str] | None:
    """Return the first shell metacharacter in an argument."""
    if _METACHARACTERS_BEGIN.isdisjoint(text):
        return None
    return _METACHARACTERS.search(text)


def metacharacter_reason(index: int, mark: str) -> str:
    """Return the reason for a metacharacter outside a shell."""
    seen = "a newline, a shell metacharacter" if mark == "\n" else f"the shell metacharacter {mark}"
    return f"Argument {index} contains {seen}, but this call uses no shell. If you need a shell, pass one string with shell=True."
