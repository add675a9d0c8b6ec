"""Runs attacks on the real kernel. Each must fail in the sandbox, and must succeed without it, which shows that it is an attack."""

import ctypes
import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attack_bodies import AS_ROOT, FILES, KERNEL, PROCESSES, SERVERS, WARDEN, WARDEN_AS_ROOT, file_facts
from attempt import attempt, works_uncontained
from observe import children, unique_seconds

from corral import Containment, Limits, Sandbox


@pytest.mark.parametrize("body", FILES.values(), ids=FILES)
def test_command_reaches_no_file_outside(held: Sandbox, loose: Sandbox, outside: Path, body: str) -> None:
    facts = file_facts(outside)
    before = snapshot(outside)
    assert attempt(held, body, **facts).startswith("held")
    assert snapshot(outside) == before
    assert attempt(loose, body, **facts) == "succeeded"


def snapshot(folder: Path) -> dict[str, object]:
    """Return the state of a directory that an attack could change."""
    found: dict[str, object] = {".": folder.stat().st_mode}
    for path in sorted(folder.iterdir()):
        about = path.lstat()
        data = path.read_bytes() if path.is_file() else None
        found[path.name] = (data, about.st_mode, about.st_mtime_ns, about.st_nlink, os.listxattr(path))
    return found


@pytest.mark.parametrize("body", PROCESSES.values(), ids=PROCESSES)
def test_command_reaches_no_other_process(held: Sandbox, loose: Sandbox, sleeper: int, body: str) -> None:
    assert attempt(held, body, pid=sleeper).startswith("held")
    assert attempt(loose, body, pid=sleeper) == "succeeded"


@pytest.mark.parametrize("body", SERVERS.values(), ids=SERVERS)
def test_command_reaches_no_server_outside(held: Sandbox, loose: Sandbox, servers: dict[str, Any], body: str) -> None:
    assert attempt(held, body, **servers).startswith("held")
    assert attempt(loose, body, **servers) == "succeeded"


@pytest.mark.parametrize("body", KERNEL.values(), ids=KERNEL)
def test_dangerous_kernel_interfaces_are_refused(held: Sandbox, loose: Sandbox, body: str) -> None:
    assert attempt(held, body).startswith("held")
    assert attempt(loose, body) == "succeeded"


@pytest.mark.parametrize("body", AS_ROOT.values(), ids=AS_ROOT)
def test_root_in_the_sandbox_has_no_root_rights(held: Sandbox, loose: Sandbox, body: str) -> None:
    assert attempt(held, body).startswith("held")
    assert works_uncontained(loose, body)


def test_file_cannot_be_opened_by_handle(held: Sandbox, loose: Sandbox, outside: Path) -> None:
    handle = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    libc = ctypes.CDLL(None)
    assert libc.name_to_handle_at(-100, os.fsencode(outside / "secret"), handle, ctypes.byref(mount), 0) == 0
    body = """
handle = ctypes.create_string_buffer(bytes.fromhex(facts['handle']))
fd = call(304 if X86 else 265, os.open('.', os.O_RDONLY), handle, 0)
return os.read(fd, 10) == b'canary'
"""
    assert attempt(held, body, handle=handle.raw.hex()).startswith("held")
    assert works_uncontained(loose, body, handle=handle.raw.hex())


def test_server_outside_cannot_pass_a_descriptor(
    held: Sandbox, loose: Sandbox, giver: dict[str, Any], outside: Path
) -> None:
    body = """
s = socket.socket(socket.AF_UNIX)
s.settimeout(20)
s.connect(facts['address'])
_, (fd,), _, _ = socket.recv_fds(s, 10, 1)
return os.read(os.open('secret', os.O_RDONLY, dir_fd=fd), 10) == b'canary'
"""
    for address in giver["addresses"]:
        assert attempt(held, body, address=address).startswith("held")
        assert attempt(loose, body, address=address) == "succeeded"


