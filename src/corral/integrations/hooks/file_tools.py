"""Judges the paths that a host's own file tools read and write. These tools do not run in the sandbox, so only the policy applies."""

from __future__ import annotations

import os

from corral._lib.terminal import printable
from corral.guard.axes.paths import path_effects
from corral.guard.machine import Machine
from corral.guard.path_zones import inside, is_credential_file
from corral.guard.rules.loader import effects, places
from corral.integrations.hooks.protocol import WRITE, Answer, ToolCall, is_answered, split_pattern, why_not_asked
from corral.model.call import Decision
from corral.policy import user_dirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.policy.config import SandboxConfig

MAX_SHOWN = 200  # characters of a path that a reason repeats
# The host's own rules decide about all other reads.
_JUDGED_READS = frozenset({"read-secret", "read-env", "read-device"})
_SWAPPED = (
    "was replaced just now, while a command runs in the sandbox. The command could put a link out of the project in its place "
    "before the tool opens it. Try again in a few seconds, or stop the command first."
)


def judge_files(call: ToolCall, config: SandboxConfig, environ: Mapping[str, str]) -> Answer:
    """Return the strictest answer to any of the call's paths."""
    machine = Machine.of(config)
    if any("tmp" in path for path in call.paths):
        from corral.integrations.hooks.temporary_files import judge_temporary  # noqa: PLC0415  few files are in /tmp

        temporary = judge_temporary(call, config, machine, environ)
        if temporary is not None:
            return temporary
    meant = [one for given in call.paths for one in _interpretations(given, call.cwd, machine.home)]
    running = _RunningSandbox(meant, call, machine, environ)
    for path in call.paths if call.are_patterns else ():
        if _reaches_outside(path, call.cwd, machine):
            why = "is a pattern that reaches outside the project, where it could match credentials. Name the files instead."
            return _refuse(path, why)
    answer = Answer("allow")
    for path in meant:
        try:
            one = _judge(path, call, config, machine, environ)
        except OSError:
            # A link was removed between two looks at it.
            return _refuse(path, _SWAPPED)
        if one.decision == "deny":
            return one
        answer = one if one.decision == "ask" else answer
    if swapped := running.swapped_path():
        return _refuse(swapped, _SWAPPED)
    return answer


class _RunningSandbox:
    """Finds paths that a running command may swap between the judgement and the host's use of them."""

    def __init__(self, paths: list[str], call: ToolCall, machine: Machine, environ: Mapping[str, str]) -> None:
        from corral.containment.filesystem.running_sandboxes import is_sandbox_running  # noqa: PLC0415  plain commands do not need it

        tops = (machine.root, *machine.writable)
        self._tops = tops if is_sandbox_running(tops, environ) else ()
        self._paths = [os.path.join(call.cwd, path) for path in paths if "\0" not in path]
        if self._tops:
            from corral.integrations.hooks.path_swaps import wait_until_quiet  # noqa: PLC0415  no sandbox runs mostly

            wait_until_quiet(self._paths, self._tops)

    def swapped_path(self) -> str:
        """Return a part of a path that was swapped since the judgement began or shortly before, or an empty string."""
        if not self._tops:
            return ""
        from corral.integrations.hooks.path_swaps import swapped_path  # noqa: PLC0415  as above

        return swapped_path(self._paths, self._tops)


def _refuse(path: str, why: str) -> Answer:
    return Answer("deny", f"corral refuses this: {_shown(path)} {why}")


def _interpretations(path: str, cwd: str, home: str) -> list[str]:
    """Return every file that a tool may take a path for: some expand `~`, and some resolve `..` before they follow links."""
    found = [path]
    if path.startswith("~"):
        head, slash, rest = path.partition("/")
        found.append((home if head == "~" else f"/home/{head[1:]}") + slash + rest)
    if ".." in path:
        found += [os.path.normpath(os.path.join(cwd, one)) for one in found]
    return found


def _reaches_outside(pattern: str, cwd: str, machine: Machine) -> bool:
    """Say whether a pattern may match files outside the project and outside the directories that the policy makes readable."""
    above, rest, leaves = split_pattern(pattern)
    found = [os.path.realpath(os.path.join(cwd, one)) for one in _interpretations(above or ".", cwd, machine.home)]
    return leaves or (bool(rest) and not all(inside(p, machine.root) or _is_readable_whole(p, machine) for p in found))


