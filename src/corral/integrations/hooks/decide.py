"""One call of a host under the project's policy: judged, and where the host can rewrite it, made to run contained."""

from __future__ import annotations

import os
import sys

from corral._lib.quoting import shell_join, shell_quote
from corral.audit import audit_log
from corral.guard.evaluate import vet
from corral.guard.machine import Machine
from corral.integrations.hooks.protocol import READ, SHELL, Answer, ToolCall
from corral.model.call import Call, Decision
from corral.model.errors import AuditError, PolicyError
from corral.policy import user_dirs
from corral.policy.loader import PROJECT_FILE, load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from corral.model.call import Finding, Verdict
    from corral.policy.config import SandboxConfig

MAX_TOLD = 5  # findings of one call; more would be cut by the hosts
MAX_WRITTEN_OUT = 16 * 1024  # characters of a command that is repeated in its rewritten form; hosts quote it once more
_REMOVE = "/bin/rm"
_STEERING = ("BASH_ENV", "ENV", "ZDOTDIR", "SHELL", "LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH")
_UNSET = "The owner can start the host without it; look into the project's .env too, which some hosts load."
_UNRECORDED = "What is not in the owner's log does not run; the owner can mend that, or accept it by audit.required in the policy."
_TYPED = "The host types this text into a running shell session, outside the sandbox."
_UNCONTAINED = "This host cannot run it contained, where it would be allowed."


def judge(asked: ToolCall, name: str, environ: Mapping[str, str], paths: Sequence[str]) -> Answer:
    """Return the answer to one call; `paths` is where corral's dependencies lie, if not beside it."""
    asked.root = root_of(asked, environ)
    try:
        config = load(asked.root, environ).config
        log = audit_log.Log(config, event="hook", host=name, environ=environ)
        if asked.kind == SHELL:
            return _judge_shell(asked, config, log, environ, paths)
        from corral.integrations.hooks.file_tools import judge_files  # noqa: PLC0415  a plain command does not need it

        answer = judge_files(asked, config, environ)
        told = {"cwd": asked.cwd, "files": asked.paths, "decision": answer.decision, "reason": answer.reason}
        # What was only looked at would fill the log.
        return (
            answer if asked.kind == READ and answer.decision == "allow" else _recorded(answer, config, log.note, told)
        )
    except PolicyError as error:
        log_unjudged(name, error, environ)
        return Answer("deny", f"corral's policy cannot be used: {error}. Until that is mended, every call is refused.")


def _recorded(answer: Answer, config: SandboxConfig, write: Callable[..., None], *about: Any, **named: Any) -> Answer:
    """Return the answer once it stands in the owner's log: what is not in there does not run, unless the policy accepts that."""
    try:
        write(*about, **named)
    except AuditError as error:
        if config.audit.required:
            return Answer("deny", f"{error}. {_UNRECORDED}")
    return answer


def log_unjudged(name: str, error: object, environ: Mapping[str, str]) -> None:
    """Leave an audit line of a call that could not be judged, if that can be done; it is refused in any case."""
    try:
        audit_log.Log(event="hook", host=name, environ=environ).note({"decision": "deny", "error": str(error)})
    except AuditError:
        return


def root_of(asked: ToolCall, environ: Mapping[str, str]) -> str:
    """Return the project: what the host names, or a directory above that looks like one, never all of a home."""
    if asked.root.startswith("/") and os.path.isdir(asked.root):
        return os.path.realpath(asked.root)
    cwd = os.path.realpath(asked.base)
    home = os.path.realpath(environ.get("HOME") or "/nonexistent")
    at, nearest, governed = cwd, "", ""
    while at not in ("/", home):
        if _has(at, PROJECT_FILE) and os.lstat(f"{at}/{PROJECT_FILE}").st_uid == os.geteuid():
            # The highest: a mark that an agent makes further down must not take its commands out of this file's reach.
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
    if steering := tuple(name for name in _STEERING if name in environ):
        from corral.integrations.hooks.shell_variables import why_unsafe  # noqa: PLC0415  where none is set, it is not needed

        if why := why_unsafe(steering, environ, asked.root, cwd):
            told = {"cwd": cwd, "decision": "deny", "reason": why}
            answer = Answer("deny", f"corral refuses this: {why}, and it would run outside the sandbox. {_UNSET}")
            return _recorded(answer, config, log.note, told)
    call = Call((asked.text,), True, None if cwd == asked.root else cwd)
    verdict = vet(call, config, machine := _machine(asked.text, config, environ))
    in_transaction = False
    if not asked.rewrites and verdict.allowed and config.rules.needs_containment:
        verdict = vet(call, load(asked.root, environ, profile="strict").config, machine)
        answer = Answer("allow") if verdict.allowed else _asking(asked, verdict, config, environ, _UNCONTAINED)
    elif verdict.decision is Decision.ASK:
        is_approved = _is_approved(asked, call, verdict, config, environ)
        in_transaction = not is_approved and _can_be_tried(asked, call, config, machine)
        answer = Answer("allow") if is_approved or in_transaction else _asking(asked, verdict, config, environ)
    else:
        answer = Answer("allow") if verdict.allowed else Answer("deny", _told("corral refuses this", verdict))
    if asked.is_typed and answer.decision == "allow":
        # Two harmless pieces may make a command that is not.
        answer = _asking(asked, verdict, config, environ, _TYPED)
    id_ = audit_log.new_id()
    if asked.rewrites and answer.decision != "deny":
        rules = {finding.rule for finding in verdict.findings} if answer.decision == "ask" else ()
        answer.command = rewritten(
            asked, cwd, environ, paths, id_=id_, rules=frozenset(rules), in_transaction=in_transaction
        )
    decision = Decision[answer.decision.upper()]
    return _recorded(answer, config, log.verdict, call, verdict, decision=decision, reason=answer.reason, id_=id_)


