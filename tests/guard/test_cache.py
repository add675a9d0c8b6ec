"""Tests that a cached verdict equals a fresh one, whatever happens to the files in between."""

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
def test_cached_verdict_equals_a_fresh_one(steps: list[tuple[Call, tuple[str, str, str]]], profile: str) -> None:
    outer = tempfile.mkdtemp()
    # Deep enough that no link of a test leads above it.
    root = f"{outer}/1/2/3/project"
    os.makedirs(root)
    try:
        config = SandboxConfig(root, profile=profile)
        machine = Machine.of(config)
        cache = VerdictCache(config)
        for call, step in steps:
            for _ in range(2):
                assert cache.vet(call, machine) == vet(call, config, machine)
            change(root, *step)
            assert cache.vet(call, machine) == vet(call, config, machine)
    finally:
        shutil.rmtree(outer)


@pytest.fixture
def config(tmp_path: Path) -> SandboxConfig:
    """A config for an empty project."""
    return SandboxConfig(str(tmp_path))


def test_repeated_call_returns_the_cached_verdict(config: SandboxConfig) -> None:
    cache, machine = VerdictCache(config), Machine.of(config)
    first = cache.vet(Call(("cat", "a")), machine)
    assert first.allowed
    assert cache.vet(Call(("cat", "a")), machine) is first


def test_file_replaced_by_a_link_is_judged_again(config: SandboxConfig) -> None:
    cache, machine = VerdictCache(config), Machine.of(config)
    Path(config.project_root, "a").write_text("x")
    assert cache.vet(Call(("cat", "a")), machine).allowed
    Path(config.project_root, "a").unlink()
    Path(config.project_root, "a").symlink_to("/etc/shadow")
    assert not cache.vet(Call(("cat", "a")), machine).allowed


def test_shell_text_is_cached_until_its_files_change(config: SandboxConfig) -> None:
    cache, machine = VerdictCache(config), Machine.of(config)
    call = Call("cat a | wc -l", shell=True)
    first = cache.vet(call, machine)
    assert first.allowed
    assert cache.vet(call, machine) is first
    Path(config.project_root, "a").symlink_to("/etc/shadow")
    assert not cache.vet(call, machine).allowed


def test_system_program_is_resolved_again_after_a_second(
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
    cache, machine = VerdictCache(config), Machine.of(config)
    first = cache.vet(Call(("/bin/true",)), machine)
    asked.clear()
    now[0] += 0.9
    assert (cache.vet(Call(("/bin/true",)), machine) is first, asked) == (True, [])
    now[0] += 0.2
    assert (cache.vet(Call(("/bin/true",)), machine) is first, asked) == (True, ["/bin/true"])
    now[0] += 2.0
    place[0] = "/usr/bin/dd"
    assert cache.vet(Call(("/bin/true",)), machine) is not first


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that the machine resolved. Each leads to the same program."""
    paths: list[str] = []

    def look(path: str) -> str:
        paths.append(path)
        return "/usr/bin/true"

    monkeypatch.setattr("corral.guard.machine.kernel_realpath", look)
    return paths


def asks_again(config: SandboxConfig, path: str, asked: list[str]) -> bool:
    """Say whether a repeated call resolves its program again."""
    cache, machine = VerdictCache(config), Machine.of(config)
    cache.vet(Call((path,)), machine)
    asked.clear()
    cache.vet(Call((path,)), machine)
    return bool(asked)


@pytest.mark.parametrize(
    "path", ["/opt/x/true", "/usr/bin/../../opt/true", "/home/user/true", "/usr/local/bin/true", "/usr/bin/a-link"]
)
def test_other_program_is_resolved_each_time(config: SandboxConfig, path: str, asked: list[str]) -> None:
    assert not asks_again(config, "/usr/bin/true", asked)
    assert asks_again(config, path, asked)


def test_writable_system_directory_is_resolved_each_time(asked: list[str]) -> None:
    assert asks_again(SandboxConfig("/usr"), "/bin/true", asked)


def test_cache_is_not_shared_between_machines(config: SandboxConfig) -> None:
    cache = VerdictCache(config)
    first = cache.vet(Call(("cat", "a")), Machine.of(config))
    assert cache.vet(Call(("cat", "a")), Machine.of(config)) is not first


@pytest.mark.parametrize("argv", [("ls", 1), ("ls", ["a"]), ("ls", None), ["ls"], "ls", 3, ("ls", b"x")])
def test_call_that_is_not_plain_text_is_not_cached(config: SandboxConfig, argv: object) -> None:
    cache, machine = VerdictCache(config), Machine.of(config)
    for shell in (False, True):
        call = Call(argv, shell)  # type: ignore[arg-type]  # callers can pass it
        for _ in range(2):
            assert cache.vet(call, machine) == vet(call, config, machine)


def test_call_with_environment_is_not_cached(config: SandboxConfig) -> None:
    cache, machine = VerdictCache(config), Machine.of(config)
    assert cache.vet(Call(("ls",)), machine).allowed
    assert not cache.vet(Call(("ls",), env={"LD_PRELOAD": "./x.so"}), machine).allowed


def test_cache_size_is_bounded(config: SandboxConfig) -> None:
    cache, machine = VerdictCache(config), Machine.of(config)
    for number in range(3 * MAX_VERDICTS):
        assert cache.vet(Call(("echo", str(number))), machine).allowed
    assert len(cache._known) <= MAX_VERDICTS
