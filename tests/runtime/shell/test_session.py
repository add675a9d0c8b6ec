"""Sessions: a shell that lasts, with calls that are judged, bounded and ended one by one."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from observe import DEADLINE_SECONDS, alive, descriptors, eventually, unique_seconds

from corral import ContainmentError, Sandbox, SandboxConfig, SandboxResult
from corral.model.call import DENIED_EXIT_CODE, TIMED_OUT_EXIT_CODE
from corral.runtime.shell.session import Session

# Tries to take part in the conversation between corral and bash, from a child of bash.
FORGER = """\
import os
found = done = 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    for place in range(256):
        way = f"/proc/{pid}/fd/{place}"
        try:
            if not os.readlink(way).startswith("socket:"):
                continue
            found += 1
            with open(way, "wb", buffering=0) as file:
                done += file.write(b"00000000000000000000000000000000 0\\n")
        except OSError:
            pass
print("sockets", found > 0, "forged", done)
"""


@pytest.fixture
def results() -> list[SandboxResult]:
    return []


@pytest.fixture
def box(project: Path, results: list[SandboxResult]) -> Iterator[Sandbox]:
    config = SandboxConfig(project_root=str(project), profile="workspace")
    with Sandbox(config, on_result=results.append) as made:
        yield made


@pytest.fixture
def shell(box: Sandbox) -> Iterator[Session]:
    with box.session() as session:
        yield session


def test_state_lasts(shell: Session, project: Path) -> None:
    (project / "sub").mkdir()
    first = shell.run("cd sub; x=5; export y=6; f() { echo f $x $1; }; set -u; sleep 30 & false")
    assert (first.exit_code, first.stdout) == (1, b"")
    second = shell.run("echo $?; pwd; f a; bash -c 'echo $y'; jobs; echo $unset; echo never")
    assert second.stdout_text.splitlines()[:4] == ["1", f"{project}/sub", "f 5 a", "6"]
    assert "sleep 30" in second.stdout_text.splitlines()[4]
    assert b"unset: unbound variable" in second.stderr
    assert (second.cwd, shell.cwd, shell.starts) == (f"{project}/sub", f"{project}/sub", 1)


def test_each_call_has_its_own_result(shell: Session, results: list[SandboxResult]) -> None:
    texts = [
        "echo out; echo err >&2; (exit 7)",
        "kill -9 $BASHPID | :",
        "no-such-program",
        "cat /etc/shadow",
        "cat; read x; echo $?",
    ]
    made = [shell.run(text) for text in texts]
    assert [result.exit_code for result in made] == [7, 0, 127, DENIED_EXIT_CODE, 0]
    assert (made[0].stdout, made[0].stderr) == (b"out\n", b"err\n")
    assert (made[3].denied, made[4].stdout) == (True, b"1\n")
    assert [result.argv for result in results] == [(text,) for text in texts]
    assert made[0].enforcement == "full"
    assert len({result.id for result in made}) == len(texts)


def test_text_is_run_as_it_stands(shell: Session) -> None:
    assert shell.run("cat <<'E'\n  $x \\\n'\nE").stdout == b"  $x \\\n'\n"
    assert shell.run("echo one; # a comment\necho two").stdout == b"one\ntwo\n"
    assert shell.run("echo '").exit_code != 0
    assert shell.run("printf '%s' é; echo !!").stdout == "é!!\n".encode()
    assert shell.run("alias x='echo alias' 2>/dev/null; x").exit_code == 127


@pytest.mark.parametrize("text", ["break", "continue 2", "return 3", "echo $((1/0))", ": ${x?gone}", "eval 'break 9'"])
def test_text_that_bash_gives_up_leaves_the_shell(shell: Session, text: str) -> None:
    shell.run("x=; unset x; kept=1")
    shell.run(f"{text}; true")
    assert shell.run("echo $kept").stdout == b"1\n"
    assert shell.starts == 1


def test_output_is_bounded_as_that_of_run(project: Path) -> None:
    config = SandboxConfig(project_root=str(project), profile="workspace", max_output_bytes=1000)
    with Sandbox(config) as box, box.session() as shell:
        result = shell.run("head -c 3000000 /dev/zero | tr '\\0' a; echo end >&2")
        assert (result.truncated, result.stdout_bytes, result.stderr) == (True, 3000000, b"end\n")
        assert len(result.stdout) < 1100
        assert shell.run("echo next").stdout == b"next\n"


def test_live_output_arrives_before_the_end(shell: Session) -> None:
    got: list[tuple[str, bytes]] = []
    begun = threading.Event()

    def take(name: str, data: bytes) -> None:
        got.append((name, data))
        begun.set()

    runner = threading.Thread(target=lambda: shell.run("echo one; sleep 60; echo two", on_output=take))
    runner.start()
    assert begun.wait(DEADLINE_SECONDS)
    assert runner.is_alive()
    eventually(shell.interrupt)
    runner.join(DEADLINE_SECONDS)
    assert got == [("stdout", b"one\n")]


LOOPS = {
    "a program": "sleep {}",
    "a loop": "while true; do sleep {}; done",
    "a loop of builtins": "sleep {} & while :; do :; done",
    "a program that ignores signals": "(trap '' INT TERM; sleep {})",
    "its own process group": "setsid sleep {} & timeout {} sleep {}",
    "an orphan": "(sleep {} &); sleep {}",
}


@pytest.mark.parametrize("text", LOOPS.values(), ids=LOOPS.keys())
def test_time_limit_ends_the_call_and_not_the_shell(shell: Session, text: str) -> None:
    seconds = unique_seconds()
    shell.run("kept=1; sleep 1000 &")
    result = shell.run(text.format(seconds, seconds, seconds), timeout_seconds=0.5)
    assert (result.exit_code, result.timed_out) == (TIMED_OUT_EXIT_CODE, True)
    eventually(lambda: not alive(seconds))
    after = shell.run("echo $kept; jobs")
    assert after.stdout_text.split()[0] == "1"
    assert "sleep 1000" in after.stdout_text
    assert shell.starts == 1


def test_shell_that_ignores_the_interrupt_is_ended(shell: Session) -> None:
    shell.run("kept=1; trap '' INT")
    result = shell.run("while :; do :; done", timeout_seconds=0.3)
    assert (result.exit_code, result.timed_out) == (TIMED_OUT_EXIT_CODE, True)
    assert b"the shell of this session has ended" in result.stderr
    assert shell.run("echo ${kept-new}").stdout == b"new\n"
    assert shell.starts == 2


def test_silence_ends_a_call(project: Path) -> None:
    config = SandboxConfig(project_root=str(project), profile="workspace")
    with Sandbox(config.replace(output=config.output.replace(silence_seconds=0.5))) as box, box.session() as shell:
        assert shell.run("echo one; sleep 600").timed_out
        assert shell.run("echo two").stdout == b"two\n"


@pytest.mark.parametrize("text", ["exit 3", "exec sh -c 'exit 3'", "set -e; (exit 3)", "kill -9 $$"])
def test_call_that_ends_the_shell_says_so(shell: Session, text: str) -> None:
    shell.run("kept=1; cd /tmp")
    result = shell.run(text)
    assert result.exit_code == (137 if "kill" in text else 3)
    assert result.stderr.startswith(b"corral: the shell of this session has ended.")
    assert shell.run("echo ${kept-new}; pwd").stdout_text.split() == ["new", str(shell.cwd)]


def test_answer_cannot_be_forged(shell: Session, project: Path) -> None:
    (project / "forge.py").write_text(FORGER)
    for text in ("python3 forge.py", "python3 forge.py 3>&-", "(python3 forge.py)", "x=$(python3 forge.py); echo $x"):
        result = shell.run(f"{text}; (exit 9)")
        assert (result.exit_code, result.stdout) == (9, b"sockets True forged 0\n"), text
    # The shell itself has the descriptor, but not the nonce of the call that runs.
    result = shell.run(
        "for n in 3 10 11 12 13; do echo 00000000000000000000000000000000 0 >&$n; done 2>/dev/null; (exit 9)"
    )
    assert result.exit_code == 9
    assert shell.run("echo on").stdout == b"on\n"


def test_lost_builtin_does_not_repeat_a_call(shell: Session, project: Path) -> None:
    (project / "evil.sh").write_text("builtin() { :; }\n")
    shell.run("echo x >> count; source evil.sh", timeout_seconds=0.5)
    assert (project / "count").read_text() == "x\n"


def test_function_is_judged_when_it_is_called(shell: Session, project: Path) -> None:
    assert shell.run('ls() { cat "$1"; }').ok
    assert shell.run("ls /etc/shadow").denied
    (project / "mine").write_text("mine")
    assert shell.run("ls mine").stdout == b"mine"


def test_paths_are_judged_from_the_directory_of_the_shell(shell: Session, project: Path) -> None:
    (project / "go.sh").write_text("cd /etc\n")
    shell.run("source ./go.sh; PWD=$OLDPWD")
    assert shell.cwd == "/etc"
    assert shell.run("cat shadow").denied
    assert shell.run("cd -").ok
    assert shell.cwd == str(project)


def test_shell_that_does_not_hide_a_new_credential_is_ended(shell: Session) -> None:
    shell.run("kept=1; cd /tmp")
    # As if a credential file had appeared, which another warden hides and this one does not.
    warden = shell._shell.warden  # type: ignore[union-attr]  # it has started
    assert warden is not None
    warden.generation -= 1
    result = shell.run("echo ${kept-new}")
    assert (result.stdout, result.ok) == (b"new\n", True)
    assert result.stderr.startswith(b"corral: the shell was ended, because a credential file has appeared")


def test_user_may_replace_a_protected_file_meanwhile(shell: Session, box: Sandbox, project: Path) -> None:
    hooks = project / ".vscode"
    hooks.mkdir()
    (hooks / "settings.json").write_text("{}")
    (project / "plant.py").write_text(
        "try:\n    open('.vscode/settings.json', 'a').write('x')\nexcept OSError as e:\n    print(e)\n"
    )
    shell.run("kept=1")
    os.rename(project / ".vscode", project / "old")
    hooks.mkdir()
    (hooks / "settings.json").write_text("{}")
    assert box.run(["true"]).ok
    assert b"Read-only" in shell.run("echo ${kept-new}; python3 plant.py").stdout
    assert (hooks / "settings.json").read_text() == "{}"


def test_call_that_needs_an_opening_runs_elsewhere(project: Path) -> None:
    config = SandboxConfig(project_root=str(project), profile="workspace", posture="open")
    with Sandbox(config, on_ask=lambda *_: True) as box, box.session() as shell:
        result = shell.run("curl https://example.com/")
        assert (result.denied, "outside the session" in result.reason) == (True, True)


def test_question_is_asked_before_the_text_is_sent(project: Path) -> None:
    asked: list[str] = []

    def ask(call: object, verdict: object) -> bool:
        asked.append(str(call))
        return len(asked) == 2

    config = SandboxConfig(project_root=str(project), profile="workspace")
    with Sandbox(config, on_ask=ask) as box, box.session() as shell:
        assert shell.run("git reset --hard; touch made").denied
        assert not (project / "made").exists()
        shell.run("git reset --hard; touch made")
        assert (project / "made").exists()


def test_sessions_are_apart(box: Sandbox) -> None:
    with box.session() as one, box.session() as other:
        one.run("x=1")
        assert (other.run("echo ${x-none}").stdout, one.run("echo $x").stdout) == (b"none\n", b"1\n")


def test_interrupt_between_calls_does_nothing(shell: Session) -> None:
    assert shell.interrupt() is False
    shell.run("x=1")
    assert shell.interrupt() is False
    assert shell.run("echo $x").stdout == b"1\n"


def test_restart_forgets_everything(shell: Session, project: Path) -> None:
    shell.run('x=1; cd /tmp; ls() { cat "$1"; }')
    shell.restart()
    assert shell.run("echo ${x-none}; pwd").stdout_text.split() == ["none", str(project)]


def test_closing_ends_everything(box: Sandbox) -> None:
    seconds = unique_seconds()
    box.run(["true"])
    before = descriptors()
    shell = box.session()
    shell.run(f"sleep {seconds} & (setsid sleep {seconds} &)")
    eventually(lambda: alive(seconds))
    shell.close()
    eventually(lambda: not alive(seconds))
    eventually(lambda: len(descriptors()) <= len(before))
    assert not [thread for thread in threading.enumerate() if thread.name == "corral-shell" and thread.is_alive()]
    with pytest.raises(ContainmentError, match="closed"):
        shell.run("true")


def test_closing_the_sandbox_ends_its_sessions(project: Path) -> None:
    seconds = unique_seconds()
    with Sandbox(SandboxConfig(project_root=str(project), profile="workspace")) as box:
        shell = box.session()
        shell.run(f"sleep {seconds} &")
        eventually(lambda: alive(seconds))
    eventually(lambda: not alive(seconds))


def test_cancelling_ends_the_call_and_not_the_shell(shell: Session) -> None:
    seconds = unique_seconds()

    async def go() -> SandboxResult:
        await shell.arun("x=1")
        task = asyncio.ensure_future(shell.arun(f"sleep {seconds}"))
        while not alive(seconds):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not alive(seconds)
        return await shell.arun("echo $x")

    assert asyncio.run(go()).stdout == b"1\n"
    assert shell.starts == 1


def test_calls_at_once_wait_for_each_other(shell: Session) -> None:
    async def go() -> list[SandboxResult]:
        return list(await asyncio.gather(*[shell.arun(f"echo {number}") for number in range(8)]))

    assert [result.stdout for result in asyncio.run(go())] == [f"{number}\n".encode() for number in range(8)]


def test_fork_does_not_own_the_shell(shell: Session) -> None:
    shell.run("x=1")
    child = os.fork()
    if child == 0:
        try:
            shell.run("true")
        except ContainmentError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert shell.run("echo $x").stdout == b"1\n"


def test_interrupt_by_another_thread(shell: Session) -> None:
    made: list[SandboxResult] = []
    seconds = unique_seconds()
    runner = threading.Thread(target=lambda: made.append(shell.run(f"x=1; sleep {seconds}; echo never")))
    runner.start()
    eventually(lambda: alive(seconds))
    assert shell.interrupt()
    runner.join(DEADLINE_SECONDS)
    assert (made[0].exit_code, made[0].stdout) == (130, b"")
    assert shell.run("echo $x").stdout == b"1\n"


def test_subclass_must_cover_sessions() -> None:
    names = ("run", "arun", "start", "astart", "transaction")
    methods: dict[str, Callable[..., None]] = {name: lambda *_: None for name in names}
    with pytest.raises(TypeError, match="must override session"):
        type("Checked", (Sandbox,), methods)


def test_signal_number_of_a_killed_shell(shell: Session) -> None:
    assert shell.run("kill -9 $$").signal == signal.SIGKILL
