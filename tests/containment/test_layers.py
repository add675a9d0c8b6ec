"""Tests the table of layers, its downgrade, the requirements of a config, and each Landlock version."""

import os
import re
import struct
import subprocess
import sys
from contextlib import nullcontext
from errno import EINVAL, ENOSPC, ENOSYS, EOPNOTSUPP, EPERM
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import import_path

import corral
from corral import Containment, Sandbox, SandboxConfig
from corral.apps.doctor.remedies import CAUSES
from corral.containment.kernel import landlock, layer
from corral.containment.kernel.layer import Layer
from corral.containment.kernel.syscalls import syscall
from corral.containment.layers import LAYERS, downgrade, probe, wanted
from corral.containment.state import unmet_requirement

ALL = tuple(LAYERS)
KERNEL = Path(layer.__file__).parent
DOCS = Path(__file__).parents[2] / "docs" / "results.md"


@pytest.mark.parametrize("one", LAYERS.values(), ids=lambda one: one.name)
def test_layer_lacks_no_part(one: Layer) -> None:
    assert all((one.name, one.keeps, one.without, one.bubblewrap, one.self_test))
    assert set(one.needs) <= set(ALL)
    assert one.stage in range(layer.KEEPER, layer.FILTER + 1)
    # A layer that the kernel can refuse is tried, and doctor explains a refusal.
    assert (one.probe is None) == (not one.remedy.causes) == (not one.remedy.kernel_option)
    assert set(one.remedy.causes) <= CAUSES
    assert bool(one.remedy.limit) == ("namespace limit" in one.remedy.causes) == bool(one.namespace)
    if isinstance(one.self_test, layer.Attack):
        assert set(one.self_test.also) <= set(ALL) - {one.name}
        assert "return" in one.self_test.program
    # Bubblewrap enters a layer by options, or the warden that it starts does; it builds the tree and the filter by itself.
    assert one.enters_in_bubblewrap or not isinstance(one.bubblewrap, str) or one.name in ("mount", "seccomp")
    # Whatever bubblewrap claims to have entered is looked for, where the kernel shows it.
    assert not one.namespace or os.path.exists(f"/proc/self/ns/{one.namespace}")


def test_layers_have_an_order() -> None:
    assert [one.order for one in LAYERS.values()] == list(range(len(ALL)))
    # The process of the last probe that forks takes the pid namespace of the probes with it.
    assert max(one.order for one in LAYERS.values() if one.probe_forks) == LAYERS["proc"].order
    # A probe runs after those of the layers that it needs.
    assert all(LAYERS[below].order < one.order for one in LAYERS.values() for below in one.needs)


@pytest.mark.parametrize("hidden", ["landlock.py", ".py"], ids=["one file", "all files"])
def test_installation_without_a_layer_is_not_used(hidden: str) -> None:
    # The listing of the folder lacks a file, as in an installation that was interrupted.
    code = (
        "import os\nlisted = os.listdir\n"
        f"os.listdir = lambda *path: [name for name in listed(*path) if not name.endswith({hidden!r})]\n"
        "import corral.containment.layers"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={"PYTHONPATH": import_path()}
    )
    assert done.returncode != 0
    assert "ImportError" in done.stderr


def test_every_layer_of_the_kernel_folder_is_found() -> None:
    listed = [
        match
        for path in KERNEL.glob("*.py")
        for match in re.findall(r"^    (?:Layer|_namespace)\(\n        \"(\w+)\"", path.read_text(), re.MULTILINE)
    ]
    assert sorted(listed) == sorted(ALL)


def test_documentation_lists_every_layer() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| ((?:`\w+`(?:, )?)*) ?\|$", DOCS.read_text(), re.MULTILINE)
    documented = {
        name: (keeps.replace("`", ""), tuple(re.findall(r"`(\w+)`", needs)))
        for name, keeps, needs in rows
        if name in ALL
    }
    assert list(documented) == list(ALL)
    for one in LAYERS.values():
        keeps, needs = documented[one.name]
        assert keeps.startswith(one.keeps)
        assert needs == one.needs


def test_all_layers_are_full_enforcement() -> None:
    assert downgrade(ALL, ALL) == ("full", ())


def test_unwanted_layer_is_not_missing() -> None:
    assert wanted("off") == ALL
    assert wanted("on") == tuple(name for name in ALL if name != "net")
    assert downgrade(wanted("on"), set(ALL) - {"net"}) == ("full", ())


@pytest.mark.parametrize("name", ALL)
def test_missing_layer_is_named(name: str) -> None:
    level, missing = downgrade(ALL, set(ALL) - {name})
    assert (level, name in missing) == ("partial", True)


