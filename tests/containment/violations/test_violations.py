"""Violations are inferred from error messages: a corpus of messages, then real programs that the kernel refuses."""

import os
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral import Containment, Limits, Sandbox, SandboxConfig, SandboxResult, Violation
from corral.containment.filesystem import view
from corral.containment.filesystem.view import View
from corral.containment.layers import LAYERS
from corral.containment.violations.detect import MAX_VIOLATIONS, infer_from_output, limit_hit
from golden import check

IS_ROOT = os.geteuid() == 0
NETWORK = "containment.network = 'on'"


def granting(destination: str) -> str:
    return f'containment.network = ["{destination}"]'


Place = tuple[SandboxConfig, View, dict[str, str]]


@pytest.fixture
def place(project: Path, outside: Path, tmp_path: Path) -> Place:
    """A project with a repository, a visible directory beside it, and a hidden directory."""
    for folder in (".git/hooks", "src", "sub"):
        (project / folder).mkdir(parents=True)
    for name in (".git/config", ".git/HEAD", ".git/hooks/pre-commit", "src/main.py", "locked"):
        (project / name).write_text("x")
    (project / "locked").chmod(0)
    shown, home = tmp_path / "shown", tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_rsa").write_text("key")
    (home / "notes").write_text("x")
    shown.mkdir()
    (shown / "file").write_text("x")
    config = SandboxConfig(str(project), containment=Containment(read=(str(shown),)))
    seen = view.build_view(config, {"HOME": str(home), "PATH": "/usr/bin:/bin"})
    return config, seen, {"P": str(project), "S": str(shown), "H": str(outside), "HOME": str(home)}


