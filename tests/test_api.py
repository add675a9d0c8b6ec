"""The public API: names, signatures, types and import cost."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import corral

NAMES = {
    "DEFAULT_DENYLIST",
    "DEFAULT_INTERPRETER_BLOCK",
    "DENIED_EXIT_CODE",
    "TIMED_OUT_EXIT_CODE",
    "Asking",
    "Audit",
    "AuditError",
    "Axis",
    "Containment",
    "ContainmentError",
    "CorralError",
    "Decision",
    "Finding",
    "Handle",
    "Limits",
    "Output",
    "PolicyError",
    "Profile",
    "Sandbox",
    "SandboxConfig",
    "SandboxResult",
    "Transaction",
    "TransactionError",
    "Usage",
    "Verdict",
    "Violation",
}
# Modules that are too slow for a hook, which runs once per command.
HEAVY = {
    "argparse",
    "asyncio",
    "base64",
    "ctypes",
    "dataclasses",
    "inspect",
    "json",
    "logging",
    "multiprocessing",
    "pathlib",
    "selectors",
    "shutil",
    "socket",
    "subprocess",
    "tempfile",
    "tomllib",
    "tree_sitter",
    "typing",
}
SOURCE = str(Path(corral.__file__).parents[1])


def modules_after(code: str) -> set[str]:
    """Return the modules loaded after `code` in an interpreter without site-packages."""
    script = f"import sys; sys.path.insert(0, {SOURCE!r}); {code}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_public_names_are_exactly_these() -> None:
    assert set(corral.__all__) == NAMES
    assert set(dir(corral)) == NAMES | {"__version__"}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_public_name_can_be_loaded(name: str) -> None:
    assert getattr(corral, name) is not None


@pytest.mark.parametrize("block", [corral.DEFAULT_DENYLIST, corral.DEFAULT_INTERPRETER_BLOCK], ids=["names", "argv"])
def test_versioned_pattern_has_its_plain_name(block: frozenset[str]) -> None:
    assert {name.removesuffix(".*") for name in block if name.endswith(".*")} <= block


def test_denylists_contain_the_well_known_names() -> None:
    shells = {"bash", "sh", "zsh", "dash", "ksh", "fish", "csh", "tcsh"}
    languages = {"python", "python2", "python3", "node", "nodejs", "perl", "ruby", "php", "lua", "deno", "bun", "awk"}
    assert (shells | languages) - corral.DEFAULT_INTERPRETER_BLOCK == set()
    assert {"rm", "sudo", "su", "chmod", "chown", "mkfs", "dd", "shutdown", "reboot"} - corral.DEFAULT_DENYLIST == set()


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Sandbx'"):
        corral.Sandbx  # type: ignore[attr-defined]  # noqa: B018


def test_import_corral_loads_no_other_module() -> None:
    assert modules_after("import corral") - modules_after("pass") == {"corral", "__future__"}


def test_check_loads_no_heavy_module(tmp_path: Path) -> None:
    code = "from corral.guard.evaluate import vet; from corral.model.call import Call; from corral.policy.config import SandboxConfig; "
    code += f"vet(Call(['ls', '-la']), SandboxConfig({str(tmp_path)!r}))"
    assert modules_after(code) & HEAVY == set()


def parameters(function: object) -> dict[str, tuple[str, object]]:
    """Return the parameters of a function by name, each with its kind and its default."""
    signature = inspect.signature(function)  # type: ignore[arg-type]
    return {p.name: (p.kind.name, p.default) for p in signature.parameters.values() if p.name != "self"}


EMPTY = inspect.Parameter.empty
CALL = {
    "argv": ("POSITIONAL_OR_KEYWORD", EMPTY),
    "shell": ("KEYWORD_ONLY", False),
    "cwd": ("KEYWORD_ONLY", None),
    "env": ("KEYWORD_ONLY", None),
    "stdin": ("KEYWORD_ONLY", None),
    "timeout_seconds": ("KEYWORD_ONLY", None),
    "on_output": ("KEYWORD_ONLY", None),
}


def test_sandbox_parameters() -> None:
    assert list(parameters(corral.Sandbox.__init__)) == ["config", "on_ask", "on_result", "observers", "on_hold"]
    for name in ("on_ask", "on_result", "on_hold"):
        assert parameters(corral.Sandbox.__init__)[name] == ("KEYWORD_ONLY", None)


@pytest.mark.parametrize("method", ["run", "arun"])
def test_run_and_arun_have_the_same_signature(method: str) -> None:
    assert parameters(getattr(corral.Sandbox, method)) == CALL


def test_start_accepts_the_parameters_of_run() -> None:
    assert parameters(corral.Sandbox.start).items() >= CALL.items()
    judged = {name: CALL[name] for name in ("argv", "shell", "cwd", "env")}
    assert parameters(corral.Sandbox.check) == judged


def test_arun_is_a_coroutine_function() -> None:
    assert inspect.iscoroutinefunction(corral.Sandbox.arun)
    assert not inspect.iscoroutinefunction(corral.Sandbox.run)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("_check_executable_denylist", {"argv": EMPTY, "config": EMPTY}),
        ("_check_argv_interpreter", {"argv": EMPTY, "config": EMPTY}),
        ("_check_path_jail", {"argv": EMPTY, "config": EMPTY}),
        ("_check_shell_metachars", {"argv": EMPTY, "config": None, "shell": False}),
    ],
)
def test_four_axis_checks_keep_their_signatures(name: str, wanted: dict[str, object]) -> None:
    import corral.axes

    assert {n: default for n, (_, default) in parameters(getattr(corral.axes, name)).items()} == wanted


def test_config_and_result_fields_are_exactly_these() -> None:
    assert set(corral.SandboxConfig._fields) == {
        *("project_root", "max_output_bytes", "timeout_seconds", "denylist", "interpreter_block", "profile"),
        *(
            "env_allowlist",
            "containment",
            "limits",
            "output",
            "audit",
            "host_questions",
            "policy_grants",
            "posture",
            "publish",
            "grants",
        ),
        "sessions",
        "signing_keys",
        *("asking", "policy_grants"),
    }
    assert corral.SandboxResult._fields[:9] == (
        *("argv", "exit_code", "stdout", "stderr", "truncated", "timed_out", "denied", "reason", "duration_ms"),
    )
    assert set(corral.SandboxResult._fields[9:]) == {
        *(
            "id",
            "schema",
            "started_at",
            "cwd",
            "shell",
            "verdict",
            "signal",
            "backend",
            "enforcement",
            "missing_layers",
            "network",
        ),
        *(
            "violations",
            "connections",
            "usage",
            "stdout_bytes",
            "stderr_bytes",
            "killed",
            "full_output_path",
            "transaction",
            "grants",
        ),
    }


GOOD = """
from corral import DEFAULT_DENYLIST, DENIED_EXIT_CODE, Decision, Sandbox, SandboxConfig, SandboxResult, Verdict