@pytest.mark.parametrize(
    ("available", "missing"),
    [
        pytest.param(set(ALL) - {"cgroup"}, ("cgroup",), id="a layer that no other needs"),
        pytest.param(set(ALL) - {"mount"}, ("mount", "pid", "proc"), id="no mounts, so no pid namespace"),
        pytest.param(
            set(ALL) - {"user"},
            ("user", "mount", "pid", "proc", "net", "ipc", "uts", "cgroup"),
            id="no user namespace, so no other",
        ),
    ],
)
def test_layer_needs_the_layers_it_is_built_on(available: set[str], missing: tuple[str, ...]) -> None:
    assert downgrade(ALL, available) == ("partial", missing)


def test_limits_and_privileges_alone_are_none() -> None:
    assert downgrade(ALL, {"limits", "privileges"}) == ("none", tuple(ALL[:-2]))


@given(
    wanted=st.sets(st.sampled_from(ALL)),
    available=st.sets(st.sampled_from([*ALL, "a layer of a later version"])),
    more=st.sets(st.sampled_from(ALL)),
)
def test_downgrade_is_sound_and_monotonic(wanted: set[str], available: set[str], more: set[str]) -> None:
    level, missing = downgrade(wanted, available)
    held = wanted - set(missing)
    assert set(missing) <= wanted
    assert held <= available
    assert all(set(LAYERS[name].needs) <= available for name in held)
    assert (level == "full") <= (not missing)
    assert (level == "none") == (not held - {"privileges", "limits"})
    better, fewer = downgrade(wanted, available | more)
    assert set(fewer) <= set(missing)
    order = ("none", "partial", "full")
    assert order.index(better) >= order.index(level)


def test_probe_leaves_nothing_behind(tmp_path: Path) -> None:
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
            id="partial is accepted",
        ),
        pytest.param(
            {"profile": "workspace", "containment": Containment(accept_partial=True)},
            ("warden", "none", ALL[:-2]),
            "profile workspace",
            id="none is not partial",
        ),
        pytest.param(
            {"profile": "workspace", "containment": Containment(accept_partial=True)},
            ("warden", "partial", ("mount", "pid", "proc", "landlock")),
            "profile workspace",
            id="a tier that protects no file is not accepted",
        ),
        pytest.param(
            {"containment": Containment(settings=("/home/someone/.agent",), accept_partial=True)},
            ("warden", "partial", ("mount", "pid", "proc")),
            "an agent inside",
            id="no mounts, no agent inside",
        ),
        pytest.param({}, ("warden", "partial", ("net",)), "", id="strict accepts partial"),
        pytest.param({}, ("none", "none", ()), "", id="strict runs without"),
        pytest.param(
            {"containment": Containment(backend="warden")},
            ("warden", "partial", ("seccomp",)),
            "containment.backend",
            id="a named backend must be full",
        ),
        pytest.param(
            {"containment": Containment(project="read-only", accept_partial=True)},
            ("warden", "partial", ("mount", "pid", "proc")),
            "containment.project",
            id="no mounts, no read-only project",
        ),
    ],
)
def test_unmet_requirement_of_a_config_is_named(
    tmp_path: Path, settings: dict[str, object], status: tuple[str, str, tuple[str, ...]], named: str
) -> None:
    told = unmet_requirement(SandboxConfig(str(tmp_path), **settings), *status)  # type: ignore[arg-type]
    assert told.startswith(named) if named else told == ""
    assert all(name in told for name in status[2]) or not named


@pytest.mark.parametrize(
    ("abi", "bits"),
    [(0, 0), (1, 0x1FFF), (2, 0x3FFF), (3, 0x7FFF), (4, 0x7FFF), (5, 0xFFFF), (8, 0xFFFF), (9, 0x1FFFF)],
)
def test_landlock_handles_the_rights_of_its_version(abi: int, bits: int) -> None:
    assert landlock.handled_files(abi) == bits


FILES, NET, SCOPE = "files", "net", "scope"


@pytest.mark.parametrize(
    ("abi", "words"),
    [
        (1, {FILES: 0x1FFF}),
        (2, {FILES: 0x3FFF}),
        (3, {FILES: 0x7FFF}),
        (4, {FILES: 0x7FFF, NET: 3}),
        (5, {FILES: 0xFFFF, NET: 3}),
        (6, {FILES: 0xFFFF, NET: 3, SCOPE: 3}),
        (7, {FILES: 0xFFFF, NET: 3, SCOPE: 3}),
        (8, {FILES: 0xFFFF, NET: 3, SCOPE: 3}),
        (9, {FILES: 0x1FFFF, NET: 3, SCOPE: 3}),
        (12, {FILES: 0x1FFFF, NET: 3, SCOPE: 3}),
    ],
)
def test_ruleset_has_the_size_of_its_version(abi: int, words: dict[str, int]) -> None:
    assert landlock.attributes(abi, deny_tcp=True) == struct.pack(f"={len(words)}Q", *words.values())
    without = dict(words) | ({NET: 0} if NET in words else {})
    assert landlock.attributes(abi, deny_tcp=False) == struct.pack(f"={len(words)}Q", *without.values())


