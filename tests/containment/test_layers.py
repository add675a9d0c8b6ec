"""The table of layers: what counts as full, what stands on what, and what a config demands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import corral
from corral import Containment, Sandbox, SandboxConfig
from corral.containment import landlock, seccomp
from corral.containment.holding import unmet
from corral.containment.layers import LAYERS, downgrade, probe, wanted

ALL = tuple(LAYERS)


def test_everything_is_full() -> None:
    assert downgrade(ALL, ALL) == ("full", ())


def test_what_is_not_wanted_is_not_missing() -> None:
    assert wanted("off") == ALL
    assert wanted("on") == tuple(name for name in ALL if name != "net")
    assert downgrade(wanted("on"), set(ALL) - {"net"}) == ("full", ())


@pytest.mark.parametrize("name", ALL)
def test_each_layer_that_is_missing_is_named(name: str) -> None:
    level, missing = downgrade(ALL, set(ALL) - {name})
    assert (level, name in missing) == ("partial", True)


@pytest.mark.parametrize(
    ("available", "missing"),
    [
        pytest.param(set(ALL) - {"cgroup"}, ("cgroup",), id="one that nothing stands on"),
        pytest.param(set(ALL) - {"mount"}, ("mount", "pid", "proc"), id="no mounts, so no pid namespace"),
        pytest.param(
            set(ALL) - {"user"},
            ("user", "mount", "pid", "proc", "net", "ipc", "uts", "cgroup"),
            id="no user namespace, so no other",
        ),
    ],
)
def test_what_stands_on_a_missing_layer_is_missing_too(available: set[str], missing: tuple[str, ...]) -> None:
    assert downgrade(ALL, available) == ("partial", missing)


def test_limits_and_privileges_alone_are_none() -> None:
    assert downgrade(ALL, {"limits", "privileges"}) == ("none", tuple(ALL[:-2]))


def test_a_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    before = Path("/proc/self/mounts").read_text(), os.listdir("/proc/self/fd")
    assert probe(str(tmp_path)) <= set(ALL)
    assert (Path("/proc/self/mounts").read_text(), os.listdir("/proc/self/fd")) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "status", "named"),
    [
        pytest.param({"profile": "workspace"}, ("warden", "full", ()), "", id="full is enough for workspace"),
        pytest.param(
            {"profile": "workspace"}, ("warden", "partial", ("net",)), "profile workspace", id="partial is not"
        ),
        pytest.param(
            {"profile": "workspace", "containment": Containment(accept_partial=True)},
            ("warden", "partial", ("net",)),
            "",
            id="partial by the owner's word",
        ),
        pytest.param(
            {"profile": "workspace", "containment": Containment(accept_partial=True)},
            ("warden", "none", ALL[:-2]),
            "profile workspace",
            id="none is not partial",
        ),
        pytest.param({}, ("warden", "partial", ("net",)), "", id="strict takes what there is"),
        pytest.param({}, ("none", "none", ()), "", id="strict runs without"),
        pytest.param(
            {"containment": Containment(backend="warden")},
            ("warden", "partial", ("seccomp",)),
            "containment.backend",
            id="a warden that is asked for is a whole one",
        ),
        pytest.param(
            {"containment": Containment(project="read-only", accept_partial=True)},
            ("warden", "partial", ("mount", "pid", "proc")),
            "containment.project",
            id="no mounts, no read-only project",
        ),
    ],
)
def test_what_a_config_demands(
    tmp_path: Path, settings: dict[str, object], status: tuple[str, str, tuple[str, ...]], named: str
) -> None:
    told = unmet(SandboxConfig(str(tmp_path), **settings), *status)  # type: ignore[arg-type]
    assert told.startswith(named) if named else told == ""
    assert all(name in told for name in status[2]) or not named


@pytest.mark.parametrize(
    ("abi", "bits"),
    [(0, 0), (1, 0x1FFF), (2, 0x3FFF), (3, 0x7FFF), (4, 0x7FFF), (5, 0xFFFF), (8, 0xFFFF), (9, 0x1FFFF)],
)
def test_landlock_handles_what_its_version_knows(abi: int, bits: int) -> None:
    assert landlock.handled_files(abi) == bits


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("own", [True, False])
def test_a_filter_is_a_valid_program(machine: str, own: bool) -> None:
    code = seccomp.program(machine, guarded=(7, 8), own_pids=own, own_files=own, network=own, is_root=own, ptrace=own)
    assert len(code) < 4096
    for place, (operation, if_true, if_false, _) in enumerate(code):
        assert place + 1 + max(if_true, if_false) < len(code) or operation == 0x06
        assert 0 <= min(if_true, if_false) <= max(if_true, if_false) < 256
    assert code[-1] == (0x06, 0, 0, 0x7FFF0000)
    assert seccomp.is_known(machine)


IN_A_CONTAINER = """
import sys
sys.path[:0] = [path for path in sys.argv[1].split(":") if path]
from corral import Sandbox, SandboxConfig
with Sandbox(SandboxConfig(sys.argv[2])) as box:
    result = box.run("sleep 100 & echo x", shell=True)
    print(result.enforcement, ",".join(result.missing_layers), result.stdout_text.strip(), result.killed)
