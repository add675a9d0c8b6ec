"""Live commands with each backend: terminals, servers, and projects that are replaced."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from attempt import has_bubblewrap, must_hold, program
from observe import alive, eventually, in_foreground, seen_before_its_end, unique_seconds, with_enough_time

from corral import Containment, ContainmentError, Handle, Sandbox

PYTHON = sys._base_executable


@pytest.fixture(params=["warden", "bubblewrap", "none"])
def some_box(request: pytest.FixtureRequest, open_sandbox: Callable[..., Sandbox]) -> Sandbox:
    """A sandbox with each backend."""
    backend: str = request.param
    if backend == "bubblewrap" and not has_bubblewrap():
        must_hold()
    box = open_sandbox(containment=Containment(backend=backend))
    if backend != "none" and box.run(["true"]).enforcement != "full":
        must_hold()
    return box


def until(started: Handle, text: bytes) -> bytes:
    """Read a command's output until it contains a text."""
    seen = b""
    for _, data in started:
        seen += data
        if text in seen:
            return seen
    raise AssertionError(f"{text!r} never came, but {seen!r}")


def script(project: Path, text: str) -> list[str]:
    (project / "program.py").write_text(text)
    return [PYTHON, "-S", "program.py"]


def test_pty_is_the_controlling_terminal_on_all_streams(some_box: Sandbox, project: Path) -> None:
    seen = script(
        project,
        "import os\n"
        "print([os.isatty(n) for n in (0, 1, 2)], {os.ttyname(n) for n in (0, 1, 2)} == {os.ttyname(os.open('/dev/tty', 2))} or os.ttyname(0))\n"
        "print(os.getsid(0) == os.getpid() == os.tcgetpgrp(0), os.ttyname(0).startswith('/dev/pts/'))\n",
    )
    lines = some_box.start(seen, pty=True).wait().stdout.splitlines()
    assert lines[0].startswith(b"[True, True, True]")
    assert lines[1] == b"True True"


def test_pty_has_its_size_and_is_notified_of_a_resize(some_box: Sandbox, project: Path) -> None:
    program = script(
        project,
        "import os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])\n"
        "print(*os.get_terminal_size(), flush=True)\nsignal.sigwait([signal.SIGWINCH])\n"
        "print(*os.get_terminal_size(), flush=True)\n",
    )
    started = some_box.start(program, pty=True, rows=33, columns=101)
    assert until(started, b"\n") == b"101 33\r\n"
    started.resize(50, 120)
    assert until(started, b"\n") == b"120 50\r\n"
    assert started.wait().exit_code == 0


def test_pty_echoes_input_and_is_line_buffered(some_box: Sandbox) -> None:
    started = some_box.start([PYTHON, "-c", "print('got', input('> '))"], pty=True)
    until(started, b"> ")
    started.write_stdin(b"wrojng\x7f\x7f\x7f\x7fong\n")
    result = started.wait()
    assert result.stdout.endswith(b"got wrong\r\n") or b"got wrong" in result.stdout
    assert (result.exit_code, result.stderr) == (0, b"")


def test_erase_key_removes_a_whole_utf8_character(some_box: Sandbox) -> None:
    started = some_box.start([PYTHON, "-X", "utf8", "-c", "print(ascii(input('> ')))"], pty=True)
    until(started, b"> ")
    started.write_stdin("aé\x7fb\n".encode())
    assert started.wait().stdout.endswith(b"'ab'\r\n")


@pytest.mark.parametrize(
    ("typed", "read"), [(b"", b"b''"), (b"one\n", rb"b'one\n'"), (b"one\ntwo", rb"b'one\ntwo'")], ids=["nothing", "line", "part of a line"]
)  # fmt: skip
def test_end_of_input_reaches_a_command_on_a_pty(some_box: Sandbox, typed: bytes, read: bytes) -> None:
    program = [PYTHON, "-c", "import sys; print(sys.stdin.buffer.read())"]
    assert some_box.start(program, pty=True, stdin=typed).wait().stdout.splitlines()[-1].endswith(read)
    started = some_box.start(program, pty=True)
    started.write_stdin(typed)
    started.close_stdin()
    assert started.wait().stdout.splitlines()[-1].endswith(read)
    assert not started.write_stdin(b"late")


