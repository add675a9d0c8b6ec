"""Checks that need no sandbox and call no hook: all of `corral status`, and a part of `corral doctor`."""

from __future__ import annotations

import os

from corral.apps.doctor.check import FAIL, OK, WARN, Check, Fix
from corral.audit import audit_log
from corral.containment import layers
from corral.containment.filesystem.temp_dirs import make_temp_dir
from corral.containment.layers import unmet_requirement
from corral.integrations.hooks.install import installed_hooks
from corral.integrations.hooks.json_edit import SettingsError
from corral.integrations.hooks.registry import HOSTS, PROJECT, USER, command_words, is_host_present, settings_path
from corral.model.errors import CorralError, PolicyError
from corral.policy import user_dirs
from corral.policy.answers import approvals
from corral.policy.paused import paused_since
from corral.sessions.queries import running_sessions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from corral.integrations.hooks.hosts import Host
    from corral.policy.config import SandboxConfig
    from corral.policy.loader import Policy

GROUP = "quick"


def _check(name: str, status: str, found: str, command: str = "") -> Check:
    return Check(GROUP, name, status, found, fixes=(Fix("", command),) if command else ())


def quick_checks(policy: Policy | None, broken: str, root: str, environ: Mapping[str, str]) -> list[Check]:
    """Check everything that is quick to check. `broken` says why there is no policy."""
    checks = [*_project(root, environ), *paused_checks(root, environ), *_policy(policy, broken, root, environ)]
    if policy is not None:
        checks += [_kernel(policy.config), *(log for log in (log_check(policy.config),) if log.status != OK)]
    return [*checks, *_hooks(root, environ), *_approvals(root, environ), *_sessions(root, environ)]


def paused_checks(root: str, environ: Mapping[str, str]) -> Iterator[Check]:
    """Report a project that hooks do not guard."""
    try:
        if paused_since(root, environ):
            text = "this project is paused: hooks let every call pass, not judged and outside the sandbox"
            yield Check("around", "paused", FAIL, text, fixes=(Fix("", "corral resume"),))
    except PolicyError as error:
        yield Check("around", "paused", WARN, f"corral cannot tell whether this project is paused: {error}")


def _sessions(root: str, environ: Mapping[str, str]) -> Iterator[Check]:
    for session in running_sessions(environ, root):
        running = [one for one in session.processes if one["running"]]
        kept = sum(bool(one["background"]) for one in running)
        ports = f", ports {', '.join(map(str, session.ports))}" if session.ports else ""
        text = f"{session.session}: {len(running)} running, {kept} of them in the background{ports}"
        if published := session.published_texts():
            text += f"; published: {', '.join(published)}"
        yield _check("session", OK, text, "corral ps" if running else "")


def _project(root: str, environ: Mapping[str, str]) -> Iterator[Check]:
    for kind in ("config", "state", "cache"):
        try:
            user_dirs.refuse_inside_project(user_dirs.user_directory(kind, environ), root)
        except PolicyError:
            place = "Your home directory" if root == os.path.realpath(environ.get("HOME") or "/") else root
            text = f"{place} cannot be a project, because it contains corral's own files. Change to a project, or pass --root"
            yield _check("project", FAIL, text, "corral --root DIR")
            return


def _policy(policy: Policy | None, broken: str, root: str, environ: Mapping[str, str]) -> Iterator[Check]:
    if policy is None:
        text = f"the policy cannot be used, so corral refuses every call: {broken}"
        yield _check("policy", FAIL, text, "corral policy show")
        return
    built_in = "" if policy.sources else ", built in: there is no policy file"
    yield _check("profile", OK, f"{policy.config.rules.name}{built_in}")
    for source in policy.sources:
        name = short_path(source.path, root, environ)
        if source.level == "owner":
            yield _check("policy", OK, f"{name}, yours")
        elif source.trusted:
            yield _check("policy", OK, f"{name}, the project's, trusted")
        elif policy.waiting:
            keys = ", ".join(dict.fromkeys(setting.key for setting in policy.waiting))
            text = f"{name}, the project's, is not trusted; these settings would loosen your policy and have no effect: {keys}"
            yield _check("policy", WARN, text, "corral trust")
        else:
            yield _check("policy", OK, f"{name}, the project's, only tightens")


