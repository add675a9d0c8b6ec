"""Judges one tool call under the project's policy. Rewrites an allowed command to run in the sandbox, on hosts that can rewrite."""

from __future__ import annotations

import os
from time import time

from corral._lib.quoting import shell_join, shell_quote
from corral.audit import audit_log
from corral.guard.evaluate import vet
from corral.guard.machine import Machine
from corral.guard.path_zones import inside
from corral.integrations.hooks.launcher import launcher
from corral.integrations.hooks.protocol import (
    NOBODY,
    NOT_GUARDED,
    READ,
    SHELL,
    Answer,
    ToolCall,
    is_answered,
    why_not_asked,
)
from corral.model.call import Call, Decision
from corral.model.errors import AuditError, PolicyError
from corral.policy import user_dirs
from corral.policy.answers.pending_calls import PendingCall, host_session, save_pending_call
from corral.policy.config import SandboxConfig
from corral.policy.loader import PROJECT_FILE, load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from corral.model.call import Finding, Verdict

MAX_FINDINGS = 5  # in one reason; hosts cut longer reasons
MAX_INLINE_CHARACTERS = 16 * 1024  # of a command that its rewritten form shows; hosts quote it once more
# Environment variables that make the host's own shell, which is not in the sandbox, load a file before it runs anything.
_FILE_VARIABLES = ("BASH_ENV", "ENV", "ZDOTDIR", "SHELL")
_LIST_VARIABLES = ("LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH")
_EXPANDED = ("BASH_ENV", "ENV")
_UNSET = "The user can start the host without this variable. Look at the project's .env file too: some hosts load it."
_NOT_LOGGED = "A call that cannot be logged does not run. The user can repair the log, or set audit.required = false in the policy."
_PAUSED = "The user has paused this project, so the call was not judged and runs outside the sandbox."
_TYPED = "The host types this text into a running shell session, outside the sandbox."
_UNCONFINED = "It is allowed only in the sandbox, and this host cannot run it there."


def judge(call: ToolCall, name: str, environ: Mapping[str, str], paths: Sequence[str]) -> Answer:
    """Return the answer to one call. `paths` are the directories of corral's dependencies, if they are not beside it."""
    call = call.replace(root=project_root(call, environ), host=name)
    try:
        if _is_paused(call.root, environ):
            entry = {"cwd": call.cwd, "files": call.paths, "decision": "allow", "reason": _PAUSED}
            return _log(
                NOT_GUARDED,
                SandboxConfig(call.root),
                audit_log.Log(event="hook", host=name, environ=environ).note,
                entry,
            )
        config = load(call.root, environ).config
        log = audit_log.Log(config, event="hook", host=name, environ=environ)
        if call.kind == SHELL:
            return _judge_shell(call, config, log, environ, paths)
        from corral.integrations.hooks.file_tools import judge_files  # noqa: PLC0415  a plain command does not need it

        answer = judge_files(call, config, environ)
        if call.kind == READ and answer.decision == "allow":
            return answer  # entries about reads would fill the log
        entry = {"cwd": call.cwd, "files": call.paths, "decision": answer.decision, "reason": answer.reason}
        return _log(answer, config, log.note, entry)
    except PolicyError as error:
        log_unjudged(name, error, environ)
        return Answer(
            "deny", f"corral cannot use its policy: {error}. It refuses every call until the policy is repaired."
        )


def _is_paused(root: str, environ: Mapping[str, str]) -> bool:
    if not os.path.lexists(f"{user_dirs.user_directory('state', environ)}/paused"):
        return False
    from corral.policy.paused import paused_since  # noqa: PLC0415  few projects are paused

    return bool(paused_since(root, environ))


def _log(answer: Answer, config: SandboxConfig, write: Callable[..., None], *about: Any, **named: Any) -> Answer:
    """Log an answer and return it. If it cannot be logged, return a refusal, unless the policy accepts missing entries."""
    try:
        write(*about, **named)
    except AuditError as error:
        if config.audit.required:
            return Answer("deny", f"{error}. {_NOT_LOGGED}")
    return answer