def test_descriptor_of_another_command_grants_nothing_more(held: Sandbox, outside: Path) -> None:
    body = """
ours, theirs = socket.socketpair()
if os.fork() == 0:
    socket.send_fds(theirs, [b'x'], [os.open(name, os.O_PATH) for name in ('/', '/proc/self/root', '/tmp', '.')])
    os._exit(0)
_, fds, _, _ = socket.recv_fds(ours, 10, 10)
for fd in fds:
    for up in range(20):
        try:
            return os.open('../' * up + facts['secret'][1:], os.O_RDONLY, dir_fd=fd)
        except OSError:
            continue
"""
    assert attempt(held, body, secret=str(outside / "secret")).startswith("held")


def test_rlimit_cannot_be_raised(open_sandbox: Callable[..., Sandbox], loose: Sandbox) -> None:
    ways = (
        "resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))\nreturn len([os.dup(0) for _ in range(80)])",
        "resource.prlimit(0, resource.RLIMIT_NOFILE, (128, 128))\nreturn len([os.dup(0) for _ in range(80)])",
        "return len([os.dup(0) for _ in range(80)])",
        "return b'80' in subprocess.run(['bash', '-c', 'ulimit -n 128 && echo 80'], capture_output=True).stdout",
    )
    box = open_sandbox(limits=Limits(open_files=64))
    for body in ways:
        assert attempt(box, body).startswith("held")
        assert attempt(loose, body) == "succeeded"


def test_command_cannot_type_into_its_terminal(held: Sandbox, loose: Sandbox) -> None:
    body = """
import pty
pid, fd = pty.fork()
if pid == 0:
    try:
        fcntl.ioctl(0, 0x5412, b'x')
    except OSError:
        os._exit(1)
    os._exit(0)
return os.waitpid(pid, 0)[1] == 0
"""
    setting = Path("/proc/sys/dev/tty/legacy_tiocsti")
    assert attempt(held, body).startswith("held")
    # Newer kernels can restrict it to root themselves.
    open_to_all = not setting.exists() or setting.read_text().strip() == "1"
    assert not open_to_all or attempt(loose, body) == "succeeded"


def is_seen_in_bubblewrap(box: Sandbox, body: str) -> bool:
    """Return whether a body only looks at the process that confines the command, which bubblewrap does not hide."""
    only_looks = (WARDEN["see it in the list of processes"], WARDEN_AS_ROOT["list its descriptors"])
    return body in only_looks and box.run(["true"]).backend == "bubblewrap"


@pytest.mark.parametrize("body", WARDEN.values(), ids=WARDEN)
def test_command_cannot_reach_its_warden(held: Sandbox, loose: Sandbox, body: str) -> None:
    if is_seen_in_bubblewrap(held, body):
        return
    assert attempt(held, body).startswith("held")
    assert held.run(["true"]).ok
    assert attempt(loose, body) == "succeeded"


@pytest.mark.parametrize("body", WARDEN_AS_ROOT.values(), ids=WARDEN_AS_ROOT)
def test_root_cannot_reach_its_warden(held: Sandbox, loose: Sandbox, body: str) -> None:
    # An ordinary user cannot reach a warden without containment either.
    if is_seen_in_bubblewrap(held, body):
        return
    assert attempt(held, body).startswith("held")
    assert works_uncontained(loose, body)


@pytest.mark.parametrize("name", ["KILL", "INT", "TERM", "STOP", "USR1", "CHLD", "HUP"])
def test_warden_survives_every_signal(held: Sandbox, loose: Sandbox, name: str) -> None:
    text = f"kill -{name} $PPID; echo after"
    assert (held.run(text, shell=True).stdout, held.run(["true"]).ok) == (b"after\n", True)
    if name in ("KILL", "TERM"):
        assert [violation.kind for violation in loose.run(text + "; sleep 5", shell=True).violations] == ["warden-lost"]


def test_kill_all_reaches_only_the_command(held: Sandbox, sleeper: int) -> None:
    # No canary: without a pid namespace this would end every process of the user.
    result = held.run("kill -KILL -1; echo after", shell=True)
    assert result.stdout in (b"after\n", b"")
    assert held.run(["true"]).ok
    os.kill(sleeper, 0)


def test_command_has_only_its_three_descriptors(held: Sandbox) -> None:
    # The fourth descriptor is that of the listing itself.
    assert attempt(held, "return sorted(map(int, os.listdir('/proc/self/fd'))) == [0, 1, 2, 3]") == "succeeded"


