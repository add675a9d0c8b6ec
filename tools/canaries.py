"""Runs programs one at a time on a throwaway machine full of canaries, inside the outer wall of two_walls, and reports the canaries they touch.

Every canary contains a unique text. That text must not appear in any place that a program can write to.
"""

import base64
import hashlib
import os
import re
import shutil
import socket
import stat
from pathlib import Path
from typing import Any

from corral import Containment, Limits, Profile, Sandbox, SandboxConfig
from corral.guard.rules.loader import effects, profile_named
from corral.model.call import Decision

HOME = Path("/home/owner")
PROJECT = HOME / "project"
SECONDS = 10
HOME_CANARIES = (
    *(
        ".ssh/id_rsa",
        ".ssh/id_ed25519",
        ".ssh/authorized_keys",
        ".ssh/config",
        ".ssh/known_hosts",
        ".aws/credentials",
        ".aws/config",
    ),
    *(
        ".netrc",
        ".npmrc",
        ".pypirc",
        ".git-credentials",
        ".gitconfig",
        ".config/gh/hosts.yml",
        ".config/gcloud/credentials.db",
    ),
    *(
        ".docker/config.json",
        ".kube/config",
        ".gnupg/secring.gpg",
        ".bash_history",
        ".zsh_history",
        ".python_history",
        ".bashrc",
    ),
    *(
        ".profile",
        ".bash_profile",
        ".zshrc",
        ".mozilla/firefox/a.default/logins.json",
        ".config/google-chrome/Default/Cookies",
    ),
    *(
        ".local/share/keyrings/login.keyring",
        ".config/autostart/a.desktop",
        ".config/systemd/user/a.service",
        ".vault-token",
    ),
    *(
        "Documents/taxes.txt",
        "Downloads/a.pdf",
        "Desktop/notes",
        "other/main.py",
        "other/.env",
        "other/.git/config",
        "mail/inbox",
    ),
)
MACHINE_CANARIES = (
    *(
        "/etc/shadow",
        "/etc/gshadow",
        "/etc/sudoers",
        "/etc/sudoers.d/a",
        "/etc/ssh/ssh_host_rsa_key",
        "/etc/ssl/private/a.key",
    ),
    *(
        "/root/.ssh/id_rsa",
        "/root/.bash_history",
        "/home/other/.ssh/id_rsa",
        "/home/other/file",
        "/var/log/auth.log",
        "/var/mail/owner",
    ),
    *(
        "/var/spool/cron/crontabs/owner",
        "/var/lib/docker/a",
        "/srv/data",
        "/mnt/disk/data",
        "/media/stick/data",
        "/data/a.csv",
        "/run/secrets/a",
    ),
    *("/var/www/html/index.html", "/var/backups/a", "/boot/grub/grub.cfg", "/lost", "/tmp/of-another"),
)
PLAIN = {
    "/etc/passwd": "root:x:0:0:root:/root:/bin/bash\nowner:x:1000:1000::/home/owner:/bin/bash\n",
    "/etc/group": "root:x:0:\nowner:x:1000:\n",
    "/etc/hosts": "127.0.0.1 localhost\n",
    "/etc/hostname": "throwaway\n",
}
# Every command may read these by design, but must not change them.
READABLE = ("/etc/", "/usr/", "/opt/", "/bin/", "/sbin/", "/lib")
SECRET_OF_ETC = ("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh/", "/etc/ssl/private/")
# These hold no canaries: directories of the system and the kernel, the files of the walls, and what corral itself writes for the user.
LEFT_OUT = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/proc",
    "/sys",
    "/dev",
    "/walls",
    str(PROJECT),
    str(HOME / ".cache" / "corral"),
)
MAX_SEARCHED_BYTES = 4 << 20
PORTS = (1234, 4444, 5000, 8000, 8080, 9999, 12345)


