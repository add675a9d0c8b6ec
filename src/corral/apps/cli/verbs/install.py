"""`corral install`: the hook into a host's settings, shown before it is written and proven after. Nothing else changes."""

from __future__ import annotations

import os
import sys
import tempfile

from corral._lib.terminal import printable, terminal_of, wrap
from corral.apps.doctor.hook_checks import FAIL, prove_hooks
from corral.containment.filesystem.temp_dirs import process_temp_dir
from corral.integrations.hooks.hook_command import project_of, refuse_writable, temporary_location
from corral.integrations.hooks.install import apply, plan_install
from corral.integrations.hooks.json_edit import SettingsError
from corral.integrations.hooks.registry import HOSTS, PROJECT, USER, is_host_present
from corral.model.errors import PolicyError
from corral.model.render_result import FAILURE_STATUS, json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from corral._lib.terminal import Terminal
    from corral.apps.doctor.hook_checks import HookCheck
    from corral.integrations.hooks.hosts import Host
    from corral.integrations.hooks.install import Change

DECLINED_STATUS = 1


def main(options: argparse.Namespace) -> int:
    """Install into every host that is named; the worst outcome is the exit code."""
    if not options.hosts:
        return _name_hosts()
    level, root = place(options)
    refuse_writable((root, *_granted(root)), os.environ)
    return max([_install(HOSTS[name], level, root, options) for name in options.hosts])


def place(options: argparse.Namespace) -> tuple[str, str]:
    """Return the level, and the project: what --root names, else what the working directory lies in."""
    level = PROJECT if options.project else USER
    root = os.path.realpath(options.root) if options.root else project_of(os.getcwd(), os.environ)
    if level == PROJECT:
        root = root or os.path.realpath(os.getcwd())
        if root in ("/", os.path.realpath(os.environ.get("HOME") or "/")):
            raise SettingsError(f"{root} is no project; go into one, name it with --root DIR, or install with --user")
    return level, root


def _granted(root: str) -> tuple[str, ...]:
    """Return what the policy lets commands write besides the project."""
    from corral.policy.loader import load  # noqa: PLC0415  where there is a project

    try:
        return tuple(load(root, os.environ).config.containment.write) if root else ()
    except PolicyError as error:
        raise SettingsError(f"the policy cannot be read, so every call would be refused: {error}") from None


def _name_hosts() -> int:
    terminal = terminal_of(sys.stderr, os.environ)
    print("Which host? For example: corral install claude", file=sys.stderr)
    for host in HOSTS.values():
        seen = "installed" if is_host_present(host, os.environ) else ""
        print(f"  {terminal.paint('head', f'{host.name:9}')} {host.title:13} {seen}".rstrip(), file=sys.stderr)
    return FAILURE_STATUS


def _install(host: Host, level: str, root: str, options: argparse.Namespace) -> int:
    change = plan_install(host, level, root, os.environ)
    if change.is_needed and not decided(change, options):
        if options.json:
            print(json_text(_facts(change, options, ())))
        return 0 if options.dry_run else DECLINED_STATUS
    kept = apply(change, os.environ, root) if change.is_needed else ""
    checks = _proven(host, change.path, root)
    if options.json:
        print(json_text(_facts(change, options, checks)))
    else:
        terminal = terminal_of(sys.stderr, os.environ)
        print("\n".join(_told(change, kept, checks, terminal)), file=sys.stderr)
    return FAILURE_STATUS if any(check.status == FAIL for check in checks) else 0


def decided(change: Change, options: argparse.Namespace) -> bool:
    """Show what would change, and return whether it is to be done: by the owner's word, or --yes."""
    stream = sys.stderr if options.json else sys.stdout
    if not (options.json and options.yes):
        print("\n".join(difference(change, terminal_of(stream, os.environ))), file=stream, flush=True)
    if options.dry_run:
        return False
    if options.yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise SettingsError("there is no terminal to ask on, and nothing was written; add --yes, or --dry-run to look")
    print("Write it? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    print("Nothing was written.", file=sys.stderr)
    return False


def difference(change: Change, terminal: Terminal) -> Iterator[str]:
    """Return the change as a unified diff."""
    from difflib import unified_diff  # noqa: PLC0415

    before, after = ((data or b"").decode("utf-8", "replace").splitlines() for data in (change.before, change.after))
    old, new = ("/dev/null" if data is None else change.path for data in (change.before, change.after))
    styles = {"+": "allow", "-": "deny", "@": "mark"}
    for line in unified_diff(before, after, old, new, lineterm=""):
        style = "head" if line.startswith(("---", "+++")) else styles.get(line[:1])
        yield terminal.paint(style, printable(line)) if style else printable(line)


def _proven(host: Host, path: str, root: str) -> tuple[HookCheck, ...]:
    if root:
        return tuple(prove_hooks(host, path, root, os.environ))
    with tempfile.TemporaryDirectory(prefix="corral-canary-", dir=process_temp_dir()) as empty:
        return tuple(prove_hooks(host, path, os.path.realpath(empty), os.environ))


def _facts(change: Change, options: argparse.Namespace, checks: tuple[HookCheck, ...]) -> dict[str, object]:
    return {
        "host": change.host.name,
        "level": change.level,
        "path": change.path,
        "changes": change.is_needed,
        "written": change.is_needed and not options.dry_run,
        "checks": [{"status": check.status, "found": check.found, "means": check.means} for check in checks],
    }


def _told(change: Change, kept: str, checks: tuple[HookCheck, ...], terminal: Terminal) -> Iterator[str]:
    host = change.host
    failed = [check for check in checks if check.status == FAIL]
    sign = "deny" if failed else "allow"
    where = "all projects" if change.level == USER else "this project"
    done = "asks corral before every command and every file that it writes, in"
    if not change.is_needed:
        yield "Already installed; nothing changed."
    yield f"{terminal.paint(sign, terminal.sign(sign))} {host.title} {done} {where}."
    yield from _row("file", change.path, terminal)
    if kept:
        yield from _row("before", kept, terminal)
    for check in checks:
        yield from _row("failed" if check in failed else "proven", f"{check.found} {check.means}".strip(), terminal)
    notes = [host.note, host.project_note if change.level == PROJECT else ""]
    if temporary_location():
        notes.append(
            f"{temporary_location()} is in a temporary directory: once that is emptied, commands run unjudged."
        )
    for note in filter(None, notes):
        yield from _row("note", note, terminal)
    yield from _row(
        "undo", f"corral uninstall {host.name}" + (" --project" if change.level == PROJECT else ""), terminal
    )


def _row(name: str, text: str, terminal: Terminal) -> list[str]:
    indent = " " * 11
    first, *rest = wrap(printable(text), terminal.columns, indent)
    return [f"  {terminal.paint('head', f'{name:8}')} {first.lstrip()}", *rest]
