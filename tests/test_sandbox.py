"""Sandbox: refused calls run nothing, `ask` needs a yes, and no argument makes `run` raise."""

import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from observe import alive, children, descriptors, eventually, unique_seconds
from streams import read_head

from corral import (
    Containment,
    ContainmentError,
    Decision,
    Profile,
    Sandbox,
    SandboxConfig,
    SandboxResult,
    Verdict,
)
from corral.guard.rules.loader import effects, profile_named
from corral.model.call import Call
from corral.model.grant import Yes
from corral.runtime.run_options import RunOptions


@pytest.fixture
def asking(project: Path) -> Iterator[Callable[..., Sandbox]]:
    """A function that makes sandboxes whose policy asks about writes to the project."""
    decisions = dict.fromkeys(effects(), Decision.ALLOW) | {"write-inside": Decision.ASK}
    profile = Profile("asking", decisions, profile_named("strict").groups)
    made: list[Sandbox] = []

    def make(on_ask: object = None) -> Sandbox:
        made.append(Sandbox(SandboxConfig(str(project), profile=profile, denylist=()), on_ask=on_ask))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for box in made:
        box.close()


def test_result_describes_its_call(open_box: Sandbox, project: Path) -> None:
    result = open_box.run("echo x", shell=True)
    assert result == SandboxResult(
        argv=("echo x",),
        exit_code=0,
        stdout=b"x\n",
        duration_ms=result.duration_ms,
        id=result.id,
        started_at=result.started_at,
        cwd=str(project),
        shell=True,
        verdict=Verdict(),
        backend="warden",
        enforcement="full",
        usage=result.usage,
        stdout_bytes=2,
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", result.started_at)
    assert re.fullmatch(r"[0-9a-f]{32}", result.id)
    assert result.duration_ms > 0


def test_denied_call_starts_nothing(box: Sandbox, project: Path) -> None:
    (project / "x").write_text("")
    before = descriptors()
    result = box.run(["rm", "x"])
    verdict = box.check(["rm", "x"])
    assert result == SandboxResult(
        argv=("rm", "x"),
        exit_code=-100,
        denied=True,
        reason=verdict.reason,
        id=result.id,
        started_at=result.started_at,
        cwd=str(project),
        verdict=verdict,
    )
    assert verdict.decision == Decision.DENY
    assert (children(os.getpid()), descriptors(), (project / "x").exists()) == ([], before, True)


def test_check_starts_nothing(box: Sandbox) -> None:
    assert box.check(["ls"]).allowed
    assert box.check("ls | wc -l", shell=True).allowed
    assert children(os.getpid()) == []


def test_ask_without_on_ask_is_refused(asking: Callable[..., Sandbox], project: Path) -> None:
    box = asking()
    result = box.run(["touch", "new"])
    assert (result.denied, result.exit_code, result.verdict.decision) == (True, -100, Decision.ASK)
    assert result.reason == result.verdict.reason != ""
    assert list(project.iterdir()) == []


def test_true_from_on_ask_runs_the_call(asking: Callable[..., Sandbox], project: Path) -> None:
    asked: list[tuple[Call, Verdict]] = []

    def yes(call: Call, verdict: Verdict) -> bool:
        asked.append((call, verdict))
        return True

    box = asking(yes)
    result = box.run(["touch", "new"])
    assert (result.exit_code, result.denied, result.verdict.decision) == (0, False, Decision.ASK)
    assert [path.name for path in project.iterdir()] == ["new"]
    assert asked == [(Call(("touch", "new")), result.verdict)]


async def _async_yes(call: Call, verdict: Verdict) -> bool:
    return True


def _raise(call: Call, verdict: Verdict) -> bool:
    raise RuntimeError("nobody there")


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda call, verdict: False, id="no"),
        pytest.param(lambda call, verdict: None, id="nothing"),
        pytest.param(lambda call, verdict: 1, id="a true value that is not True"),
        pytest.param(_async_yes, id="a coroutine, which run does not await"),
        pytest.param(_raise, id="an error"),
        pytest.param(lambda: True, id="the wrong arguments"),
    ],
)
def test_any_other_answer_refuses_the_call(asking: Callable[..., Sandbox], project: Path, answer: object) -> None:
    result = asking(answer).run(["touch", "new"])
    assert (result.denied, result.exit_code, list(project.iterdir())) == (True, -100, [])


