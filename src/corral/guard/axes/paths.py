"""The path axis: judges the real location of every path that a command reads, writes, deletes or runs. Pure but for `Machine`."""

from __future__ import annotations

from corral.guard.axes.findings import finding, quotable
from corral.guard.axes.structure import SHAPE_RULES
from corral.guard.path_zones import classify_path, inside, is_credential_file, is_program, is_standard_device
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import NUMBER_HOLE
from corral.model.call import Axis, Call, Decision, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.guard.analysis.command import Command
    from corral.guard.machine import Machine
    from corral.guard.shell.expansion import Word
    from corral.policy.config import SandboxConfig

# The effect of each verb on each kind of place. A place that a verb does not name counts as outside.
_READ = {"inside": "read-inside", "protected": "read-inside", "manifest": "read-inside", "env": "read-env", "scratch": "read-scratch",
         "system": "read-system", "secret": "read-secret", "ancestor": "read-ancestor", "device": "read-device", "standard": ""}  # fmt: skip
_WRITE = {"inside": "write-inside", "protected": "write-protected", "manifest": "write-manifest", "env": "write-inside",
          "scratch": "write-scratch", "secret": "write-secret", "device": "write-device", "standard": ""}  # fmt: skip
_DELETE = {"inside": "delete-inside", "protected": "write-protected", "manifest": "delete-inside", "env": "delete-inside",
           "scratch": "write-scratch", "secret": "write-secret", "device": "write-device", "standard": ""}  # fmt: skip
_RUN = {"inside": "run-inside", "protected": "run-inside", "manifest": "run-inside", "env": "run-inside", "scratch": "run-scratch",
        "system": "read-system", "standard": ""}  # fmt: skip
_KEYS: dict[str, tuple[dict[str, str], str]] = {
    "reads": (_READ, "read-outside"),
    "writes": (_WRITE, "write-outside"),
    "deletes": (_DELETE, "delete-outside"),
    "runs": (_RUN, "run-outside"),
}
_HARMLESS_TARGETS = frozenset({"inside", "protected", "manifest", "env", "scratch", "system", "ancestor"})  # of a link


def judge(commands: list[Command], config: SandboxConfig, machine: Machine) -> list[Finding]:
    """Return a finding for every path whose effect the profile does not allow."""
    decisions = config.rules.effects
    found: list[Finding] = []
    for command in commands:
        for verb, word, _ in command.effects:
            if verb in _KEYS:
                for key in word_effects(verb, word, command.cwds, machine):
                    if decisions[key] != Decision.ALLOW:
                        found.append(finding(key, decisions[key], command, word))
                        break
    return found


def word_effects(verb: str, word: Word, cwds: tuple[str, ...] | None, machine: Machine) -> list[str]:
    """Return the effects of one path word, for every path that it may become."""
    text = word.text
    if NUMBER_HOLE in text:
        text = text.replace(NUMBER_HOLE, "0")
    if text.startswith("~"):  # quoted for the shell, but many programs expand it themselves
        head, slash, rest = text.partition("/")
        text = (machine.home if head == "~" else f"/home/{head[1:]}") + slash + rest
    unproven = HOLE in text
    if unproven:
        text = text[: text.index(HOLE)].rpartition("/")[0] + "/" if "/" in text[: text.index(HOLE)] else ""
    elif word.glob:
        first = min(text.index(c) for c in "*?[" if c in text) if any(c in text for c in "*?[") else len(text)
        unproven = "/.." in text[first:]  # relative to a directory that the text does not name
        text = text[:first].rpartition("/")[0] + "/" if "/" in text[:first] else "."
    if cwds is None and not text.startswith("/"):
        unproven = True
        text = ""
    made: list[str] = []
    if word.glob and verb == "deletes" and word.text.removeprefix("./") not in ("*", ".*", "**"):
        text += "?"  # an entry of the directory, not the directory itself
    if text:
        for cwd in cwds or ("/",):
            made += path_effects(verb, text, cwd, machine)
            if word.glob and not unproven:
                for link in machine.matches(word.text, cwd):
                    made += path_effects(verb, link, cwd, machine)
    if unproven:
        made.append("unproven")
    elif word.glob and verb == "reads" and "read-inside" in made and is_credential_file(word.text.rpartition("/")[2]):
        made.append("read-env")
    return made


def path_effects(verb: str, text: str, cwd: str, machine: Machine) -> list[str]:
    """Return the effects of one plain path."""
    # Before it is resolved: /dev/stdout is a link to the output of this process.
    if is_standard_device(text):
        return []
    if verb == "deletes" and text.rpartition("/")[2] not in ("", ".", ".."):
        # Deleting a link removes the link itself, not its target.
        parent, _, name = text.rpartition("/")
        path = machine.resolve(parent or ("/" if text.startswith("/") else "."), cwd).rstrip("/") + "/" + name
    else:
        path = machine.resolve(text, cwd)
    if machine.readable and machine.granted(verb, path):
        return []
    if verb == "runs" and is_program(path):
        return ["run-system"]
    place = classify_path(path, machine.root, machine.home)
    if verb == "runs":
        key = _RUN.get(place, "run-outside")
        if key == "run-outside" and place == "outside" and not machine.exists(path, cwd):
            return ["run-missing"]
        return [key] if key else []
    is_vital = path in (machine.root, machine.home) or path.endswith("/.git")
    if verb == "deletes" and is_vital and inside(path, machine.root):
        return ["delete-root"]
    table, outside = _KEYS[verb]
    key = table.get(place, outside)
    if not key:
        return []
    if key == "read-outside" and not machine.exists(path, cwd):
        return ["read-missing"]
    if place not in _HARMLESS_TARGETS and text[:1] != "/" and ".." not in text and inside(cwd, machine.root):
        return [key, "link-out"]
    return [key]


def cwd_finding(call: Call, machine: Machine, decisions: Mapping[str, Decision]) -> Finding | None:
    """Return a finding for a call whose working directory is outside the project, or None."""
    if call.cwd is None:
        return None
    path = machine.resolve(call.cwd, machine.root)
    place = classify_path(path, machine.root, machine.home)
    if inside(path, machine.root) or (place == "scratch" and decisions["write-scratch"] == Decision.ALLOW):
        return None
    reason = f"The working directory `{quotable(call.cwd)}` is outside project root."
    instead = SHAPE_RULES["path-cwd"][1]
    return Finding(Axis.PATH, "path-cwd", Decision.DENY, reason, call.cwd, 0, len(call.cwd), None, instead)