def test_control_keys_signal_the_foreground_group(some_box: Sandbox, project: Path) -> None:
    program = script(
        project,
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
        "print('ready', flush=True)\nraise SystemExit(5 + signal.sigwait([signal.SIGINT]))\n",
    )
    started = some_box.start(program, pty=True)
    until(started, b"ready")
    started.write_stdin(b"\x03")
    assert started.wait().exit_code == 7


def test_shell_has_job_control_on_a_pty(some_box: Sandbox) -> None:
    seconds = unique_seconds()
    started = some_box.start(
        ["bash", "--noprofile", "--norc", "-i"], pty=True, env={"PS1": "ready> ", "TERM": "dumb"}, timeout_seconds=60
    )
    assert b"no job control" not in until(started, b"ready> ")
    started.write_stdin(f"sleep {seconds}\n".encode())
    eventually(lambda: started.poll() is None and alive(seconds))
    started.write_stdin(b"\x1a")
    until(started, b"Stopped")
    started.write_stdin(b"bg\nfg\n")
    until(started, f"\nsleep {seconds}".encode())
    # The shell prints the program's name before the program has the terminal.
    eventually(lambda: started.poll() is None and all(map(in_foreground, alive(seconds))))
    started.write_stdin(b"\x03")
    until(started, b"ready> ")
    eventually(lambda: not alive(seconds))
    started.write_stdin(b"exit 5\n")
    assert started.wait().exit_code == 5


def test_full_screen_program_works_on_a_pty(some_box: Sandbox, project: Path) -> None:
    if shutil.which("less") is None:
        pytest.skip("less is not installed")
    (project / "long").write_text("".join(f"line {n}\n" for n in range(500)))
    started = some_box.start(["less", "long"], pty=True, env={"TERM": "xterm"})
    assert b"line 20" in until(started, b"line 20")
    started.write_stdin(b"G")
    until(started, b"line 499")
    started.write_stdin(b"q")
    assert started.wait().exit_code == 0


def test_long_output_on_a_pty_is_read_completely(some_box: Sandbox) -> None:
    count = 0
    started = some_box.start("head -c 300000 /dev/zero | tr '\\0' x", shell=True, pty=True)
    for name, data in started:
        assert name == "stdout"
        count += len(data)
    assert count == started.wait().stdout_bytes == 300_000


def test_timeout_kills_a_command_on_a_pty(some_box: Sandbox) -> None:
    seconds = unique_seconds()
    text = f"sleep {seconds} & sleep {seconds}"
    result = with_enough_time(
        lambda limit: seen_before_its_end(
            some_box.start(text, shell=True, pty=True, timeout_seconds=limit), lambda: len(alive(seconds)) == 2
        ),
        bool,
    )
    assert (result.exit_code, result.timed_out) == (-101, True)
    assert alive(seconds) == []


def test_start_failure_on_a_pty_is_explained(some_box: Sandbox, project: Path) -> None:
    (project / "file").write_text("")
    result = some_box.start(["./file"], pty=True).wait()
    assert (result.exit_code, result.stderr) == (126, b"corral: ./file: Permission denied\n")
    assert some_box.start(["pwd"], cwd="none", pty=True).wait().exit_code == 126
    assert some_box.run(["echo", "next"]).stdout == b"next\n"


def test_kernel_errors_on_a_pty_become_violations(held: Sandbox) -> None:
    expected = held.run(["touch", "/usr/corral-test"]).violations
    assert [violation.kind for violation in expected] == ["write-outside"]
    assert held.start(["touch", "/usr/corral-test"], pty=True).wait().violations == expected