@pytest.mark.parametrize(
    ("abi", "plain", "logged"), [(1, 0, 0), (6, 0, 0), (7, 0, 2), (8, 8, 10), (9, 8, 10), (12, 8, 10)]
)
def test_restrict_flags_are_those_of_the_version(abi: int, plain: int, logged: int) -> None:
    assert landlock.restrict_flags(abi, logged=False) == plain
    assert landlock.restrict_flags(abi, logged=True) == logged


@pytest.mark.parametrize("abi", range(1, 10))
def test_no_rule_grants_an_unhandled_right(abi: int) -> None:
    handled = landlock.handled_files(abi)
    assert {
        name: rights & handled & ~landlock.handled_files(abi) for name, rights in landlock.RIGHTS.items()
    } == dict.fromkeys(landlock.RIGHTS, 0)
    # Making devices is handled although no rule grants it, so it is always refused.
    assert handled & ~(landlock.RIGHTS["write"] | landlock.IOCTL_DEV) == 0x840


LANDLOCKED = """
import ctypes, os, socket, sys
sys.path.append(sys.argv[1])
from corral.containment.kernel import landlock
from corral.containment.kernel.syscalls import prctl, syscall
inside, outside, abi, abstract, pid = sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5], int(sys.argv[6])
actual = landlock.version()
landlock.version = lambda: abi
def attempt(name, function):
    try:
        function()
    except OSError as error:
        print(name, "refused")
    else:
        print(name, "done")
if abi:
    prctl(38, 1)
    landlock.confine((("/", "read"), (inside, "write")), deny_tcp=True, logged=abi > 6)
def connect(family, address):
    sock = socket.socket(family)
    sock.connect(address)
attempt("write outside", lambda: open(outside + "/file", "a").close())
attempt("read outside", lambda: open(outside + "/file").close())
attempt("make outside", lambda: os.mkdir(outside + "/made"))
attempt("write inside", lambda: open(inside + "/file", "a").close())
os.mkdir(inside + "/sub")
attempt("rename between directories", lambda: os.rename(inside + "/file", inside + "/sub/file"))
attempt("truncate outside", lambda: os.truncate(outside + "/file", 0))
attempt("bind", lambda: socket.socket().bind(("127.0.0.1", 0)))
attempt("abstract socket", lambda: connect(socket.AF_UNIX, "\\0" + abstract))
attempt("signal", lambda: os.kill(pid, 0))
"""
SINCE = {
    "write outside": 1,
    "make outside": 1,
    "truncate outside": 3,
    "bind": 4,
    "abstract socket": 6,
    "signal": 6,
}


@pytest.mark.parametrize("abi", range(10))
def test_kernel_enforces_the_rights_of_a_version(
    abi: int, tmp_path: Path, servers: dict[str, Any], sleeper: int
) -> None:
    if abi > landlock.version():
        # This kernel refuses the mask of a later version, which the pure tests above cannot show.
        with pytest.raises(OSError, match="landlock_create_ruleset") if abi > 8 else nullcontext():
            if abi > 8:
                attr = landlock.attributes(abi, deny_tcp=False)
                syscall("landlock_create_ruleset", attr, len(attr), 0)
        return
    inside, beyond = tmp_path / "inside", tmp_path / "beyond"
    inside.mkdir()
    beyond.mkdir()
    (beyond / "file").write_text("x")
    source = str(Path(corral.__file__).parents[1])
    facts = [source, str(inside), str(beyond), str(abi), servers["abstract"], str(sleeper)]
    done = subprocess.run(
        [sys._base_executable, "-S", "-c", LANDLOCKED, *facts], capture_output=True, text=True, check=False
    )
    went = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    wanted = {name: "refused" if abi and abi >= since else "done" for name, since in SINCE.items()}
    # Version 1 always refuses moves between directories; from version 2 on that is a right.
    wanted |= {
        "read outside": "done",
        "write inside": "done",
        "rename between directories": "refused" if abi == 1 else "done",
    }
    assert (went, done.stderr) == (wanted, "")


IN_A_CONTAINER = """
import sys
sys.path[:0] = [path for path in sys.argv[1].split(":") if path]
from corral import Sandbox, SandboxConfig
with Sandbox(SandboxConfig(sys.argv[2])) as box:
    result = box.run("sleep 100 & echo x", shell=True)
    print(result.enforcement, ",".join(result.missing_layers), result.stdout_text.strip(), result.killed)
"""


