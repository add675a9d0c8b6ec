"""The structure axis: refuses calls of the wrong shape, and parts that cannot be parsed or are only known at run time. Pure."""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral.guard.axes.findings import AXIS_OF, finding, quotable
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
# Control characters that shell text does not need, and characters that make text look like other text.
_DECEPTIVE = pattern("[\x01-\x08\x0b\x0c\x0e-\x1f\x7f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
# Rules about the call itself: the calls that each refuses, and what to do instead. No profile allows these.
SHAPE_RULES = {
    "structure-crash": ("A call on which the guard itself failed.", "Use simpler shell syntax."),
    "structure-cwd": ("A working directory that is not a path.", "Pass a path inside the project."),
    "structure-empty": ("A call without a command.", "Name the command to run."),
    "structure-env": ("An environment that does not consist of plain names and values.", "Pass a dict of strings."),
    "structure-list": ("A list of several arguments with shell=True.", "Pass the command as one string."),
    "structure-nul": ("An argument with a NUL byte, where the kernel would cut it.", "Remove the NUL byte."),
    "structure-size": ("A call that exceeds the guard's limits.", "Split the call, or write long text to a file."),
    "structure-string": ("A string of several words without shell=True.", "Pass a list, or shell=True."),
    "structure-type": ("A call that does not consist of strings.", "Pass a list of strings."),
    "path-cwd": ("A working directory outside project root.", "Use a directory inside the project."),
}


def judge(commands: list[Command], config: SandboxConfig) -> list[Finding]:
    """Return a finding for every part that cannot be parsed or proven and that the profile does not allow."""
    decisions = config.rules.effects
    return [
        finding(key, decisions[key], command, word, detail)
        for command in commands
        for key, word, detail in command.effects
        if AXIS_OF.get(key) is Axis.STRUCTURE and decisions[key] != Decision.ALLOW
    ]


def refuse(call: Call) -> Finding | None:
    """Return a finding for a call whose shape the guard cannot judge, or None."""
    argv = call.argv
    if isinstance(argv, str):
        if not call.shell and argv.strip() and argv.split() != [argv]:
            return shape_finding("string", "The call is a string, but a list of arguments is expected.", argv)
        parts: Sequence[object] = (argv,)
    elif isinstance(argv, (list, tuple)):
        parts = argv
        if call.shell and len(parts) != 1:
            return shape_finding("list", "The call is a list, but shell=True expects one string.")
    else:
        return shape_finding("type", f"The call must be a list of strings, not {type(argv).__name__}.")
    if not parts or parts[0] == "" or (isinstance(argv, str) and not argv.strip()):
        return shape_finding("empty", "The call is empty: it names no command.")
    if len(parts) > MAX_ARGUMENTS:
        return shape_finding("size", f"The call has more than {MAX_ARGUMENTS} arguments.")
    for index, part in enumerate(parts):
        if not isinstance(part, str):
            reason = f"Argument {index} is {type(part).__name__}, not a string."
            return shape_finding("type", reason, repr(part), index)
        if "\0" in part:
            return shape_finding("nul", f"Argument {index} contains a NUL byte.", part, index)
        if len(part) > MAX_ARGUMENT_BYTES:
            return shape_finding("size", f"Argument {index} is longer than {MAX_ARGUMENT_BYTES} bytes.", "", index)
    if call.cwd is not None and (not isinstance(call.cwd, str) or "\0" in call.cwd):
        return shape_finding("cwd", "The working directory is not a path.")
    if call.env is not None and not isinstance(call.env, dict):
        return shape_finding("env", f"The environment must be a dict, not {type(call.env).__name__}.")
    for name, value in (call.env or {}).items():
        if not isinstance(name, str) or not isinstance(value, str) or not name or "=" in name or "\0" in name + value:
            return shape_finding("env", f"The environment contains {name!r}, which is not a plain name and value.")
    return None


def shape_finding(rule: str, reason: str, text: str = "", argument: int | None = None) -> Finding:
    """Return the finding of one of the structure rules in SHAPE_RULES."""
    rule = f"structure-{rule}"
    instead = SHAPE_RULES[rule][1]
    return Finding(Axis.STRUCTURE, rule, Decision.DENY, reason, quotable(text), 0, len(text), argument, instead)


def deceptive(text: str) -> Match[str] | None:
    """Return the first character that can hide or disguise text."""
    shown = text.replace("\n", "").replace("\t", "") if "\n" in text or "\t" in text else text
    return None if text.isascii() and shown.isprintable() else _DECEPTIVE.search(text)


def metacharacter(text: str) -> Match[str] | None:
    """Return the first shell metacharacter in an argument."""
    return None if _METACHARACTERS_BEGIN.isdisjoint(text) else _METACHARACTERS.search(text)


def metacharacter_reason(index: int, mark: str) -> str:
    """Return the reason for a metacharacter in a call without a shell."""
    seen = "a newline, a shell metacharacter" if mark == "\n" else f"the shell metacharacter {mark}"
    return f"Argument {index} contains {seen}, but this call uses no shell. If you need a shell, pass one string with shell=True."