def inferred(place: Place, said: str, cwd: str = "", missing: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
    """Return kind, target and grant of the inferred violations, with paths replaced by their letters."""
    config, seen, names = place
    found = infer_from_output(_filled(said, names).encode(), _filled(cwd or "{P}", names), seen, config, missing)
    assert all(violation.inferred for violation in found)
    assert all("\n" not in violation.text for violation in found)
    return [(v.kind, _lettered(v.target, names), _lettered(v.grant, names)) for v in found]


def _filled(text: str, names: dict[str, str]) -> str:
    for letter, path in names.items():
        text = text.replace(f"{{{letter}}}", path)
    return text


def _lettered(text: str, names: dict[str, str]) -> str:
    for letter, path in names.items():
        text = text.replace(path, f"{{{letter}}}")
    return text


WRITE = "containment.write = ['{S}']"
WRITE_FILE = "containment.write = ['{S}/file']"
NEW = ("write-outside", "{S}/x", WRITE)
OLD = ("write-outside", "{S}/file", WRITE_FILE)
SEEN = ("hidden", "{H}/secret", "containment.read = ['{H}/secret']")

REFUSED = {
    "touch": ("touch: cannot touch '{S}/x': Read-only file system", NEW),
    "a redirect of bash": ("bash: line 1: {S}/x: Read-only file system", NEW),
    "a redirect of dash": ("sh: 1: cannot create {S}/x: Read-only file system", NEW),
    "a redirect of zsh": ("zsh:1: read-only file system: {S}/x", NEW),
    "mkdir in its own quotes": ("mkdir: cannot create directory ‘{S}/x’: Read-only file system", NEW),
    "cp": ("cp: cannot create regular file '{S}/x': Read-only file system", NEW),
    "mv": ("mv: inter-device move failed: 'src/main.py' to '{S}/x'; unable to remove target: Read-only file system", NEW),
    "ln": ("ln: failed to create symbolic link '{S}/x': Read-only file system", NEW),
    "rm": ("rm: cannot remove '{S}/file': Read-only file system", OLD),
    "rm by a relative path": ("rm: cannot remove '../shown/file': Read-only file system", OLD),
    "chmod": ("chmod: changing permissions of '{S}/file': Read-only file system", OLD),
    "chown": ("chown: changing ownership of '{S}/file': Read-only file system", OLD),
    "sed": ("sed: couldn't open temporary file {S}/x: Read-only file system", NEW),
    "tee": ("tee: {S}/x: Read-only file system", NEW),
    "dd": ("dd: failed to open '{S}/x': Read-only file system", NEW),
    "tar": ("tar: {S}/x: Cannot open: Read-only file system\ntar: Error is not recoverable: exiting now", NEW),
    "tar in another directory": ("tar: x: Cannot open: Read-only file system", ("write-outside", "", "containment.write")),
    "the linker": ("/usr/bin/ld: cannot open output file {S}/x: Read-only file system\ncollect2: error: ld returned 1 exit status", NEW),
    "the assembler": ("Assembler messages:\nFatal error: can't create {S}/x: Read-only file system", NEW),
    "python": ("Traceback (most recent call last):\n  File \"<string>\", line 1, in <module>\nOSError: [Errno 30] Read-only file system: '{S}/x'", NEW),
    "python of two paths": ("OSError: [Errno 30] Read-only file system: '{P}/src/main.py' -> '{S}/x'", NEW),
    "node": ("Error: EROFS: read-only file system, open '{S}/x'\n    at Object.openSync (node:fs:601:3)", NEW),
    "go": ("open {S}/x: read-only file system", NEW),
    "rust": ("error: failed to write {S}/x: Read-only file system (os error 30)", NEW),
    "java": ("java.io.FileNotFoundException: {S}/x (Read-only file system)", NEW),
    "ruby": ("-e:1:in `initialize': Read-only file system @ rb_sysopen - {S}/x (Errno::EROFS)", NEW),
    "perl that names nothing": ("Read-only file system at -e line 1.", ("write-outside", "", "containment.write")),
    "git init": ("fatal: cannot mkdir {S}/x: Read-only file system", NEW),
    "git clone": ("fatal: could not create work tree dir '{S}/x': Read-only file system", NEW),
    "a path with a blank": ("cp: cannot create regular file '{S}/a b': Read-only file system", ("write-outside", "{S}/a b", WRITE)),
    "the root": ("touch: cannot touch '/corral-new': Read-only file system", ("write-outside", "/corral-new", "")),
    "a hook": ("bash: line 1: .git/hooks/pre-commit: Read-only file system", ("protected", "{P}/.git/hooks/pre-commit", "")),
    "a new hook": ("bash: line 1: .git/hooks/post-merge: Read-only file system", ("protected", "{P}/.git/hooks/post-merge", "")),
    "the repository": ("mv: cannot move '.git' to '.gitx': Device or resource busy", ("protected", "{P}/.git", "")),
    "cat of a hidden file": ("cat: {H}/secret: No such file or directory", SEEN),
    "ls of a hidden file": ("ls: cannot access '{H}/secret': No such file or directory", SEEN),
    "python that opens a hidden file": ("FileNotFoundError: [Errno 2] No such file or directory: '{H}/secret'", SEEN),
    "node that opens a hidden file": ("Error: ENOENT: no such file or directory, open '{H}/secret'", SEEN),
    "java that opens a hidden file": ("java.nio.file.NoSuchFileException: {H}/secret", SEEN),
    "a program that is hidden": ("bash: line 1: {H}/secret: No such file or directory", SEEN),
    "a file of the user's home": ("cat: {HOME}/notes: No such file or directory", ("hidden", "{HOME}/notes", "containment.read = ['{HOME}/notes']")),
    "a key of the user": ("Load key \"{HOME}/.ssh/id_rsa\": No such file or directory", ("hidden", "{HOME}/.ssh/id_rsa", "")),
}  # fmt: skip

CUT_OFF = {
    "curl": ("curl: (6) Could not resolve host: example.org", "example.org"),
    "curl by address": ("curl: (7) Failed to connect to 192.0.2.1 port 80 after 0 ms: Couldn't connect to server", "192.0.2.1:80"),
    "curl by an address of IPv6": ("curl: (7) Failed to connect to 2001:db8::1 port 80 after 0 ms: Couldn't connect to server", "[2001:db8::1]:80"),
    "wget": ("wget: unable to resolve host address ‘example.org’", "example.org"),
    "wget by address": ("Connecting to 192.0.2.1:80... failed: Network is unreachable.", "192.0.2.1:80"),
    "wget of busybox": ("wget: bad address 'example.org'", "example.org"),
    "git by https": ("fatal: unable to access 'https://example.org/x/': Could not resolve host: example.org", "example.org"),
    "git by ssh": ("ssh: Could not resolve hostname example.org: Temporary failure in name resolution\nfatal: Could not read from remote repository.", "example.org"),
    "git's own protocol": ("fatal: unable to look up example.org (port 9418) (Temporary failure in name resolution)", "example.org"),
    "ssh by address": ("ssh: connect to host 192.0.2.1 port 22: Network is unreachable", "192.0.2.1:22"),
    "old pip": ("WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError('<x>: Failed to establish a new connection: [Errno -3] Temporary failure in name resolution')': /simple/x/", ""),
    "new pip": ("WARNING: Retrying after connection broken by 'NameResolutionError(\"HTTPSConnection(host='pypi.example', port=443): Failed to resolve 'pypi.example' ([Errno -3] Temporary failure in name resolution)\")'", "pypi.example"),
    "requests": ("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='example.org', port=443): Max retries exceeded (Caused by NewConnectionError('<x>: Failed to establish a new connection: [Errno 101] Network is unreachable'))", "example.org:443"),
    "npm": ("npm error code EAI_AGAIN\nnpm error request to https://registry.example/x failed, reason: getaddrinfo EAI_AGAIN registry.example", "registry.example"),
    "node": ("Error: getaddrinfo ENOTFOUND example.org", "example.org"),
    "node by address": ("Error: connect ENETUNREACH 192.0.2.1:80 - Local (0.0.0.0:0)", "192.0.2.1:80"),
    "python": ("socket.gaierror: [Errno -3] Temporary failure in name resolution", ""),
    "python by address": ("OSError: [Errno 101] Network is unreachable", ""),
    "apt": ("W: Failed to fetch http://deb.example/x  Temporary failure resolving 'deb.example'", "deb.example"),
    "go": ("go: x: dial tcp: lookup proxy.example: Temporary failure in name resolution", "proxy.example"),
    "go without a resolver": ("dial tcp: lookup proxy.example on [::1]:53: read udp [::1]:1->[::1]:53: read: connection refused", "proxy.example"),
    "go by address": ("dial tcp 192.0.2.1:443: connect: network is unreachable", "192.0.2.1:443"),
    "cargo": ("[6] Couldn't resolve host name (Could not resolve host: index.example)", "index.example"),
    "java": ("java.net.UnknownHostException: example.org", "example.org"),
    "psql": ("psql: error: could not translate host name \"db.example\" to address: Temporary failure in name resolution", "db.example"),
    "gRPC": ("details = \"DNS resolution failed for rpc.example:50051: C-ares status is not ARES_SUCCESS\"", "rpc.example:50051"),
    "ping": ("ping: example.org: Temporary failure in name resolution", "example.org"),
}  # fmt: skip

# The system call, and whether only root may use it outside the sandbox too.
CLOSED = {
    "unshare": ("unshare: unshare failed: Operation not permitted", "unshare", False),
    "bubblewrap": ("bwrap: Creating new namespace failed: Operation not permitted", "unshare", False),
    "bubblewrap of old": ("bwrap: No permissions to create new namespace, likely because the kernel does not allow it", "unshare", False),
    "nsenter": ("nsenter: cannot open /proc/1/ns/mnt: Operation not permitted", "setns", True),
    "mount": ("mount: /tmp: permission denied.\n       dmesg(1) may have more information after failed mount system call.", "mount", True),
    "umount": ("umount: /proc: must be superuser to unmount.", "mount", True),
    "chroot": ("chroot: cannot change root directory to '/': Operation not permitted", "chroot", True),
    "gdb": ("warning: Could not trace the inferior process.\nwarning: ptrace: Operation not permitted", "ptrace", False),
    "strace": ("strace: test_ptrace_get_syscall_info: PTRACE_TRACEME: Operation not permitted", "ptrace", False),
    "strace of a process": ("strace: attach: ptrace(PTRACE_SEIZE, 1): Operation not permitted", "ptrace", False),
    "perf": ("Error:\nNo permission to enable task-clock event.", "perf_event_open", False),
    "perf record": ("perf_event_open(..., 0) failed unexpectedly with error 1 (Operation not permitted)", "perf_event_open", False),
    "io_uring": ("io_uring_queue_init: Function not implemented", "io_uring_setup", False),
    "userfaultfd": ("userfaultfd: Operation not permitted", "userfaultfd", False),
    "keyctl": ("keyctl_read_alloc: Operation not permitted", "keyctl", False),
    "dmesg": ("dmesg: read kernel buffer failed: Operation not permitted", "syslog", True),
    "date": ("date: cannot set date: Operation not permitted", "clock_settime", True),
    "hostname": ("hostname: you must be root to change the host name", "sethostname", True),
    "su": ("su: cannot set groups: Operation not permitted", "setuid", True),
    "sudo": ('sudo: The "no new privileges" flag is set, which prevents sudo from running as root.', "setuid", True),
    "setcap": ("unable to set CAP_SETFCAP effective capability: Operation not permitted", "capset", True),
    "ip": ("RTNETLINK answers: Operation not permitted", "netlink", True),
    "mknod": ("mknod: n: Permission denied", "mknod", True),
    "modprobe": ("modprobe: ERROR: could not insert 'dummy': Operation not permitted", "init_module", True),
    "tcpdump": ("tcpdump: lo: You don't have permission to perform this capture on that device (socket: Operation not permitted)", "socket", True),
    "a 32-bit program": ("bash: line 1:   123 Bad system call         ./old", "foreign ABI", False),
    "a set-id file": ("chmod: changing permissions of 'src/main.py': Operation not permitted", "chmod", False),
    "a set-id file in an archive": ("tar: src/main.py: Cannot change mode to rwsr-xr-x: Operation not permitted", "chmod", False),
}  # fmt: skip

NOTHING = {
    "a file of the project that is locked": "cat: locked: Permission denied",
    "the same in quotes": "cat: '{P}/locked': Permission denied",
    "the same by python": "PermissionError: [Errno 13] Permission denied: '{P}/locked'",
    "a file of the project that is missing": "cat: missing: No such file or directory",
    "a header that is missing": "a.c:1:10: fatal error: foo.h: No such file or directory\ncompilation terminated.",
    "a file that is missing everywhere": "cat: /nonexistent/x: No such file or directory",
    "a file that is missing in a visible directory": "cat: {S}/missing: No such file or directory",
    "a file that is missing in the system": "ls: cannot access '/usr/share/corral-nothing': No such file or directory",
    "a file that is missing at the top": "make: /corral-nothing: No such file or directory",
    "a file that cannot be run": "bash: line 1: /etc/passwd: Permission denied",
    "a file of /tmp that was never made": "cat: /tmp/corral-nothing-here: No such file or directory",
    "a server that does not answer": "curl: (7) Failed to connect to 127.0.0.1 port 9 after 0 ms: Couldn't connect to server",
    "a server by name": "curl: (7) Failed to connect to localhost port 9 after 0 ms: Couldn't connect to server",
    "a server that python does not find": "urllib3.exceptions.NewConnectionError: HTTPConnectionPool(host='localhost', port=1): Failed to establish a new connection: [Errno 111] Connection refused",
    "an exception of a similar name": "FileNotFoundError: no spectrum was given",
    "an address in memory": "write: Bad address",
    "a limit of the shell": "bash: line 1: ulimit: open files: cannot modify limit: Operation not permitted",
    "a mount point that is busy": "umount: x: target is busy\nrm: cannot remove 'sub': Device or resource busy",
    "a program that tells of a read-only file system": "INFO: the tests of a read-only file system passed",
    "a process that is gone": "bash: line 1: kill: (123) - No such process",
    "a device": "cat: /dev/sda: No such file or directory",
    "a warning": "warning: unused variable 'permission'",
    "nothing at all": "",
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_path_names_the_grant_that_would_allow_it(name: str, place: Place) -> None:
    said, violation = REFUSED[name]
    assert inferred(place, said) == [violation]


@pytest.mark.parametrize("name", CUT_OFF)
def test_unreachable_host_is_named_if_the_message_names_it(name: str, place: Place) -> None:
    said, host = CUT_OFF[name]
    assert inferred(place, said) == [("network", host, granting(host) if ":" in host else NETWORK)]


@pytest.mark.parametrize("name", CLOSED)
def test_closed_call_is_reported_unless_it_needs_root(name: str, place: Place) -> None:
    said, call, needs_root = CLOSED[name]
    assert inferred(place, said) == ([("call", call, "")] if IS_ROOT or not needs_root else [])


@pytest.mark.parametrize("name", NOTHING)
def test_ordinary_error_is_no_violation(name: str, place: Place) -> None:
    assert inferred(place, NOTHING[name]) == []


def test_network_error_is_no_violation_with_network_on(place: Place) -> None:
    config, seen, _ = place
    granted = config.replace(containment=Containment(network="on"))
    assert [
        infer_from_output(said.encode(), config.project_root, seen, granted, ()) for said, _ in CUT_OFF.values()
    ] == [()] * len(CUT_OFF)


@pytest.mark.parametrize(
    "said", ["bash: line 1: {}: No such file or directory", "sh: 1: cannot create {}: Directory nonexistent"]
)
def test_new_file_in_hidden_directory_names_the_directory(said: str, place: Place) -> None:
    # Not below /tmp: that is the sandbox's own, so the host cannot tell which files the command saw.
    folder = next(path for path in ("/var/opt", "/var/local", "/boot") if os.path.isdir(path))
    assert inferred(place, said.format(f"{folder}/corral-new")) == [
        ("hidden", f"{folder}/corral-new", f"containment.read = ['{folder}']")
    ]


@pytest.mark.parametrize("path", ["/var/spool/corral-new", "/etc/shadow", "/root/.ssh/id_rsa"])
def test_ungrantable_path_names_no_grant(path: str, place: Place) -> None:
    for said in (f"cat: {path}: No such file or directory", f"touch: cannot touch '{path}': Read-only file system"):
        assert [grant for _, _, grant in inferred(place, said) if grant] == []


def test_relative_paths_of_git_start_at_the_project_root(place: Place) -> None:
    said = "error: could not write config file .git/config: Device or resource busy"
    assert inferred(place, said, cwd="{P}/sub") == [("protected", "{P}/.git/config", "")]


def test_files_of_one_directory_are_reported_once(place: Place) -> None:
    lines = [f"rm: cannot remove '.git/hooks/{name}': Read-only file system" for name in "abcdefgh"]
    assert inferred(place, "\n".join(lines)) == [("protected", "{P}/.git/hooks/a", "")]


def test_number_of_inferred_violations_is_limited(place: Place) -> None:
    lines = [f"curl: (6) Could not resolve host: host-{number}" for number in range(100)]
    assert len(inferred(place, "\n".join(lines))) == MAX_VIOLATIONS


def test_read_only_project_names_its_setting(place: Place) -> None:
    config, _, names = place
    config = config.replace(containment=Containment(project="read-only"))
    seen = view.build_view(config, {"HOME": names["HOME"], "PATH": "/usr/bin"})
    (violation,) = infer_from_output(
        b"touch: cannot touch 'x': Read-only file system", config.project_root, seen, config, ()
    )
    assert (violation.target, violation.grant) == (f"{names['P']}/x", "containment.project = 'read-write'")


if not IS_ROOT:  # root may write everywhere

    def test_what_the_user_could_not_write_outside_either_has_no_grant(place: Place) -> None:
        assert inferred(place, "touch: cannot touch '/usr/corral-new': Read-only file system") == [("write-outside", "/usr/corral-new", "")]  # fmt: skip


WITHOUT_MOUNTS = tuple(LAYERS)[:8]


@pytest.mark.parametrize(
    ("said", "violations"),
    [
        pytest.param("cat: {H}/secret: Permission denied", [SEEN], id="a file that Landlock keeps"),
        pytest.param("bash: line 1: {S}/file: Permission denied", [OLD], id="a file that may be read"),
        pytest.param("cat: {P}/locked: Permission denied", [], id="a locked file of the project"),
        pytest.param("cat: {H}/missing: No such file or directory", [], id="a file that is missing"),
        pytest.param(
            "OSError: [Errno 97] Address family not supported by protocol", [("network", "", NETWORK)], id="a socket"
        ),
    ],
)
def test_landlock_refusal_is_reported_without_mounts(
    place: Place, said: str, violations: list[tuple[str, str, str]]
) -> None:
    assert inferred(place, said, missing=WITHOUT_MOUNTS) == violations


@cache
def own_view() -> tuple[SandboxConfig, View]:
    """Return the view of a directory that exists on every machine."""
    config = SandboxConfig(str(Path(__file__).parent), limits=Limits(processes=5))
    return config, view.build_view(config, {"HOME": "/root", "PATH": "/usr/bin"})


@given(st.binary(max_size=400), st.lists(st.sampled_from([*REFUSED, *NOTHING]), max_size=3))
def test_no_output_breaks_the_inference(noise: bytes, names: list[str]) -> None:
    config, seen = own_view()
    lines = [(REFUSED[name][0] if name in REFUSED else NOTHING[name]).encode() for name in names]
    for said in (noise, b"\n".join([*lines, noise]), noise.join(lines)):
        found = infer_from_output(said, config.project_root, seen, config, ())
        assert all(violation.inferred and "\n" not in violation.text for violation in found)
        assert len(found) <= MAX_VIOLATIONS + 1


# Commands that the kernel refuses, and the violations in their results. {S} is read-only, {H} is hidden.
PROGRAMS = {
    "touch": ("touch {S}/x", [NEW]),
    "bash": ("echo a > {S}/x", [NEW]),
    "sh": ("sh -c 'echo a > {S}/x'", [NEW]),
    "mkdir": ("mkdir {S}/x", [NEW]),
    "cp": ("cp src/main.py {S}/x", [NEW]),
    "mv": ("mv src/main.py {S}/x", [NEW]),
    "ln": ("ln -s src {S}/x", [NEW]),
    "rm": ("rm {S}/file", [OLD]),
    "chmod": ("chmod 600 {S}/file", [OLD]),
    "tee": ("tee {S}/x < /dev/null", [NEW]),
    "dd": ("dd if=/dev/null of={S}/x", [NEW]),
    "install": ("install -m 644 src/main.py {S}/x", [NEW]),
    "tar": ("tar cf {S}/x src", [NEW]),
    "tar in another directory": ("tar cf a.tar src && tar xf a.tar -C {S}", [("write-outside", "", "containment.write")]),
    "gcc": ("echo 'int main(void){return 0;}' > a.c && gcc a.c -o {S}/x", [NEW]),
    "python3": ("python3 -c \"open('{S}/x', 'w')\"", [NEW]),
    "node": ("node -e \"require('fs').writeFileSync('{S}/x', '')\"", [NEW]),
    "perl": ("perl -e 'open(F, \">\", \"{S}/x\") or die \"cannot open {S}/x: $!\\n\"'", [NEW]),
    "git init": ("git init -q {S}/x", [NEW]),
    "a hook": ("echo x > .git/hooks/pre-commit", [("protected", "{P}/.git/hooks/pre-commit", "")]),
    "the repository": ("mv .git old", [("protected", "{P}/.git", "")]),
    "cat": ("cat {H}/secret", [SEEN]),
    "ls": ("ls {H}", [("hidden", "{H}", "containment.read = ['{H}']")]),
    "grep": ("grep x {H}/secret", [SEEN]),
    "find": ("find {H}/secret", [SEEN]),
    "errors among the output": ("touch {S}/x 2>&1 | cat", [NEW]),
    "curl": ("curl -sS --noproxy '*' http://example.invalid/", [("network", "example.invalid", granting("example.invalid:PORT"))]),
    "curl by address": ("curl -sS --noproxy '*' http://192.0.2.1/", [("network", "192.0.2.1:80", granting("192.0.2.1:80"))]),
    "wget": ("wget --no-proxy -T 2 -t 1 http://192.0.2.1/", [("network", "192.0.2.1:80", granting("192.0.2.1:80"))]),
    "git clone": ("git -c http.proxy= clone -q https://example.invalid/x y", [("network", "example.invalid", granting("example.invalid:PORT"))]),
    "ssh": ("ssh -o BatchMode=yes example.invalid", [("network", "example.invalid", granting("example.invalid:PORT"))]),
    "npm": ("npm view x --noproxy registry.invalid --registry http://registry.invalid", [("network", "registry.invalid", granting("registry.invalid:PORT"))]),
    "unshare": ("unshare -U true", [("call", "unshare", "")]),
    "perf": ("perf stat true", [("call", "perf_event_open", "")]),
    "chmod to set-uid": ("chmod u+s src/main.py", [("call", "chmod", "")]),
    "a locked file": ("cat locked", []),
    "a missing file": ("cat missing", []),
    "a server that is not running": ("curl -sS http://127.0.0.1:9/", []),
    "a program of a read-only directory": ("ls /usr/share > /dev/null", []),
}  # fmt: skip
OF_ROOT = {
    "mount": ("mount -t tmpfs x /tmp", "mount"),
    "umount": ("umount /proc", "mount"),
    "chroot": ("chroot / true", "chroot"),
    "dmesg": ("dmesg", "syslog"),
    "mknod": ("mknod n c 1 3", "mknod"),
    "date": ("date -s @1", "clock_settime"),
}


@pytest.fixture
def working(place: Place, open_sandbox: Callable[..., Sandbox]) -> Sandbox:
    """A sandbox for the project, with a grant to read the visible directory."""
    names = place[2]
    shutil.rmtree(f"{names['P']}/.git")
    loose = open_sandbox(containment=Containment(backend="none"))
    loose.run(["git", "init", "-q", "."])
    return open_sandbox(containment=Containment(read=(names["S"],)))


def really(working: Sandbox, place: Place, command: str) -> SandboxResult:
    names = place[2]
    program = command.split(maxsplit=1)[0]
    if working.run(["sh", "-c", f"command -v {program}"]).exit_code != 0:
        pytest.skip(f"{program} is not installed")
    return working.run(_filled(command, names), shell=True, timeout_seconds=30)


@pytest.mark.parametrize("name", PROGRAMS)
def test_refused_program_gets_its_violation(name: str, working: Sandbox, place: Place) -> None:
    command, violations = PROGRAMS[name]
    result = really(working, place, command)
    names = place[2]
    found = [(v.kind, _lettered(v.target, names), _lettered(v.grant, names)) for v in result.violations]
    assert found == violations, result.stderr_text
    # The responder refuses a name itself.
    assert all(v.inferred is not v.grant.endswith(':PORT"]') for v in result.violations)
    assert result.hint == (result.violations[0].text if violations else "")


@pytest.mark.skipif(not IS_ROOT, reason="for an ordinary user these are closed outside too")
@pytest.mark.parametrize("name", OF_ROOT)
def test_refused_program_of_root_gets_its_violation(name: str, working: Sandbox, place: Place) -> None:
    command, call = OF_ROOT[name]
    result = really(working, place, command)
    assert [(v.kind, v.target, v.grant) for v in result.violations] == [("call", call, "")], result.stderr_text


def test_named_grant_allows_the_access(working: Sandbox, place: Place, open_sandbox: Callable[..., Sandbox]) -> None:
    names = place[2]
    (refused,) = working.run(["touch", f"{names['S']}/x"]).violations
    assert refused.grant == f"containment.write = ['{names['S']}']"
    assert open_sandbox(containment=Containment(write=(names["S"],))).run(["touch", f"{names['S']}/x"]).ok
    (hidden,) = working.run(["cat", f"{names['H']}/secret"]).violations
    assert hidden.grant == f"containment.read = ['{names['H']}/secret']"
    assert open_sandbox(containment=Containment(read=(f"{names['H']}/secret",))).run(["cat", f"{names['H']}/secret"]).ok


def test_hint_is_the_first_violation_as_one_line(place: Place, working: Sandbox) -> None:
    path = place[2]["S"]
    result = working.run(["touch", f"{path}/x"])
    line = result.violations[0].text
    assert (result.hint, result.to_dict()["hint"], "\n" in line) == (line, line, False)
    more = result.replace(violations=result.violations * 3)
    assert more.hint == f"{line} (and 2 more)"


TEXTS = [
    *("touch", "tar in another directory", "the root", "a hook", "the repository", "cat of a hidden file"),
    "a key of the user",
]


def test_wording_of_inferred_violations(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # Some system calls are reported only to root.
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "access", lambda *_: True)
    config, seen, names = place
    named = config.replace(containment=config.containment.replace(network=("b.example:443",)))
    cases: list[tuple[str, SandboxConfig, tuple[str, ...]]] = [
        *((REFUSED[name][0], config, ()) for name in TEXTS),
        ("touch: cannot touch '/proc/sys/x': Read-only file system", config, ()),
        ("cat: {H}/secret: Permission denied", config, WITHOUT_MOUNTS),
        *((f"curl: (6) Could not resolve host: {host}", each, ()) for host, each in (("a.example", config), ("a.example", named), ("b.example", named))),
        *((line, config, ()) for line, _, _ in CLOSED.values()),
        ("ERROR: Cannot connect to the Docker daemon at unix:///dev/null. Is the docker daemon running?", config, ()),
    ]  # fmt: skip
    texts = [
        _lettered(violation.text, names)
        for line, each, missing in cases
        for violation in infer_from_output(_filled(line, names).encode(), names["P"], seen, each, missing)
    ]
    check("violations", "inferred from output", "\n".join(dict.fromkeys(texts)))


def test_wording_of_limits() -> None:
    limits = Limits(processes=5, memory_bytes=0.5, open_files=9)
    found = [
        limit_hit(f"{name}-limit", field, limits, inferred=False).text
        for name, field in (("process", "processes"), ("memory", "memory_bytes"), ("open-files", "open_files"))
    ]
    check("violations", "limits", "\n".join(found))


def test_violation_text_is_one_line() -> None:
    assert Violation("silence").text == "silence."
    assert (
        Violation("planted", "/p/.envrc", "it was moved", "Leave it.").text
        == "planted: /p/.envrc: it was moved. Leave it."
    )


def test_hint_of_a_denied_call_is_its_reason(box: Sandbox) -> None:
    result = box.run(["sudo", "ls"])
    assert (result.denied, result.hint) == (True, result.reason)
    assert result.hint


def test_python_traceback_names_the_refused_path(working: Sandbox, place: Place) -> None:
    result = working.run([sys._base_executable, "-c", f"import os; os.mkdir({place[2]['S'] + '/x'!r})"])
    assert [(v.kind, v.target) for v in result.violations] == [("write-outside", f"{place[2]['S']}/x")]
