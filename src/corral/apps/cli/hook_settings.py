"""Holds the code that `install` and `uninstall` share: arguments, the choice of the project, the question before a change."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentTypeError

from corral._lib.terminal import Terminal, printable, terminal_of
from corral.apps.cli.verb import Options, UsageError, argument
from corral.integrations.hooks.hook_command import project_of
from corral.integrations.hooks.json_edit import SettingsError
from corral.integrations.hooks.registry import HOSTS, PROJECT, USER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.integrations.hooks.install import Change

DECLINED_STATUS = 1
_STYLES = {"+": "allow", "-": "deny", "@": "mark"}


def _host(text: str) -> str:
    if text not in HOSTS:
        raise ArgumentTypeError(f"there is no host {printable(text)}; choose one of {', '.join(HOSTS)}")
    return text


HOST_ARGUMENTS = (
    argument(
        "hosts HOST",
        f"Change the settings of these agents: {', '.join(HOSTS)}.",
        nargs="*",
        type=_host,
        completes=tuple(HOSTS),
    ),
    argument("--user", "For all projects (default)."),
    argument("--project", "For this project only."),
    argument("--root DIR", "Use this project (default: the project of the working directory)."),
    argument("-y --yes", "Do not ask. Meant for scripts."),
    argument("-n --dry-run", "Show the change and write nothing."),
)


def check_levels(options: Options, _: list[str]) -> None:
    """Refuse two levels."""
    if options.user and options.project:
        raise UsageError("give only one of: --user, --project")


def level_and_root(options: Options) -> tuple[str, str]:
    """Return the level, and the project: that of --root, else that of the working directory."""
    level = PROJECT if options.project else USER
    root = os.path.realpath(options.root) if options.root else project_of(os.getcwd(), os.environ)
    if level == PROJECT:
        root = root or os.path.realpath(os.getcwd())
        if root in ("/", os.path.realpath(os.environ.get("HOME") or "/")):
            raise SettingsError(
                f"{root} is not a project. Change to a project, name one with --root DIR, or install with --user"
            )
    return level, root


def confirm(change: Change, options: Options) -> bool:
    """Show the change and return whether to write it: if the user agrees, or with --yes."""
    stream = sys.stderr if options.json else sys.stdout
    if not (options.json and options.yes):
        print("\n".join(_diff_lines(change, terminal_of(stream, os.environ))), file=stream, flush=True)
    if options.dry_run:
        return False
    if options.yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise SettingsError(
            "there is no terminal to ask on, so nothing was written. Add --yes, or --dry-run to see the change"
        )
    print("Write it? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    print("Nothing was written.", file=sys.stderr)
    return False


def _diff_lines(change: Change, terminal: Terminal) -> Iterator[str]:
    from difflib import unified_diff  # noqa: PLC0415  only where there is a change to show

    before, after = ((data or b"").decode("utf-8", "replace").splitlines() for data in (change.before, change.after))
    old, new = ("/dev/null" if data is None else change.path for data in (change.before, change.after))
    for line in unified_diff(before, after, old, new, lineterm=""):
        style = "head" if line.startswith(("---", "+++")) else _STYLES.get(line[:1])
        yield terminal.paint(style, printable(line)) if style else printable(line)
