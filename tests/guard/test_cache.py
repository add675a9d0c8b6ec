"""A verdict that is given again is the one that judging again would give, whatever happened to the files meanwhile."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral import SandboxConfig
from corral.guard.cache import MAX_VERDICTS, VerdictCache
from corral.guard.evaluate import vet
from corral.guard.machine import Machine
from corral.model.call import Call

COMMANDS = [
    Call(("cat", "a")),
    Call(("cat", "d/a")),
    Call(("./a",)),
    Call(("rm", "d/a")),
    Call(("cp", "a", "d")),
    Call(("cd d && cat a > b",), shell=True),
    Call(("cat *",), shell=True),
    Call(("mv a d/x; touch d/x",), shell=True),
    Call(("cat", "a"), cwd="d"),
]
NAMES = st.sampled_from(["a", "b", "d", "d/a", "d/x", ".git"])
TARGETS = st.sampled_from(["/etc/passwd", "a", "..", "../d", "/nonexistent", ".git/hooks"])
CHANGES = st.one_of(
    st.tuples(st.just("file"), NAMES, st.just("")),
    st.tuples(st.just("directory"), NAMES, st.just("")),
    st.tuples(st.just("remove"), NAMES, st.just("")),
    st.tuples(st.just("link"), NAMES, TARGETS),
)


def change(root: str, kind: str, name: str, target: str) -> None:
    """Change the project's files, if the change is possible."""
    path = os.path.join(root, name)
    if os.path.islink(path) or os.path.isfile(path):
        os.unlink(path)
    elif kind != "directory" and os.path.isdir(path):
        shutil.rmtree(path)
    try:
        if kind == "file":
            Path(path).write_text("x")
        elif kind == "directory":
            os.makedirs(path, exist_ok=True)
        elif kind == "link":
            os.symlink(target, path)
    except OSError:
        return


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(COMMANDS), CHANGES), max_size=12), st.sampled_from(["strict", "workspace"]))
def test_what_is_recalled_is_what_judging_again_says(
    steps: list[tuple[Call, tuple[str, str, str]]], profile: str
) -> None:
    outer = tempfile.mkdtemp()
    # Deeper than the links of a test can climb.
    root = f"{outer}/1/2/3/project"
    os.makedirs(root)
    try:
        config = SandboxConfig(root, profile=profile)
        machine = Machine.of(config)
        recall = VerdictCache(config)
        for call, step in steps:
            for _ in range(2):
                assert recall.vet(call, machine) == vet(call, config, machine)
            change(root, *step)
            assert recall.vet(call, machine) == vet(call, config, machine)
    finally:
        shutil.rmtree(outer)


@pytest.fixture
def config(tmp_path: Path) -> SandboxConfig:
    """A config for an empty project."""
    return SandboxConfig(str(tmp_path))


def test_the_same_verdict_is_given_again(config: SandboxConfig) -> None:
    recall, machine = VerdictCache(config), Machine.of(config)
    first = recall.vet(Call(("cat", "a")), machine)
    assert first.allowed
    assert recall.vet(Call(("cat", "a")), machine) is first


def test_a_file_that_became_a_link_outside_is_judged_again(config: SandboxConfig) -> None:
    recall, machine = VerdictCache(config), Machine.of(config)
    Path(config.project_root, "a").write_text("x")
    assert recall.vet(Call(("cat", "a")), machine).allowed
    Path(config.project_root, "a").unlink()
    Path(config.project_root, "a").symlink_to("/etc/shadow")
    assert not recall.vet(Call(("cat", "a")), machine).allowed


def test_a_text_for_the_shell_is_given_again_and_judged_again_when_its_files_change(config: SandboxConfig) -> None:
    recall, machine = VerdictCache(config), Machine.of(config)
    call = Call("cat a | wc -l", shell=True)
    first = recall.vet(call, machine)
    assert first.allowed
    assert recall.vet(call, machine) is first
    Path(config.project_root, "a").symlink_to("/etc/shadow")
    assert not recall.vet(call, machine).allowed


def test_where_a_program_of_the_system_lies_is_asked_again_after_a_second(
    config: SandboxConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    asked: list[str] = []
    place = ["/usr/bin/true"]

    def look(path: str) -> str:
        asked.append(path)
        return place[0]

    monkeypatch.setattr("corral.guard.cache.monotonic", lambda: now[0])
    monkeypatch.setattr("corral.guard.machine.kernel_realpath", look)
    recall, machine = VerdictCache(config), Machine.of(config)
    first = recall.vet(Call(("/bin/true",)), machine)
    asked.clear()
    now[0] += 0.9
    assert (recall.vet(Call(("/bin/true",)), machine) is first, asked) == (True, [])
    now[0] += 0.2
    assert (recall.vet(Call(("/bin/true",)), machine) is first, asked) == (True, ["/bin/true"])
    now[0] += 2.0
    place[0] = "/usr/bin/dd"
    assert recall.vet(Call(("/bin/true",)), machine) is not first


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that the machine was asked about, each of which leads to one program."""
    paths: list[str] = []

    def look(path: str) -> str:
        paths.append(path)
        return "/usr/bin/true"

    monkeypatch.setattr("corral.guard.machine.kernel_realpath", look)
    return paths


def asks_again(config: SandboxConfig, path: str, asked: list[str]) -> bool:
    """Say whether a call that comes again asks where its program lies."""
    recall, machine = VerdictCache(config), Machine.of(config)
    recall.vet(Call((path,)), machine)
    asked.clear()
    recall.vet(Call((path,)), machine)
    return bool(asked)


@pytest.mark.parametrize(
    "path", ["/opt/x/true", "/usr/bin/../../opt/true", "/home/somebody/true", "/usr/local/bin/true", "/usr/bin/a-link"]
)
def test_where_another_program_lies_is_asked_each_time(config: SandboxConfig, path: str, asked: list[str]) -> None:
    assert not asks_again(config, "/usr/bin/true", asked)
    assert asks_again(config, path, asked)


def test_a_system_that_commands_may_write_is_asked_each_time(asked: list[str]) -> None:
    assert asks_again(SandboxConfig("/usr"), "/bin/true", asked)


def test_another_machine_is_judged_again(config: SandboxConfig) -> None:
    recall = VerdictCache(config)
    first = recall.vet(Call(("cat", "a")), Machine.of(config))
    assert recall.vet(Call(("cat", "a")), Machine.of(config)) is not first


@pytest.mark.parametrize("argv", [("ls", 1), ("ls", ["a"]), ("ls", None), ["ls"], "ls", 3, ("ls", b"x")])
def test_what_is_no_tuple_of_text_is_judged_each_time(config: SandboxConfig, argv: object) -> None:
    recall, machine = VerdictCache(config), Machine.of(config)
    for shell in (False, True):
        call = Call(argv, shell)  # type: ignore[arg-type]  # what callers may pass
        for _ in range(2):
            assert recall.vet(call, machine) == vet(call, config, machine)


def test_a_call_with_variables_is_judged_each_time(config: SandboxConfig) -> None:
    recall, machine = VerdictCache(config), Machine.of(config)
    assert recall.vet(Call(("ls",)), machine).allowed
    assert not recall.vet(Call(("ls",), env={"LD_PRELOAD": "./x.so"}), machine).allowed


def test_memory_is_bounded(config: SandboxConfig) -> None:
    recall, machine = VerdictCache(config), Machine.of(config)
    for number in range(3 * MAX_VERDICTS):
        assert recall.vet(Call(("echo", str(number))), machine).allowed
    assert len(recall._known) <= MAX_VERDICTS
