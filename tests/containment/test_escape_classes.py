"""Tests the nineteen attacks that worked on a naive warden. Each fails in the sandbox and succeeds without it."""

import ctypes
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from attempt import attempt, bare, works_uncontained
from machines import import_path
from observe import alive, children, eventually, unique_seconds

from corral import Containment, Sandbox

IS_ROOT = os.geteuid() == 0
IN_A_USER_NAMESPACE = ("unshare", "--user", "--map-root-user")


def git(folder: Path, *words: str) -> str:
    """Run git on the host."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(project: Path) -> Path:
    """Make the project a repository with one commit."""
    git(project, "init", "-q")
    (project / "file").write_text("1")
    git(project, "add", "file")
    git(project, "commit", "-qm", "first")
    return project


def test_01_control_socket_and_warden_are_out_of_reach(held: Sandbox, project: Path) -> None:
    forge = """
pidfd = os.pidfd_open(os.getppid())
for number in facts['numbers']:
    try:
        taken = call(438, pidfd, number, 0)
    except OSError as error:
        reason = error
        continue
    if stat.S_ISSOCK(os.fstat(taken).st_mode):
        return socket.socket(fileno=taken).send(b'forged')
raise reason
"""
    read = "return [open(f'/proc/{os.getppid()}/{name}', 'rb').read(1) for name in facts['names']]"
    names = ["environ", "maps", "auxv"]
    assert attempt(held, forge, numbers=list(range(3, 40))).startswith("held")
    for name in (*names, "mem", "fd/0", "cwd/.", "root/."):
        assert attempt(held, read, names=[name]).startswith("held")
    assert held.run(["true"]).ok
    ours, theirs = socket.socketpair()
    # Yama lets only parents trace; this process, the naive warden, allows every process.
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
    with ours, theirs:
        assert bare(forge, project, numbers=[theirs.fileno()]) == "succeeded"
        assert ours.recv(100) == b"forged"
    assert bare(read, project, names=names) == "succeeded"


def test_02_exec_as_root_restores_no_capability(held: Sandbox, project: Path) -> None:
    # Root keeps four over files: CHOWN, DAC_OVERRIDE, FOWNER, FSETID.
    regain = """
status = open('/proc/self/status').read()
held = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(('CapEff', 'CapPrm', 'CapBnd'))]
return any(mask & ~facts['kept'] for mask in held[:2]) or (facts['root'] and held[2] & ~facts['kept'])
"""
    kept = 0b11011 if IS_ROOT else 0
    assert attempt(held, regain, kept=kept, root=IS_ROOT).startswith("held")
    assert bare(regain, project, before=IN_A_USER_NAMESPACE, kept=kept, root=IS_ROOT) == "succeeded"


def test_03_warden_keeps_its_priority_and_limits(held: Sandbox, loose: Sandbox) -> None:
    ways = (
        "resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0))\nreturn True",
        "os.setpriority(os.PRIO_PROCESS, os.getppid(), 1)\nreturn True",
        "os.setpriority(os.PRIO_USER, os.getuid(), 1)\nreturn True",
        "os.sched_setaffinity(os.getppid(), os.sched_getaffinity(0))\nreturn True",
        "os.sched_setscheduler(os.getppid(), os.SCHED_BATCH, os.sched_param(0))\nreturn True",
        "return call(251 if X86 else 30, 1, os.getppid(), 2 << 13 | 4) == 0",
    )
    for body in ways:
        assert attempt(held, body).startswith("held")
        # PRIO_USER changes all processes of the user, so it is tried only in the sandbox.
        if "PRIO_USER" not in body:
            assert attempt(loose, body) == "succeeded"
    assert (held.run(["nice"]).stdout, loose.run(["nice"]).stdout) == (b"0\n", b"1\n")


def test_04_interrupt_does_not_end_the_warden(held: Sandbox, loose: Sandbox) -> None:
    text = "kill -INT $PPID; echo after"
    result = held.run(text, shell=True)
    assert (result.stdout, result.violations, held.run(["true"]).ok) == (b"after\n", (), True)
    lost = loose.run(text + "; sleep 5", shell=True)
    assert [violation.kind for violation in lost.violations] == ["warden-lost"]


def test_05_ancestor_replaced_by_a_link_is_not_followed(held: Sandbox, outside: Path) -> None:
    parent = Path(held.config.project_root).parent
    assert str(parent).startswith("/tmp/"), "the attack needs a project below /tmp"
    swaps = (
        f"mv {parent} {parent}.old && ln -s {outside} {parent}",
        f"rm -rf {parent}; ln -s {outside} {parent}",
        f"cd /tmp && for d in *; do mv $d $d.old && ln -s {outside} $d; done",
    )
    for swap in swaps:
        held.run(swap, shell=True)
        with held.start(["sleep", "20"]):
            # The first warden is busy, so the second is made after the swap.
            assert held.run(["pwd"]).stdout_text.strip() == held.config.project_root
    assert [path.name for path in outside.iterdir()] == ["secret"]
    # A naive warden makes its mount point like this, where the swap has worked.
    stage = outside.parent / "stage"
    (stage / "parent" / "project").mkdir(parents=True)
    (stage / "parent").rename(stage / "old")
    (stage / "parent").symlink_to(outside)
    (stage / "parent" / "project").mkdir()
    assert sorted(path.name for path in outside.iterdir()) == ["project", "secret"]


HOST = """
import sys
sys.path[:0] = [path for path in sys.argv[1].split(":") if path]
from corral import Containment, Profile, Sandbox, SandboxConfig
from corral.model.call import Decision
from corral.guard.rules.loader import effects, profile_named
groups = dict.fromkeys(profile_named("strict").groups, Decision.ALLOW)
profile = Profile("open", dict.fromkeys(effects(), Decision.ALLOW), groups)
config = SandboxConfig(sys.argv[2], profile=profile, denylist=(), interpreter_block=(), containment=Containment(sys.argv[3]))
for _ in range(2):
    with Sandbox(config) as box:
        result = box.run(sys.argv[4], shell=True)
        print(result.enforcement, result.exit_code == 0)