def _kernel(config: SandboxConfig) -> Check:
    if config.containment.backend == "none":
        return _check(
            "kernel", WARN, "none: the policy sets containment.backend = 'none', so nothing confines commands"
        )
    stage = make_temp_dir("corral-probe-")
    try:
        enforcement, missing = layers.downgrade(layers.wanted(config.containment.network), layers.probe(stage))
    finally:
        os.rmdir(stage)
    if enforcement == "full":
        return _check("kernel", OK, "full: every layer holds")
    unmet = unmet_requirement(config, "none" if enforcement == "none" else "warden", enforcement, missing)
    text = f"{enforcement}: missing {', '.join(missing)}{', so nothing runs' if unmet else ''}"
    return _check("kernel", FAIL if unmet else WARN, text, "corral doctor")


def log_check(config: SandboxConfig | None) -> Check:
    """Check that the audit log can be written. Without a usable policy the log is required."""
    obstacle = audit_log.Log(config).obstacle()
    if not obstacle:
        return Check("around", "log", OK, f"calls are logged in {audit_log.directory(os.environ)}")
    if config is None or config.audit.required:
        return Check("around", "log", FAIL, obstacle, "Nothing runs without the log.")
    return Check("around", "log", WARN, obstacle, "The policy runs commands without the log.")


def missing_interpreter(hook: Any) -> str:
    """Return the interpreter of a hook if it no longer exists. The host then runs commands unjudged."""
    programs = [word for word in command_words(hook)[:1] if word.startswith("/")]
    return next((program for program in programs if not os.access(program, os.X_OK)), "")


def _hooks(root: str, environ: Mapping[str, str]) -> Iterator[Check]:
    found = {host.name: list(_host_hooks(host, root, environ)) for host in HOSTS.values()}
    yield from (check for checks in found.values() for check in checks)
    unguarded = [host for host in HOSTS.values() if not found[host.name] and is_host_present(host, environ)]
    for host in unguarded:
        yield _check("hooks", WARN, f"{host.title} is installed but does not ask corral", f"corral install {host.name}")
    if not unguarded and not any(found.values()):
        yield _check("hooks", WARN, "no agent asks corral yet", "corral install claude")


def _host_hooks(host: Host, root: str, environ: Mapping[str, str]) -> Iterator[Check]:
    for level, where in ((USER, "all projects"), (PROJECT, "this project")):
        path = settings_path(host, level, root, environ)
        try:
            hooks = installed_hooks(host, path) if os.path.exists(path) else []
            gone = [program for _, _, hook in hooks if (program := missing_interpreter(hook))]
            problem = f": its interpreter {gone[0]} is gone, so nothing is judged" if gone else ""
        except SettingsError as error:
            hooks, problem = [None], f": {error}"  # type: ignore[list-item]  # counts as a hook: the file needs a repair
        if hooks:
            text = f"{host.title}, {where}: {short_path(path, root, environ)}{problem}"
            yield _check("hooks", FAIL if problem else OK, text, f"corral install {host.name}" if problem else "")


def _approvals(root: str, environ: Mapping[str, str]) -> Iterator[Check]:
    try:
        count = sum(approval.root == root for approval in approvals.list_approvals(environ))
    except CorralError as error:
        yield _check("approved", FAIL, str(error))
        return
    if count:
        text = "1 call runs without a question" if count == 1 else f"{count} calls run without a question"
        yield _check("approved", OK, text, "corral grants")


def short_path(path: str, root: str, environ: Mapping[str, str]) -> str:
    """Return a path relative to the project or to the home directory."""
    home = environ.get("HOME", "")
    if path.startswith(f"{root}/"):
        return path[len(root) + 1 :]
    return f"~{path[len(home) :]}" if home and path.startswith(f"{home}/") else path
