"""`corral uninstall`: restores a host's settings as they were before corral, or removes only corral's entry if they changed since."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from corral._lib.terminal import printable, terminal_of
from corral.apps.cli.hook_settings import DECLINED_STATUS, HOST_ARGUMENTS, check_levels, confirm, level_and_root
from corral.apps.cli.verb import Options, Verb
from corral.integrations.hooks.install import apply, installed_hooks, plan_uninstall
from corral.integrations.hooks.json_edit import SettingsError
from corral.integrations.hooks.launcher import remove_launcher
from corral.integrations.hooks.registry import HOSTS, PROJECT, USER, settings_path
from corral.model.render_result import json_text

if TYPE_CHECKING:
    from corral.integrations.hooks.hosts import Host

VERB = Verb(
    "agents",
    "Remove corral's hook from a coding agent.",
    examples="""\
corral uninstall claude
corral uninstall codex --project
""",
    notes="""\
corral restores the file as it was before. If the file was changed since, corral removes only its own entry.
""",
    exit_codes="0 removed or never installed, 1 you said no, 125 corral itself failed",
    arguments=(*HOST_ARGUMENTS,),
)
check_arguments = check_levels


def main(options: Options) -> int:
    """Remove the hook from every host that is named. Returns the worst exit code."""
    level, root = level_and_root(options)
    if not options.hosts:
        raise SettingsError(f"name a host. {_installed(root) or 'No host has a hook of corral'}")
    status = max([_uninstall(HOSTS[name], level, root, options) for name in options.hosts])
    if not options.dry_run and not _installed(root):
        remove_launcher(os.environ)
    return status


def _installed(root: str) -> str:
    found = [
        f"corral uninstall {host.name}" + (" --project" if level == PROJECT else "")
        for host in HOSTS.values()
        for level in (USER, PROJECT)
        if _is_installed(host, level, root)
    ]
    return f"Try: {', '.join(found)}" if found else ""


def _is_installed(host: Host, level: str, root: str) -> bool:
    if level == PROJECT and not root:
        return False
    try:
        return bool(installed_hooks(host, settings_path(host, level, root, os.environ)))
    except SettingsError:
        return False


def _uninstall(host: Host, level: str, root: str, options: Options) -> int:
    change = plan_uninstall(host, level, root, os.environ)
    done = change.is_needed and confirm(change, options)
    if done:
        apply(change, os.environ, root)
    path = printable(change.path)
    if options.json:
        facts = {"host": host.name, "level": level, "path": change.path, "changes": change.is_needed, "written": done}
        print(json_text(facts))
    elif done:
        terminal = terminal_of(sys.stderr, os.environ)
        text = f"{path} is removed." if change.after is None else f"corral's hook is removed from {path}."
        print(f"{terminal.paint('allow', terminal.sign('allow'))} {text}", file=sys.stderr)
    elif not change.is_needed:
        other = PROJECT if level == USER else USER
        hint = f"; --{other} has one" if _is_installed(host, other, root) else ""
        print(f"There is no hook of corral in {path}{hint}.", file=sys.stderr)
    return 0 if done or not change.is_needed or options.dry_run else DECLINED_STATUS