LEFT = {
    "shared memory": (
        "return libc.shmget(facts['key'], 4096, 0o1600) >= 0",
        "return libc.shmget(facts['key'], 0, 0) >= 0",
    ),
    "semaphores": ("return libc.semget(facts['key'], 1, 0o1600) >= 0", "return libc.semget(facts['key'], 0, 0) >= 0"),
    "queues": ("return libc.msgget(facts['key'], 0o1600) >= 0", "return libc.msgget(facts['key'], 0) >= 0"),
    "unreadable shared memory": (
        "return libc.shmget(facts['key'], 4096, 0o1000) >= 0",
        "return libc.shmget(facts['key'], 0, 0) >= 0",
    ),
    "unreadable semaphores": (
        "return libc.semget(facts['key'], 1, 0o1000) >= 0",
        "return libc.semget(facts['key'], 0, 0) >= 0",
    ),
    "unreadable queues": (
        "return libc.msgget(facts['key'], 0o1000) >= 0",
        "return libc.msgget(facts['key'], 0) >= 0",
    ),
}


@pytest.mark.parametrize(("leave", "find"), LEFT.values(), ids=LEFT)
def test_ipc_objects_are_removed_after_each_command(held: Sandbox, loose: Sandbox, leave: str, find: str) -> None:
    # A key of this test only, since without containment keys are shared by the machine.
    key = 1_000_000 + os.getpid()
    assert attempt(held, leave, key=key) == "succeeded"
    assert attempt(held, find, key=key).startswith("held")
    assert attempt(loose, leave, key=key) == "succeeded"
    assert attempt(loose, find, key=key) == "succeeded"
    removal = {
        "shmget": "return libc.shmctl(libc.shmget(facts['key'], 0, 0), 0, None) == 0",
        "semget": "return libc.semctl(libc.semget(facts['key'], 0, 0), 0, 0) == 0",
        "msgget": "return libc.msgctl(libc.msgget(facts['key'], 0), 0, None) == 0",
    }
    assert attempt(loose, next(body for name, body in removal.items() if name in leave), key=key) == "succeeded"


def test_shared_memory_files_are_private_to_a_command(held: Sandbox) -> None:
    name = f"/dev/shm/corral-test-{unique_seconds()}"
    assert held.run(f"echo x > {name} && mkdir {name}.d && cat {name}", shell=True).stdout == b"x\n"
    assert not Path(name).exists()
    assert held.run(["ls", "-A", "/dev/shm"]).stdout == b""


def test_shared_memory_is_restored_for_the_next_command(held: Sandbox) -> None:
    look = "ls -lda --time-style=+ /dev/shm && ls -A /dev/shm"
    first = held.run(look, shell=True).stdout
    for text in ("touch /dev/shm/x && chmod 0 /dev/shm", "chmod 0 /dev/shm", "mkdir /dev/shm/d && chmod 500 /dev/shm"):
        assert held.run(text, shell=True).ok
        after = held.run(look, shell=True)
        assert (after.stdout, after.exit_code, after.violations) == (first, 0, ())
    note = "import os\nos.setxattr('/dev/shm', 'user.note', b'x')"
    noted = held.run(["python3", "-c", note])
    # Older kernels have no user xattrs on tmpfs.
    assert noted.ok or b"Operation not supported" in noted.stderr
    assert held.run(["python3", "-c", "import os\nprint(os.listxattr('/dev/shm'))"]).stdout == b"[]\n"


def test_tmp_is_private_and_lasts_with_the_sandbox(held: Sandbox) -> None:
    name = f"/tmp/corral-test-{unique_seconds()}"
    assert held.run(f"echo x > {name}; echo y > ~/kept", shell=True).ok
    assert held.run(f"cat {name} ~/kept", shell=True).stdout == b"x\ny\n"
    assert not Path(name).exists()
    scratch = Path(held._holding.scratch)
    assert scratch.exists()
    held.close()
    assert not scratch.exists()


def test_scratch_of_a_killed_keeper_is_removed(held: Sandbox) -> None:
    scratch = Path(held._holding.scratch)
    (keeper,) = children(os.getpid())
    os.kill(keeper, signal.SIGKILL)
    held.close()
    assert not scratch.exists()