def log_unjudged(name: str, error: object, environ: Mapping[str, str]) -> None:
    """Log a call that could not be judged, if possible; the call is refused in any case."""
    try:
        audit_log.Log(event="hook", host=name, environ=environ).note({"decision": "deny", "error": str(error)})
    except AuditError:
        return


def project_root(call: ToolCall, environ: Mapping[str, str]) -> str:
    """Return the root that the host names, or the nearest parent directory that looks like a project, but never the home directory."""
    if call.root.startswith("/") and os.path.isdir(call.root):
        return os.path.realpath(call.root)
    cwd = os.path.realpath(call.base or call.cwd)
    home = os.path.realpath(environ.get("HOME") or "/nonexistent")
    at, nearest, governed = cwd, "", ""
    while at not in ("/", home):
        if _has(at, PROJECT_FILE) and os.lstat(f"{at}/{PROJECT_FILE}").st_uid == os.geteuid():
            # The topmost policy file wins: an agent could create a project mark further down to escape it.
            governed = at
        if not nearest and any(_has(at, mark) for mark in user_dirs.PROJECT_MARKS):
            nearest = at
        at = os.path.dirname(at)
    return governed or nearest or cwd


def _has(directory: str, name: str) -> bool:
    return os.path.lexists(f"{directory}/{name}")


def _judge_shell(
    asked: ToolCall, config: SandboxConfig, log: audit_log.Log, environ: Mapping[str, str], paths: Sequence[str]
) -> Answer:
    cwd = os.path.realpath(asked.cwd)
    if why := _unsafe_variable(environ, asked.root, cwd):
        answer = Answer("deny", f"corral refuses this: {why}, and the file would run outside the sandbox. {_UNSET}")
        return _log(answer, config, log.note, {"cwd": cwd, "decision": "deny", "reason": why})
    call = Call((asked.text,), True, None if cwd == asked.root else cwd)
    verdict = vet(call, config, machine := _machine(asked.text, config, environ))
    in_transaction = False
    if not asked.rewrites and verdict.allowed and config.rules.needs_containment:
        verdict = vet(call, load(asked.root, environ, profile="strict").config, machine)
        answer = Answer("allow") if verdict.allowed else _ask_or_refuse(asked, verdict, config, environ, _UNCONFINED)
    elif verdict.decision is Decision.ASK:
        is_approved = _is_approved(asked, call, verdict, config, environ)
        in_transaction = not is_approved and _fits_transaction(asked, call, config, machine)
        if is_approved or in_transaction:
            answer = Answer("allow")
        elif verdict.grants:
            answer = _ask_about_grants(asked, call, verdict, config, environ)
        else:
            answer = _ask_or_refuse(asked, verdict, config, environ, call=call)
    else:
        by_hand = "" if verdict.allowed else _by_hand(call, verdict)
        answer = (
            Answer("allow") if verdict.allowed else Answer("deny", _reason("corral refuses this", verdict, by_hand))
        )
    if asked.is_typed and answer.decision == "allow":
        # Two harmless pieces of text may add up to a harmful command.
        answer = _ask_or_refuse(asked, verdict, config, environ, _TYPED)
    id_ = audit_log.new_id()
    if asked.rewrites and answer.decision != "deny":
        is_asked = answer.decision == "ask"
        pending = PendingCall(
            asked.text,
            asked.root,
            cwd,
            frozenset(finding.rule for finding in verdict.findings) if is_asked else frozenset(),
            frozenset(grant.opening for grant in verdict.grants) if is_asked else frozenset(),
            id_,
            # A transaction runs on a copy of the project: its directory and exports mean nothing to the host's shell.
            "" if in_transaction else asked.keeps,
            in_transaction,
            tuple(word for word in paths if word.startswith("--")),
            host_session(asked.process),
            _service(asked, config, environ) if not in_transaction else "",
        )
        answer = Answer(answer.decision, answer.reason, _rewrite(asked, pending, environ, paths))
    decision = Decision[answer.decision.upper()]
    return _log(answer, config, log.verdict, call, verdict, decision=decision, reason=answer.reason, id_=id_)


