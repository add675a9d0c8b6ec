"""What the hook loads for a plain command, by name: every module is a part of what each command of an agent waits for."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hosting import DEADLINE_SECONDS, PACKAGE, PROGRAM, PYTHON, Owner, dependencies

# What the interpreter has loaded before it runs anything differs between versions, and is measured in what runs nothing.
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
    "integrations.hooks.protocol",
    "integrations.hooks.respond",
    "model",
    "model.call",
    "model.errors",
    "policy",
    "policy.config",
    "policy.loader",
    "policy.settings",
    "policy.user_dirs",
}
WITH_A_POLICY = {
    "guard.axes.user_rules",
    "policy.merge",
    "policy.policy_cache",
    "policy.store",
    "policy.trust",
}


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path)


def loaded(words: list[str], owner: Owner, data: bytes = b"") -> set[str]:
    """Return the modules that an interpreter loads for a program."""
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
    """Return what the hook loads besides a bare interpreter: of the standard library and others, and of ours."""
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
def test_a_plain_command_loads_exactly_these_modules(command: str, owner: Owner) -> None:
    standard, ours = modules(owner, command)
    assert (standard - STANDARD, standard & SLOW, ours) == (set(), set(), OURS)


def test_a_policy_adds_exactly_these(owner: Owner) -> None:
    owner.policy('[[rule]]\ncommand = "terraform apply"\ndecision = "deny"\ndeny = ["terraform apply"]\n')
    modules(owner, "git status")  # the first time it is compiled
    standard, ours = modules(owner, "git status")
    assert (standard - STANDARD, standard & SLOW, ours) == (set(), set(), OURS | WITH_A_POLICY)


def test_a_source_that_has_changed_is_not_run_as_it_was_compiled(owner: Owner, tmp_path: Path) -> None:
    copy = tmp_path / "lib" / "corral"
    shutil.copytree(PACKAGE, copy)
    hooks = copy / "integrations" / "hooks"
    hook = [PYTHON, "-I", "-S", str(hooks / "program.py"), "claude", *(dependencies() or [str(PACKAGE.parent)])]

    def said() -> bytes:
        return subprocess.run(hook, input=b"{}", env=owner.environ, capture_output=True, check=False).stderr

    before = said(), said()
    source = hooks / "respond.py"
    source.write_text(source.read_text().replace("corral could not read the call", "the new words"))
    os.utime(source, (time.time() + 10, time.time() + 10))
    assert (b"could not read" in before[1], before[0] == before[1], b"the new words" in said()) == (True, True, True)
