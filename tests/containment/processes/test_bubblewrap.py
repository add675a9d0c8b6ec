"""Tests the backend bubblewrap: its errors, when it is chosen, and its differences from the warden."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attempt import attempt, has_bubblewrap, must_hold
from machines import import_path
from observe import alive, children, descriptors, eventually, exist, unique_seconds, until_alive

from corral import Containment, Sandbox, SandboxConfig
from corral.containment.backend import UnusableError, holds_more
from corral.containment.layers import LAYERS, unmet_requirement
from corral.containment.plan import Plan, Step
from corral.containment.processes import bubblewrap, bubblewrap_args

pytestmark = pytest.mark.real

ALL = {*LAYERS}


@pytest.fixture
def wrapped(open_sandbox: Callable[..., Sandbox]) -> Sandbox:
    """A sandbox with the backend bubblewrap, whose guard allows everything."""
    if not has_bubblewrap():
        must_hold()
    return open_sandbox(containment=Containment(backend="bubblewrap"))


@pytest.mark.parametrize(
    ("other", "own", "leaves"),
    [
        pytest.param(ALL, ALL, False, id="a tie is the warden's"),
        pytest.param(ALL, ALL - {"proc"}, True, id="one layer more"),
        pytest.param(ALL - {"landlock"}, ALL - {"proc"}, False, id="another layer for one"),
        pytest.param({"net"}, set(), False, id="more of an unwanted layer"),
    ],
)
def test_auto_takes_bubblewrap_only_for_more_layers(other: set[str], own: set[str], leaves: bool) -> None:
    assert holds_more(other, own, ALL - {"net"}) == leaves


RUN = """
import sys
sys.path[:0] = [path for path in sys.argv[1].split(":") if path]
from corral import Containment, ContainmentError, Sandbox, SandboxConfig
def show(profile, **settings):
    with Sandbox(SandboxConfig(sys.argv[2], profile=profile, containment=Containment(**settings))) as box:
        try:
            result = box.run(sys.argv[3:])
        except ContainmentError as error:
            print("refused:", error)
        else:
            print(result.backend, result.enforcement, ",".join(result.missing_layers), result.stdout_text.strip())
"""


def where(setting: str, code: str, project: Path, *words: str) -> list[str]:
    """Run a program that uses corral in a new mount namespace, after a shell line has changed the mounts."""
    inner = [sys.executable, "-c", RUN + code, import_path(), str(project), *(words or ("echo", "x"))]
    apart = ["unshare", "--user", "--map-current-user", "--keep-caps", "--mount"]
    script = f'{setting} && exec "$@"'
    done = subprocess.run([*apart, "sh", "-c", script, "sh", *inner], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()


NAMED = "show('strict', backend='bubblewrap')"
AUTO = "show('workspace')"


def instead_of_the_tool(tmp_path: Path, text: str) -> str:
    """Return the shell line that mounts a program over bwrap."""
    program = tmp_path / "tool"
    program.write_text(text)
    program.chmod(0o755)
    return f"mount --bind {program} /usr/bin/bwrap"


def test_missing_bubblewrap_names_the_package(project: Path, wrapped: Sandbox) -> None:
    (said,) = where("mount --bind /dev/null /usr/bin/bwrap", NAMED, project)
    assert said.startswith("refused: ")
    assert "apt install bubblewrap" in said
    assert "containment.backend 'warden'" in said


def test_without_bubblewrap_auto_is_the_warden(project: Path, wrapped: Sandbox) -> None:
    assert where("mount --bind /dev/null /usr/bin/bwrap", AUTO, project) == ["warden full  x"]


def test_old_bubblewrap_is_refused(project: Path, tmp_path: Path, wrapped: Sandbox) -> None:
    old = instead_of_the_tool(tmp_path, "#!/bin/sh\necho bubblewrap 0.4.1\n")
    (said,) = where(old, NAMED, project)
    assert "0.4.1" in said
    assert "0.8.0" in said


def test_other_program_named_bwrap_is_refused(project: Path, tmp_path: Path, wrapped: Sandbox) -> None:
    other = instead_of_the_tool(tmp_path, "#!/bin/sh\necho hello\n")
    (said,) = where(other, NAMED, project)
    assert "'hello'" in said


LIAR = """#!/bin/sh
case "$1" in --version) echo bubblewrap 9.9.9; exit;; esac
{ echo "{\\"child-pid\\": $$ }" >&9; } 2>/dev/null
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


def test_bubblewrap_that_enters_no_layer_runs_no_command(project: Path, tmp_path: Path, wrapped: Sandbox) -> None:
    (said,) = where(instead_of_the_tool(tmp_path, LIAR), NAMED, project, "touch", "ran")
    assert "cgroup, ipc, mount, pid, privileges, seccomp, " in said
    assert ", uts." in said
    assert not (project / "ran").exists()