"""
REPLACEMENTS = {
    "the interpreter": "rm -f .venv/bin/python && cp evil .venv/bin/python",
    "the interpreter by rename": "cp evil e && mv -f e .venv/bin/python",
    "the whole environment": "mv .venv away && mkdir -p .venv/bin && cp evil .venv/bin/python",
    "where its interpreter lies": "cp evil python3; echo home = $PWD > .venv/pyvenv.cfg; rm .venv/bin/python && cp evil .venv/bin/python",
    "what every start runs": "cp start.pth $(echo .venv/lib/python3*/site-packages)/",
}


@pytest.mark.parametrize("linked", [False, True], ids=["", "through a link"])
@pytest.mark.parametrize("replace", REPLACEMENTS.values(), ids=REPLACEMENTS)
def test_06_interpreter_of_the_host_cannot_be_replaced(
    project: Path, outside: Path, replace: str, linked: bool
) -> None:
    ran = outside / "ran"
    subprocess.run([sys._base_executable, "-m", "venv", "--without-pip", project / ".venv"], check=True)
    if linked:
        (project / ".venv").rename(project / "real")
        (project / ".venv").symlink_to("real")
    (project / "evil").write_text(f"#!/bin/sh\ntouch {ran}\n")
    (project / "evil").chmod(0o755)
    (project / "start.pth").write_text(f"import os; open({str(ran)!r}, 'w').close()\n")
    for backend, expected in (("warden", False), ("none", True)):
        command = [project / ".venv" / "bin" / "python", "-c", HOST, import_path(), str(project), backend, replace]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"})
        assert done.stdout.splitlines()[0] == ("none True" if expected else "full False"), done.stderr
        subprocess.run([project / ".venv" / "bin" / "python", "-c", "pass"], check=False, env={"PATH": "/usr/bin:/bin"})
        assert ran.exists() is expected


def test_07_protected_repository_cannot_be_renamed(repository: Path, held: Sandbox, loose: Sandbox) -> None:
    swap = "mv .git x && mkdir -p .git/hooks && echo echo > .git/hooks/pre-commit"
    before = (repository / ".git").stat().st_ino
    assert not held.run(swap, shell=True).ok
    assert (repository / ".git").stat().st_ino == before
    assert not (repository / ".git" / "hooks" / "pre-commit").exists()
    assert loose.run(swap, shell=True).ok
    assert (repository / ".git" / "hooks" / "pre-commit").exists()


PLANTS = {
    "a pointer to a configuration": "cp -r .git evil && cp plant evil/config && echo ../evil > .git/commondir",
    "a repository in a directory": "cp -r .git sub/.git && cp plant sub/.git/config && git add sub",
    "a second configuration": "git config extensions.worktreeConfig true; cp plant .git/config.worktree",
}


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_08_planted_git_config_does_not_run_on_git_status(
    repository: Path, open_sandbox: Callable[..., Sandbox], outside: Path, plant: str
) -> None:
    ran = outside / "ran"
    (repository / "sub").mkdir()
    (repository / "sub" / "file").write_text("1")
    if "worktree" in plant:
        git(repository, "config", "extensions.worktreeConfig", "true")
    (repository / "plant").write_text(
        f'[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tfsmonitor = "touch {ran}; false"\n'
    )
    for backend, expected in (("warden", False), ("none", True)):
        open_sandbox(containment=Containment(backend=backend)).run(plant, shell=True)
        subprocess.run(["git", "status"], cwd=repository, capture_output=True, check=False)
        assert ran.exists() is expected


SET_ID = {
    "chmod": "open('s', 'w').close()\nos.chmod('s', facts['mode'])",
    "fchmod": "os.fchmod(os.open('s', os.O_CREAT | os.O_RDWR), facts['mode'])",
    "open": "os.open('s', os.O_CREAT | os.O_RDWR, facts['mode'])",
    "creat": "call(85 if X86 else -1, b's', facts['mode'])",
    "mknod": "os.mknod('s', facts['mode'] | stat.S_IFREG)",
    "fchmodat2": "open('s', 'w').close()\ncall(452, -100, b's', facts['mode'], 0)",
    "openat2": "call(437, -100, b's', struct.pack('=3Q', os.O_CREAT | os.O_RDWR, facts['mode'], 0), 24)",
    "a file without a name, linked": "fd = os.open('.', os.O_TMPFILE | os.O_RDWR, facts['mode'])\ncall(265 if X86 else 37, -100, b'/proc/self/fd/%d' % fd, -100, b's', 0x400)",
}


@pytest.mark.parametrize("body", SET_ID.values(), ids=SET_ID)
def test_09_no_setuid_program_is_left(held: Sandbox, loose: Sandbox, project: Path, body: str) -> None:
    if "X86 else -1" in body and os.uname().machine != "x86_64":
        body = SET_ID["open"]
    body = f"os.umask(0)\n{body}\nreturn os.stat('s').st_mode & facts['mode'] & 0o6000"
    made = project / "s"
    for mode in (0o4755, 0o6755, 0o2755)[: 3 if IS_ROOT else 2]:
        assert attempt(held, body, mode=mode).startswith("held")
        assert not made.exists() or made.stat().st_mode & (stat.S_ISUID | stat.S_ISGID) == 0
        made.unlink(missing_ok=True)
        assert attempt(loose, body, mode=mode) == "succeeded"
        made.unlink()


def test_10_root_cannot_write_kernel_settings(held: Sandbox, loose: Sandbox) -> None:
    for body in (
        "return os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY) > 0",
        "return os.open('/proc/sys/vm/overcommit_memory', os.O_WRONLY) > 0",
        "return os.open(glob.glob('/sys/fs/cgroup/**/cgroup.procs')[0] if glob.glob('/sys/fs/cgroup/**/cgroup.procs') else '/none', os.O_WRONLY) > 0",
    ):
        assert attempt(held, body).startswith("held")
        assert works_uncontained(loose, body)


def test_11_vsock_is_refused(held: Sandbox, loose: Sandbox) -> None:
    body = "return socket.socket(40, socket.SOCK_STREAM)"
    assert attempt(held, body).startswith("held")
    assert attempt(loose, body) == "succeeded"


def test_12_no_namespace_by_clone_or_foreign_call(held: Sandbox, loose: Sandbox) -> None:
    ways = [
        "if libc.unshare(0x10000000):\n    raise OSError(ctypes.get_errno(), '')\nreturn True",
        "pid = call(56 if X86 else 220, 0x10000000 | 17, 0, 0, 0, 0)\nif pid == 0:\n    os._exit(0)\nreturn True",
        "args = struct.pack('=8Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0)\npid = call(435, args, len(args))\nif pid == 0:\n    os._exit(0)\nreturn True",
    ]
    if os.uname().machine == "x86_64":
        ways.append(
            "code = bytes.fromhex('b814000000cd80c3')\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(code)\n"
            "return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))() > 0"
        )
        # Few kernels have x32, so there is no uncontained run.
        assert attempt(held, "return call(0x40000000 | 39) > 0").startswith("held")
    for body in ways:
        assert attempt(held, body).startswith("held")
        assert attempt(loose, body) == "succeeded"


KILLED_HOST = """
import os, signal, sys
sys.path[:0] = [path for path in sys.argv[1].split(":") if path]
from corral import Sandbox, SandboxConfig
box = Sandbox(SandboxConfig(sys.argv[2]))
running = [box.start(["sleep", sys.argv[3]]) for _ in range(2)]
if os.fork() == 0:
    # Holds whatever the host held, and lives on.
    os.close(1)
    signal.pause()
