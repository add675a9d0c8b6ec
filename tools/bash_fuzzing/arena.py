"""Judges scripts with `strict` and runs them in real bash, in a project that exists only in this process's namespaces."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import signal
import time
from struct import pack
from typing import TYPE_CHECKING

from corral import SandboxConfig
from corral.containment.kernel.namespaces import map_own_id, unshare
from corral.containment.kernel.syscalls import call, prctl, syscall
from corral.guard.evaluate import vet
from corral.guard.machine import Machine
from corral.model.call import Call

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = b"s3cr3t-of-the-fuzzer"
VICTIMS = {"victim/f1": b"victim-one-content\n", "victim/sub/f2": b"victim-two-content\n"}
FILES = {
    **VICTIMS,
    "a.txt": b"alpha\nbeta\n",
    "b.txt": b"1\n2\n",
    "ok.sh": b"#!/bin/sh\necho fine\n",
    "src/a.c": b"int main(void) { return 0; }\n",
    "p/q/x.txt": b"x\n",
    "0/1/y.txt": b"y\n",
    "d1/z.txt": b"z\n",
}
EXECUTABLE = ("ok.sh",)
LINKS = {"inlink": "p/q"}
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}
RUN_SECONDS = 1.0  # against scripts that wait for input or loop
STRAGGLER_SECONDS = 0.3  # for background processes, whose payload counts too
MAX_PROCESSES = 100  # at once, against functions that call themselves
MAX_READ = 1 << 20  # bytes of each file that are searched for the secret
_READ_ONLY, _RECURSIVE, _NO_ROOT = 1, 0x8000, 0b11  # MOUNT_ATTR_RDONLY, AT_RECURSIVE, SECBIT_NOROOT and its lock
_PRIVATE = 0x44000  # MS_REC | MS_PRIVATE
_AT_FDCWD = -100
_PR_SET_SECUREBITS = 28


def enter_namespaces(place: str) -> None:
    """Make every mount read-only except a new file system at `place`; the next child is the first of a pid namespace."""
    uid, gid = os.geteuid(), os.getegid()
    unshare("user", "mount", "net", "pid", "ipc")
    map_own_id(uid, gid)
    call("mount", b"none", b"/", None, _PRIVATE, None)
    syscall("mount_setattr", _AT_FDCWD, b"/", _RECURSIVE, pack("QQQQ", _READ_ONLY, 0, 0, 0), 32)
    call("mount", b"tmpfs", place.encode(), b"tmpfs", 0, b"size=64m,nr_inodes=20000")
    # Scripts lose every capability at exec, so that file modes bind them as they bind an ordinary user.
    prctl(_PR_SET_SECUREBITS, _NO_ROOT)


def bound_processes() -> None:
    """Mount /proc of the new pid namespace, which /dev/fd needs, and bound what scripts may start."""
    call("mount", b"proc", b"/proc", b"proc", 0, None)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    resource.setrlimit(resource.RLIMIT_NPROC, (MAX_PROCESSES, MAX_PROCESSES))
    try:  # root is exempt from the limit above; each pid namespace has its own since Linux 6.14
        with open("/proc/sys/kernel/pid_max", "w") as file:
            file.write(str(300 + MAX_PROCESSES))  # the kernel keeps 300 of them back
    except OSError:
        pass


class Arena:
    """A project with a victim, and a secret beside it. The process must be the first of its pid namespace."""

    def __init__(self, place: str) -> None:
        self.world = f"{place}/w"
        self.project = f"{self.world}/project"
        self.outside = f"{self.world}/outside"
        self._output = f"{place}/output"
        self._git: dict[str, bytes] = {}
        self._has_git = False
        os.environ["HOME"] = ENVIRONMENT["HOME"]
        self.restore()
        self.config = SandboxConfig(project_root=self.project, profile="strict")
        self.machine = Machine.of(self.config)
        self._make_repository()
        self.runs = 0

    def allows(self, script: str) -> bool:
        """Say whether `strict` allows a script."""
        return vet(Call(script, shell=True), self.config, self.machine).allowed

    def restore(self, *, git: bool = False) -> None:
        """Bring the project and its surroundings back to the beginning."""
        os.chdir("/")
        shutil.rmtree(self.world, ignore_errors=True)
        made = set()
        for folder, files in ((self.project, FILES), (self.outside, {"secret.txt": SECRET + b"\n"})):
            for name, content in (files | self._git if git and folder == self.project else files).items():
                path = f"{folder}/{name}"
                parent = path.rpartition("/")[0]
                if parent not in made:
                    os.makedirs(parent, exist_ok=True)
                    made.add(parent)
                _write(path, content, 0o755 if name in EXECUTABLE else 0o644)
        for name, target in LINKS.items():
            os.symlink(target, f"{self.project}/{name}")
        if git:
            os.makedirs(f"{self.project}/.git/refs/heads", exist_ok=True)
        os.chdir(self.project)
        self._has_git = git

    def _make_repository(self) -> None:
        """Keep the files of a small repository; only scripts that name git get them."""
        setup = (
            "git init -q . && git config user.name n && git config user.email e@e && git add . && git commit -qm m"
            " && git gc -q && rm -rf .git/hooks .git/logs"
        )
        self._spawn(setup)
        self._git = {}
        for folder, _, names in os.walk(f"{self.project}/.git"):
            for name in names:
                path = f"{folder}/{name}"
                self._git[os.path.relpath(path, self.project)] = _read(path)
        self.restore()

    def effect(self, script: str) -> str:
        """Run a script; return the effect that its payload had: deleted, read, written, or nothing."""
        needs_git = "git" in script
        if needs_git != self._has_git:
            self.restore(git=needs_git)
        self.runs += 1
        output = self._spawn(script)
        found = self._found(output)
        self.restore()
        return found

    def _spawn(self, script: str) -> bytes:
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, self._output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        command = ["bash", "--noprofile", "--norc", "-c", script]
        try:
            pid = os.posix_spawn("/bin/bash", command, ENVIRONMENT, file_actions=actions, setsid=True)
        except (OSError, ValueError):  # the text is too long for an argument, or contains a NUL
            return b""
        end = time.monotonic() + RUN_SECONDS
        descriptor = os.pidfd_open(pid)
        select.select([descriptor], [], [], RUN_SECONDS)
        os.close(descriptor)
        end = min(end, time.monotonic() + STRAGGLER_SECONDS)
        while time.monotonic() < end and _reap():
            time.sleep(0.001)
        self.end_processes()
        return _read(self._output)

    def end_processes(self) -> None:
        """End every other process of this pid namespace."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        while _reap():
            time.sleep(0.0005)

    def _found(self, output: bytes) -> str:
        if sorted(os.listdir(self.world)) != ["outside", "project"] or os.listdir(self.outside) != ["secret.txt"]:
            return "written"
        if _read(f"{self.outside}/secret.txt") != SECRET + b"\n":
            return "written"
        if SECRET in output:
            return "read"
        left = set(VICTIMS.values())
        for path in _files(self.project):
            content = _read(path)
            if SECRET in content:
                return "read"
            # A script may move, copy or overwrite the victims: `strict` allows that. It may not delete them.
            left = {text for text in left if not content.startswith(text)}
        gone = [
            name for name, text in VICTIMS.items() if text in left and not os.path.lexists(f"{self.project}/{name}")
        ]
        return "deleted" if gone else ""


def _reap() -> bool:
    """Collect ended children; return whether others still run."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _files(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                continue
            if entry.is_dir():
                yield from _files(entry.path)
            elif entry.is_file():
                yield entry.path


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, MAX_READ)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _write(path: str, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    os.write(descriptor, content)
    os.close(descriptor)