def test_call_that_changed_during_on_ask_is_refused(
    asking: Callable[..., Sandbox], project: Path, tmp_path: Path
) -> None:
    (project / "sub").mkdir()
    (project / "link").symlink_to("sub")

    def yes_but_late(call: Call, verdict: Verdict) -> bool:
        (project / "link").unlink()
        (project / "link").symlink_to(tmp_path)
        return True

    result = asking(yes_but_late).run(["touch", "link/new"])
    assert (result.denied, result.exit_code) == (True, -100)
    assert result.reason != result.verdict.reason
    assert not (tmp_path / "new").exists()


def test_on_ask_is_called_only_for_ask(box: Sandbox, project: Path) -> None:
    asked: list[Call] = []
    with Sandbox(box.config, on_ask=lambda call, verdict: bool(asked.append(call))) as other:
        assert other.run(["true"]).ok
        assert other.run(["rm", "x"]).denied
    assert asked == []


@pytest.mark.parametrize(
    ("settings_", "named"),
    [
        ({"profile": "workspace", "containment": Containment(backend="none")}, "profile workspace"),
        ({"containment": Containment(backend="none", project="read-only")}, "containment.project"),
    ],
)
def test_missing_containment_raises_and_names_the_setting(
    sandbox: Callable[..., Sandbox], settings_: dict[str, object], named: str
) -> None:
    box = sandbox(**settings_)
    for start in (box.run, box.start):
        with pytest.raises(ContainmentError, match=f"^{named}.*needs the kernel.*containment.backend is 'none'"):
            start(["true"])
    assert box.check(["true"]).allowed
    assert children(os.getpid()) == []


def test_argv_is_copied_before_it_is_judged(asking: Callable[..., Sandbox], project: Path) -> None:
    argv = ["touch", "new"]
    env = {"A": "1"}

    def swap(call: Call, verdict: Verdict) -> bool:
        argv[:] = ["touch", "other"]
        env.clear()
        return True

    box = asking(swap)
    assert box.run(argv, env=env).argv == ("touch", "new")
    assert [path.name for path in project.iterdir()] == ["new"]


def test_with_block_closes_everything(project: Path) -> None:
    seconds = unique_seconds()
    before = descriptors()
    with Sandbox(SandboxConfig(str(project))) as box:
        assert box.run(["true"]).ok
        started = box.start(["sleep", seconds])
        eventually(lambda: alive(seconds))
    assert (alive(seconds), children(os.getpid())) == ([], [])
    assert started.wait().exit_code == 137
    assert descriptors() == before
    box.close()


def test_closed_sandbox_checks_but_runs_nothing(box: Sandbox) -> None:
    box.close()
    assert box.check(["ls"]).allowed
    with pytest.raises(ContainmentError, match="closed"):
        box.run(["true"])


def test_two_sandboxes_are_independent(sandbox: Callable[..., Sandbox]) -> None:
    first, second = sandbox(), sandbox()
    assert first.run(["echo", "1"]).stdout == b"1\n"
    assert second.run(["echo", "2"]).stdout == b"2\n"
    first.close()
    assert second.run(["echo", "2"]).stdout == b"2\n"


STRANGE: list[object] = [
    None,
    3,
    1.5,
    b"ls",
    object(),
    ["ls", None],
    ["ls", b"x"],
    [["ls"]],
    {"ls": 1},
    {"ls"},
    iter(["ls"]),
]
STRANGE += [
    [],
    [""],
    "",
    " ",
    ["a\0b"],
    ["\ud800"],
    ["\udcff"],
    ["x" * 3_000_000],
    ["x"] * 20_000,
    ["/"],
    ["."],
]


@pytest.mark.parametrize("argv", STRANGE, ids=lambda value: repr(value).partition(" at 0x")[0][:40])
@pytest.mark.parametrize("shell", [False, True])
def test_no_argv_makes_run_raise(box: Sandbox, argv: object, shell: bool) -> None:
    result = box.run(argv, shell=shell)  # type: ignore[arg-type]
    assert result.exit_code in (-100, 126, 127)
    assert result.denied == (result.exit_code == -100)
    assert SandboxResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result


