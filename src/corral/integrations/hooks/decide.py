"""Judges one tool call under the project's policy. Rewrites an allowed command to run in the sandbox, on hosts that can rewrite."""

from __future__ import annotations

import os
import sys

from corral._lib.quoting import shell_join, shell_quote
from corral.audit import audit_log
from corral.guard.evaluate import vet
from corral.guard.machine import Machine
from corral.guard.path_zones import inside
from corral.integrations.hooks.protocol import READ, SHELL, Answer, ToolCall, is_answered, why_not_asked
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

MAX_FINDINGS = 5  # in one reason; hosts cut longer reasons
MAX_INLINE_CHARACTERS = 16 * 1024  # of a command that its rewritten form repeats; hosts quote it once more
_RM = "/bin/rm"
# Environment variables that make the host's own shell, which is not in the sandbox, load a file before it runs anything.
_FILE_VARIABLES = ("BASH_ENV", "ENV", "ZDOTDIR", "SHELL")
_LIST_VARIABLES = ("LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH")
_EXPANDED = ("BASH_ENV", "ENV")
_UNSET = (
    "The user can start the host without this variable. LayerView at the project's .env file too: some hosts load it."
)
_NOT_LOGGED = "A call that cannot be logged does not run. The user can repair the log, or set audit.required = false in the policy."
_TYPED = "The host types this text into a running shell session, outside the sandbox."
_UNCONFINED = "It is allowed only in the sandbox, and this host cannot run it there."


def judge(call: ToolCall, name: str, environ: Mapping[str, str], paths: Sequence[str]) -> Answer:
    """Return the answer to one call. `paths` are the directories of corral's dependencies, if they are not beside it."""
    call = call.replace(root=project_root(call, environ), host=name)
    try:
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
        answer = Answer("allow") if is_approved or in_transaction else _ask_or_refuse(asked, verdict, config, environ)
    else:
        answer = Answer("allow") if verdict.allowed else Answer("deny", _reason("corral refuses this", verdict))
    if asked.is_typed and answer.decision == "allow":
        # Two harmless pieces of text may add up to a harmful command.
        answer = _ask_or_refuse(asked, verdict, config, environ, _TYPED)
    id_ = audit_log.new_id()
    if asked.rewrites and answer.decision != "deny":
        rules = frozenset(finding.rule for finding in verdict.findings) if answer.decision == "ask" else frozenset()
        command = _rewrite(asked, cwd, environ, paths, id_=id_, rules=rules, in_transaction=in_transaction)
        answer = Answer(answer.decision, answer.reason, command)
    decision = Decision[answer.decision.upper()]
    return _log(answer, config, log.verdict, call, verdict, decision=decision, reason=answer.reason, id_=id_)


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
    """Say whether the user approved this call for the project. `corral run` checks again, so only a rewritten call can be approved."""
    from corral.policy.approvals import find_approval  # noqa: PLC0415  most calls need no question

    return asked.rewrites and find_approval(call, verdict, config, environ) is not None


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
    asked: ToolCall, verdict: Verdict, config: SandboxConfig, environ: Mapping[str, str], why: str = ""
) -> Answer:
    """Let the host ask if a person answers there; otherwise refuse, and name the settings that would allow the call."""
    if is_answered(asked, config.host_questions):
        return Answer("ask", _reason("corral asks about this", verdict, why))
    why = f"{why} {why_not_asked(asked, environ)}".strip()
    if keys := ", ".join(dict.fromkeys(_setting(finding) for finding in verdict.findings)):
        why = f"{why}\nThe user can allow it in the policy: {keys}."
    return Answer("deny", _reason("corral refuses this", verdict, why))


def _setting(finding: Finding) -> str:
    """Return the policy key that decides about a finding."""
    from corral.guard.rules.loader import effects  # noqa: PLC0415  most calls need no question

    keys = [key for key in effects() if finding.rule.endswith(f"-{key}")]
    return f"effects.{max(keys, key=len)}" if keys else "a [[rule]] for the command"


def _reason(head: str, verdict: Verdict, why: str = "") -> str:
    """List the findings, strictest first, each with its way out: an agent that sees one reason at a time tries four times."""
    found = sorted(verdict.findings, key=lambda finding: (-finding.decision, finding.axis))[:MAX_FINDINGS]
    lines = [f"{finding.reason} {finding.instead}".strip() + f" [{finding.rule}]" for finding in found]
    if not lines:
        return f"{head}: {why}"
    text = f" {lines[0]}" if len(lines) == 1 else "".join(f"\n- {line}" for line in lines)
    return f"{head}:{text}" + (f"\n{why}" if why else "")


def _rewrite(
    asked: ToolCall,
    cwd: str,
    environ: Mapping[str, str],
    paths: Sequence[str],
    *,
    id_: str,
    rules: frozenset[str],
    in_transaction: bool,
) -> str:
    """Return shell text that runs the call in the sandbox, and leaves the host's shell in the state the call would have left."""
    if not sys.executable:
        raise PolicyError("Python does not know the path of its own interpreter, so no command can be started")
    main = f"{__file__.rsplit('/', 3)[0]}/__main__.py"
    words = [sys.executable, "-I", "-S", main, *[word if word.startswith("--") else f"--path={word}" for word in paths]]
    words += ["run", "--root", asked.root, "--cwd", cwd, "--timeout", "0", "--call", id_]
    is_long = len(asked.text) > MAX_INLINE_CHARACTERS
    if rules or is_long:
        from corral.policy.pending_calls import save_pending_call  # noqa: PLC0415  most calls need none

        words += ["--grant", save_pending_call(asked.text, asked.root, cwd, environ, asked=rules)]
    text = [] if is_long else ["--shell", asked.text]
    words += ["--try"] if in_transaction else []
    # A transaction runs on a copy of the project, so its directory and exports mean nothing to the host's shell.
    if not asked.keeps or in_transaction:
        return shell_join([*words, *text])
    file = f"{user_dirs.user_directory('state', environ)}/pending/{os.urandom(8).hex()}.sh"
    words += ["--directory-file", file, *(["--exports"] if asked.keeps == "exports" else [])]
    run, file = shell_join([*words, *text]), shell_quote(file)
    # The host's shell is not in the sandbox, and its PATH may name the project's programs first: use no program by name.
    remove = f"{_RM} -f {file}" if os.access(_RM, os.X_OK) else f": >|{file}"
    # The exit status is restored last, and the variable that held it is removed.
    after = f"corral_status=$?; if [ -s {file} ]; then . {file}; {remove}; fi"
    return f'{run}; {after}; eval "unset corral_status; (exit $corral_status)"'
