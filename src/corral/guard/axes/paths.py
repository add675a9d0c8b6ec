"""The path axis: judges the real location of every path that a command reads, writes, deletes or runs. Pure but for `Machine`."""

from __future__ import annotations

from corral.guard.axes.findings import finding, quotable
from corral.guard.axes.structure import SHAPE_RULES
from corral.guard.path_zones import classify_path, inside, is_credential_file, is_program, is_standard_device, path_work
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import NUMBER_HOLE
from corral.model.call import Axis, Call, Decision, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.analysis.command import Command
    from corral.guard.analysis.walker import Walker
    from corral.guard.machine import Machine
    from corral.guard.shell.expansion import Word
    from corral.model.grant import Grant
    from corral.policy.config import SandboxConfig

# The effect of each verb on each kind of place. A place that a verb does not name counts as outside.
_READ = {"inside": "read-inside", "protected": "read-inside", "manifest": "read-inside", "env": "read-env", "scratch": "read-scratch",
         "system": "read-system", "secret": "read-secret", "private": "read-private", "notes": "read-private", "ancestor": "read-ancestor",
         "device": "read-device", "standard": ""}  # fmt: skip
_WRITE = {"inside": "write-inside", "protected": "write-protected", "manifest": "write-manifest", "env": "write-inside",
          "scratch": "write-scratch", "secret": "write-secret", "notes": "write-secret", "device": "write-device", "standard": ""}  # fmt: skip
_DELETE = {"inside": "delete-inside", "protected": "write-protected", "manifest": "delete-inside", "env": "delete-inside",
           "scratch": "write-scratch", "secret": "write-secret", "notes": "write-secret", "device": "write-device", "standard": ""}  # fmt: skip
_RUN = {"inside": "run-inside", "protected": "run-inside", "manifest": "run-inside", "env": "run-inside", "scratch": "run-scratch",
        "system": "read-system", "standard": ""}  # fmt: skip
_KEYS: dict[str, tuple[dict[str, str], str]] = {
    "reads": (_READ, "read-outside"),
    "writes": (_WRITE, "write-outside"),
    "deletes": (_DELETE, "delete-outside"),
    "runs": (_RUN, "run-outside"),
}
_EVERYTHING = frozenset({"/", "/*", "/.*", "/**", "/.", "/*/"})  # behind a variable that may be empty
_HARMLESS_TARGETS = frozenset({"inside", "protected", "manifest", "env", "scratch", "system", "ancestor"})  # of a link


def judge(commands: list[Command], config: SandboxConfig, machine: Machine, walker: Walker) -> list[Finding]:
    """Return a finding for every path whose effect the profile does not allow. The walker counts the work and may raise."""
    decisions = config.rules.effects
    found: list[Finding] = []
    opened: list[Grant] = []  # by earlier parts of the call
    for command in commands:
        for verb, word, detail in command.effects:
            if verb in _KEYS:
                walker.spend(path_work(word.text) + 10)
                if word.glob:
                    walker.look()  # a directory may have a million files
                for key in word_effects(verb, word, command.cwds, machine):
                    if decisions[key] != Decision.ALLOW:
                        refused = finding(key, decisions[key], command, word)
                        paths = _refused_paths(verb, word, command.cwds, config, machine) if config.opens else set()
                        if len(paths) == 1:
                            from corral.guard.axes import openings, path_openings  # noqa: PLC0415  as below

                            use = path_openings.Use(key, command, word, paths.pop(), detail)
                            opening = path_openings.path_opening(use, opened, config, machine)
                            if opening is not None and not opening.grants:
                                refused = finding("change-missing", decisions["change-missing"], command, word)
                                opening = None if "effects.change-missing" in config.rules.closed else opening
                                if refused.decision == Decision.ALLOW:
                                    continue
                            elif opening is not None and openings.is_given(opening, config):
                                continue
                            refused = openings.with_opening(refused, opening, config)
                            opened += refused.grants
                        found.append(refused)
                        break
    return found


def _refused_paths(
    verb: str, word: Word, cwds: tuple[str, ...] | None, config: SandboxConfig, machine: Machine
) -> set[str]:
    """Return the paths of a word whose use the profile refuses. `cd` may fail, so the command may run in several directories."""
    from corral.guard.axes.path_openings import literal_part  # noqa: PLC0415  few paths are refused

    text, decisions = _expanded(literal_part(word), machine), config.rules.effects
    return {
        _resolve(verb, text, cwd, machine)
        for cwd in cwds or ()
        if any(decisions[key] != Decision.ALLOW for key in word_effects(verb, word, (cwd,), machine))
    }


def word_effects(verb: str, word: Word, cwds: tuple[str, ...] | None, machine: Machine) -> list[str]:
    """Return the effects of one path word, for every path that it may become."""
    text = word.text
    if NUMBER_HOLE in text:
        text = text.replace(NUMBER_HOLE, "0")
    text = _expanded(text, machine)
    unproven = HOLE in text
    if unproven:
        text = text[: text.index(HOLE)].rpartition("/")[0] + "/" if "/" in text[: text.index(HOLE)] else ""
    elif word.glob:
        first = min(text.index(c) for c in "*?[" if c in text) if any(c in text for c in "*?[") else len(text)
        folder, slash, _ = text[:first].rpartition("/")
        # A `..` behind the glob is relative to a directory that the text does not name.
        unproven = any(part == ".." or _may_be_parent(part) for part in text[len(folder + slash) :].split("/"))
        text = folder + "/" if slash else "."
    if cwds is None and not text.startswith("/"):
        unproven = True
        text = ""
    made: list[str] = []
    folder = ""
    if word.glob and verb == "deletes" and word.text.removeprefix("./") not in ("*", ".*", "**"):
        folder = text
        text += "?"  # an entry of the directory, not the directory itself
    if verb == "deletes" and word.text[:1] == HOLE and word.text[1:] in _EVERYTHING:
        made.append("delete-root")  # `rm -rf $UNSET/*`
    if text:
        for cwd in cwds or ("/",):
            made += path_effects(verb, text, cwd, machine)
            shortened = _shortened(verb, text, cwd, machine)
            if shortened:
                made += path_effects(verb, shortened, cwd, machine)
            if folder and _matches_root(folder, word.text, cwd, machine):
                made.append("delete-root")
            if word.glob and not unproven:
                for link in machine.matches(word.text, cwd):
                    made += path_effects(verb, link, cwd, machine)
    if unproven:
        made.append("unproven")
    elif word.glob and verb == "reads" and "read-inside" in made and is_credential_file(word.text.rpartition("/")[2]):
        made.append("read-env")
    return made


