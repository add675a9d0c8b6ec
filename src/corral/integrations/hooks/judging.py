"""One call of a host under the project's policy: judged, and where the host can rewrite it, made to run contained."""

from __future__ import annotations

import os
import sys

from corral import audit, owned
from corral.config import SandboxConfig
from corral.errors import AuditError, PolicyError
from corral.integrations.hooks.envelope import Answer, Asked
from corral.machine import Machine
from corral.model import Call, Decision
from corral.places import inside, place_of
from corral.policy import load
from corral.vet import vet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
_MARKS = ("corral.toml", ".git", ".hg", "pyproject.toml", "package.json", "Cargo.toml", "go.mod")
_UNRECORDED = "What is not in the owner's log does not run; the owner can mend that, or accept it by audit.required in the policy."
_UNCONTAINED = "This host cannot run it contained, where it would be allowed."


def root_of(asked: Asked, environ: Mapping[str, str]) -> str:
    """Return the project: what the host names, or the nearest directory above that looks like one, never all of a home."""
    if asked.root.startswith("/") and os.path.isdir(asked.root):
        return os.path.realpath(asked.root)
    cwd = os.path.realpath(asked.cwd)
    home = os.path.realpath(environ.get("HOME") or "/nonexistent")
    at = cwd
    while at not in ("/", home):
        if any(os.path.lexists(f"{at}/{mark}") for mark in _MARKS):
            return at
        at = os.path.dirname(at)
    return cwd


def judge_shell(asked: Asked, host: ModuleType, name: str, environ: Mapping[str, str]) -> Answer:
    """Judge shell text."""
    try:
        config = load(asked.root, environ).config
    except PolicyError as error:
        leave_line(name, error, environ)
        return Answer("deny", f"corral's policy cannot be used: {error}. Until it is mended, every call is refused.")
    cwd = os.path.realpath(asked.cwd)
    call = Call((asked.text,), True, None if cwd == asked.root else cwd)
    machine = Machine.of(config)
    verdict = vet(call, config, machine)
    decision, reason = verdict.decision, verdict.reason
    if not host.REWRITES and decision is Decision.ALLOW and config.rules.needs_containment:
        decision, reason = _uncontained(call, config, machine)
    if decision is Decision.ASK and not host.ASKS:
        decision = Decision.DENY
        reason += " Nobody can be asked here: the owner can allow it by a rule or an effect in the policy (corral policy show)."
    id_ = audit.new_id()
    command = rewritten(asked, cwd, host, id_) if host.REWRITES and decision is not Decision.DENY else ""
    log = audit.Log(config, event="hook", host=name, environ=environ)
    try:
        log.verdict(call, verdict, decision=decision, reason=reason, id_=id_)
    except AuditError as error:
        if config.audit.required:
            return Answer("deny", f"{error}. {_UNRECORDED}")
    return Answer(str(decision), reason, command)


def _uncontained(call: Call, config: SandboxConfig, machine: Machine) -> tuple[Decision, str]:
    verdict = vet(call, SandboxConfig(config.project_root, profile="strict"), machine)
    return (Decision.ALLOW, "") if verdict.allowed else (Decision.ASK, f"{verdict.reason} {_UNCONTAINED}")


def judge_write(asked: Asked, name: str, environ: Mapping[str, str]) -> Answer:
    """Judge files that a tool of the host itself would write: what runs later outside, or steers corral, is refused."""
    answer = _judge_files(asked, environ)
    try:
        config = load(asked.root, environ).config
    except PolicyError:
        config = SandboxConfig(asked.root)
    told = {"cwd": asked.cwd, "files": asked.text.split("\n"), "decision": answer.decision, "reason": answer.reason}
    try:
        audit.Log(config, event="hook", host=name, environ=environ).note(told)
    except AuditError as error:
        if config.audit.required:
            return Answer("deny", f"{error}. {_UNRECORDED}")
    return answer


def _judge_files(asked: Asked, environ: Mapping[str, str]) -> Answer:
    home = os.path.realpath(environ.get("HOME") or "/nonexistent")
    kept = [owned.directory(kind, environ) for kind in ("config", "state", "cache")]
    for name in asked.text.split("\n"):
        path = os.path.realpath(os.path.join(asked.cwd, name))
        place = place_of(path, asked.root, home)
        if place in ("protected", "secret") or any(inside(path, folder) for folder in kept):
            reason = f"{name} runs or decides something outside the sandbox, so an agent does not write it. Ask the owner to."
            return Answer("deny", reason)
    return Answer("allow")


def rewritten(asked: Asked, cwd: str, host: ModuleType, id_: str) -> str:
    """Return shell text that runs the call contained, and leaves the host's shell where the call would have left it."""
    main = f"{os.path.dirname(os.path.abspath(__file__)).rsplit('/', 2)[0]}/__main__.py"
    path = [f"--path={folder}" for folder in sys.argv[2:3]]
    words = [
        sys.executable,
        "-I",
        "-S",
        main,
        *path,
        "run",
        "--root",
        asked.root,
        "--cwd",
        cwd,
        "--timeout",
        "0",
        "--call",
        id_,
    ]
    if not host.KEEPS_DIRECTORY:
        return _quoted([*words, "--shell", asked.text])
    told = f"{owned.directory('state', os.environ)}/directory-{os.urandom(8).hex()}"
    run = _quoted([*words, "--directory-file", told, "--shell", asked.text])
    file = _quoted([told])
    return f'{run}; corral_status=$?; [ -s {file} ] && cd -- "$(cat {file})"; rm -f {file}; (exit $corral_status)'


def _quoted(words: list[str]) -> str:
    return " ".join("'" + word.replace("'", "'\"'\"'") + "'" for word in words)


def leave_line(name: str, error: object, environ: Mapping[str, str]) -> None:
    """Leave an audit line of a call that could not be judged, if that can be done; it is refused in any case."""
    try:
        audit.Log(event="hook", host=name, environ=environ).note({"decision": "deny", "error": str(error)})
    except AuditError:
        return
