"""`corral run` in a real terminal: the command gets a pseudo-terminal, and the user's terminal is restored."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from observe import alive, eventually, in_foreground, unique_seconds
from screen import Screen

PARSE = "from corral.apps.cli.arguments import parse; from corral.apps.cli.call import config_of"
CORRAL = (sys.executable, "-m", "corral", "run")
# A handler of Python's runs only between two of its steps, and a signal may fall just before a read that never returns.
WAITING = "import os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGWINCH])"
INTERRUPTED = f"{WAITING}\nprint('ready', flush=True)\nraise SystemExit(5 + signal.sigwait([signal.SIGINT]))"
READY_THEN_SLEEP = "import sys, time; print('ready', flush=True); time.sleep(float(sys.argv[1]))"


@pytest.fixture
def screen(project: Path) -> Iterator[Callable[..., Screen]]:
    """A function that starts programs in terminals."""
    made: list[Screen] = []

    def make(*command: str, **size: int) -> Screen:
        made.append(Screen(list(command), project, **size))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_command_can_ask_a_question(screen: Callable[..., Screen]) -> None:
    shown = screen(*CORRAL, "--", "python3", "-c", "print('got', input('name? '))")
    shown.until(b"name? ")
    shown.type(b"a name\r")
    shown.until(b"got a name\r\n")
    assert shown.status() == 0
    assert shown.settings() == shown.before


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [
        pytest.param(["run", "--", "ls"], "None", id="a terminal"),
        pytest.param(["run", "--shell", "ls"], "None", id="a shell text on a terminal"),
        pytest.param(["try", "--", "ls"], "None", id="a trial on a terminal"),
        pytest.param(["run", "-t", "--", "ls"], "None", id="a terminal that was asked for"),
        pytest.param(["run", "-T", "--", "ls"], "30.0", id="a terminal that was declined"),
        pytest.param(["run", "--json", "--", "ls"], "30.0", id="captured"),
        pytest.param(["run", "--timeout", "5", "--", "ls"], "5.0", id="a limit that was given"),
        pytest.param(["check", "--", "ls"], "30.0", id="nothing that runs"),
    ],
)
def test_only_terminal_commands_have_no_time_limit(
    screen: Callable[..., Screen], arguments: list[str], limit: str
) -> None:
    code = f"{PARSE}; print('limit', config_of(parse({arguments!r})).timeout_seconds, 'seconds')"
    shown = screen(sys.executable, "-c", code)
    assert shown.until(b" seconds").split()[-2].decode() == limit
    assert shown.status() == 0


def test_policy_time_limit_holds_on_a_terminal(screen: Callable[..., Screen], project: Path) -> None:
    (project / "corral.toml").write_text("timeout_seconds = 0.5\n")
    shown = screen(*CORRAL, "sleep", unique_seconds())
    shown.until(b"timed out after 0.5 s")
    assert shown.status() == 124


def test_terminal_size_is_passed_on(screen: Callable[..., Screen]) -> None:
    say = "print(*os.get_terminal_size(), sep=' by ', flush=True)"
    code = f"{WAITING}\n{say}\nsignal.sigwait([signal.SIGWINCH])\n{say}"
    shown = screen(*CORRAL, "--", "python3", "-c", code, rows=33, columns=101)
    shown.until(b"101 by 33")
    shown.resize(50, 120)
    shown.until(b"120 by 50")
    assert shown.status() == 0


def test_command_gets_its_own_pseudo_terminal(screen: Callable[..., Screen]) -> None:
    code = "import os; print(os.ttyname(0), os.getsid(0) == os.getpid(), open('/dev/tty').isatty())"
    shown = screen(*CORRAL, "--", "python3", "-c", code)
    assert shown.until(b"True True").startswith(b"/dev/pts/0 ")
    assert shown.status() == 0


@pytest.mark.parametrize(
    ("key", "code", "status"),
    [
        (b"\x03", INTERRUPTED, 7),
        (b"\x1c", "import sys; print('ready', flush=True); sys.stdin.read()", 128 + signal.SIGQUIT),
        (b"\x04", "import sys; print('ready', flush=True); sys.stdin.read()", 0),
    ],
    ids=["Ctrl-C", "Ctrl-backslash", "Ctrl-D"],
)
def test_keys_go_to_the_command(screen: Callable[..., Screen], key: bytes, code: str, status: int) -> None:
    shown = screen(*CORRAL, "--", "python3", "-c", code)
    shown.until(b"ready")
    shown.type(key)
    assert shown.status() == status
    assert shown.settings() == shown.before


def test_job_control_works(screen: Callable[..., Screen]) -> None:
    seconds = unique_seconds()
    shown = screen(*CORRAL, "--tty", "--", "bash", "--noprofile", "--norc", "-i")
    shown.until(b"bash")
    shown.type(f"PS1='inner''> '; sleep {seconds}\r".encode())
    eventually(lambda: shown.read(0) or alive(seconds))
    shown.type(b"\x1a")
    shown.until(b"Stopped")
    shown.until(b"inner> ")
    shown.type(b"fg\r")
    shown.until(f"sleep {seconds}\r\n".encode())
    # Its name is shown before it has the terminal.
    eventually(lambda: shown.read(0) or all(map(in_foreground, alive(seconds))))
    shown.type(b"\x03")
    shown.until(b"inner> ")
    shown.type(b"exit 5\r")
    assert shown.status() == 5
    assert (alive(seconds), shown.settings() == shown.before) == ([], True)


def test_interactive_interpreter_works(screen: Callable[..., Screen]) -> None:
    shown = screen(*CORRAL, "--", "python3", "-q")
    shown.until(b">>> ")
    shown.type(b"6 * 7\r")
    shown.until(b"42")
    shown.until(b">>> ")
    shown.type(b"\x04")
    assert shown.status() == 0
    assert shown.settings() == shown.before


@pytest.mark.parametrize(("program", "leave"), [("less", b"q"), ("vi", b":q!\r")])
def test_full_screen_programs_work(screen: Callable[..., Screen], project: Path, program: str, leave: bytes) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    (project / "long").write_text("".join(f"line {n}\n" for n in range(500)))
    shown = screen(*CORRAL, "--", program, "long")
    shown.until(b"line 20")
    shown.type(leave)
    assert shown.status() == 0
    assert shown.settings() == shown.before


def test_timeout_restores_the_terminal(screen: Callable[..., Screen]) -> None:
    shown = screen(*CORRAL, "--timeout", "0.5", "--", "python3", "-c", READY_THEN_SLEEP, "100")
    shown.until(b"timed out after 0.5 s")
    assert (shown.status(), shown.settings() == shown.before) == (124, True)


def test_refusal_does_not_touch_the_terminal(screen: Callable[..., Screen]) -> None:
    shown = screen(*CORRAL, "--profile", "strict", "--tty", "--", "rm", "x")
    shown.until(b"name-rm")
    assert (shown.status(), shown.settings() == shown.before) == (126, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_fatal_signal_restores_the_terminal_and_kills_the_command(
    screen: Callable[..., Screen], number: signal.Signals
) -> None:
    seconds = unique_seconds()
    shown = screen(*CORRAL, "--", "python3", "-c", READY_THEN_SLEEP, seconds)
    shown.until(b"ready")
    eventually(shown.is_raw)
    os.kill(shown.pid, number)
    assert (shown.status(), shown.settings() == shown.before) == (128 + number, True)
    eventually(lambda: not alive(seconds))


def test_external_interrupt_is_passed_on(screen: Callable[..., Screen]) -> None:
    shown = screen(*CORRAL, "--", "python3", "-c", INTERRUPTED)
    shown.until(b"ready")
    eventually(shown.is_raw)
    os.kill(shown.pid, signal.SIGINT)
    assert (shown.status(), shown.settings() == shown.before) == (7, True)


def test_corral_can_be_stopped_and_continued(screen: Callable[..., Screen], project: Path) -> None:
    mark = unique_seconds()
    shown = screen("bash", "--noprofile", "--norc", "-i")
    shown.until(b"outer> ")
    command = (
        f"{shlex.join(CORRAL)} -t -- python3 -c \"print('rea' + 'dy', flush=True); print('got', input())\" {mark}\r"
    )
    shown.type(command.encode())
    shown.until(b"ready\r\n")
    eventually(shown.is_raw)
    (corral,) = [pid for pid in alive(mark) if b"corral" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
    os.kill(corral, signal.SIGTSTP)
    shown.until(b"Stopped")
    shown.until(b"outer> ")
    shown.resize(40, 90)
    shown.type(b"fg\r")
    shown.until(mark.encode())
    eventually(lambda: shown.read(0) or shown.is_raw())
    shown.type(b"words\r")
    shown.until(b"got words\r\n")
    shown.until(b"outer> ")
    shown.type(b"exit\r")
    assert shown.status() == 0


def test_background_run_is_not_stopped_by_the_terminal(screen: Callable[..., Screen]) -> None:
    shown = screen("bash", "--noprofile", "--norc", "-i")
    shown.until(b"outer> ")
    shown.type(f"{shlex.join(CORRAL)} -- echo se''en & wait; echo over''\r".encode())
    shown.until(b"seen\r\n")
    shown.until(b"over")
    shown.type(b"exit\r")
    assert shown.status() == 0


def test_no_tty_uses_corrals_streams(screen: Callable[..., Screen]) -> None:
    code = "import os; print([os.isatty(n) for n in (0, 1, 2)], os.path.exists(os.readlink('/proc/self/fd/0')))"
    shown = screen(*CORRAL, "-T", "--", "python3", "-c", code)
    shown.until(b"[True, True, True] False")
    assert shown.status() == 0


def test_redirected_stderr_gives_no_pseudo_terminal(screen: Callable[..., Screen], project: Path) -> None:
    shown = screen("bash", "-c", f"{shlex.join(CORRAL)} --shell 'echo out; echo err >&2' 2>errors")
    shown.until(b"out")
    assert shown.status() == 0
    assert (project / "errors").read_text() == "err\n"


def test_tty_works_without_a_terminal(project: Path) -> None:
    code = "import os, sys; print(sys.stdin.isatty(), *os.get_terminal_size()); print('got', sys.stdin.read())"
    command = [*CORRAL, "--tty", "--", "python3", "-c", code]
    done = subprocess.run(command, cwd=project, input=b"words", capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(b"got words\r\n")
    assert b"True 80 24\r\n" in done.stdout


def test_tty_has_no_time_limit(project: Path) -> None:
    for words, seconds in (((), 30), (("--tty",), None), (("--tty", "--timeout", "5"), 5)):
        code = f"import sys; {PARSE}; print(config_of(parse(sys.argv[1:])).timeout_seconds)"
        parsed = [sys.executable, "-c", code, "run", *words, "--", "true"]
        done = subprocess.run(parsed, cwd=project, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(seconds if seconds is None else float(seconds))