def _is_approved(
    asked: ToolCall, call: Call, verdict: Verdict, config: SandboxConfig, environ: Mapping[str, str]
) -> bool:
    """Say whether a person approved this very call for the project; `corral run` looks again. Never where it is not held."""
    from corral.policy.approvals import find_approval  # noqa: PLC0415  most calls are not asked about

    return asked.rewrites and find_approval(call, verdict, config, environ) is not None


def _can_be_tried(asked: ToolCall, call: Call, config: SandboxConfig, machine: Machine) -> bool:
    """Say whether a call is asked about only because it cannot be taken back, and the owner lets such calls be tried."""
    if config.containment.destructive != "try" or not asked.rewrites or asked.is_typed:
        return False
    from corral.transactions.transaction import transaction_config  # noqa: PLC0415  most calls are not asked about

    return vet(call, transaction_config(config), machine).allowed


def _machine(text: str, config: SandboxConfig, environ: Mapping[str, str]) -> Machine:
    """Return the machine as `corral run` will see it."""
    if "tmp" not in text.lower():
        return Machine.of(config)
    from corral.containment.filesystem.persistent_scratch import project_tmp  # noqa: PLC0415  only what names it can reach it

    return Machine.of(
        config, project_tmp(config.replace(containment=config.containment.replace(scratch="project")), environ)
    )


def _asking(
    asked: ToolCall, verdict: Verdict, config: SandboxConfig, environ: Mapping[str, str], why: str = ""
) -> Answer:
    """Let the host ask if a person answers there; else refuse, with what the user could set."""
    from corral.integrations.hooks.host_questions import is_answered, why_not_asked  # noqa: PLC0415  most calls are not asked about

    if is_answered(asked, config):
        return Answer("ask", _told("corral asks about this", verdict, why))
    why = f"{why} {why_not_asked(asked, environ)}".strip()
    if keys := ", ".join(dict.fromkeys(_setting(finding) for finding in verdict.findings)):
        why = f"{why}\nThe user can allow it in the policy: {keys}."
    return Answer("deny", _told("corral refuses this", verdict, why))


def _setting(finding: Finding) -> str:
    """Return the key of the policy that decides on what was found."""
    from corral.guard.rules.loader import effects  # noqa: PLC0415  most calls are not asked about

    fitting = [key for key in effects() if finding.rule.endswith(f"-{key}")]
    return f"effects.{max(fitting, key=len)}" if fitting else "a [[rule]] for the command"


def _told(head: str, verdict: Verdict, why: str = "") -> str:
    """Return all that was found, strictest first, each with the way out: who hears one reason at a time tries four times."""
    found = sorted(verdict.findings, key=lambda finding: (-finding.decision, finding.axis))[:MAX_TOLD]
    lines = [f"{finding.reason} {finding.instead}".strip() + f" [{finding.rule}]" for finding in found]
    if not lines:
        return f"{head}: {why}"
    text = f" {lines[0]}" if len(lines) == 1 else "".join(f"\n- {line}" for line in lines)
    return f"{head}:{text}" + (f"\n{why}" if why else "")


def rewritten(
    asked: ToolCall,
    cwd: str,
    environ: Mapping[str, str],
    paths: Sequence[str],
    *,
    id_: str,
    rules: frozenset[str],
    in_transaction: bool = False,
) -> str:
    """Return shell text that runs the call contained, and leaves the host's shell as the call would have left it."""
    if not sys.executable:
        raise PolicyError("there is no interpreter to run commands with")
    main = f"{__file__.rsplit('/', 3)[0]}/__main__.py"
    words = [sys.executable, "-I", "-S", main, *[word if word.startswith("--") else f"--path={word}" for word in paths]]
    words += ["run", "--root", asked.root, "--cwd", cwd, "--timeout", "0", "--call", id_]
    is_long = len(asked.text) > MAX_WRITTEN_OUT
    if rules or is_long:
        from corral.policy.pending_calls import save_pending_call  # noqa: PLC0415  most calls leave nothing

        words += ["--grant", save_pending_call(asked.text, asked.root, cwd, environ, asked=rules)]
    text = [] if is_long else ["--shell", asked.text]
    words += ["--try"] if in_transaction else []
    # What the shell of a transaction was left with belongs to a project that is not this one.
    if not asked.keeps or in_transaction:
        return shell_join([*words, *text])
    file = f"{user_dirs.user_directory('state', environ)}/pending/{os.urandom(8).hex()}.sh"
    words += ["--directory-file", file, *(["--exports"] if asked.keeps == "exports" else [])]
    run, file = shell_join([*words, *text]), shell_quote(file)
    # Nothing is looked for by PATH, which may name the project's own programs first: this shell is not contained.
    emptied = f"{_REMOVE} -f {file}" if os.access(_REMOVE, os.X_OK) else f": >|{file}"
    # The status is put back last, without leaving the variable behind.
    after = f"corral_status=$?; if [ -s {file} ]; then . {file}; {emptied}; fi"
    return f'{run}; {after}; eval "unset corral_status; (exit $corral_status)"'
