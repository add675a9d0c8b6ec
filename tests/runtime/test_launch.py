"""plan_launch: executable, directory, environment and deadline of a call, or the reason why it cannot start."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral import SandboxConfig
from corral.guard.rules.loader import places
from corral.model.call import DENIED_EXIT_CODE, Call, Launch
from corral.runtime.launch import LaunchFailure, plan_launch
from corral.runtime.run_options import RunOptions

ENV = {"PATH": "/usr/bin:/bin", "HOME": "/home/u"}


def plan(call: Call, config: SandboxConfig, env: dict[str, str], **options: Any) -> Any:
    return plan_launch(RunOptions(call, **options), config, env)


def program(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


@pytest.fixture
def config(project: Path) -> SandboxConfig:
    return SandboxConfig(str(project), timeout_seconds=7)


def test_name_is_looked_up_in_path(config: SandboxConfig, project: Path) -> None:
    first = program(project / "a" / "tool")
    program(project / "b" / "tool")
    env = {"PATH": f"{project}/nowhere:{project}/a:{project}/b"}
    assert plan(Call(("tool", "x")), config, env) == Launch(str(first), ("tool", "x"), str(project), env, None, 7)


def test_path_of_the_calls_env_is_used(config: SandboxConfig, project: Path) -> None:
    tool = program(project / "a" / "tool")
    assert plan(Call(("tool",), env={"PATH": f"{project}/a", "X": "1"}), config, ENV) == Launch(
        str(tool), ("tool",), str(project), {"PATH": f"{project}/a", "HOME": "/home/u", "X": "1"}, None, 7
    )


def test_non_executable_file_in_path_is_skipped(config: SandboxConfig, project: Path) -> None:
    program(project / "a" / "tool", 0o644)
    (project / "b" / "tool").mkdir(parents=True)
    good = program(project / "c" / "tool")
    launch = plan(Call(("tool",)), config, {"PATH": f"{project}/a:{project}/b:{project}/c"})
    assert isinstance(launch, Launch)
    assert launch.executable == str(good)


def test_relative_path_starts_at_cwd(config: SandboxConfig, project: Path) -> None:
    assert plan(Call(("./tool",), cwd="sub"), config, ENV) == Launch(
        f"{project}/sub/./tool", ("./tool",), f"{project}/sub", ENV, None, 7
    )


def test_string_of_one_word_is_a_command(config: SandboxConfig, project: Path) -> None:
    env = {"PATH": str(project)}
    tool = program(project / "tool")
    assert plan(Call("tool"), config, env) == Launch(str(tool), ("tool",), str(project), env, None, 7)


def test_shell_call_runs_bash_from_a_system_directory(config: SandboxConfig, project: Path) -> None:
    program(project / "bash")
    launch = plan(Call("-x; echo", shell=True), config, {"PATH": str(project)})
    assert isinstance(launch, Launch)
    assert launch.argv == ("bash", "--noprofile", "--norc", "-c", "--", "-x; echo")
    assert os.path.dirname(launch.executable) in places()["programs"]


def test_shell_call_without_bash_is_refused(config: SandboxConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(places(), "programs", ["/nonexistent"])
    failure = plan(Call("ls", shell=True), config, ENV)
    assert isinstance(failure, LaunchFailure)
    assert failure.exit_code == DENIED_EXIT_CODE


def test_call_sets_timeout_and_stdin(config: SandboxConfig) -> None:
    launch = plan(Call(("/x",)), config, ENV, stdin=bytearray(b"in"), timeout_seconds=2)
    assert isinstance(launch, Launch)
    assert (launch.stdin, launch.timeout_seconds) == (b"in", 2.0)


def test_config_without_timeout_sets_none(config: SandboxConfig) -> None:
    launch = plan(Call(("/x",)), config.replace(timeout_seconds=None), ENV)
    assert isinstance(launch, Launch)
    assert launch.timeout_seconds is None


def test_not_found_is_127_and_not_executable_126(config: SandboxConfig, project: Path) -> None:
    env = {"PATH": f"{project}/a:{project}/b"}
    assert plan(Call(("tool",)), config, env) == LaunchFailure(127, "corral: tool: command not found\n")
    program(project / "b" / "tool", 0o644)
    assert plan(Call(("tool",)), config, env) == LaunchFailure(126, f"corral: {project}/b/tool: not executable\n")


@pytest.mark.parametrize(
    ("call", "why"),
    [
        pytest.param(Call(()), "the command is empty", id="empty"),
        pytest.param(Call(b"ls"), "the command must be a list of strings, not bytes", id="bytes"),
        pytest.param(Call(None), "the command must be a list of strings, not NoneType", id="none"),
        pytest.param(Call(("ls", 3)), "argument 1 must be a string, not int", id="a number"),
        pytest.param(Call("ls -l"), "a command of several words must be a list, or needs shell=True", id="words"),
        pytest.param(Call(("a", "b"), shell=True), "with shell=True the command is one string", id="a list for a shell"),
        pytest.param(Call(("a\0b",)), "a NUL byte cannot be part of an argument, a path or a variable", id="a NUL"),
        pytest.param(Call(("/x",), cwd="a\0"), "a NUL byte cannot be part of an argument, a path or a variable", id="cwd"),
        pytest.param(Call(("/x", "\ud800")), "'\\ud800' cannot be encoded for the system", id="a lone surrogate"),
        pytest.param(Call(("/x",), cwd=3), "cwd must be a path, not int", id="cwd of a wrong type"),
        pytest.param(Call(("/x",), env=[]), "env must be a dict of names and values, not list", id="env of a wrong type"),
        pytest.param(Call(("/x",), env={"A": 1}), "env holds 'A', which is no name with a text", id="a value of a wrong type"),
        pytest.param(Call(("/x",), env={"A=B": "1"}), "env holds 'A=B', which is no name with a text", id="an equals sign"),
        pytest.param(Call(("/x",), env={"A": "\0"}), "a NUL byte cannot be part of an argument, a path or a variable", id="env"),
    ],
)  # fmt: skip
def test_invalid_call_is_126_with_a_message(config: SandboxConfig, call: Call, why: str) -> None:
    assert plan(call, config, ENV) == LaunchFailure(126, f"corral: {why}\n")


ANYTHING = st.recursive(st.none() | st.integers() | st.text() | st.binary() | st.floats(), st.lists, max_leaves=5)


@given(argv=ANYTHING, shell=st.booleans(), cwd=ANYTHING, env=ANYTHING | st.dictionaries(st.text(), ANYTHING))
def test_planning_is_total(argv: Any, shell: bool, cwd: Any, env: Any) -> None:
    assert isinstance(plan(Call(argv, shell, cwd, env), SandboxConfig("/usr"), ENV), Launch | LaunchFailure)


def test_repeated_call_uses_the_cached_launch(config: SandboxConfig, project: Path) -> None:
    first = plan(Call(("/bin/true", "x")), config, ENV)
    assert plan(Call(("/bin/true", "x")), config, ENV) is first
    text = plan(Call("echo hi", shell=True), config, ENV)
    assert plan(Call("echo hi", shell=True), config, ENV) is text
    assert plan(Call(("echo hi",)), config, ENV) != text


@pytest.mark.parametrize("argv", [("/bin/true",), ("./tool",), "echo hi"])
def test_different_call_does_not_use_the_cached_launch(
    config: SandboxConfig, project: Path, argv: tuple[str, ...] | str
) -> None:
    def planned(call: Call, of: SandboxConfig = config, env: dict[str, str] = ENV, **given: object) -> object:
        plan(Call(argv, shell), config, ENV)
        return plan(call, of, env, **given)  # type: ignore[arg-type]

    shell = isinstance(argv, str)
    (project / "sub").mkdir()
    other = SandboxConfig(str(project / "sub"))
    known = plan(Call(argv, shell), config, ENV)
    assert isinstance(known, Launch)
    assert planned(Call(argv, shell), other).cwd == str(project / "sub")  # type: ignore[attr-defined]
    assert planned(Call(argv, shell), env={**ENV, "X": "1"}).env["X"] == "1"  # type: ignore[attr-defined]
    assert planned(Call(argv, shell, cwd="sub")).cwd == f"{project}/sub"  # type: ignore[attr-defined]
    assert planned(Call(argv, shell, env={"X": "2"})).env["X"] == "2"  # type: ignore[attr-defined]
    assert planned(Call(argv, shell), stdin=b"in").stdin == b"in"  # type: ignore[attr-defined]
    assert planned(Call(argv, shell), timeout_seconds=3.0).timeout_seconds == 3.0  # type: ignore[attr-defined]
    assert planned(Call(argv, shell)) == known


def test_path_lookup_is_not_cached(config: SandboxConfig, project: Path) -> None:
    env = {"PATH": f"{project}/a:{project}/b"}
    second = program(project / "b" / "tool")
    assert plan(Call(("tool",)), config, env).executable == str(second)  # type: ignore[union-attr]
    first = program(project / "a" / "tool")
    assert plan(Call(("tool",)), config, env).executable == str(first)  # type: ignore[union-attr]