@pytest.mark.parametrize(
    "arguments",
    [
        {"cwd": 3},
        {"cwd": "a\0b"},
        {"cwd": "x" * 5000},
        {"cwd": "\ud800"},
        {"cwd": b"sub"},
        {"env": 3},
        {"env": [("A", "B")]},
        {"env": {"A": 1}},
        {"env": {1: "A"}},
        {"env": {"": "A"}},
        {"env": {"A=B": "C"}},
        {"env": {"A": "\0"}},
        {"env": {"A": "\ud800"}},
        {"env": {"A": "x" * 3_000_000}},
    ],
    ids=lambda value: repr(value)[:40],
)
def test_no_cwd_or_env_makes_run_raise(box: Sandbox, arguments: dict[str, object]) -> None:
    result = box.run(["true"], **arguments)  # type: ignore[arg-type]
    assert result.exit_code in (-100, 126) or (result.ok and "env" in arguments)
    assert SandboxResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(argv=st.lists(st.text(max_size=20), max_size=4) | st.text(max_size=30), shell=st.booleans())
def test_run_returns_a_result_for_any_text(box: Sandbox, argv: list[str] | str, shell: bool) -> None:
    assert isinstance(box.run(argv, shell=shell, timeout_seconds=5), SandboxResult)


def test_deleted_project_is_a_result(sandbox: Callable[..., Sandbox], project: Path) -> None:
    box = sandbox()
    project.rmdir()
    result = box.run(["true"])
    assert (result.exit_code, result.stderr) == (
        126,
        f"corral: cannot enter {project}: No such file or directory\n".encode(),
    )


def test_unenterable_directory_is_a_result(open_box: Sandbox, project: Path) -> None:
    (project / "locked").mkdir(mode=0)
    result = open_box.run(["true"], cwd="locked")
    assert result.exit_code == (0 if os.geteuid() == 0 else 126)
    (project / "locked").chmod(0o700)


class _Disguised(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "harmless"


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda box: box.run(["cat", _Disguised("/etc/hostname")]), id="an argument"),
        pytest.param(lambda box: box.run(_Disguised("cat /etc/hostname"), shell=True), id="shell text"),
        pytest.param(lambda box: box.run(["ls"], cwd=_Disguised("..")), id="a directory"),
        pytest.param(lambda box: box.run(["ls"], env={"LD_PRELOAD": _Disguised("./x.so")}), id="a variable"),
    ],
)
def test_str_subclass_is_judged_by_its_real_text(box: Sandbox, ask: Callable[[Sandbox], SandboxResult]) -> None:
    assert ask(box).denied


def test_wrong_data_type_does_not_truncate_a_file(box: Sandbox, project: Path) -> None:
    (project / "keep.txt").write_bytes(b"kept")
    with pytest.raises(TypeError):
        box.write_bytes("keep.txt", "text")  # type: ignore[arg-type]
    assert (project / "keep.txt").read_bytes() == b"kept"


@pytest.mark.parametrize("config", [{}, "", 0, False, (), "project", {"project_root": "."}])
def test_config_of_another_type_raises_type_error(config: Any) -> None:
    with pytest.raises(TypeError, match=f"config must be a SandboxConfig, not {type(config).__name__}"):
        Sandbox(config)