def _is_readable_whole(path: str, machine: Machine) -> bool:
    """Say whether the policy grants reading a path, and nothing in it is a credential."""
    if not machine.readable or not machine.granted("reads", path) or _holds_credentials(path, machine):
        return False
    from corral.containment.filesystem.credential_masks import credential_files  # noqa: PLC0415  few policies grant a path

    return not credential_files([path], ())


def _judge(path: str, call: ToolCall, config: SandboxConfig, machine: Machine, environ: Mapping[str, str]) -> Answer:
    if "\0" in path:
        return Answer("deny", "corral refuses this: a path cannot contain a NUL byte.")
    real = os.path.realpath(os.path.join(call.cwd, path))
    writes = call.kind == WRITE
    own = [user_dirs.user_directory(kind, environ) for kind in ("config", "state", "cache")]
    if any(inside(real, folder) or inside(folder, real.rstrip("/")) for folder in own):
        return _refuse(path, "contains corral's own files for the user. Agents cannot use them. Ask the user.")
    if not writes and _holds_credentials(real, machine):
        return _refuse(
            path, "is a directory that contains credentials. Name the files you need instead. [path-read-secret]"
        )
    if writes:
        from corral.policy.installation import installation_paths  # noqa: PLC0415  reads do not need it

        if any(inside(real, part) for part in installation_paths()):
            return _refuse(path, "belongs to corral's installation. Ask the user.")
        if config.containment.project == "read-only" and inside(real, config.project_root):
            return Answer("deny", "corral refuses this: the policy sets containment.project = 'read-only'.")
    elif _is_note(real, machine.home):
        return Answer("allow")
    decisions = config.rules.effects
    keys = path_effects("writes" if writes else "reads", path, call.cwd, machine)
    keys += ["write-protected"] if writes and _runs_later(real, call, machine) else []
    judged = [key for key in keys if (writes or key in _JUDGED_READS) and decisions[key] is not Decision.ALLOW]
    if not judged:
        return Answer("allow")
    key = max(judged, key=decisions.__getitem__)
    data = effects()[key]
    why = f"{data['reason'].format(name='The tool', text=_shown(path), detail='')} {data['instead']} [path-{key}]"
    if decisions[key] is Decision.ASK:
        if is_answered(call, config.host_questions):
            return Answer("ask", f"corral asks about this: {why}")
        why = f"{why}\n{why_not_asked(call, environ)} The user can allow it in the policy: effects.{key}."
    return Answer("deny", f"corral refuses this: {why}")


def _runs_later(real: str, call: ToolCall, machine: Machine) -> bool:
    """Say whether a path is one that commands cannot change either, in the project or in a directory that the policy makes writable."""
    from corral.containment.filesystem.runs_later import runs_later  # noqa: PLC0415  reads do not need it

    # A patch may write all the parts of a repository at once.
    beside = [os.path.realpath(os.path.join(call.cwd, path)) for path in call.paths if "\0" not in path]
    tops = (machine.root, *machine.writable)
    return any(inside(real, top) and real != top and runs_later(real, top, beside) for top in tops)


def _shown(path: str) -> str:
    """Shorten a path and escape its control characters: a host may show the reason to a person on a terminal."""
    return printable(path if len(path) <= MAX_SHOWN else f"{path[:MAX_SHOWN]}…")


def _holds_credentials(real: str, machine: Machine) -> bool:
    """Say whether a directory outside the project contains credentials, or the environments of processes."""
    if inside(real, machine.root) or not os.path.isdir(real):
        return False
    above = real.rstrip("/")  # "/" becomes "", and every path is inside that
    known = (f"{machine.home}/{pattern.partition('*')[0].rstrip('/')}" for pattern in places()["secret_home"])
    return (
        inside(real, "/proc")
        or inside("/proc", above)
        or inside(machine.home, above)
        or any(inside(path, above) and os.path.lexists(path) for path in known)
    )


def _is_note(path: str, home: str) -> bool:
    """Say whether a path is one of a host's own notes in the home directory, and not a file of credentials or permissions."""
    name = path.rpartition("/")[2]
    below = path[len(home) + 1 :] if inside(path, home) else ""
    table = places()
    return (
        below.startswith(tuple(table["host_notes"]))
        and name not in table["host_secrets"]
        and not is_credential_file(name)
    )