print(running[0].enforcement if hasattr(running[0], "enforcement") else "", flush=True)
signal.pause()
"""


def test_13_killed_host_ends_all_despite_its_fork(project: Path) -> None:
    seconds = unique_seconds()
    command = [sys.executable, "-c", KILLED_HOST, import_path(), str(project), seconds]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        host.stdout.readline()
        try:
            # Two hosts and two commands have the number in their command lines.
            eventually(lambda: len(alive(seconds)) == 4)
            (fork,) = [pid for pid in children(host.pid) if pid in alive(seconds)]
        finally:
            host.kill()
    eventually(lambda: alive(seconds) == [fork])
    os.kill(fork, signal.SIGKILL)
    # Shows why end of file on a socket is not enough: a fork that holds the socket prevents it.
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    ours.close()
    with theirs, pytest.raises(BlockingIOError):
        theirs.recv(1, socket.MSG_DONTWAIT)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_14_session_keyring_of_the_host_is_out_of_reach(held: Sandbox, project: Path) -> None:
    name = f"corral-test-{os.getpid()}"
    ways = (
        # KEYCTL_READ by number, KEYCTL_SEARCH in the session keyring, request_key, the kernel's list.
        "buf = ctypes.create_string_buffer(100)\ncall(250 if X86 else 219, 11, facts['key'], buf, 100)\nreturn buf.value == b'canary'",
        "return call(250 if X86 else 219, 10, -3, b'user', facts['name'].encode(), 0) > 0",
        "return call(249 if X86 else 218, b'user', facts['name'].encode(), None, 0) > 0",
        "return facts['name'] in open('/proc/keys').read()",
    )
    libc = ctypes.CDLL(None, use_errno=True)
    numbers = {"x86_64": (250, 248), "aarch64": (219, 217)}[os.uname().machine]
    # A new session keyring, which children inherit.
    assert libc.syscall(numbers[0], 1, None, 0, 0, 0) > 0
    key = libc.syscall(numbers[1], b"user", name.encode(), b"canary", 6, -3)
    assert key > 0
    held.close()
    with Sandbox(held.config) as box:
        for body in ways:
            assert attempt(box, body, key=key, name=name).startswith("held")
    for body in ways:
        assert bare(body, project, key=key, name=name) == "succeeded"


def test_15_no_descriptor_of_the_host_leads_outside(
    open_sandbox: Callable[..., Sandbox], project: Path, outside: Path
) -> None:
    through = """