async def main() -> None:
    config: SandboxConfig = SandboxConfig(project_root=".", denylist=DEFAULT_DENYLIST | {"git"}, timeout_seconds=5)
    with Sandbox(config=config) as box:
        verdict: Verdict = box.check(["rm", "x"])
        if verdict.decision >= Decision.ASK:
            print(verdict.reason, [finding.rule for finding in verdict.findings])
        result: SandboxResult = box.run("ls | wc -l", shell=True, cwd="src", env={"A": "1"}, stdin=b"")
        other: SandboxResult = await box.arun(["ls"], timeout_seconds=1.5)
        code: int = result.exit_code if result.ok else DENIED_EXIT_CODE
        text: str = other.stdout_text
        raw: bytes = other.stdout
        print(code, text, raw, SandboxResult.from_dict(result.to_dict()))
"""
BAD = {
    "a config field that does not exist": "from corral import SandboxConfig\nSandboxConfig(root='.')",
    "a timeout as text": "from corral import SandboxConfig\nSandboxConfig(timeout_seconds='5')",
    "shell given by position": "from corral import Sandbox\nSandbox().run('ls', True)",
    "bytes taken for text": "from corral import Sandbox\ntext: str = Sandbox().run(['ls']).stdout",
    "a frozen field set": "from corral import SandboxConfig\nSandboxConfig().profile = 'workspace'",
}


def mypy(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "uses.py").write_text(code)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--follow-imports=silent"]
    command += ["--cache-dir", str(folder / "cache"), "uses.py"]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "MYPYPATH": SOURCE}
    )


def test_typical_program_passes_mypy(tmp_path: Path) -> None:
    done = mypy(GOOD, tmp_path)
    assert (done.returncode, done.stdout) == (0, "")


def test_misuse_fails_mypy(tmp_path: Path) -> None:
    code = "\n".join(
        f"def case_{i}() -> None:\n" + "\n".join(f"    {line}" for line in text.split("\n"))
        for i, text in enumerate(BAD.values())
    )
    lines = [line for line in mypy(code, tmp_path).stdout.splitlines() if ": error: " in line]
    failed = {(int(line.split(":")[1]) - 1) // 3 for line in lines}
    assert [name for i, name in enumerate(BAD) if i not in failed] == []