NO_NAMESPACES = """
import ctypes, os
libc = ctypes.CDLL(None)
uid, gid = os.geteuid(), os.getegid()
assert libc.unshare(0x10000000) == 0
open("/proc/self/setgroups", "w").write("deny")
open("/proc/self/uid_map", "w").write(f"{uid} {uid} 1")
open("/proc/self/gid_map", "w").write(f"{gid} {gid} 1")
open("/proc/sys/user/max_user_namespaces", "w").write("0")
"""
NO_MOUNTS = """
sys.path[:0] = [path for path in sys.argv[1].split(":") if path]
from corral.containment.kernel import capabilities as privileges, seccomp
privileges.set_no_new_privs()
seccomp.install([(0x20, 0, 0, 0), (0x15, 0, 1, 428), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)])
"""


def after(before: str, code: str, project: Path, *words: str) -> list[str]:
    """Run a program that uses corral in a process that has given up a right."""
    inner = [sys.executable, "-c", "import sys\n" + before + RUN + code, import_path(), str(project)]
    done = subprocess.run([*inner, *(words or ("echo", "x"))], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_setting_that_forbids_namespaces_is_named(project: Path, wrapped: Sandbox) -> None:
    (said,) = after(NO_NAMESPACES, NAMED, project)
    assert said.startswith("refused: ")
    assert "bwrap: " in said
    assert "/proc/sys/user/max_user_namespaces is 0" in said
    assert "sysctl user.max_user_namespaces=" in said


def test_auto_takes_bubblewrap_where_only_it_can_mount(project: Path, outside: Path, wrapped: Sandbox) -> None:
    # As with an AppArmor profile for bwrap only. Here open_tree() is refused, which bwrap does not call.
    said = after(NO_MOUNTS, "show('workspace', backend='warden')\nshow('workspace')", project)
    assert said[0].startswith("refused: profile workspace")
    assert said[1] == "bubblewrap full  x"
    code = "show('strict')"
    assert after(NO_MOUNTS, code, project, "cat", str(outside / "secret"))[0].startswith("none none  ")
    (project / "look.py").write_text(
        f"import os, socket\nprint(os.path.exists({str(outside)!r}), os.getppid())\n"
        "server = socket.create_server(('127.0.0.1', 0))\nsocket.create_connection(server.getsockname())\n"
    )
    assert after(NO_MOUNTS, code, project, "python3", "look.py") == ["bubblewrap full  False 1"]


def as_another_user(act: Callable[[], object]) -> str:
    """Call a function in a child that runs as an ordinary user, and return its error."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setresuid(65534, 65534, 65534)
            act()
        except UnusableError as error:
            os.write(tell, str(error).encode())
        finally:
            os._exit(0)
    os.close(tell)
    os.waitpid(child, 0)
    with open(told, "rb") as file:
        return file.read().decode()


def test_setuid_bubblewrap_is_refused(wrapped: Sandbox) -> None:
    with tempfile.NamedTemporaryFile(dir="/tmp") as program:
        os.chmod(program.name, 0o4755)
        said = as_another_user(lambda: bubblewrap.Bubblewrap(program.name, Plan(), {}, set()))
    assert "setuid root" in said
    assert "chmod u-s" in said


def test_replaced_protected_link_is_restored_and_reported(
    open_sandbox: Callable[..., Sandbox], project: Path, wrapped: Sandbox
) -> None:
    (project / ".envrc").symlink_to("elsewhere")
    box = open_sandbox(containment=Containment(backend="bubblewrap"))
    assert box.run(["true"]).violations == ()
    for command in ("rm .envrc; echo 'echo x' > .envrc", "rm .envrc", "ln -sfn other .envrc"):
        result = box.run(command, shell=True)
        assert [(violation.kind, violation.target) for violation in result.violations] == [
            ("planted", str(project / ".envrc"))
        ]
        assert "the link was restored" in result.violations[0].detail
        assert os.readlink(project / ".envrc") == "elsewhere"


def test_mount_point_behind_a_link_is_refused(tmp_path: Path) -> None:
    scratch, elsewhere = tmp_path / "scratch", tmp_path / "elsewhere"
    (scratch / "tmp").mkdir(parents=True)
    elsewhere.mkdir()
    steps = [Step("bind", "/tmp", f"{scratch}/tmp", "rw"), Step("bind", "/tmp/a/project", str(elsewhere), "rw")]
    bubblewrap_args.prepare(steps, str(scratch), {})
    assert bubblewrap_args.arguments(steps, str(scratch))[-5:-2] == [
        "--bind",
        str(elsewhere),
        "/tmp/a/project",
    ]
    (scratch / "tmp/a").rename(scratch / "tmp/b")
    (scratch / "tmp/a").symlink_to(elsewhere)
    with pytest.raises(UnusableError, match=r"'/tmp/a/project'.*link"):
        bubblewrap_args.arguments(steps, str(scratch))


def test_unknown_step_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="conjure"):
        bubblewrap_args.arguments([Step("conjure", "/x")], str(tmp_path))


def test_killed_warden_is_reported_and_replaced(wrapped: Sandbox) -> None:
    seconds = unique_seconds()
    started = wrapped.start(["sleep", seconds], timeout_seconds=600)
    until_alive(started, seconds)
    (keeper,) = children(os.getpid())
    (tool,) = children(keeper)
    (warden,) = children(tool)
    os.kill(warden, signal.SIGKILL)
    result = started.wait()
    assert (result.exit_code, [violation.kind for violation in result.violations]) == (137, ["warden-lost"])
    # The kernel closes a dying init's descriptors before it kills the rest of the pid namespace.
    eventually(lambda: alive(seconds) == [])
    assert wrapped.run(["echo", "next"]).stdout == b"next\n"
    eventually(lambda: len(children(keeper)) == 1)


def test_killing_bubblewrap_ends_the_whole_sandbox(wrapped: Sandbox) -> None:
    seconds = unique_seconds()
    first, second = (
        wrapped.start(["sleep", seconds]),
        wrapped.start(f"setsid sleep {seconds} & sleep {seconds}", shell=True),
    )
    eventually(lambda: len(alive(seconds)) == 3)
    (keeper,) = children(os.getpid())
    tools = children(keeper)
    assert len(tools) == 2
    os.kill(keeper, signal.SIGKILL)
    assert [handle.wait().exit_code for handle in (first, second)] == [137, 137]
    eventually(lambda: alive(seconds) == [])
    scratch = Path(wrapped._holding.scratch)
    wrapped.close()
    assert not scratch.exists()


def test_command_cannot_read_warden_or_bubblewrap(wrapped: Sandbox) -> None:
    for body in (
        "return open('/proc/1/environ', 'rb').read() is not None",
        "return open('/proc/1/mem', 'rb')",
        "return os.readlink('/proc/1/fd/3')",
        "return call(438, os.pidfd_open(1), 3, 0) >= 0",
        "return libc.ptrace(16, 1, 0, 0) == 0",
        "resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))\nreturn True",
        "return os.kill(1, 9) or not os.path.exists('/proc/1')",
    ):
        assert attempt(wrapped, body).startswith("held"), body
    assert wrapped.run(["true"]).ok


@pytest.mark.parametrize(
    ("settings", "status", "said"),
    [
        pytest.param(
            {"containment": Containment(backend="bubblewrap")},
            ("bubblewrap", "partial", ("proc",)),
            ("'bubblewrap'", "proc (", "containment.accept_partial", "'auto'"),
            id="a named backend must be full",
        ),
        pytest.param(
            {"containment": Containment(backend="none", project="read-only")},
            ("none", "none", ()),
            ("'read-only'", "containment.backend 'auto'", "'read-write'"),
            id="a read-only project needs a backend",
        ),
        pytest.param(
            {"profile": "workspace", "containment": Containment(scratch="project")},
            ("warden", "partial", ("mount", "pid", "proc")),
            ("profile workspace", "containment.backend 'bubblewrap'", "profile 'strict'"),
            id="auto names the backend that it did not try",
        ),
    ],
)
def test_unmet_requirement_names_a_way_out(
    tmp_path: Path, settings: dict[str, Any], status: tuple[str, str, tuple[str, ...]], said: tuple[str, ...]
) -> None:
    message = unmet_requirement(SandboxConfig(str(tmp_path), **settings), *status)
    assert [words for words in said if words not in message] == []


def test_backend_can_be_chosen_on_the_command_line(project: Path, wrapped: Sandbox) -> None:
    command = [sys.executable, "-m", "corral", "run", "--root", str(project), "--json", "--backend"]
    told = [
        json.loads(subprocess.run([*command, name, "--", "true"], capture_output=True, check=True).stdout)["backend"]
        for name in ("auto", "warden", "bubblewrap")
    ]
    assert told == ["warden", "warden", "bubblewrap"]
    refused = subprocess.run([*command, "none", "--", "true"], capture_output=True, text=True, check=False)
    assert (refused.returncode, "containment.backend is 'none'" in refused.stderr) == (125, True)


def test_many_runs_at_once_leak_nothing(wrapped: Sandbox) -> None:
    before = descriptors()
    failed: list[object] = []

    def work() -> None:
        for _ in range(3):
            result = wrapped.run("sleep 0.01 & echo x", shell=True, timeout_seconds=60)
            if (result.stdout, result.enforcement) != (b"x\n", "full"):
                failed.append(result)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    (keeper,) = children(os.getpid())
    # The bwrap processes, one warden below each, and no process below that.
    tools = children(keeper)
    assert [len(children(tool)) for tool in tools] == [1] * len(tools)
    assert [children(warden) for tool in tools for warden in children(tool)] == [[]] * len(tools)
    scratch = Path(wrapped._holding.scratch)
    wrapped.close()
    assert (exist(keeper, *tools), scratch.exists(), descriptors()) == (False, False, before)
