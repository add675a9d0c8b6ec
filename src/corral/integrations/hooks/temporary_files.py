"""Leads a host's file tools to the commands' own /tmp, so that a file in /tmp is the same for both. The user's /tmp stays hidden from commands.

A host that can change the input of its tools opens the other path. To another host the refusal names the path to use.
"""

from __future__ import annotations

import os

from corral._lib.nofollow import make_directory
from corral.containment.filesystem.persistent_scratch import scratch_path
from corral.guard.machine import TEMPORARY
from corral.guard.path_zones import inside
from corral.integrations.hooks.protocol import WRITE, Answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.guard.machine import Machine
    from corral.integrations.hooks.protocol import ToolCall
    from corral.policy.config import SandboxConfig

_LINKED = "A command made a link on the way to it in the commands' own /tmp, or may just now. Use another name."


def judge_temporary(
    call: ToolCall, config: SandboxConfig, machine: Machine, environ: Mapping[str, str]
) -> Answer | None:
    """Return the answer to a call whose paths are in the commands' /tmp, or None for any other call."""
    if call.are_patterns or not call.paths or not config.rules.needs_containment:
        return None
    containment = config.containment
    if containment.scratch != "project" or containment.backend in ("none", "bubblewrap"):
        return None
    named = [path for path in call.paths if _is_temporary(path, machine)]
    if named:
        from corral.policy.installation import installation_paths  # noqa: PLC0415  few files are in /tmp

        # Where corral is installed below /tmp, its files are no temporary files: the general judgement refuses to write them.
        named = [path for path in named if not any(inside(path, part) for part in installation_paths())]
    place = scratch_path(config.project_root, (config.project_root, *containment.write), environ, make=bool(named))
    if not place:
        return None
    own = f"{place}/tmp"  # noqa: S108  in the user's cache
    if not named:
        # A host that was led there names the file by its real path from then on.
        is_own = all(os.path.normpath(path) == path and path.startswith(f"{own}/") for path in call.paths)
        return _checked(list(call.paths), own, machine, environ) or Answer("allow") if is_own else None
    moved = {path: f"{own}{path[len(TEMPORARY) :]}" for path in named}
    if call.kind != WRITE:
        # What only the user has in /tmp is between the host and the user.
        moved = {path: to for path, to in moved.items() if os.path.lexists(to)}
        if not moved:
            return None
    for path in (place, own) if call.kind == WRITE else ():
        make_directory(path)
    refused = _checked(list(moved.values()), own, machine, environ)
    if refused is not None:
        return refused
    if call.rewrites and len(moved) == len(call.paths):
        return Answer("allow", moved=moved)
    path, to = next(iter(moved.items()))
    why = (
        f"commands have a /tmp of their own, {own}, and would not find it. Use {to} instead: commands see it as {path}."
    )
    return Answer("deny", f"corral refuses this: {path} is in the user's /tmp; {why}")


def _is_temporary(path: str, machine: Machine) -> bool:
    """Say whether a path is in /tmp as it is written, and in nothing that commands see there of the host."""
    if not path.startswith(f"{TEMPORARY}/") or os.path.normpath(path) != path or "\0" in path:
        return False
    return not any(inside(path, top) for top in (machine.root, machine.home, *machine.readable))


def _checked(paths: list[str], own: str, machine: Machine, environ: Mapping[str, str]) -> Answer | None:
    """Refuse paths in the commands' /tmp that a link leads away from, or that a running command may swap for one."""
    from corral.containment.filesystem.running_sandboxes import is_sandbox_running  # noqa: PLC0415  few files are in /tmp
    from corral.integrations.hooks.path_swaps import swapped_path, wait_until_quiet  # noqa: PLC0415  as above

    is_running = is_sandbox_running((machine.root, *machine.writable), environ)
    if is_running:
        wait_until_quiet(paths, [own])
    top = os.path.realpath(own)
    linked = any(os.path.realpath(path) != f"{top}{path[len(own) :]}" for path in paths)
    if linked or (is_running and swapped_path(paths, [own])):
        return Answer("deny", f"corral refuses this: {paths[0]} is not safe to open. {_LINKED}")
    return None