def _service(asked: ToolCall, config: SandboxConfig, environ: Mapping[str, str]) -> str:
    """Return the socket of the session that will run the call, and start its service; "" if the call runs without a session."""
    if not config.sessions or not asked.session or asked.is_typed:
        return ""
    from corral.sessions.socket_paths import socket_path  # noqa: PLC0415  few users turn sessions on
    from corral.sessions.start_service import ensure_service  # noqa: PLC0415  as above

    session = f"{asked.host}:{asked.session}"
    path = socket_path(config, session, environ, make=True)
    return path if path and ensure_service(path, asked.root, session, environ) else ""


def _unsafe_variable(environ: Mapping[str, str], root: str, cwd: str) -> str:
    """Return why the host's shell would load a file that a command may have written, or an empty string."""
    home = environ.get("HOME", "")
    for name in (*_FILE_VARIABLES, *_LIST_VARIABLES):
        value = environ.get(name, "")
        if name in _EXPANDED:
            value = value.replace("${HOME}", home).replace("$HOME", home)
            if "$" in value or "`" in value:
                return f"the variable {name} in the host's environment contains an expansion, which its shell would run"
        # An empty list entry is a common mistake in start-up files, and harmless.
        for part in filter(None, value.replace(" ", ":").split(":") if name in _LIST_VARIABLES else [value]):
            path = f"{home}{part[1:]}" if part.startswith("~/") else part
            if "/" in path and inside(os.path.realpath(os.path.join(cwd, path)), root):
                return f"the variable {name} in the host's environment names a file in the project, where commands can write"
    return ""


def _is_approved(
    asked: ToolCall, call: Call, verdict: Verdict, config: SandboxConfig, environ: Mapping[str, str]
) -> bool:
    """Say whether a stored answer of the user allows this call. `corral run` checks again, so only a rewritten call can be allowed."""
    if not asked.rewrites:
        return False
    from corral.policy.answers.approvals import find_approval  # noqa: PLC0415  most calls need no question

    if find_approval(call, verdict, config, environ) is not None:
        return True
    if not verdict.grants:
        return False
    from corral.policy.answers.family_grants import covering  # noqa: PLC0415  as above

    return covering(verdict, config, environ) is not None


def _ask_about_grants(
    asked: ToolCall, call: Call, verdict: Verdict, config: SandboxConfig, environ: Mapping[str, str]
) -> Answer:
    """Let the host ask about openings if the user has agreed to answer there; otherwise refuse, and say how the user can answer."""
    from corral.model.render_grant import declined_text, meanings, needs_sentence, refusal_text  # noqa: PLC0415  as above
    from corral.policy.answers.family_grants import NEVER, find_answer  # noqa: PLC0415  as above

    no = find_answer(call, verdict, config, environ)
    if no is not None:
        return Answer("deny", f"corral: {declined_text(no.answered_at, time(), never=no.answer == NEVER)}")
    # A host that cannot rewrite the command cannot run it with an opening.
    can_open = asked.rewrites and not asked.is_typed
    if can_open and asked.asks != NOBODY and asked.host in config.host_questions:
        from corral.guard.broker_shapes import sentences_about  # noqa: PLC0415  few calls are asked about in a host's prompt
        from corral.model.grant import BROKER  # noqa: PLC0415  as above

        text = " ".join((*meanings(verdict.grants), *sentences_about(verdict.grants)))
        stays = "The rest" if any(grant.kind == BROKER for grant in verdict.grants) else "It"
        text = f"It needs {needs_sentence(verdict.grants)}. With that, {text} {stays} stays in the sandbox."
        return Answer("ask", _question(verdict, text))
    id_ = _save_refusal(asked, call, verdict, environ) if can_open else ""
    return Answer("deny", f"corral: {refusal_text(verdict, id_)}" + ("" if can_open else f"\n{_UNCONFINED}"))


def _save_refusal(asked: ToolCall, call: Call, verdict: Verdict, environ: Mapping[str, str]) -> str:
    """Save the call for `corral allow`, and return its id; "" if that is not possible."""
    from corral.policy.answers.refusals import save_refusal  # noqa: PLC0415  most calls are not refused

    try:
        return save_refusal(call, verdict, asked.root, environ, host=asked.host)
    except (PolicyError, OSError):
        return ""  # the call is refused in any case