PUSH = "for key in b'x': fcntl.ioctl(0, 0x5412, bytes((key,)))\nreturn True"
PUSH_WITH_HIGH_BITS = "for key in b'x': call(16 if X86 else 29, 0, 0x100005412, b'x')\nreturn True"


@pytest.mark.parametrize("body", [PUSH, PUSH_WITH_HIGH_BITS], ids=["plain", "high bits"])
def test_command_cannot_inject_terminal_input(held: Sandbox, loose: Sandbox, project: Path, body: str) -> None:
    (project / "attack.py").write_text(program(body))

    def attack(box: Sandbox) -> bytes:
        return box.start([PYTHON, "-S", "attack.py", "{}"], pty=True).wait().stdout

    assert b"held: [Errno 1]" in attack(held)
    try:
        is_legacy = Path("/proc/sys/dev/tty/legacy_tiocsti").read_text().strip() == "1"
    except OSError:
        is_legacy = True
    if is_legacy or os.geteuid() == 0:
        assert b"succeeded" in attack(loose)


def test_pty_leaks_no_descriptor_into_the_command(held: Sandbox) -> None:
    seen = held.start([PYTHON, "-c", "import os; print(sorted(os.listdir('/proc/self/fd')))"], pty=True).wait()
    # The fourth descriptor belongs to the listing itself.
    assert seen.stdout == b"['0', '1', '2', '3']\r\n"


def test_server_on_a_pty_runs_until_the_sandbox_closes(held: Sandbox, project: Path) -> None:
    seconds = unique_seconds()
    (project / "serve.py").write_text(
        "import socket\nserver = socket.create_server(('127.0.0.1', 8123))\nprint('listening', flush=True)\n"
        "while True:\n    server.accept()[0].sendall(b'served')\n"
    )
    (project / "fetch.py").write_text(
        "import socket\nprint(socket.create_connection(('127.0.0.1', 8123)).recv(100).decode())\n"
    )
    server = held.start([PYTHON, "serve.py", seconds], pty=True, timeout_seconds=60)
    until(server, b"listening")
    for _ in range(3):
        assert held.run([PYTHON, "fetch.py"]).stdout == b"served\n"
    assert server.poll() is None
    held.close()
    assert alive(seconds) == []
    assert server.wait().exit_code == 137


@pytest.fixture
def moved(project: Path) -> Path:
    """The path to which the project is moved."""
    return project.with_name("moved")


@pytest.mark.parametrize("is_link", [False, True], ids=["another directory", "a link"])
@pytest.mark.parametrize("has_run", [False, True], ids=["before the first command", "later"])
def test_replaced_project_is_noticed(
    held: Sandbox, project: Path, moved: Path, outside: Path, *, is_link: bool, has_run: bool
) -> None:
    box = held if has_run else Sandbox(held.config)
    project.rename(moved)
    if is_link:
        project.symlink_to(outside)
    else:
        shutil.copytree(outside, project)
    result = box.run(["cat", "secret"])
    assert (result.exit_code, result.stdout) == (126, b"")
    assert result.stderr_text == f"corral: {project} was replaced since the sandbox was made; make a new one\n"
    # The project is replaced between the check and the start of a warden.
    box._holding.replaced = lambda: ""  # type: ignore[method-assign]
    box._pool.retire()
    with pytest.raises(ContainmentError, match="was replaced since the sandbox was made"):
        box.run(["cat", "secret"])
    box.close()


def test_restored_project_can_be_used_again(open_box: Sandbox, project: Path, moved: Path) -> None:
    project.rename(moved)
    gone = open_box.run(["true"])
    assert (gone.exit_code, gone.stderr_text) == (126, f"corral: cannot enter {project}: No such file or directory\n")
    moved.rename(project)
    assert open_box.run(["true"]).ok
