"""Tests the broker: a stub inside, a program outside, and everything that a hostile stub can send."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import brokered
from observe import alive, eventually, unique_seconds

from corral import Containment, Limits, Sandbox, SandboxConfig
from corral.broker.programs import clean_environment, run_program
from corral.broker.server import BrokerServer, Request
from corral.broker.streams import RefusedError
from corral.model.errors import ContainmentError

Brokered = tuple[Sandbox, BrokerServer]


class Program:
    """Runs one fixed program for every request."""

    def __init__(self, *argv: str) -> None:
        self.argv = argv

    def handle(self, request: Request) -> int:
        if "refuse" in request.argv:
            raise RefusedError("this word is not listed")
        return run_program(request, self.argv, clean_environment(os.environ))


class Reader:
    """Prints a file that the stub opens."""

    def handle(self, request: Request) -> int:
        request.say(request.read_file(request.argv[0]).decode())
        return 0


@pytest.fixture
def box(project: Path) -> Iterator[Brokered]:
    services = {
        "cat": Program("/bin/cat"),
        "where": Program("/bin/sh", "-c", "pwd; ls -A; env; tty; ls /proc/self/fd | wc -l"),
        "seven": Program("/bin/sh", "-c", "echo out; echo err >&2; exit 7"),
        "forever": Program("/usr/bin/yes"),
        "waits": Program("/bin/sleep", "1000"),
        "show": Reader(),
    }
    config = SandboxConfig(str(project), profile="workspace", timeout_seconds=60)
    with brokered(config, services) as made:
        yield made


def test_exit_status_and_both_outputs_travel(box: Brokered) -> None:
    result = box[0].run(["seven"])
    assert (result.exit_code, result.stdout, result.stderr) == (7, b"out\n", b"err\n")


def test_pipes_and_scripts_work(box: Brokered) -> None:
    result = box[0].run("head -c 3000000 /dev/zero | cat | wc -c; echo one | /run/corral/bin/cat | tr o 0", shell=True)
    assert (result.stdout, result.stderr) == (b"3000000\n0ne\n", b"")


def test_closed_streams_do_not_disturb(box: Brokered) -> None:
    result = box[0].run("seven <&- >&-; echo $?; cat <&-; seven <&- >&- 2>&-; echo $?", shell=True)
    assert (result.stdout, result.stderr) == (b"7\n7\n", b"err\n")


def test_sigpipe_travels(box: Brokered) -> None:
    result = box[0].run("forever | head -1; echo ${PIPESTATUS[*]}", shell=True)
    assert result.stdout == b"y\n141 0\n"


def test_program_has_nothing_of_the_agents(box: Brokered) -> None:
    result = box[0].run("export LD_PRELOAD= KUBECONFIG=/x GIT_DIR=/x; exec 7</etc/passwd; where", shell=True)
    directory, *lines = result.stdout.decode().splitlines()
    assert box[0].config.project_root not in result.stdout.decode()
    assert not os.path.exists(directory)
    assert {line.partition("=")[0] for line in lines if "=" in line} <= {
        *("HOME", "USER", "LOGNAME", "LANG", "XDG_RUNTIME_DIR", "PATH", "PWD", "OLDPWD", "SHLVL", "_")
    }
    assert lines[-2:] == ["not a tty", "4"]


def test_refusal_names_the_reason(box: Brokered) -> None:
    result = box[0].run(["cat", "refuse"])
    assert (result.exit_code, result.stderr) == (126, b"corral: cat: this word is not listed\n")
    assert [(one.program, one.argv, one.refusal) for one in box[1].served()] == [
        ("cat", ("refuse",), "this word is not listed")
    ]


def test_files_are_opened_inside(box: Brokered, project: Path) -> None:
    (project / "notes").write_text("hello")
    assert box[0].run(["show", "notes"]).stderr == b"hello\n"
    # The host has this file, and the sandbox does not.
    assert os.path.exists(f"{box[1].directory}/bin/cat")
    assert b"cannot be read: No such file" in box[0].run(["show", f"{box[1].directory}/bin/cat"]).stderr
    assert b"not a regular file" in box[0].run(["show", "/dev/zero"]).stderr


def test_killed_stub_ends_the_program(project: Path) -> None:
    seconds = unique_seconds()
    config = SandboxConfig(str(project), profile="workspace", timeout_seconds=60)
    with brokered(config, {"waits": Program("/bin/sh", "-c", f"echo x; exec sleep {seconds}")}) as (box, server):
        box.run("mkfifo f; waits > f & exec 3<f; read x <&3; kill -9 $!; wait", shell=True)
        eventually(lambda: len(server.served()) == 1)
        assert alive(seconds) == []


def test_signals_travel(box: Brokered) -> None:
    result = box[0].run(
        "timeout -s INT 0.5 /run/corral/bin/waits; timeout -s TERM 0.5 /run/corral/bin/waits", shell=True
    )
    assert result.stderr == b""
    eventually(lambda: [one.status for one in box[1].served()] == [130, 143])


def test_end_of_the_call_ends_the_program(project: Path) -> None:
    seconds = unique_seconds()
    config = SandboxConfig(str(project), profile="workspace", timeout_seconds=60)
    with brokered(config, {"waits": Program("/bin/sleep", seconds)}) as (box, server):
        handle = box.start(["waits"])
        eventually(lambda: bool(alive(seconds)))
        handle.kill()
        handle.wait()
        directory = server.directory
    assert (alive(seconds), os.path.exists(directory)) == ([], False)


def test_closed_server_ends_programs_of_a_running_call(project: Path) -> None:
    seconds = unique_seconds()
    config = SandboxConfig(str(project), profile="workspace", timeout_seconds=60)
    with brokered(config, {"waits": Program("/bin/sleep", seconds)}) as (box, server):
        handle = box.start(["waits"])
        eventually(lambda: bool(alive(seconds)))
        server.close()
        assert alive(seconds) == []
        assert handle.wait().exit_code != 0


def test_command_that_does_not_read_blocks_no_other(box: Brokered) -> None:
    text = "/run/corral/bin/forever | sleep 1000 & sleep 0.2; seven; kill %1 2>/dev/null; kill $(jobs -p)"
    assert box[0].run(text, shell=True).stdout == b"out\n"


def test_directory_cannot_be_changed_inside(box: Brokered) -> None:
    result = box[0].run("for f in bin/seven broker x; do (echo > /run/corral/$f) && echo written; done", shell=True)
    assert result.stdout == b""
    # Only the mount keeps it so.
    with open(f"{box[1].directory}/x", "w", encoding="utf-8") as file:
        file.write("x")


def test_directory_that_commands_can_write_is_refused(project: Path) -> None:
    (project / "own").mkdir()
    config = SandboxConfig(str(project), profile="workspace", containment=Containment(broker=str(project / "own")))
    with Sandbox(config) as box, pytest.raises(ContainmentError, match="commands can write it"):
        box.run(["true"])


SEND = """
import os, socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect("/run/corral/broker")
{code}
s.settimeout(20)
while data := s.recv(8192):
    print(data)
    if data.startswith(b"exit"):
        break