for number in range(3, 200):
    try:
        return os.read(os.open('secret', os.O_RDONLY, dir_fd=number), 10) == b'canary'
    except OSError:
        continue
"""
    leaked = os.open(outside, os.O_RDONLY | os.O_DIRECTORY)
    os.set_inheritable(leaked, True)
    try:
        assert attempt(open_sandbox(), through).startswith("held")
        assert bare(through, project) == "succeeded"
    finally:
        os.close(leaked)


LENT = """
import sys
sys.path[:0] = [path for path in sys.argv[1].split(":") if path]
from corral import Containment, Sandbox, SandboxConfig
with Sandbox(SandboxConfig(sys.argv[2], containment=Containment(backend=sys.argv[3]))) as box:
    result = box.start(["python3", "reopen.py"], inherit_stdin=True).wait()
    assert not result.denied, result.reason
"""


def test_15_input_file_cannot_be_reopened_for_writing(project: Path, outside: Path) -> None:
    (project / "reopen.py").write_text("import os\nos.write(os.open('/proc/self/fd/0', os.O_WRONLY), b'changed')\n")
    for backend, left in (("warden", "canary"), ("none", "changed")):
        command = [sys.executable, "-c", LENT, import_path(), str(project), backend]
        with (outside / "secret").open() as given:
            env = {"PATH": "/usr/bin:/bin", "HOME": str(outside)}
            subprocess.run(command, stdin=given, check=True, env=env)
        assert (outside / "secret").read_text() == left


MASKED = """
import sys
sys.path[:0] = [path for path in sys.argv[1].split(":") if path]
from corral import Sandbox, SandboxConfig
with Sandbox(SandboxConfig(sys.argv[2])) as box:
    result = box.run(["python3", "read.py", sys.argv[3]])
    print(result.enforcement, ",".join(result.missing_layers), result.stdout_text.strip(), result.stderr_text)
