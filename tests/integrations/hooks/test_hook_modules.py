"""The modules that the hook imports for a plain command, by name. Every import delays every command of an agent."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hosting import DEADLINE_SECONDS, PACKAGE, PROGRAM, PYTHON, Owner, dependencies

# Modules that a bare interpreter imports differ between versions, so the tests measure and subtract them.
STANDARD = {
    *(
        "gc",
        "os",
        "stat",
        "posixpath",
        "genericpath",
        "_stat",
        "_collections_abc",
        "_json",
        "itertools",
        "fcntl",
        "errno",
        "fast_import",
    ),
    *("_sha256", "_sha2", "tree_sitter._binding", "tree_sitter_bash._binding"),
}
SLOW = {
    "re",
    "enum",
    "json",
    "argparse",
    "typing",
    "functools",
    "hashlib",
    "dataclasses",
    "pathlib",
    "subprocess",
    "logging",
    "tomllib",
    "collections",
}
OURS = {
    "_lib",
    "_lib.enums",
    "_lib.json_text",
    "_lib.lazy_regex",
    "_lib.quoting",
    "_lib.records",
    "_lib.sha256",
    "_lib.timestamps",
    "audit",
    "audit.audit_log",
    "audit.ledger",
    "audit.secret_patterns",
    "corral",
    "guard",
    "guard.analysis",
    "guard.analysis.addresses",
    "guard.analysis.command",
    "guard.analysis.heuristics",
    "guard.analysis.option_parser",
    "guard.analysis.rows",
    "guard.analysis.scope",
    "guard.analysis.side_effects",
    "guard.analysis.simple_command",
    "guard.analysis.slots",
    "guard.analysis.statements",
    "guard.analysis.syntax_tree",
    "guard.analysis.walker",
    "guard.axes",
    "guard.axes.arguments",
    "guard.axes.executable",
    "guard.axes.findings",
    "guard.axes.paths",
    "guard.axes.structure",
    "guard.evaluate",
    "guard.machine",
    "guard.path_zones",
    "guard.rules",
    "guard.rules.loader",
    "guard.shell",
    "guard.shell.braces",
    "guard.shell.expansion",
    "guard.shell.grammar",
    "guard.shell.parser",
    "integrations",
    "integrations.hooks",
    "integrations.hooks.decide",
    "integrations.hooks.hosts",
    "integrations.hooks.hosts.claude",
    "integrations.hooks.launcher",
    "integrations.hooks.protocol",
    "integrations.hooks.respond",
    "integrations.hooks.session_client",
    "model",
    "model.call",
    "model.errors",
    "policy",
    "policy.answers",
    "policy.answers.pending_calls",
    "policy.config",
    "policy.loader",
    "policy.settings",
    "policy.store",
    "policy.user_dirs",
}
WITH_A_POLICY = {
    "guard.axes.user_rules",
    "policy.merge",
    "policy.policy_cache",
    "policy.trust",
}


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path)


def loaded(words: list[str], owner: Owner, data: bytes = b"") -> set[str]:
    """Return the modules that an interpreter imports for a program."""
    command = [PYTHON, "-I", "-S", "-X", "importtime", *words]
    done = subprocess.run(
        command,
        input=data,
        env=owner.environ,
        cwd=owner.root,
        capture_output=True,
        check=True,
        timeout=DEADLINE_SECONDS,
    )
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines} - {"imported package"}


def modules(owner: Owner, command: str) -> tuple[set[str], set[str]]:
    """Return the modules that the hook imports in addition to a bare interpreter: foreign ones, and corral's."""
    call = {
        "hook_event_name": "PreToolUse",
        "cwd": str(owner.root),
        "tool_name": "Bash",
        "tool_input": {"command": command},
    }
    hook = [str(PROGRAM), "claude", *dependencies()]
    made = loaded(hook, owner, json.dumps(call).encode()) - loaded(["-c", "pass"], owner)
    ours = {name.removeprefix("corral.") for name in made if name.partition(".")[0] == "corral"}
    return {name for name in made if name.partition(".")[0] != "corral"}, ours


@pytest.mark.parametrize("command", ["git status", "ls -la", "pytest -q"])
def test_plain_command_loads_exactly_these_modules(command: str, owner: Owner) -> None:
    standard, ours = modules(owner, command)
    assert (standard - STANDARD, standard & SLOW, ours) == (set(), set(), OURS)


def test_policy_loads_exactly_these_modules(owner: Owner) -> None:
    owner.policy('[[rule]]\ncommand = "terraform apply"\ndecision = "deny"\ndeny = ["terraform apply"]\n')
    modules(owner, "git status")  # compiles the policy
    standard, ours = modules(owner, "git status")
    assert (standard - STANDARD, standard & SLOW, ours) == (set(), set(), OURS | WITH_A_POLICY)


def test_changed_source_is_recompiled(owner: Owner, tmp_path: Path) -> None:
    copy = tmp_path / "lib" / "corral"
    shutil.copytree(PACKAGE, copy)
    hooks = copy / "integrations" / "hooks"
    hook = [PYTHON, "-I", "-S", str(hooks / "program.py"), "claude", *(dependencies() or [str(PACKAGE.parent)])]

    def stderr() -> bytes:
        return subprocess.run(hook, input=b"{}", env=owner.environ, capture_output=True, check=False).stderr

    before = stderr(), stderr()
    source = hooks / "respond.py"
    changed = source.read_text().replace(
        "BadPayload as error:", "BadPayload as error:\n        raise SystemExit('changed')"
    )
    source.write_text(changed)
    os.utime(source, (time.time() + 10, time.time() + 10))
    assert (b"changed" in before[1], before[0] == before[1], b"changed" in stderr()) == (False, True, True)