class Grounds:
    """The throwaway machine: its canaries, its servers, and a snapshot of its files."""

    def __init__(self, rows: list[dict[str, Any]], inner: str, seed: str) -> None:
        self.seed = seed
        self.words: dict[str, str] = {}  # maps the text of a canary to its path
        self.servers = _listen()
        for path in (*(str(HOME / name) for name in HOME_CANARIES), *MACHINE_CANARIES, *_named(rows)):
            self.put(path)
        for path, text in PLAIN.items():
            _write(Path(path), text)
        PROJECT.mkdir()
        (HOME / ".cache").mkdir(exist_ok=True)
        self.before = snapshot()
        groups = dict.fromkeys(profile_named("workspace").groups, Decision.ALLOW)
        unguarded = Profile(
            "workspace", dict.fromkeys(effects(), Decision.ALLOW), groups, needs_containment=inner != "none"
        )
        self.config = SandboxConfig(
            str(PROJECT),
            profile=unguarded,
            denylist=(),
            interpreter_block=(),
            max_output_bytes=MAX_SEARCHED_BYTES,
            timeout_seconds=SECONDS,
            containment=Containment(backend=inner),
            limits=Limits(
                cpu_seconds=SECONDS,
                memory_bytes=256 << 20,
                processes=None if inner == "none" else 64,
                file_size_bytes=32 << 20,
                open_files=256,
            ),
        )

    def put(self, path: str) -> None:
        """Make a canary, unless the path exists."""
        word = "canary" + hashlib.sha256(f"{self.seed} {path}".encode()).hexdigest()[:24]
        try:
            if _write(Path(path), f"{word}\n"):
                self.words[word] = path
        except OSError:
            # The path lies below another canary, or is the directory of one.
            return

    def run(self, row: dict[str, Any]) -> dict[str, Any]:
        """Run one program, and return how it ended and which canaries it touched."""
        _renew(PROJECT)
        # Not as a call with shell=True: corral refuses text that it cannot parse, and such programs must run here too.
        words = ["bash", "--noprofile", "--norc", "-c", row["shell"]] if "shell" in row else row["argv"]
        with Sandbox(self.config) as box:
            result = box.run([str(word) for word in words])
            scratch = box._holding.scratch
            found = self.told(result.stdout + result.stderr, "its output")
            for place in (PROJECT, Path(scratch) if scratch else PROJECT):
                found |= self.left_in(place)
            level = result.enforcement
        breaches = sorted(found)
        after = snapshot()
        breaches += [f"{path} is {how}" for path, how in _changes(self.before, after)]
        self.before = after
        breaches += [f"a connection to {server.getsockname()}" for server in self.servers if _reached(server)]
        breaches += [f"{len(left)} processes left"] if (left := _others()) else []
        found_no_program = result.exit_code == 127 and result.backend == "none"
        if level != "full" and self.config.containment.backend != "none" and not found_no_program:
            breaches.append(f"enforcement was {level}")
        ended = "refused" if result.denied else "timed out" if result.timed_out else f"exit {result.exit_code}"
        if found_no_program or result.exit_code == 127:
            ended = "not installed"
        return {"id": row["id"], "ended": ended, "breaches": breaches}

    def told(self, data: bytes, where: str) -> set[str]:
        """Return the canaries whose text appears in the data, plain or encoded."""
        return {
            f"{path} is in {where}" for word, path in self.words.items() if self.secret(path) and _holds(data, word)
        }

    def left_in(self, folder: Path) -> set[str]:
        """Return the canaries whose text appears in files of a directory."""
        found: set[str] = set()
        for above, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(above, name)
                if os.path.islink(path) or not os.path.isfile(path):
                    continue
                try:
                    with open(path, "rb") as file:
                        found |= self.told(file.read(MAX_SEARCHED_BYTES), path)
                except OSError:
                    continue
        return found

    @staticmethod
    def secret(path: str) -> bool:
        """Return True if programs must not read this canary."""
        return not path.startswith(READABLE) or path.startswith(SECRET_OF_ETC)


def _named(rows: list[dict[str, Any]]) -> list[str]:
    """Return the absolute paths that appear in programs, so that canaries can be put there."""
    found: set[str] = set()
    for row in rows:
        text = row.get("shell") or "\n".join(map(str, row["argv"]))
        found.update(re.findall(r"(?<![\w.~/:])/(?:[\w.+-]+/)*[\w.+-]+", text))
    wanted = (os.path.normpath(path.rstrip(".")) for path in found)
    # Longest first, so that a path with other paths below it becomes a directory.
    return sorted((path for path in wanted if path != "/" and not _left_out(path)), key=len, reverse=True)


def _left_out(path: str) -> bool:
    return any(path == top or path.startswith(top + "/") for top in LEFT_OUT)


def _write(path: Path, text: str) -> bool:
    if path.exists() or path.is_symlink():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return True


def _renew(project: Path) -> None:
    shutil.rmtree(project, ignore_errors=True)
    project.mkdir(exist_ok=True)
    (project / "main.py").write_text("print('hello')\n")
    (project / "notes.txt").write_text("one\ntwo\n")


def _listen() -> list[socket.socket]:
    """Listen on the channels through which data could leave: loopback, the docker socket, and an abstract socket."""
    servers = [socket.create_server(("127.0.0.1", port)) for port in PORTS]
    Path("/run").mkdir(exist_ok=True)
    for name in ("/run/docker.sock", "\0canary"):
        server = socket.socket(socket.AF_UNIX)
        server.bind(name)
        server.listen()
        servers.append(server)
    for server in servers:
        server.setblocking(False)
    return servers


def _reached(server: socket.socket) -> bool:
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def _others() -> list[str]:
    """Return the processes other than this one and PID 1."""
    mine = {"1", str(os.getpid())}
    return [name for name in os.listdir("/proc") if name.isdigit() and name not in mine]


def snapshot() -> dict[str, tuple[object, ...]]:
    """Return the state of every file outside the project and the system's directories."""
    found: dict[str, tuple[object, ...]] = {}
    for above, directories, names in os.walk("/"):
        directories[:] = [name for name in directories if not _left_out(os.path.join(above, name))]
        for name in (*directories, *names):
            path = os.path.join(above, name)
            about = os.lstat(path)
            kept: tuple[object, ...] = (stat.filemode(about.st_mode), about.st_uid, about.st_gid)
            if stat.S_ISREG(about.st_mode):
                with open(path, "rb") as file:
                    kept += (about.st_nlink, about.st_mtime_ns, hashlib.sha256(file.read()).hexdigest())
                kept += tuple(os.listxattr(path))
            elif stat.S_ISLNK(about.st_mode):
                kept += (os.readlink(path),)
            found[path] = kept
    return found


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str]]:
    gone = [(path, "deleted") for path in before.keys() - after.keys()]
    new = [(path, "new") for path in after.keys() - before.keys()]
    return sorted(
        gone + new + [(path, "changed") for path in before.keys() & after.keys() if before[path] != after[path]]
    )


def _holds(data: bytes, word: str) -> bool:
    raw = word.encode()
    # Base64 encodes a text in three ways, depending on its offset modulo 3. The first and last characters depend on the bytes around it.
    encoded = [base64.b64encode(b"x" * shift + raw)[4 if shift else 0 : -4] for shift in range(3)]
    return any(form in data for form in (raw, raw[::-1], raw.hex().encode(), raw.hex().upper().encode(), *encoded))