def _fits_transaction(asked: ToolCall, call: Call, config: SandboxConfig, machine: Machine) -> bool:
    """Say whether the call needs a question only because it cannot be undone, and the policy runs such calls in a transaction."""
    if config.containment.destructive != "try" or not asked.rewrites or asked.is_typed:
        return False
    from corral.transactions.transaction import transaction_config  # noqa: PLC0415  most calls need no question

    return vet(call, transaction_config(config), machine).allowed


def _machine(text: str, config: SandboxConfig, environ: Mapping[str, str]) -> Machine:
    """Return the machine as `corral run` will see it: with the project's own /tmp, if the text may name that."""
    if "tmp" not in text.lower():
        return Machine.of(config)
    from corral.containment.filesystem.persistent_scratch import project_tmp  # noqa: PLC0415  few commands name it

    own = config.replace(containment=config.containment.replace(scratch="project"))
    return Machine.of(config, project_tmp(own, environ))


def _ask_or_refuse(
    asked: ToolCall,
    verdict: Verdict,
    config: SandboxConfig,
    environ: Mapping[str, str],
    why: str = "",
    *,
    call: Call | None = None,
) -> Answer:
    """Let the host ask if a person answers there; otherwise refuse, and name the settings that would allow the call."""
    if is_answered(asked, config.host_questions):
        return Answer("ask", _question(verdict, why))
    why = f"{why} {why_not_asked(asked, environ)}".strip()
    if keys := ", ".join(dict.fromkeys(_setting(finding) for finding in verdict.findings)):
        why = f"{why}\nThe user can allow it in the policy: {keys}."
    if (
        call is not None
        and asked.rewrites
        and not asked.is_typed
        and (id_ := _save_refusal(asked, call, verdict, environ))
    ):
        why = f"{why}\nThe user can allow it once or for this project: corral allow {id_}"
    return Answer("deny", _reason("corral refuses this", verdict, why))


def _setting(finding: Finding) -> str:
    """Return the policy key that decides about a finding."""
    from corral.guard.rules.loader import effects  # noqa: PLC0415  most calls need no question

    keys = [key for key in effects() if finding.rule.endswith(f"-{key}")]
    return f"effects.{max(keys, key=len)}" if keys else "a [[rule]] for the command"


def _by_hand(call: Call, verdict: Verdict) -> str:
    """Return the line with the command that the user can run instead, if there is one that corral suggests."""
    from corral.model.render_grant import BY_HAND, by_hand  # noqa: PLC0415  most calls are not refused

    line = by_hand(call, verdict)
    return BY_HAND.format(line) if line else ""


def _question(verdict: Verdict, why: str) -> str:
    """Return the text of the host's prompt. The user reads it, and the ways out of a finding are for the agent."""
    findings = tuple(finding.replace(instead="") for finding in verdict.findings)
    return _reason("corral asks about this", verdict.replace(findings=findings), why)


def _reason(head: str, verdict: Verdict, why: str = "") -> str:
    """List the findings, strictest first, each with its way out: an agent that sees one reason at a time tries four times."""
    found = sorted(verdict.findings, key=lambda finding: (-finding.decision, finding.axis))[:MAX_FINDINGS]
    lines = [f"{finding.reason} {finding.instead}".strip() + f" [{finding.rule}]" for finding in found]
    if not lines:
        return f"{head}: {why}"
    text = f" {lines[0]}" if len(lines) == 1 else "".join(f"\n- {line}" for line in lines)
    return f"{head}:{text}" + (f"\n{why}" if why else "")


def _rewrite(asked: ToolCall, call: PendingCall, environ: Mapping[str, str], paths: Sequence[str]) -> str:
    """Return shell text that runs the call in the sandbox, and leaves the host's shell in the state the call would have left."""
    name = save_pending_call(call, environ)
    # The text is there for the user to read. A text that no argument can carry is only in the stored call.
    is_shown = len(asked.text) <= MAX_INLINE_CHARACTERS and _is_utf8(asked.text)
    line = shell_join([*launcher(asked.root, environ, paths), "go", name, *([asked.text] if is_shown else [])])
    if not call.keeps:
        return line
    file = f"{user_dirs.user_directory('state', environ)}/pending/{name}.sh"
    return f"{line}; . {shell_quote(file)}"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