class _Recorder:
    """An observer that records every call."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []

    def observe(self, options: RunOptions) -> "_Recorder":
        self.seen.append(("observe", options.call.argv))
        return self

    def enter(self) -> None:
        self.seen.append(("enter",))

    def leave(self) -> None:
        self.seen.append(("leave",))

    def end(self, result: SandboxResult | None, error: BaseException | None = None) -> None:
        self.seen.append(("end", result and result.exit_code, type(error).__name__))


@pytest.mark.parametrize("way", ["run", "start", "transaction"])
def test_observer_sees_a_call_from_before_its_check_to_its_end(project: Path, way: str) -> None:
    recorder = _Recorder()
    decisions = dict.fromkeys(effects(), Decision.ALLOW)
    profile = Profile("open", decisions, profile_named("strict").groups)
    with Sandbox(SandboxConfig(str(project), profile=profile, denylist=()), observers=[recorder]) as box:
        if way == "transaction":
            with box.transaction() as changes:
                changes.run(["false"])
        else:
            box.run(["false"]) if way == "run" else box.start(["false"]).wait()
    begin = [("observe", ("false",)), ("enter",), ("leave",)]
    assert recorder.seen == [*begin, ("end", 1, "NoneType")]


def test_observer_sees_refusals_and_errors(project: Path) -> None:
    recorder = _Recorder()
    with Sandbox(SandboxConfig(str(project)), observers=[recorder]) as box:
        box.run(["rm", "x"])
        assert recorder.seen[-1] == ("end", -100, "NoneType")
        box.close()
        with pytest.raises(ContainmentError):
            box.run(["true"])
    assert recorder.seen[-1] == ("end", None, "ContainmentError")
    box.observers.clear()
    assert box.run(["rm", "x"]).denied
    assert len(recorder.seen) == 8


@pytest.mark.parametrize("option", ["open_stdin", "inherit_stdin", "inherit_stdio", "pty"])
def test_run_in_a_transaction_refuses_options_of_start(box: Sandbox, option: str) -> None:
    with box.transaction() as changes, pytest.raises(TypeError):
        changes.run(["true"], **{option: True})


def test_transaction_requires_the_containment_of_its_own_profile(sandbox: Callable[..., Sandbox]) -> None:
    # The profile strict runs without containment. Transactions use workspace, which does not.
    box = sandbox(containment=Containment(backend="none"))
    assert box.run(["true"]).ok
    with pytest.raises(ContainmentError):
        box.transaction().run(["true"])


def test_subclass_that_overrides_only_start_is_an_error() -> None:
    # `run` does not call `start`, so a check in `start` alone would not see the calls of `run`.
    with pytest.raises(TypeError, match="run, arun, astart, transaction"):
        type("Checking", (Sandbox,), {"start": lambda self, *words: None})


def test_subclass_that_overrides_every_way_is_allowed() -> None:
    ways = dict.fromkeys(("run", "arun", "start", "astart", "transaction", "session"), lambda self, *words: None)
    assert issubclass(type("Checking", (Sandbox,), ways), Sandbox)
    assert issubclass(type("Named", (Sandbox,), {"name": "x"}), Sandbox)


def test_config_of_a_sandbox_cannot_be_replaced(box: Sandbox) -> None:
    with pytest.raises(AttributeError):
        box.config = box.config.replace(timeout_seconds=1)  # type: ignore[misc]


def _asking(root: Path, on_ask: Any) -> Sandbox:
    contained = Containment(hosts=["own.example=127.0.0.1"])
    return Sandbox(
        SandboxConfig(str(root), profile="workspace", posture="balanced", containment=contained), on_ask=on_ask
    )


@pytest.mark.parametrize("answer", [True, Yes("once"), False])
def test_on_ask_gets_the_openings_and_decides(tmp_path: Path, port: int, answer: bool | Yes) -> None:
    asked: list[list[str]] = []

    def on_ask(_: object, verdict: Verdict) -> bool | Yes:
        asked.append([grant.target for grant in verdict.grants])
        return answer

    target = f"own.example:{port}"
    with _asking(tmp_path, on_ask) as box:
        result = box.run(["curl", "-sS", f"http://{target}/"])
    assert asked == [[target]]
    assert (result.denied, result.stdout_text) == ((False, "reached") if answer else (True, ""))
    by = answer.by if isinstance(answer, Yes) else "program"
    assert [(grant.target, grant.by) for grant in result.grants] == ([(target, by)] if answer else [])


@pytest.mark.parametrize("answer", [True, False])
def test_yes_lets_bash_connect_itself(tmp_path: Path, port: int, answer: bool) -> None:
    text = f"exec 3<>/dev/tcp/own.example/{port}; printf 'GET / HTTP/1.0\\r\\nHost: own.example:{port}\\r\\n\\r\\n' >&3; cat <&3"
    with _asking(tmp_path, lambda *_: answer) as box:
        result = box.run(text, shell=True)
    assert (result.denied, result.stdout_text[-7:]) == (not answer, "reached" if answer else "")
    assert [grant.target for grant in result.grants] == ([f"own.example:{port}"] if answer else [])


def test_command_beside_a_granted_one_gets_no_opening(tmp_path: Path) -> None:
    (tmp_path / "fetch.py").write_text("import sys, urllib.request\nurllib.request.urlopen(sys.argv[1])\n")
    with socket.create_server(("127.0.0.1", 0)) as server, _asking(tmp_path, lambda *_: True) as box:
        server.settimeout(60)
        target = f"own.example:{server.getsockname()[1]}"
        granted = box.start(["curl", "-sS", f"http://{target}/"])
        # The granted call runs until the server answers it.
        client, _ = server.accept()
        with client:
            refused = box.run(["python3", "fetch.py", f"http://{target}/"])
            read_head(client)
            client.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\nreached")
        assert granted.wait().stdout_text == "reached"
    assert [(c.target, c.outcome) for c in refused.connections] == [(target, "refused")]
    assert refused.grants == ()