"""
HOSTILE = {
    "no descriptors": ("s.send(b'corral-broker/1\\0seven')", b"needs the descriptors"),
    "one descriptor": ("socket.send_fds(s, [b'corral-broker/1\\0seven'], [0])", b"needs the descriptors"),
    "four descriptors": ("socket.send_fds(s, [b'corral-broker/1\\0seven'], [0, 1, 2, 2])", b""),
    "64 descriptors": ("socket.send_fds(s, [b'corral-broker/1\\0seven'], [0] * 64)", b""),
    "unknown program": ("socket.send_fds(s, [b'corral-broker/1\\0sh'], [0, 1, 2])", b"no broker for"),
    "no program": ("socket.send_fds(s, [b'corral-broker/1'], [0, 1, 2])", b"not a request"),
    "other greeting": ("socket.send_fds(s, [b'corral-broker/2\\0seven'], [0, 1, 2])", b"not a request"),
    "not UTF-8": ("socket.send_fds(s, [b'corral-broker/1\\0seven\\0\\xff'], [0, 1, 2])", b"not UTF-8"),
    "too many words": (
        "socket.send_fds(s, [b'corral-broker/1\\0seven' + b'\\0a' * 1025], [0, 1, 2])",
        b"more than 1024",
    ),
    "too long": ("socket.send_fds(s, [b'corral-broker/1\\0seven\\0' + b'a' * 131072], [0, 1, 2])", b""),
    "directory as stdin": (
        "socket.send_fds(s, [b'corral-broker/1\\0cat'], [os.open('/', 0), 1, 2])",
        b"neither a file",
    ),
    "O_PATH as stdout": (
        "socket.send_fds(s, [b'corral-broker/1\\0seven'], [0, os.open('/etc/passwd', os.O_PATH), 2])",
        b"",
    ),
    "eventfd as stdin": ("socket.send_fds(s, [b'corral-broker/1\\0cat'], [os.eventfd(0), 1, 2])", b"neither a file"),
    "both ends of a pipe": (
        "r, w = os.pipe(); socket.send_fds(s, [b'corral-broker/1\\0forever'], [r, w, 2]); s.shutdown(1)",
        b"",
    ),
    "unknown message": ("socket.send_fds(s, [b'corral-broker/1\\0waits'], [0, 1, 2]); s.send(b'signal 9')", b""),
    "descriptors with a signal": (
        "socket.send_fds(s, [b'corral-broker/1\\0waits'], [0, 1, 2]); socket.send_fds(s, [b'signal 15'], [1])",
        b"",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_message_is_refused(box: Brokered, project: Path, what: str) -> None:
    code, said = HOSTILE[what]
    (project / "attack.py").write_text(SEND.format(code=code))
    result = box[0].run(["python3", "attack.py"])
    assert said in result.stdout
    assert b"exit 7" not in result.stdout or what == "O_PATH as stdout"
    # It still serves others, and holds no descriptor of the refused ones.
    assert box[0].run(["seven"]).exit_code == 7
    eventually(lambda: len(box[1].served()) == 2)


def test_seventeenth_request_at_a_time_is_refused(box: Brokered) -> None:
    text = "for i in $(seq 17); do waits 2>>err & done; until grep -q 'too many' err; do :; done; kill $(jobs -p); echo end"
    assert box[0].run(text, shell=True).stdout == b"end\n"


def test_byte_limit_holds_for_the_broker(project: Path) -> None:
    config = SandboxConfig(str(project), profile="workspace", limits=Limits(network_bytes=100_000))
    with brokered(config, {"forever": Program("/usr/bin/yes")}) as (box, _):
        result = box.run("forever | wc -c", shell=True)
        assert b"limits.network_bytes" in result.stderr