"""


def import_path() -> str:
    """Return where corral and what it needs are to be imported from."""
    return ":".join([str(Path(corral.__file__).parents[1]), *[p for p in sys.path if "site-packages" in p]])


def test_in_a_container_that_covers_parts_of_proc_only_that_layer_is_missing(project: Path) -> None:
    script = 'mount --bind /dev/null /proc/uptime && exec "$@"'
    inner = [sys.executable, "-c", IN_A_CONTAINER, import_path(), str(project)]
    done = subprocess.run(
        ["unshare", "--user", "--map-current-user", "--keep-caps", "--mount", "sh", "-c", script, "sh", *inner],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("partial proc x 1\n", "")


def test_inside_corral_corral_starts_with_less(held: Sandbox, project: Path) -> None:
    # Without shell text, whose parser need not lie where commands see it.
    (project / "inner.py").write_text(IN_A_CONTAINER.replace('"sleep 100 & echo x", shell=True', '["echo", "x"]'))
    result = held.run([sys._base_executable, "inner.py", import_path(), "."], timeout_seconds=60)
    assert (result.stdout, result.stderr) == (b"partial user,mount,pid,proc,net,ipc,uts,cgroup x 0\n", b"")


WITHOUT_NAMESPACES = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
uid, gid = os.geteuid(), os.getegid()
assert libc.unshare(0x10000000) == 0
open("/proc/self/setgroups", "w").write("deny")
open("/proc/self/uid_map", "w").write(f"{uid} {uid} 1")
open("/proc/self/gid_map", "w").write(f"{gid} {gid} 1")
open("/proc/sys/user/max_user_namespaces", "w").write("0")
sys.path[:0] = [path for path in sys.argv[1].split(":") if path]
from corral import Containment, ContainmentError, Sandbox, SandboxConfig
with Sandbox(SandboxConfig(sys.argv[2], profile="workspace")) as box:
    try:
        box.run(["true"])
    except ContainmentError as error:
        print("refused" if "user (" in str(error) else error)
accepted = Containment(accept_partial=True)
with Sandbox(SandboxConfig(sys.argv[2], profile="workspace", containment=accepted)) as box:
    result = box.run(["python3", "inside.py", sys.argv[3]])
    print(result.enforcement, ",".join(result.missing_layers))
    print(result.stdout_text, result.stderr_text, sep="", end="")
    again = box.run("setsid sleep 100 & kill -KILL $PPID; echo after", shell=True)
    print(again.stdout_text.strip(), again.killed, again.violations)
"""
INSIDE = """
import socket, sys, os
def attempt(function):
    try:
        function()
    except OSError as error:
        print("held")
    else:
        print("reached")
attempt(lambda: open(sys.argv[1]).read())
attempt(lambda: open(sys.argv[1], "a"))
attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
attempt(lambda: socket.socket(socket.AF_UNIX))
attempt(lambda: os.kill(os.getppid(), 0))
open("written", "w").write("x")
open(os.environ["TMPDIR"] + "/t", "w").write("x")
open(os.environ["HOME"] + "/t", "w").write("x")
print("works")
"""


def test_without_user_namespaces_less_holds_and_says_so(project: Path, outside: Path) -> None:
    # In a user namespace of the test's own, whose limit of further ones is set to none.
    (project / "inside.py").write_text(INSIDE)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NAMESPACES, import_path(), str(project), str(outside / "secret")],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(outside)},
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "refused",
        "partial user,mount,pid,proc,net,ipc,uts,cgroup",
        *["held"] * 5,
        "works",
        "after 1 ()",
    ]
