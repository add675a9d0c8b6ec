"""Creates the targets of the attacks: files, a process with servers, shared memory. Removes them at the end."""

from __future__ import annotations

import json
import os
import shutil
import sys

from corral.containment.filesystem.temp_dirs import STANDARD, why_unsafe
from corral.containment.kernel.syscalls import libc
from corral.guard.toolchains import is_system
from corral.model.errors import ContainmentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from corral.runtime.handle import Handle
    from corral.sandbox import Sandbox

PYTHON = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]  # there since 3.3
_IPC_CREAT, _IPC_EXCL, _IPC_RMID = 0o1000, 0o2000, 0
_SHARED_MEMORY = "/dev/shm"  # noqa: S108  a kernel file system; the file name is random
_MAX_LINE_BYTES = 4096
# Answers on TCP, UDP and two Unix sockets until it is killed.
_SERVER = """
import json, os, select, socket, sys
tcp = socket.create_server(("127.0.0.1", 0))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("127.0.0.1", 0))
names = sys.argv[2], chr(0) + sys.argv[1]
by_path, by_name = (socket.socket(socket.AF_UNIX) for _ in names)
for server, name in zip((by_path, by_name), names):
    server.bind(name)
    server.listen()
about = {"pid": os.getpid(), "tcp": tcp.getsockname()[1], "udp": udp.getsockname()[1]}
print(json.dumps(about | {"socket": sys.argv[2], "abstract": sys.argv[1]}), flush=True)
while True:
    for ready in select.select([tcp, udp, by_path, by_name], [], [])[0]:
        if ready is udp:
            udp.sendto(*udp.recvfrom(100))
        else:
            ready.accept()[0].close()
"""


MAX_BASE_BYTES = 70  # the path of a Unix socket has at most 107


def make_outside_directory(reachable: Iterable[str]) -> str:
    """Create a temporary directory that no command should reach."""
    known = [os.path.realpath(path) for path in reachable]
    for candidate in (os.environ.get("TMPDIR", ""), *STANDARD, os.path.expanduser("~")):
        base = os.path.realpath(candidate) if candidate.startswith("/") else ""
        if not base or len(os.fsencode(base)) > MAX_BASE_BYTES:
            continue
        if not why_unsafe(base, known) and not is_system(base):
            path = f"{base}/corral-selftest-{os.urandom(8).hex()}"
            os.mkdir(path, 0o700)
            return path
    raise ContainmentError(
        "there is no safe directory for temporary files. Set TMPDIR to a directory of your own, outside all projects "
        f"and outside all grants, of at most {MAX_BASE_BYTES} bytes"
    )


class Targets:
    """The targets of one selftest. They are removed when the block ends."""

    def __init__(self, place: str, uncontained: Sandbox) -> None:
        self.place = place
        self.canary = f"corral-canary-{os.getpid()}-{os.urandom(8).hex()}"
        self._uncontained = uncontained
        self._server: Handle | None = None
        self._segment = -1
        self._shared = f"{_SHARED_MEMORY}/{self.canary}"
        self._count = 0
        self._facts: dict[str, object] = {}

    def __enter__(self) -> Self:
        self._facts = {"canary": self.canary, "shared": self._shared, "key": int.from_bytes(os.urandom(3)) + 1}
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self) -> None:
        self._segment = libc.shmget(self._facts["key"], 4096, _IPC_CREAT | _IPC_EXCL | 0o600)
        if os.path.isdir(_SHARED_MEMORY):
            _write(self._shared, self.canary)
        self._server = self._uncontained.start(
            [PYTHON, "-I", "-S", "-c", _SERVER, self.canary, f"{self.place}/socket"], env={"CANARY": self.canary}
        )
        line = b""
        for _, data in self._server:
            line += data
            if line.endswith(b"\n") or len(line) > _MAX_LINE_BYTES:
                break
        self._facts |= json.loads(line)

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        if self._segment >= 0:
            libc.shmctl(self._segment, _IPC_RMID, None)
        if os.path.exists(self._shared):
            os.unlink(self._shared)

    def fresh(self) -> dict[str, object]:
        """Create files for one more attack and return the facts that its program gets."""
        self._count += 1
        outside = f"{self.place}/{self._count}"
        # Outside the target directory, because files that a command creates here are not a success.
        room = f"{outside}-room"
        os.mkdir(outside)
        os.mkdir(room)
        _write(f"{outside}/secret", self.canary)
        _write(f"{outside}/program", "#!/bin/sh\nexit 42\n")
        os.chmod(f"{outside}/program", 0o700)
        named = {"secret": f"{outside}/secret", "program": f"{outside}/program", "room": room}
        return self._facts | {"outside": outside} | named


def snapshot(folder: str) -> dict[str, tuple[int, int, bytes]]:
    """Return the mode, time and content of every file below a directory."""
    found: dict[str, tuple[int, int, bytes]] = {}
    for above, directories, names in os.walk(folder):
        for name in (*directories, *names):
            path = f"{above}/{name}"
            about = os.lstat(path)
            held = b""
            if name in names and not os.path.islink(path):
                with open(path, "rb") as file:
                    held = file.read()
            found[path] = (about.st_mode, about.st_mtime_ns, held)
    return found


def make_project(folder: str) -> None:
    """Reset the content of a project. The directory stays the same, because a sandbox has mounted it."""
    os.makedirs(folder, exist_ok=True)
    for entry in os.scandir(folder):
        shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)
    for name in ("hooks", "objects", "refs/heads"):
        os.makedirs(f"{folder}/.git/{name}")
    _write(f"{folder}/.git/HEAD", "ref: refs/heads/main\n")
    _write(f"{folder}/.git/config", "[core]\n\trepositoryformatversion = 0\n")


def _write(path: str, text: str) -> None:
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
