"""Starts Docker's daemon for tests, and makes an image from the programs of this machine. Nothing is downloaded."""

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from observe import DEADLINE_SECONDS, eventually

import corral

IMAGE = "corral-test"
_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_EMPTY = ("proc", "sys", "dev", "tmp", "run", "usr", "etc", "opt", "var", "home", "home/user", "work")
USER = ["--user", "1000:1000", "-e", "HOME=/home/user", "-w", "/work"]


class EngineError(Exception):
    """Raised if an engine does not start on this machine."""


def rootfs(archive: Path) -> None:
    """Write the directories of an image to a tar file. Its programs come from `shared_options`."""
    with tarfile.open(archive, "w") as tar:
        for name in _EMPTY:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name in ("tmp", "work", "home/user") else 0o755
            tar.addfile(entry)
        for name in _TOP:
            if Path("/", name).is_symlink():
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(f"/{name}").lstrip("/")
                tar.addfile(entry)


def shared_options() -> list[str]:
    """Return the options that show this machine's programs, Python and corral in a container, read-only."""
    own = [os.path.realpath(sys.base_prefix), sys.prefix, str(Path(corral.__file__).parents[1])]
    tops = [f"/{name}" for name in _TOP if Path("/", name).is_dir() and not Path("/", name).is_symlink()]
    paths = ["/usr", "/etc", *tops, *(path for path in own if not path.startswith("/usr/"))]
    return [word for path in dict.fromkeys(paths) for word in ("-v", f"{path}:{path}:ro")]


class Engine:
    """A container engine that runs commands in the image."""

    def __init__(self, command: list[str], environ: dict[str, str], options: list[str]) -> None:
        self.command = command
        self.environ = environ
        self.options = [*options, *shared_options()]

    def run(
        self, *options: str, command: list[str], words: list[str] | None = None, image: str = IMAGE
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a new container. `words` replaces the engine's own `run`."""
        start = [*self.command, "run"] if words is None else words
        line = [*start, "--rm", *self.options, *options, image, *command]
        return subprocess.run(line, env=self.environ, capture_output=True, text=True, check=False)


@contextmanager
def docker(place: Path) -> Iterator[Engine]:
    """Start a daemon of its own, without networks, and load the image."""
    socket = place / "docker.sock"
    words = [
        "dockerd",
        "--data-root",
        str(place / "data"),
        "--exec-root",
        str(place / "exec"),
        "-H",
        f"unix://{socket}",
    ]
    words += [
        "--pidfile",
        str(place / "pid"),
        "--storage-driver",
        "vfs",
        "--bridge",
        "none",
        "--iptables=false",
        "--ip6tables=false",
    ]
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(place)}
    with (place / "log").open("wb") as log:
        daemon = subprocess.Popen(
            words, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        client = ["docker", "-H", f"unix://{socket}"]

        def answers() -> bool:
            if daemon.poll() is not None:
                raise EngineError((place / "log").read_text()[-2000:])
            return subprocess.run([*client, "version"], env=environ, capture_output=True, check=False).returncode == 0

        eventually(answers)
        rootfs(place / "image.tar")
        subprocess.run(
            [*client, "import", str(place / "image.tar"), IMAGE], env=environ, capture_output=True, check=True
        )
        yield Engine(client, environ, ["--network", "none", *USER])
    finally:
        daemon.terminate()
        daemon.wait(DEADLINE_SECONDS)


def podman(place: Path) -> Engine:
    """Set up a store of its own, and load the image. runc, because crun refuses machines with both versions of cgroups."""
    storage, settings = place / "storage.conf", place / "containers.conf"
    storage.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{place}/data"\nrunroot = "{place}/run"\n')
    settings.write_text(
        '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n'
        '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
    )
    environ = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(place),
        "CONTAINERS_STORAGE_CONF": str(storage),
        "CONTAINERS_CONF": str(settings),
    }
    rootfs(place / "image.tar")
    done = subprocess.run(
        ["podman", "import", str(place / "image.tar"), IMAGE], env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise EngineError(done.stderr)
    return Engine(["podman"], environ, ["--network", "none", *USER])