@pytest.mark.real
def test_very_deep_directories_in_scratch_are_removed(held: Sandbox) -> None:
    body = """
os.chdir('/tmp')
for _ in range(3000):
    os.mkdir('d')
    os.chdir('d')
os.chmod('.', 0)
return True
"""
    assert attempt(held, body) == "succeeded"
    scratch = Path(held._holding.scratch)
    held.close()
    assert not scratch.exists()


def test_project_ancestors_in_scratch_cannot_be_swapped(held: Sandbox, outside: Path) -> None:
    parent = Path(held.config.project_root).parent
    swap = f"mv {parent} {parent}.old && ln -s {outside} {parent}"
    assert not held.run(swap, shell=True).ok
    with held.start(["sleep", "20"]):
        # A second warden while the first is busy.
        assert held.run(["pwd"]).stdout_text.strip() == held.config.project_root
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]


WIDER = {
    "a link in an environment's programs": "mkdir -p .venv/bin && ln -s {outside}/secret .venv/bin/x",
    "the home of an environment": "mkdir -p .venv/bin && echo 'home = {outside}' > .venv/pyvenv.cfg",
    "a link to another environment": "mkdir -p .venv && ln -s {outside} .venv/bin",
    "a way over a second environment": "mkdir -p .venv/bin env/bin && ln -s ../../env/bin/y .venv/bin/x && ln -s {outside}/secret env/bin/y",
}


@pytest.mark.parametrize("text", WIDER.values(), ids=WIDER)
def test_links_in_the_project_show_nothing_to_later_sandboxes(
    held: Sandbox, open_sandbox: Callable[..., Sandbox], outside: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("HOME", str(outside.parent))
    assert held.run(text.format(outside=outside), shell=True).ok
    held.close()
    assert not open_sandbox().run(["cat", str(outside / "secret")]).ok
    # With a grant of the user the same directory is shown.
    granted = open_sandbox(containment=Containment(read=(str(outside),)))
    assert granted.run(["cat", str(outside / "secret")]).stdout == b"canary"


def test_fifo_instead_of_a_setting_does_not_block_the_host(held: Sandbox, open_sandbox: Callable[..., Sandbox]) -> None:
    assert held.run("mkdir -p .venv/bin && mkfifo .venv/pyvenv.cfg", shell=True).ok
    held.close()
    # A host that opened the FIFO would block for ever.
    assert open_sandbox().run(["true"]).ok


def test_link_that_names_a_grant_cannot_be_replaced(
    open_sandbox: Callable[..., Sandbox], loose: Sandbox, project: Path, outside: Path, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "secret").write_text("granted")
    (project / "data").symlink_to(tmp_path / "data")
    granted = Containment(read=(str(project / "data"),))
    swap = f"rm data && ln -s {outside} data"
    with open_sandbox(containment=granted) as box:
        result = box.run(swap, shell=True)
        # Bubblewrap cannot mount over a link, so corral restores it.
        reported = [violation.kind for violation in result.violations] == ["planted"]
        assert reported if result.backend == "bubblewrap" else not result.ok
        assert box.read_bytes("data/secret") == b"granted"
    assert open_sandbox(containment=granted).run(["cat", "data/secret"]).stdout == b"granted"
    assert loose.run(swap, shell=True).ok
    assert open_sandbox(containment=granted).run(["cat", "data/secret"]).stdout == b"canary"


def test_device_node_in_the_project_cannot_be_opened(held: Sandbox, loose: Sandbox, project: Path) -> None:
    if os.geteuid() == 0:
        os.mknod(project / "device", 0o20666, os.makedev(1, 5))
    body = "return open('device', 'rb').read(3) == bytes(3)"
    assert attempt(held, body).startswith("held")
    assert works_uncontained(loose, body)


def test_deep_directories_in_shared_memory_cause_no_delay(held: Sandbox) -> None:
    body = "os.chdir('/dev/shm')\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\nos.chmod('.', 0)\nreturn True"
    assert attempt(held, body) == "succeeded"
    after = held.run(["ls", "-A", "/dev/shm"])
    assert (after.ok, after.stdout, after.violations) == (True, b"", ())
