"""Runs attacks on git directories: a contained command prepares one, the user's plain git outside falls for it, and a canary tells.

An attack is a record of text. `runs` are Python bodies, each for a sandbox of its own. `victim` is the shell text that the user types outside, in the project.
`harm` is shell text that succeeds if the attack worked. `setup` makes the user's repository ready, outside and before the attack.
Shell text knows `$P` (the project), `$OUT` (a directory outside it), `$SAID` (a file with the output of the victim's git) and `$HUNG` (yes or no).
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from attempt import must_hold

from corral import Containment, Sandbox, SandboxResult
from corral.model.errors import CorralError

# A git that hangs never ends, so the run that proves it waits shortly. The contained run has time for a busy machine.
HANG_SECONDS = 1.0
PATIENCE_SECONDS = 15.0
HOST_SECONDS = 100
# The ways in which a contained command runs. A transaction is applied before the user acts.
WAYS = ["warden", pytest.param("transaction", marks=pytest.mark.real), "bubblewrap"]
SAMPLED = 6  # every sixth attack runs in `make test`, and all run in `make test-real`
CANARY = "test -e $OUT/canary"
EVIL_FILE = "grep -q EVIL f"
EVIL_OUTSIDE = "grep -q EVIL $OUT/victim"
HANGS = "test $HUNG = yes"
TEMPLATE = r"""
set -e
mkdir project outside outside/dir home
printf '[user]\n\tname = The User\n\temail = user@example.org\n[init]\n\tdefaultBranch = main\n[protocol "file"]\n\tallow = always\n' > home/.gitconfig
export HOME=$PWD/home
echo good > outside/victim; echo good > outside/dir/kept
git init -q --bare remote.git
rm -f remote.git/hooks/*
cd project
git init -q
rm -f .git/hooks/*
mkdir dir
echo one > f; printf 'all:\n\techo good\n' > Makefile; echo good > dir/g
git add .; git commit -qm 'first commit'; git tag -a v1 -m v1
git checkout -q -b side; echo side > s; git add s; git commit -qm 'side commit'
git checkout -q -b conflict main; echo theirs > f; git commit -qam 'conflict commit'
git checkout -q main; echo good > f; git commit -qam 'second commit'
git remote add origin ../remote.git
git push -q -u origin main
"""
# The attacker's tools. They write objects and index files without the checks of git.
PRELUDE = r"""
import hashlib, os, re, shutil, struct, subprocess, sys, zlib
from binascii import hexlify as hexa, unhexlify as raw
OUT = sys.argv[1]
TOUCH = f"touch {OUT}/canary"
os.environ |= {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@a", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@a"}
print("begun", flush=True)
def sh(text):
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True).stdout.strip()
def git(*words, data=None):
    done = subprocess.run(["git", *words], capture_output=True, text=True, input=data)
    if done.returncode:
        raise OSError(done.stderr)
    return done.stdout.rstrip("\n")
def put(path, text, mode=0o644):
    if os.path.dirname(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.lexists(path):
        os.unlink(path)
    with open(path, "wb") as file:
        file.write(text if isinstance(text, bytes) else text.encode())
    os.chmod(path, mode)
def append(path, text):
    with open(path, "a") as file:
        file.write(text)
def replace(path, target):
    # Put a link in place of a file or directory.
    if os.path.islink(path) or os.path.isfile(path):
        os.unlink(path)
    elif os.path.isdir(path):
        shutil.rmtree(path)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    os.symlink(target, path)
def fifo(path):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    if os.path.lexists(path):
        os.unlink(path)
    os.mkfifo(path)
def loose(name):
    return f".git/objects/{name[:2]}/{name[2:]}"
def packed(kind, data):
    return zlib.compress(b"%s %d\0" % (kind.encode(), len(data)) + data)
def obj(kind, data):
    data = data if isinstance(data, bytes) else data.encode()
    name = hashlib.sha1(b"%s %d\0" % (kind.encode(), len(data)) + data).hexdigest()
    if not os.path.exists(loose(name)):
        put(loose(name), packed(kind, data))
    return name
def substitute(name, kind, data):
    put(loose(name), packed(kind, data), 0o444)
def blob(text="EVIL\n"):
    return git("hash-object", "-w", "--stdin", data=text)
def tree(*entries):
    return obj("tree", b"".join(b"%s %s\0" % (mode.encode(), path.encode()) + raw(name) for mode, path, name in entries))
def evil_tree(start="HEAD", path="f"):
    lines = git("ls-tree", start).splitlines()
    lines = [f"100644 blob {blob()}\t{path}" if line.endswith("\t" + path) else line for line in lines]
    return git("mktree", data="\n".join(lines) + "\n")
def evil_commit(start="HEAD", path="f", parents=("HEAD",)):
    options = [word for parent in parents for word in ("-p", git("rev-parse", parent))]
    return git("commit-tree", evil_tree(start, path), *options, "-m", "EVIL commit")
def evil_stash():
    # A stash of the attacker, kept only as a dangling object.
    put("f", "EVIL\n")
    name = git("stash", "create")
    put("f", "good\n")
    return name
def log_line(old, new, why="x"):
    return f"{old} {new} a <a@a> 2000000000 +0000\t{why}\n"
def staged(folder="."):
    # The entries of an index as (mode, name, path).
    lines = git("-C", folder, "ls-files", "-s", "-z").split("\0")
    return [(line[:6], line[7:47], line[50:]) for line in lines if line]
def number(value):
    return struct.pack(">I", int(value) & 0xFFFFFFFF)
def stat_data(path):
    about = os.stat(path)
    times = [number(about.st_ctime_ns // 10**9), number(about.st_ctime_ns % 10**9), number(about.st_mtime_ns // 10**9), number(about.st_mtime_ns % 10**9)]
    return b"".join(times), number(about.st_dev), number(about.st_ino), number(about.st_uid), number(about.st_gid), number(about.st_size)
def entry(mode, name, path, flags=0, extended=None, like=None):
    times, dev, ino, uid, gid, size = stat_data(like) if like else (bytes(16), *[bytes(4)] * 5)
    path = path.encode()
    flags |= min(len(path), 0xFFF) | (0x4000 if extended is not None else 0)
    text = times + dev + ino + number(int(mode, 8)) + uid + gid + size + raw(name) + struct.pack(">H", flags)
    text += (struct.pack(">H", extended) if extended is not None else b"") + path
    return path, text + bytes(8 - len(text) % 8)
def extension(name, data):
    return name.encode() + number(len(data)) + data
def index(entries, extensions=b"", version=2):
    # An index of (mode, name, path), or of finished entries.
    done = sorted((item if isinstance(item[0], bytes) else entry(*item)) for item in entries)
    text = b"DIRC" + number(version) + number(len(done)) + b"".join(text for _, text in done) + extensions
    return text + hashlib.sha1(text).digest()
def forge_index(path, *more, folder=".", extensions=b""):
    put(path, index([*staged(folder), *more], extensions))
def climbing(folder=".", path="../outside/victim"):
    # Entries that an honest git would not add.
    name = git("-C", folder, "hash-object", "-w", "--stdin", data="EVIL\n")
    return ("100644", name, path)
def forged_pack(folder, name, text=b"EVIL\n"):
    # A pack that has another content under the name.
    size = len(text)
    head = bytes([0x30 | size & 15 | (0x80 if size > 15 else 0)]) + (bytes([size >> 4]) if size > 15 else b"")
    pack = b"PACK" + number(2) + number(1) + head + zlib.compress(text)
    pack += hashlib.sha1(pack).digest()
    idx = b"\xfftOc" + number(2) + b"".join(number(first >= int(name[:2], 16)) for first in range(256))
    idx += raw(name) + number(zlib.crc32(pack[12:-20])) + number(12) + pack[-20:]
    put(f"{folder}/pack-{pack[-20:].hex()}.pack", pack, 0o444)
    put(f"{folder}/pack-{pack[-20:].hex()}.idx", idx + hashlib.sha1(idx).digest(), 0o444)
def chunks(data, first):
    # The chunks of a commit-graph or multi-pack-index, whose table begins at `first`.
    found, at = {}, first
    while data[at:at + 4] != bytes(4):
        found[data[at:at + 4].decode()] = int.from_bytes(data[at + 4:at + 12], "big")
        at += 12
    return found
"""


@dataclass(frozen=True)
class Attack:
    """One attack: the commands of the attacker, the user's action outside, and the test of success."""

    runs: str | tuple[str, ...]
    victim: str
    harm: str
    setup: str = ""

    @property
    def bodies(self) -> tuple[str, ...]:
        """Return the programs, each of which runs in a sandbox of its own."""
        return (self.runs,) if isinstance(self.runs, str) else self.runs


@cache
def template() -> Path:
    """Return a directory with the user's repository, its remote and a home. It is made once for each process."""
    folder = Path(mkdtemp(prefix="git-template-", dir=os.environ["HOME"]))
    subprocess.run(["bash", "-c", TEMPLATE], cwd=folder, check=True, capture_output=True)
    return folder


class World:
    """A copy of the template in which one attack takes place."""

    def __init__(self, folder: Path, attack: Attack) -> None:
        shutil.copytree(template(), folder, symlinks=True)
        self.attack = attack
        self.project, self.outside, self.home = folder / "project", folder / "outside", folder / "home"
        self.said = folder / "said"
        self.said.touch()
        done = self.shell(f"set -e\ngit update-index -q --refresh\n{attack.setup}")
        assert done == 0, self.said.read_text()

    def shell(self, text: str, seconds: float = PATIENCE_SECONDS, *, hung: bool = False) -> int | None:
        """Run shell text as the user, outside. Return its exit code, or None if it did not end in time."""
        # A git that runs out of memory must not take the machine along.
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "P": str(self.project),
            "OUT": str(self.outside),
            "SAID": str(self.said),
            "HUNG": "yes" if hung else "no",
            "GIT_EDITOR": "true",
            "GIT_TERMINAL_PROMPT": "0",
            "LC_ALL": "C",
        }
        with self.said.open("ab") as output:
            child = subprocess.Popen(
                ["bash", "-c", f"ulimit -v 4000000\n{text}"],
                cwd=self.project,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            return child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()

    def falls(self, seconds: float = PATIENCE_SECONDS) -> bool:
        """Do the user's action, and return True if it did harm."""
        self.said.write_text("")
        hung = self.shell(self.attack.victim, seconds) is None
        return self.shell(self.attack.harm, hung=hung) == 0


def cases(attacks: dict[str, Attack]) -> list[object]:
    """Return a case for each attack. Most are only in the long tests."""
    marks = [[] if number % SAMPLED == 0 else [pytest.mark.real] for number in range(len(attacks))]
    return [
        pytest.param(attack, id=name, marks=mark) for (name, attack), mark in zip(attacks.items(), marks, strict=True)
    ]


def program(body: str) -> str:
    """Return the source of the attacker's program."""
    return f"{PRELUDE}\n{body}"


def works_unprotected(attack: Attack, folder: Path) -> bool:
    """Run the attack without a sandbox. Return True if it does harm, and if nothing happens without it."""
    assert not World(folder / "without", attack).falls(), "the canary fires without an attack"
    world = World(folder / "with", attack)
    for body in attack.bodies:
        command = [sys._base_executable, "-S", "-c", program(body), str(world.outside)]
        done = subprocess.run(command, cwd=world.project, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
    assert not (world.outside / "canary").exists(), "the attacker made the canary"
    return world.falls(HANG_SECONDS if attack.harm == HANGS else PATIENCE_SECONDS)


def run_contained(box: Sandbox, argv: list[str], *, in_transaction: bool) -> SandboxResult:
    """Run one program of the attacker, in a sandbox or in a transaction that is applied afterwards."""
    if not in_transaction:
        return box.run(argv, timeout_seconds=60)
    with box.transaction() as transaction:
        done = transaction.run(argv, timeout_seconds=60)
        # A refusal to apply stops the attack.
        with suppress(CorralError):
            transaction.apply()
    return done


@contextmanager
def bounded() -> Iterator[None]:
    """Fail if the host itself hangs on what the attacker left."""

    def fail(*_: object) -> None:
        raise AssertionError(f"the host did not finish in {HOST_SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(HOST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def is_stopped(attack: Attack, folder: Path, way: str, sandbox: Callable[..., Sandbox]) -> bool:
    """Run the attack in sandboxes. Return True if the user's action afterwards does no harm."""
    world = World(folder / "held", attack)
    backend = "bubblewrap" if way == "bubblewrap" else "warden"
    os.environ["HOME"], before = str(world.home), os.environ["HOME"]
    try:
        for body in attack.bodies:
            with bounded():
                box = sandbox(project_root=str(world.project), containment=Containment(backend=backend))
                argv = [sys._base_executable, "-S", "-c", program(body), str(world.outside)]
                done = run_contained(box, argv, in_transaction=way == "transaction")
                box.close()
            if done.enforcement != "full" and backend == "warden":
                must_hold()
            print(done.exit_code, done.stderr_text[-400:], [violation.target for violation in done.violations])
            # An attack that never began proves nothing. A later run may be refused because of the one before it.
            assert done.stdout_text.startswith("begun") or body != attack.bodies[0], done.stderr_text
    finally:
        os.environ["HOME"] = before
    assert not (world.outside / "canary").exists(), "the attacker made the canary"
    return not world.falls()
