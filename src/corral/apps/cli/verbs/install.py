"""`corral install`: writes the hook into a host's settings, after showing the change, and proves that the hook works."""

from __future__ import annotations

import os
import sys
import tempfile

from corral._lib.terminal import Terminal, printable, terminal_of, wrap
from corral.apps.cli.hook_settings import DECLINED_STATUS, HOST_ARGUMENTS, check_levels, confirm, level_and_root
from corral.apps.cli.verb import Options, Verb
from corral.apps.cli.verbs.posture import ask_host_questions, ask_posture
from corral.apps.doctor.check import FAIL
from corral.apps.doctor.hook_checks import HookCheck, prove_hooks
from corral.containment.filesystem.temp_dirs import process_temp_dir
from corral.integrations.hooks.hook_command import refuse_writable, temporary_location
from corral.integrations.hooks.install import Change, apply, plan_install
from corral.integrations.hooks.json_edit import SettingsError
from corral.integrations.hooks.registry import HOSTS, PROJECT, USER, is_host_present
from corral.model.errors import PolicyError
from corral.model.render_result import FAILURE_STATUS, json_text
from corral.policy.loader import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.integrations.hooks.hosts import Host


VERB = Verb(
    "agents",
    "Install corral's hook into a coding agent, so that it asks corral before every command.",
    examples="""\
corral install claude              for all your projects
corral install codex --project     for this project only
corral install gemini --dry-run    show the change and write nothing
""",
    notes="""\
corral shows the change and writes it when you agree; --yes is for scripts. It changes nothing else in the file. It tries
the hook at once; `corral doctor` tries it again at any time. At a terminal it then asks, once, how much agents may do
without a question (see `corral posture`), and whether the agent's own prompt may answer for you.
""",
    exit_codes="0 installed, 1 you said no, 125 the installed hook does not work or corral itself failed",
    arguments=(*HOST_ARGUMENTS,),
)
check_arguments = check_levels


def main(options: Options) -> int:
    """Install the hook into every host that is named. Returns the worst exit code."""
    if not options.hosts:
        return _print_hosts()
    level, root = level_and_root(options)
    refuse_writable((root, *_writable_grants(root)), os.environ)
    status = max([_install(HOSTS[name], level, root, options) for name in options.hosts])
    if not (options.json or options.yes or options.dry_run or status):
        ask_posture(os.environ)
        for name in options.hosts:
            ask_host_questions(name, HOSTS[name].title, os.environ)
    return status


def _writable_grants(root: str) -> tuple[str, ...]:
    try:
        return tuple(load(root, os.environ).config.containment.write) if root else ()
    except PolicyError as error:
        raise SettingsError(f"the policy cannot be read, so corral would refuse every call: {error}") from None


def _print_hosts() -> int:
    terminal = terminal_of(sys.stderr, os.environ)
    print("Name a host, for example: corral install claude", file=sys.stderr)
    for host in HOSTS.values():
        found = "installed" if is_host_present(host, os.environ) else ""
        print(f"  {terminal.paint('head', f'{host.name:9}')} {host.title:13} {found}".rstrip(), file=sys.stderr)
    return FAILURE_STATUS


def _install(host: Host, level: str, root: str, options: Options) -> int:
    change = plan_install(host, level, root, os.environ)
    if change.is_needed and not confirm(change, options):
        if options.json:
            print(json_text(_facts(change, options, ())))
        return 0 if options.dry_run else DECLINED_STATUS
    backup = apply(change, os.environ, root) if change.is_needed else ""
    checks = _prove(host, change.path, root)
    if options.json:
        print(json_text(_facts(change, options, checks)))
    else:
        terminal = terminal_of(sys.stderr, os.environ)
        print("\n".join(_lines(change, backup, checks, terminal)), file=sys.stderr)
    return FAILURE_STATUS if any(check.status == FAIL for check in checks) else 0


def _prove(host: Host, path: str, root: str) -> tuple[HookCheck, ...]:
    if root:
        return tuple(prove_hooks(host, path, root, os.environ))
    with tempfile.TemporaryDirectory(prefix="corral-canary-", dir=process_temp_dir()) as empty:
        return tuple(prove_hooks(host, path, os.path.realpath(empty), os.environ))


def _facts(change: Change, options: Options, checks: tuple[HookCheck, ...]) -> dict[str, object]:
    return {
        "host": change.host.name,
        "level": change.level,
        "path": change.path,
        "changes": change.is_needed,
        "written": change.is_needed and not options.dry_run,
        "checks": [{"status": check.status, "found": check.found, "means": check.means} for check in checks],
    }


def _lines(change: Change, backup: str, checks: tuple[HookCheck, ...], terminal: Terminal) -> Iterator[str]:
    host = change.host
    sign = "deny" if any(check.status == FAIL for check in checks) else "allow"
    where = "all projects" if change.level == USER else "this project"
    if not change.is_needed:
        yield "Already installed; nothing changed."
    asks = "asks corral before every command and every file that it writes, in"
    yield f"{terminal.paint(sign, terminal.sign(sign))} {host.title} {asks} {where}."
    rows = [("file", change.path), ("before", backup)]
    rows += [("failed" if check.status == FAIL else "proven", f"{check.found} {check.means}") for check in checks]
    rows += [("note", host.note), ("note", host.project_note if change.level == PROJECT else "")]
    if place := temporary_location():
        rows.append(
            (
                "note",
                f"{place} is in a temporary directory. If it is removed, the hook cannot start. Install corral elsewhere.",
            )
        )
    rows.append(("undo", f"corral uninstall {host.name}{' --project' * (change.level == PROJECT)}"))
    indent = " " * 11
    for name, text in rows:
        if text:
            first, *rest = wrap(printable(text.strip()), terminal.columns, indent)
            yield f"  {terminal.paint('head', f'{name:8}')} {first.lstrip()}"
            yield from rest
