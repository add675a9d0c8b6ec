"""Proves installed hooks: runs the command in a host's file on a call that it must refuse, and on one it must allow.

If a hook cannot be started, the host runs every command, so a hook that does not answer counts as failed.
"""

from __future__ import annotations

import json
import os
import re

from corral._lib.records import Record, frozen
from corral.apps.doctor.check import FAIL, OK, WARN, Check, Fix
from corral.apps.doctor.quick_checks import missing_interpreter
from corral.audit import hook_trials
from corral.guard.path_zones import inside
from corral.integrations.hooks.install import installed_hooks
from corral.integrations.hooks.json_edit import SettingsError
from corral.integrations.hooks.reachability import disabling_setting, missing_events, why_unreached
from corral.integrations.hooks.registry import (
    HOSTS,
    PROJECT,
    USER,
    is_host_present,
    settings_directory,
    settings_path,
    start_words,
)
from corral.policy.answers.pending_calls import take_pending_call
from corral.runtime import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from corral.integrations.hooks.hosts import Host
    from corral.integrations.hooks.reachability import Installed


REFUSED = "sudo reboot"  # judged, never run
ALLOWED = "ls"
CANARY = "a trial by corral itself"  # for readers of the log; a ticket marks the trial for programs
_UNJUDGED = "The host runs every command unjudged."
_FOUND_FIRST = "A host that is started from here may run a program that a command has put there, as git or a shell."
SECONDS = 15.0  # the hook's own limit is 4; the rest is for a loaded machine
REFUSED_STATUS = 2
_STORED = re.compile(rb"/corral go ([0-9a-f]{4,32})\b")  # in the line that runs a command contained


@frozen
class HookCheck(Record):
    """The check of one hook in one file of a host."""

    host: str
    path: str
    status: str
    found: str
    means: str = ""
    command: str = ""


def hook_checks(environ: Mapping[str, str], root: str) -> tuple[Check, ...]:
    """Prove every hook of corral in the user's and the project's settings, and name the hosts without one."""
    checks = tuple(_to_check(check) for host in HOSTS.values() for check in _checks(host, root, environ))
    return (*checks, *_search_path(environ, root)) if checks else ()


def _search_path(environ: Mapping[str, str], root: str) -> Iterator[Check]:
    """Warn about directories of the project in which a host would look for programs."""
    for entry in dict.fromkeys(environ.get("PATH", "").split(":")):
        if inside(os.path.realpath(os.path.join(root, entry)), root):
            found = f"{entry or 'the working directory'} is on the PATH, and in the project"
            yield Check(
                "hooks", "PATH", WARN, found, _FOUND_FIRST, (Fix("Start the host from a shell without that entry."),)
            )


def _to_check(check: HookCheck) -> Check:
    fixes = (Fix("", check.command),) if check.command else ()
    return Check("hooks", check.host, check.status, f"{check.found}: {check.path}", check.means, fixes)


def prove_hooks(host: Host, path: str, root: str, environ: Mapping[str, str]) -> Iterator[HookCheck]:
    """Prove every hook of corral in one file: that the host calls it, and that it answers correctly."""
    installed = installed_hooks(host, path)
    again = f"corral install {host.name}" + (" --project" if path == f"{root}/{host.project_file}" else "")
    off = disabling_setting(host, path, root, environ) if installed else None
    for one in installed:
        if off is not None:
            yield HookCheck(host.name, off[0], FAIL, off[1], _UNJUDGED)
            continue
        why, is_open = why_unreached(host, path, one, root, environ)
        if not is_open:
            yield _try(host, path, one, root, environ, again=again)
        if why:
            means = _UNJUDGED if is_open else "corral does not judge what these tools do."
            yield HookCheck(host.name, path, FAIL if is_open else WARN, why, means, again)
    for event in missing_events(host, installed, environ) if installed else ():
        yield HookCheck(host.name, path, FAIL, f"{host.title} has no hook at {event}", _UNJUDGED, again)


def _try(
    host: Host, path: str, installed: Installed, root: str, environ: Mapping[str, str], *, again: str
) -> HookCheck:
    event, _, hook = installed
    if program := missing_interpreter(hook):
        return HookCheck(host.name, path, FAIL, f"its interpreter {program} is gone", _UNJUDGED, again)
    answers = []
    calls = probe_calls(host, event, root)
    with hook_trials.ticket(environ) as marked:
        given = {**environ, **({host.root_variable: root} if host.root_variable else {}), **marked}
        for payload in calls.values():
            try:
                answers.append(processes.run_program(start_words(hook), json.dumps(payload).encode(), given, SECONDS))
            except OSError as error:
                found = f"it cannot be run: {error.strerror or error}"
                return HookCheck(host.name, path, FAIL, found, _UNJUDGED, again)
    for name in _STORED.findall(answers[-1][1]):
        take_pending_call(name.decode(), environ)  # nobody runs the trial
    return HookCheck(host.name, path, *_judged(list(calls), answers, again, contains=host.rewrites))


def _judged(
    calls: list[str], answers: list[tuple[int, bytes, bytes]], again: str, *, contains: bool
) -> tuple[str, str, str, str]:
    """Return the status, the finding, its meaning and the command that fixes it."""
    (refused, _, why), (allowed, said, complaint) = answers
    if refused != REFUSED_STATUS or not why.strip():
        last = why.decode("utf-8", "replace").strip().rpartition("\n")[2]
        found = f"it did not refuse {calls[0]}: exit code {refused}" + (f", {last}" if last else "")
        return FAIL, found, _UNJUDGED, again
    if allowed != 0:
        last = complaint.decode("utf-8", "replace").strip()
        return FAIL, f"it refuses even {calls[1]}: {last}", "The agent can run nothing until this is fixed.", ""
    if contains and _STORED.search(said) is None:
        return FAIL, f"it does not make {calls[1]} run contained", "Allowed commands run outside the sandbox.", again
    held = f"runs {calls[1]} contained" if contains else f"allows {calls[1]}"
    return OK, f"refuses {calls[0]}, {held}", "", ""


def probe_calls(host: Host, event: str, root: str) -> dict[str, dict[str, Any]]:
    """Return a call that the hook must refuse and one that it must allow, as the host sends them, each with its name."""
    if host.file_trials is not None and (calls := host.file_trials(event, root)):
        return calls
    return {f"`{text}`": host.payload(event, {"command": f"{text}  # {CANARY}"}, root) for text in (REFUSED, ALLOWED)}


def _checks(host: Host, root: str, environ: Mapping[str, str]) -> Iterator[HookCheck]:
    found = False
    # Both are the same file if the home directory is the project.
    for path in dict.fromkeys(settings_path(host, level, root, environ) for level in (USER, PROJECT)):
        try:
            proofs = list(prove_hooks(host, path, root, environ))
        except SettingsError as error:
            proofs = [HookCheck(host.name, path, FAIL, str(error), "Neither corral nor the host can read it.")]
        found = found or bool(proofs)
        yield from proofs
        if proofs and host.checks is not None:
            for check in host.checks(path, settings_directory(host, environ)):
                yield HookCheck(host.name, path, *check)
    if not found and is_host_present(host, environ):
        path = settings_path(host, USER, root, environ)
        yield HookCheck(host.name, path, WARN, f"{host.title} has no hook", _UNJUDGED, f"corral install {host.name}")