"""
READ = """
import os, sys
open("/proc/self/status").read()
try:
    print("reached" if b"canary" in open(f"/proc/{sys.argv[1]}/environ", "rb").read() else "empty")
except OSError:
    print("held")
"""


def test_16_masked_proc_is_reported_and_shows_no_secrets(project: Path, sleeper: int) -> None:
    # In a new user and mount namespace, where /proc/PID/environ of the same user is readable.
    (project / "read.py").write_text(READ)
    cover = 'mount --bind /dev/null /proc/uptime && exec "$@"'
    container = ["unshare", "--user", "--map-current-user", "--keep-caps", "--mount", "sh", "-c", cover, "sh"]
    inner = [sys.executable, "-c", MASKED, import_path(), str(project), str(sleeper)]
    done = subprocess.run([*container, *inner], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("partial proc held \n", "")
    shown = subprocess.run([sys.executable, project / "read.py", str(sleeper)], capture_output=True, check=True)
    assert shown.stdout == b"reached\n"


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
from corral import Containment, Sandbox, SandboxConfig
config = SandboxConfig(sys.argv[2], profile="workspace", containment=Containment(accept_partial=True))
with Sandbox(config) as box:
    result = box.run(["python3", "attack.py", sys.argv[3]])
    print(result.enforcement, result.stdout_text.strip(), result.killed, result.violations, result.stderr_text, box.run(["true"]).ok)
"""
# Signal 0 only tests permission: if the filter failed, a real signal would end all processes of the machine.
SIGNALS = """
import os, signal, subprocess, sys
subprocess.Popen(["sleep", sys.argv[1]], start_new_session=True)
warden = os.getppid()
held = []
for send in (lambda: os.kill(warden, signal.SIGKILL), lambda: os.kill(-1, 0), lambda: os.kill(-warden, 0), lambda: os.pidfd_open(warden)):
    try:
        send()
    except PermissionError:
        held.append("held")
    except ProcessLookupError:
        held.append("nobody")
print(*held)
"""


def test_17_without_pid_namespace_no_daemon_survives(project: Path, loose: Sandbox) -> None:
    (project / "attack.py").write_text(SIGNALS)
    seconds = unique_seconds()
    command = [sys.executable, "-c", WITHOUT_NAMESPACES, import_path(), str(project), seconds]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(project)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert (done.stdout, done.stderr) == ("partial held held held held 1 ()  True\n", "")
    eventually(lambda: alive(seconds) == [])
    lost = loose.run("kill -KILL $PPID; sleep 5", shell=True)
    assert [violation.kind for violation in lost.violations] == ["warden-lost"]


def test_18_root_can_write_a_project_of_another_user(held: Sandbox, project: Path) -> None:
    write = "return open('new', 'w').write('x')"
    if IS_ROOT:
        os.chown(project, 12345, 12345)
        project.chmod(0o755)
    assert attempt(held, write) == "succeeded"
    (project / "new").unlink()
    if IS_ROOT:
        # With one id mapped, root inside has no rights on the files of another user.
        assert bare(write, project, before=IN_A_USER_NAMESPACE).startswith("held")


def test_19_worktree_pointer_exposes_no_other_directory(
    repository: Path, tmp_path: Path, outside: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    linked = tmp_path / "linked"
    git(repository, "worktree", "add", "-q", str(linked))
    rewrite = f"echo 'gitdir: {outside}' > .git || (rm -f .git; echo 'gitdir: {outside}' > .git)"
    show = ["cat", str(outside / "secret")]
    pointer = (linked / ".git").read_text()
    held = open_sandbox(project_root=str(linked))
    assert [violation.kind for violation in held.run(rewrite, shell=True).violations] == ["planted"]
    assert (linked / ".git").read_text() == pointer
    loose = open_sandbox(project_root=str(linked), containment=Containment(backend="none"))
    assert loose.run(rewrite, shell=True).ok
    # A warden that trusts the pointer would bind this directory.
    assert (linked / ".git").read_text() == f"gitdir: {outside}\n"
    for text in ("", f"{linked}/.git\n"):
        # And with a back pointer that names this project, but without a repository.
        if text:
            (outside / "gitdir").write_text(text)
        after = open_sandbox(project_root=str(linked))
        assert not after.run(show).ok
        assert not after.run(f"echo x > {outside}/new", shell=True).ok
    assert not (outside / "new").exists()