def test_covered_proc_costs_only_the_proc_layer(project: Path) -> None:
    script = 'mount --bind /dev/null /proc/uptime && exec "$@"'
    inner = [sys.executable, "-c", IN_A_CONTAINER, import_path(), str(project)]
    done = subprocess.run(
        ["unshare", "--user", "--map-current-user", "--keep-caps", "--mount", "sh", "-c", script, "sh", *inner],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("partial proc x 1\n", "")


def test_corral_inside_corral_is_partial(held: Sandbox, project: Path) -> None:
    # Without shell text, since commands may not see the directory of its parser.
    (project / "inner.py").write_text(IN_A_CONTAINER.replace('"sleep 100 & echo x", shell=True', '["echo", "x"]'))
    result = held.run([sys._base_executable, "inner.py", import_path(), "."], timeout_seconds=60)
    assert (result.stdout, result.stderr) == (b"partial user,mount,pid,proc,net,ipc,uts,cgroup x 0\n", b"")


CRIPPLED = """
import ctypes, os, struct, sys
sys.path[:0] = [path for path in sys.argv[1].split(":") if path]
from corral.containment.kernel import seccomp
from corral.containment.kernel.syscalls import MACHINE, prctl
NUMBERS = {"x86_64": {"unshare": 272, "seccomp": 317}, "aarch64": {"unshare": 97, "seccomp": 277}}[MACHINE]
NUMBERS["landlock_create_ruleset"] = 444
call, bits, error = sys.argv[3], int(sys.argv[4], 16), int(sys.argv[5])
refuse = (0x06, 0, 0, 0x00050000 | error)
block = [(0x20, 0, 0, 16), (0x45, 0, 1, bits), refuse] if bits else [refuse]
code = [(0x20, 0, 0, 0), (0x15, 0, len(block), NUMBERS[call]), *block, seccomp.ALLOW_ALL]
prctl(38, 1)
seccomp.install(code)
from corral import Containment, ContainmentError, Sandbox, SandboxConfig
# By name: bubblewrap would be taken where it holds more.
taken = Containment(backend="warden", accept_partial=True)
with Sandbox(SandboxConfig(sys.argv[2], containment=taken)) as box:
    result = box.run(["echo", "x"])
    print(result.stdout_text.strip(), result.backend, result.enforcement, ",".join(result.missing_layers))
with Sandbox(SandboxConfig(sys.argv[2], profile="workspace", containment=Containment(backend="warden"))) as box:
    try:
        box.run(["true"])
    except ContainmentError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("call", "bits", "error", "missing"),
    [
        pytest.param("landlock_create_ruleset", 0, ENOSYS, ("landlock",), id="a kernel without Landlock"),
        pytest.param("landlock_create_ruleset", 0, EOPNOTSUPP, ("landlock",), id="Landlock that was not started"),
        pytest.param("seccomp", 0, ENOSYS, ("seccomp",), id="a kernel without filters"),
        pytest.param("seccomp", 0, EINVAL, ("seccomp",), id="filters that are not compiled in"),
        pytest.param("unshare", 0x40000000, EPERM, ("net",), id="no network namespaces"),
        pytest.param("unshare", 0x08000000, EPERM, ("ipc",), id="no ipc namespaces"),
        pytest.param("unshare", 0x04000000, EINVAL, ("uts",), id="no uts namespaces"),
        pytest.param("unshare", 0x02000000, EINVAL, ("cgroup",), id="no cgroup namespaces"),
        pytest.param("unshare", 0x20000000, ENOSPC, ("pid", "proc"), id="no pid namespaces"),
        pytest.param("unshare", 0x00020000, EPERM, ("mount", "pid", "proc"), id="no mount namespaces"),
        pytest.param("unshare", 0x10000000, EPERM, ALL[:8], id="no user namespaces"),
        pytest.param("unshare", 0, EPERM, ALL[:8], id="no namespaces at all"),
    ],
)
def test_missing_kernel_feature_is_named_and_refused(
    call: str, bits: int, error: int, missing: tuple[str, ...], project: Path
) -> None:
    # A filter on a child process simulates a kernel that lacks a feature.
    facts = [import_path(), str(project), call, f"{bits:x}", str(error)]
    done = subprocess.run(
        [sys._base_executable, "-c", CRIPPLED, *facts],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(project)},
    )
    assert done.stderr == ""
    status, refusal = done.stdout.splitlines()
    assert status == f"x warden partial {','.join(missing)}"
    assert all(f"{name} ({LAYERS[name].keeps})" in refusal for name in missing)
    assert not any(f"{name} (" in refusal for name in ALL if name not in missing)


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


def test_without_user_namespaces_enforcement_is_partial(project: Path, outside: Path) -> None:
    # In a new user namespace whose limit of further ones is zero.
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
