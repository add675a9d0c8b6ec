"""`corral` alone: what is active here. Reads and tries in throwaway processes, changes nothing, and is quick.

Whether a hook really answers, and whether a sandbox really starts, is what `corral doctor` proves.
"""

from __future__ import annotations

import os
import sys

from corral import __version__
from corral._lib.records import Record, frozen
from corral._lib.terminal import clip, pad, printable, terminal_of, wrap
from corral.apps.cli.next_steps import install_steps, with_own_command
from corral.audit import audit_log
from corral.containment import layers
from corral.containment.filesystem.temp_dirs import make_temp_dir
from corral.containment.state import unmet_requirement
from corral.model.errors import CorralError, PolicyError
from corral.model.render_result import FAILURE_STATUS, json_text
from corral.policy import approvals, user_dirs
from corral.policy.config import checked_root
from corral.policy.loader import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping
    from typing import Any

    from corral._lib.terminal import Terminal
    from corral.policy.loader import Policy

SHOWN = 3  # refusals
TAIL_BYTES = 512 * 1024  # of the log; what was refused before that is no news
LABEL_COLUMNS = len("approved  ")
OK, WARN, FAIL = "allow", "warn", "deny"


@frozen
class Line(Record):
    """One thing that is or is not as it should be, and what to do about it."""

    label: str
    status: str
    text: str
    command: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return the line as JSON-ready data."""
        status = {OK: "ok", FAIL: "fail"}.get(self.status, self.status)
        return {"about": self.label, "status": status, "text": self.text, "command": self.command}


def main(options: argparse.Namespace) -> int:
    """Show what is active; 0, or 125 where the policy cannot be used, so that every call is refused."""
    root = checked_root(options.root)
    try:
        policy, broken = load(root, os.environ), ""
    except PolicyError as error:
        policy, broken = None, str(error)
    lines = [
        *_project_lines(root),
        *_policy_lines(policy, broken, root),
        *_kernel_lines(policy),
        *_log_lines(policy),
        *_hook_lines(root, os.environ),
        *_approval_lines(root),
    ]
    lines = [line.replace(command=with_own_command(line.command, os.environ)) for line in lines]
    refused = recent_refusals(audit_log.directory(os.environ), root)
    if options.json:
        facts = {"version": __version__, "root": root, "profile": policy.config.rules.name if policy else None}
        print(json_text({**facts, "checks": [line.to_dict() for line in lines], "refused": refused}))
    else:
        print("\n".join(_text(root, lines, refused, terminal_of(sys.stdout, os.environ))))
    return FAILURE_STATUS if broken else 0


def _project_lines(root: str) -> Iterator[Line]:
    for kind in ("config", "state", "cache"):
        try:
            user_dirs.refuse_inside_project(user_dirs.user_directory(kind, os.environ), root)
        except PolicyError:
            place = "Your home directory" if root == os.path.realpath(os.environ.get("HOME") or "/") else root
            text = f"{place} cannot be a project, because it contains corral's own files. Change to a project, or pass --root"
            yield Line("project", FAIL, text, "corral --root DIR")
            return


def _policy_lines(policy: Policy | None, broken: str, root: str) -> Iterator[Line]:
    if policy is None:
        yield Line("policy", FAIL, f"cannot be used, so every call is refused: {broken}", "corral policy show")
        return
    profile = policy.config.rules.name
    yield Line("profile", OK, f"{profile}{'' if policy.sources else ', as built in: there is no policy file'}")
    for source in policy.sources:
        name = _short(source.path, root)
        if source.level == "owner":
            yield Line("policy", OK, f"{name}, yours")
        elif source.trusted:
            yield Line("policy", OK, f"{name}, the project's, trusted")
        elif policy.waiting:
            keys = ", ".join(dict.fromkeys(setting.key for setting in policy.waiting))
            yield Line(
                "policy", WARN, f"{name}, the project's, only tightens; waiting for trust: {keys}", "corral trust"
            )
        else:
            yield Line("policy", OK, f"{name}, the project's, only tightens")


def _kernel_lines(policy: Policy | None) -> Iterator[Line]:
    if policy is None:
        return
    config = policy.config
    if config.containment.backend == "none":
        yield Line("kernel", WARN, "none: the policy says containment.backend = 'none'; nothing holds a command")
        return
    enforcement, missing = _probed(config.containment.network)
    what = "every layer holds" if enforcement == "full" else f"missing {', '.join(missing)}"
    demand = unmet_requirement(config, "warden" if enforcement != "none" else "none", enforcement, missing)
    runs = ", so nothing runs" if demand else ""
    status = OK if enforcement == "full" else FAIL if demand else WARN
    yield Line("kernel", status, f"{enforcement}: {what}{runs}", "" if status == OK else "corral doctor")


def _log_lines(policy: Policy | None) -> Iterator[Line]:
    if policy is None:
        return
    if why := audit_log.Log(policy.config).obstacle():
        is_fatal = policy.config.audit.required
        yield Line("log", FAIL if is_fatal else WARN, f"{'nothing runs: ' if is_fatal else ''}{why}")


def _probed(network: object) -> tuple[str, tuple[str, ...]]:
    stage = make_temp_dir("corral-probe-")
    try:
        return layers.downgrade(layers.wanted(network), layers.probe(stage))
    finally:
        os.rmdir(stage)


def _hook_lines(root: str, environ: Mapping[str, str]) -> Iterator[Line]:
    from corral.integrations.hooks.registry import HOSTS, PROJECT, USER, is_host_present, settings_path  # noqa: PLC0415  loads re

    hooked, bare = 0, []
    for host in HOSTS.values():
        found = False
        for level, where in ((USER, "all projects"), (PROJECT, "this project")):
            path = settings_path(host, level, root, environ)
            problem = _hook(host, path)
            if problem is None:
                continue
            found = True
            hooked += 1
            status = FAIL if problem else OK
            text = f"{host.title}, {where}: {_short(path, root)}{f': {problem}' if problem else ''}"
            yield Line("hooks", status, text, _install(host.name, environ) if problem else "")
        if not found and is_host_present(host, environ):
            bare.append(host)
    for host in bare:
        yield Line("hooks", WARN, f"{host.title} is installed but not guarded", _install(host.name, environ))
    if not hooked and not bare:
        yield Line("hooks", WARN, "no agent is guarded yet", _install("claude", environ))


def _install(host: str, environ: Mapping[str, str]) -> str:
    return " && ".join(install_steps(host, environ))


def _hook(host: Any, path: str) -> str | None:
    """Return what is wrong with our hook in a file, or nothing; None where there is none."""
    if not os.path.exists(path):
        return None
    from corral.integrations.hooks.install import installed_hooks  # noqa: PLC0415
    from corral.integrations.hooks.json_edit import SettingsError  # noqa: PLC0415
    from corral.integrations.hooks.registry import command_words  # noqa: PLC0415

    try:
        hooks = installed_hooks(host, path)
    except SettingsError as error:
        return str(error)
    if not hooks:
        return None
    programs = [word for _, _, hook in hooks for word in command_words(hook)[:1]]
    gone = [program for program in programs if program.startswith("/") and not os.access(program, os.X_OK)]
    return f"its interpreter {gone[0]} is gone, so nothing is judged" if gone else ""


def _approval_lines(root: str) -> Iterator[Line]:
    try:
        here = [approval for approval in approvals.list_approvals(os.environ) if approval.root == root]
    except CorralError as error:
        yield Line("approved", FAIL, str(error))
        return
    if here:
        yield Line(
            "approved",
            OK,
            "1 call runs without being asked about"
            if len(here) == 1
            else f"{len(here)} calls run without being asked about",
            "corral grants",
        )


def recent_refusals(place: str, root: str) -> list[dict[str, str]]:
    """Return the last calls in a project that were refused, the newest last; as far as the end of the log tells."""
    try:
        with open(f"{place}/log.jsonl", "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - TAIL_BYTES, 0))
            lines = file.read().splitlines()
    except OSError:
        return []
    from corral.audit.query import LogFilter, command_of, entry_of  # noqa: PLC0415  only where there is a log

    found: list[dict[str, str]] = []
    for line in reversed(lines):
        entry = entry_of(line)
        if entry is None or entry.get("root") != root or entry.get("event") == "check" or not _is_refused(entry):
            continue
        if not LogFilter().fits(entry):
            continue
        rules = [str(finding.get("rule", "")) for finding in entry.get("findings", ())]
        told = {name: str(entry.get(name, "")) for name in ("at", "id", "host")}
        found.append({**told, "command": command_of(entry), "rule": rules[0] if rules else "", "why": _why(entry)})
        if len(found) == SHOWN:
            break
    return found[::-1]


def _is_refused(entry: dict[str, Any]) -> bool:
    result = entry.get("result")
    return entry.get("decision") == "deny" or (isinstance(result, dict) and result.get("denied") is True)


def _why(entry: dict[str, Any]) -> str:
    findings: list[dict[str, Any]] = entry.get("findings") or [{}]
    return str(entry.get("error") or findings[0].get("reason") or entry.get("reason", ""))


def _short(path: str, root: str) -> str:
    home = os.environ.get("HOME", "")
    if path.startswith(f"{root}/"):
        return path[len(root) + 1 :]
    return f"~{path[len(home) :]}" if home and path.startswith(f"{home}/") else path


def _text(root: str, lines: list[Line], refused: list[dict[str, str]], terminal: Terminal) -> Iterator[str]:
    dot = terminal.sign("dot")
    yield terminal.paint("head", f"corral {__version__}") + f" {dot} {clip_left(printable(root), terminal)}"
    yield ""
    last = ""
    for line in lines:
        yield from _line_text(line, line.label if line.label != last else "", terminal)
        last = line.label
    if refused:
        yield ""
        yield terminal.paint("head", "Refused last")
        for call in refused:
            yield from _refusal_text(call, terminal)
    yield ""
    nexts = (
        ["corral log", "corral doctor", "corral --help"]
        if refused
        else ["corral demo", "corral doctor", "corral --help"]
    )
    more = f"More: {f' {dot} '.join(with_own_command(each, os.environ) for each in nexts)}"
    yield from (terminal.paint("dim", line) for line in wrap(more, terminal.columns, "  "))


def clip_left(path: str, terminal: Terminal) -> str:
    """Return a path that fits beside the version: its end says more than its beginning."""
    room = max(terminal.columns - len(f"corral {__version__} - "), 8)
    cut = terminal.sign("cut")
    return path if len(path) <= room else cut + path[len(cut) - room :]


def _line_text(line: Line, label: str, terminal: Terminal) -> Iterator[str]:
    indent = " " * (4 + LABEL_COLUMNS)
    style = {WARN: "ask"}.get(line.status, line.status)
    sign = terminal.paint(style, terminal.sign(line.status))
    first, *rest = wrap(printable(line.text), terminal.columns, indent)
    yield f"  {sign} {terminal.paint('dim', pad(label, LABEL_COLUMNS))}{first[len(indent) :]}"
    yield from rest
    if line.command:
        yield f"{indent}{terminal.paint('mark', f'$ {line.command}')}"


def _when(at: str) -> str:
    """Return a time of the log as the owner's clock shows it."""
    from calendar import timegm  # noqa: PLC0415
    from time import localtime, strftime, strptime  # noqa: PLC0415  only where there is something to tell

    try:
        then = timegm(strptime(at[:19], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return "?"
    is_today = strftime("%x", localtime(then)) == strftime("%x")
    return strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M", localtime(then))


def _refusal_text(call: dict[str, str], terminal: Terminal) -> Iterator[str]:
    at = _when(call["at"])
    cut = terminal.sign("cut")
    by = f" {terminal.sign('dot')} {printable(call['host'])}" if call["host"] else ""
    yield f"  {terminal.paint('deny', terminal.sign('deny'))} {terminal.paint('dim', at + by)}"
    yield f"    {clip(printable(call['command'] or '(no call)'), terminal.columns - 4, cut)}"
    why = f"{call['rule']}: {call['why']}" if call["rule"] else call["why"]
    yield f"    {terminal.paint('dim', clip(printable(why), terminal.columns - 4, cut))}"