def _expanded(text: str, machine: Machine) -> str:
    """Return a path with its tilde expanded: quoted for the shell, but many programs expand it themselves."""
    if not text.startswith("~"):
        return text
    head, slash, rest = text.partition("/")
    return (machine.home if head == "~" else f"/home/{head[1:]}") + slash + rest


def _resolve(verb: str, text: str, cwd: str, machine: Machine) -> str:
    if verb == "deletes" and text.rpartition("/")[2] not in ("", ".", ".."):
        # Deleting a link removes the link itself, not its target.
        parent, _, name = text.rpartition("/")
        return machine.resolve(parent or ("/" if text.startswith("/") else "."), cwd).rstrip("/") + "/" + name
    return machine.resolve(text, cwd)


def _shortened(verb: str, text: str, cwd: str, machine: Machine) -> str:
    """Return the path without each `x/..`, if x is a link and the path leads elsewhere then: node, npm and others read it so."""
    if "/.." not in text.lstrip("./"):
        return ""
    shortened = machine.absolute(text, cwd)
    return "" if _resolve(verb, shortened, cwd, machine) == _resolve(verb, text, cwd, machine) else shortened


def _matches_root(folder: str, glob: str, cwd: str, machine: Machine) -> bool:
    """Return whether a glob in a folder above the project matches the project or a directory above it."""
    above = machine.resolve(folder, cwd).rstrip("/") + "/"
    if not machine.root.startswith(above):
        return False
    from corral.guard.globs import glob_matches  # noqa: PLC0415  few calls delete above the project

    return glob_matches(machine.root[len(above) :].partition("/")[0], glob.removeprefix(folder).partition("/")[0])


def _may_be_parent(part: str) -> bool:
    """Return whether a component with a glob may match `..`, as it does before bash 5.2 and without `globskipdots`.

    Only a literal dot or an extended glob, for which the parser writes three stars or more, matches the first dot.
    """
    if part[:1] != "." and "***" not in part:
        return False
    if "[" in part:
        return not part.startswith((".[!.]", ".[^.]"))
    return len(part.replace("*", "")) <= 2 and not part.strip(".?*")


def path_effects(verb: str, text: str, cwd: str, machine: Machine) -> list[str]:
    """Return the effects of one plain path."""
    # Before it is resolved: /dev/stdout is a link to the output of this process.
    if is_standard_device(text):
        return []
    path = _resolve(verb, text, cwd, machine)
    place = classify_path(path, machine.root, machine.home)
    if machine.readable and machine.granted(verb, path) and place != "secret":
        # The sandbox hides a credential that a read grant contains and does not name. File tools ask here.
        is_named = verb != "reads" or path in machine.readable or machine.granted("writes", path)
        return [] if is_named or not is_credential_file(path.rpartition("/")[2]) else ["read-secret"]
    if verb == "runs" and is_program(path):
        return ["run-system"]
    if place == "outside" and verb in ("reads", "runs") and machine.shows(path):
        # The sandbox hides the credentials in a toolchain by the same names.
        is_hidden = verb == "reads" and is_credential_file(path.rpartition("/")[2])
        return ["run-system" if verb == "runs" else "read-secret" if is_hidden else "read-system"]
    if verb == "runs":
        key = _RUN.get(place, "run-outside")
        if key == "run-outside" and place in ("outside", "notes") and not machine.exists(path, cwd):
            return ["run-missing"]
        return [key] if key else []
    is_vital = path in (machine.root, machine.home) or path.endswith("/.git")
    if verb == "deletes" and is_vital and inside(path, machine.root):
        return ["delete-root"]
    table, outside = _KEYS[verb]
    # A project below /tmp is in the sandbox's scratch, and goes with the directories above it.
    key = outside if verb == "deletes" and inside(machine.root, path) else table.get(place, outside)
    if not key:
        return []
    if key in ("read-outside", "read-private") and not machine.exists(path, cwd):
        return ["read-missing"]
    if place not in _HARMLESS_TARGETS and text[:1] != "/" and ".." not in text and inside(cwd, machine.root):
        return [key, "link-out"]
    return [key]


def cwd_finding(call: Call, machine: Machine, config: SandboxConfig) -> Finding | None:
    """Return a finding for a call whose working directory is outside the project, or None."""
    if call.cwd is None:
        return None
    path = machine.resolve(call.cwd, machine.root)
    place = classify_path(path, machine.root, machine.home)
    if inside(path, machine.root) or (place == "scratch" and config.rules.effects["write-scratch"] == Decision.ALLOW):
        return None
    reason = f"The working directory `{quotable(call.cwd)}` is outside project root."
    instead = SHAPE_RULES["path-cwd"][1]
    return Finding(Axis.PATH, "path-cwd", Decision.DENY, reason, call.cwd, 0, len(call.cwd), None, instead)
