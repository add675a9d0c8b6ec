"""Tests of the ledger's hash chain: concurrent writers, kills, rotation, full disks, and detection of changed or removed lines."""

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import corral
from corral.audit import ledger
from corral.audit.ledger import HEAD, LOG, Head, Ledger, link_of, older_files
from corral.audit.query import verify
from corral.model.errors import AuditError

SOURCE = str(Path(corral.__file__).parents[1])
# Set CORRAL_AUDIT_LINES=100000 for the long run. Fewer lines test the same code here and in CI.
LINES = int(os.environ.get("CORRAL_AUDIT_LINES", "4000"))
WRITERS = 8
WRITER = """
import os, sys
sys.path.insert(0, {source!r})
from corral.audit.ledger import Ledger
log = Ledger({place!r}, file_bytes={file_bytes}, files={files})
number = 0
while True:
    number += 1
    link = log.append(f'"writer": {{os.getpid()}}, "number": {{number}}, "text": "{{"x" * (number * 37 % 900)}}"')
    os.write(1, f"{{link.seq}} {{link.hash}}\\n".encode())
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "audit"
    folder.mkdir(0o700)
    return folder


def filled(place: Path, count: int = 6, **settings: int) -> Ledger:
    log = Ledger(str(place), **settings)
    for number in range(count):
        log.append(f'"number": {number}')
    return log


def lines_of(place: Path) -> list[bytes]:
    # A writer that is killed right after a rotation has not made the new file yet.
    files = [place / name for name in (*older_files(str(place)), LOG) if (place / name).exists()]
    return [line for file in files for line in file.read_bytes().splitlines(keepends=True)]


def problems(place: Path) -> list[str]:
    return list(verify(str(place)).problems)


def test_each_line_has_the_hash_of_the_line_before(place: Path) -> None:
    filled(place, 3)
    found = [json.loads(line) for line in lines_of(place)]
    assert [e["seq"] for e in found] == [1, 2, 3]
    assert [e["prev"] for e in found] == ["0" * 64, found[0]["hash"], found[1]["hash"]]
    assert list(found[0]) == ["schema", "at", "number", "seq", "prev", "hash"]
    assert (problems(place), verify(str(place)).last) == ([], 3)


def test_only_the_user_can_read_the_files(place: Path) -> None:
    filled(place, 60, file_bytes=2000, files=50)
    assert {oct(file.stat().st_mode & 0o777) for file in place.iterdir()} == {"0o600"}


def test_missing_log_has_no_problems(tmp_path: Path, place: Path) -> None:
    assert problems(tmp_path / "nowhere") == []
    assert problems(place) == []


def drop_line(number: int) -> Callable[[Path], None]:
    def change(place: Path) -> None:
        lines = lines_of(place)
        (place / LOG).write_bytes(b"".join(lines[: number - 1] + lines[number:]))

    return change


def edit(old: bytes, new: bytes) -> Callable[[Path], None]:
    return lambda place: (place / LOG).write_bytes((place / LOG).read_bytes().replace(old, new)) and None


def swap(place: Path) -> None:
    one, two, three, *rest = lines_of(place)
    (place / LOG).write_bytes(b"".join([one, three, two, *rest]))


def forge(place: Path) -> None:
    """Change a line, and give it the matching hash."""
    lines = lines_of(place)
    text = lines[2].replace(b'"number": 2', b'"number": 9').rpartition(b', "hash": "')[0]
    lines[2] = text + b', "hash": "' + ledger.sha256_hex(text).encode() + b'"}\n'
    (place / LOG).write_bytes(b"".join(lines))


DAMAGE: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "a changed line": (
        edit(b'"number": 2', b'"number": 9'),
        ["log.jsonl:3: line 3 was changed: its hash is not that of its text"],
    ),
    "a forged line": (forge, ["log.jsonl:4: line 4 does not follow the one before it, which was changed"]),
    "a removed line": (drop_line(3), ["log.jsonl:3: line 3 is missing before this one"]),
    "a removed beginning": (drop_line(1), ["log.jsonl:1: line 1 is missing before this one"]),
    "a removed end": (drop_line(6), ["log.jsonl: line 6 is missing at the end"]),
    "lines in another order": (
        swap,
        [
            "log.jsonl:2: line 2 is missing before this one",
            "log.jsonl:3: line 2 comes after line 3",
            "log.jsonl:4: line 3 is missing before this one",
        ],
    ),
    "a damaged line": (
        edit(b'{"schema"', b'["schema"'),
        [f"log.jsonl:{n}: this line is incomplete" for n in range(1, 7)]
        + ["log.jsonl: lines 1 to 6 are missing at the end"],
    ),
    "no lines": (lambda place: (place / LOG).unlink(), ["log.jsonl: lines 1 to 6 are missing at the end"]),
    "no head": (
        lambda place: (place / HEAD).unlink(),
        ["head: it is missing or damaged; lines at the end may be missing"],
    ),
    "a damaged head": (
        lambda place: (place / HEAD).write_text("6"),
        ["head: it is missing or damaged; lines at the end may be missing"],
    ),
    "another head": (
        lambda place: (place / HEAD).write_bytes(Head(6, "f" * 64).to_bytes()),
        ["head: line 6 differs from the line that was written"],
    ),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_found_and_described(place: Path, damage: Callable[[Path], object], said: list[str]) -> None:
    filled(place)
    assert problems(place) == []
    damage(place)
    assert problems(place) == said


@pytest.mark.parametrize("damage", [row[0] for row in DAMAGE.values()], ids=DAMAGE)
def test_damaged_log_accepts_lines_and_keeps_the_evidence(place: Path, damage: Callable[[Path], object]) -> None:
    log = filled(place)
    damage(place)
    after = [log.append('"after": 1').seq for _ in range(3)]
    assert after == sorted(after)
    assert problems(place)
    assert [link.seq for line in lines_of(place)[-3:] if (link := link_of(line))] == after


def test_next_writer_drops_a_torn_last_line(place: Path) -> None:
    log = filled(place)
    with (place / LOG).open("ab") as file:
        file.write(b'{"schema": "corral.audit/1", "at": "20')
    assert problems(place) == []
    log.append('"after": 1')
    assert (problems(place), len(lines_of(place))) == ([], 7)


def test_line_written_before_its_head_is_kept(place: Path) -> None:
    log = filled(place)
    before = (place / HEAD).read_bytes()
    log.append('"killed": 1')
    log.append('"killed": 2')
    (place / HEAD).write_bytes(before)
    assert problems(place) == []
    assert log.append('"after": 1').seq == 9
    assert problems(place) == []


def test_killed_rotation_loses_no_line(place: Path) -> None:
    log = filled(place)
    last = link_of(lines_of(place)[-1])
    assert last is not None
    (place / LOG).rename(place / f"log-{last.seq:012d}-{last.hash[:8]}.jsonl")
    assert problems(place) == []
    assert log.append('"after": 1').seq == 7
    assert problems(place) == []


def test_empty_head_is_no_damage(place: Path) -> None:
    (place / HEAD).touch(0o600)
    assert filled(place, 1).append('"x": 1').seq == 2
    assert problems(place) == []


def test_rotation_drops_old_lines_and_keeps_the_chain_valid(place: Path) -> None:
    filled(place, 200, file_bytes=3000, files=4)
    report = verify(str(place))
    assert (report.problems, report.last, len(older_files(str(place)))) == ((), 200, 3)
    assert report.dropped == report.first - 1 > 0
    assert all(file.stat().st_size <= 3000 for file in place.iterdir())


def test_file_removed_before_its_rotation_is_found(place: Path) -> None:
    filled(place, 200, file_bytes=3000, files=4)
    first = verify(str(place)).first
    oldest = place / older_files(str(place))[0]
    count = len(oldest.read_bytes().splitlines())
    oldest.unlink()
    expected = f"{older_files(str(place))[0]}:1: lines {first} to {first + count - 1} are missing before this one"
    assert problems(place) == [expected]


def test_line_longer_than_a_file_gets_its_own_file(place: Path) -> None:
    log = filled(place, 2, file_bytes=1000)
    log.append(f'"long": "{"x" * 5000}"')
    log.append('"short": 1')
    assert (problems(place), verify(str(place)).last) == ([], 4)


def test_threads_append_concurrently(place: Path) -> None:
    threads = [threading.Thread(target=filled, args=(place, 50)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (problems(place), verify(str(place)).last) == ([], 400)


def test_forked_child_appends_while_a_thread_held_the_lock(place: Path) -> None:
    code = f"""
import os, sys, threading
sys.path.insert(0, {SOURCE!r})
from corral.audit import ledger
log = ledger.Ledger({str(place)!r})
with ledger._turn:
    child = os.fork()
    if child == 0:
        log.append('"child": 1')
        os._exit(0)
    _, status = os.waitpid(child, 0)
log.append('"parent": 1')
sys.exit(status)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert (problems(place), verify(str(place)).last) == ([], 2)


@pytest.mark.parametrize("name", [HEAD, LOG])
def test_file_writable_by_others_or_symlink_is_refused(place: Path, name: str) -> None:
    log = filled(place, 1)
    (place / name).chmod(0o666)
    with pytest.raises(AuditError, match="can be written by others"):
        log.append('"x": 1')
    (place / name).unlink()
    (place / name).symlink_to(place / "elsewhere")
    with pytest.raises(AuditError, match="cannot be written"):
        log.append('"x": 1')
    assert not (place / "elsewhere").exists()


def test_stopped_lock_holder_delays_others_only_briefly(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(place, 1)
    code = f"import os; f = os.open({str(place / HEAD)!r}, os.O_RDWR); os.lockf(f, os.F_LOCK, 0); print(flush=True); input()"
    monkeypatch.setattr(ledger, "LOCK_SECONDS", 0.1)
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(AuditError, match="may be stopped"):
            filled(place, 1)
        holder.kill()
    filled(place, 1)
    assert (problems(place), verify(str(place)).last) == ([], 2)


class Writer:
    """A process that appends lines and acknowledges each one, until it is killed."""

    def __init__(self, place: Path, said: Path, file_bytes: int, files: int) -> None:
        code = WRITER.format(source=SOURCE, place=str(place), file_bytes=file_bytes, files=files)
        self.said = said
        self.file = said.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code], stdout=self.file, stderr=subprocess.PIPE, text=True
        )
        self.patience = random.randrange(1, min(max(LINES // 40, 40), 400))

    @property
    def count(self) -> int:
        # A line has about 70 bytes; the exact number does not matter here.
        return self.said.stat().st_size // 70

    def kill(self) -> None:
        self.process.kill()
        assert self.process.communicate()[1] == ""
        self.file.close()


def hammered(place: Path, folder: Path, *, file_bytes: int, files: int, lines: int) -> set[tuple[int, str]]:
    """Append with eight processes that are killed at random, until this many lines are acknowledged, and return those."""
    folder.mkdir()
    made = 0
    kills = 0
    running: list[Writer] = []
    done = 0
    while done < lines or kills < 2 * WRITERS:
        while len(running) < WRITERS:
            made += 1
            running.append(Writer(place, folder / str(made), file_bytes, files))
        for writer in list(running):
            if writer.process.poll() is not None or writer.count >= writer.patience:
                writer.kill()
                kills += 1
                running.remove(writer)
        done = sum(file.stat().st_size for file in folder.iterdir()) // 72  # bytes of a line of it, at most
    for writer in running:
        writer.kill()
    said = [
        line.split()
        for file in folder.iterdir()
        for line in file.read_text().splitlines(keepends=True)
        if line[-1] == "\n"
    ]
    return {(int(seq), hash_) for seq, hash_ in said}


def test_random_kills_lose_no_acknowledged_line(place: Path, tmp_path: Path) -> None:
    acknowledged = hammered(place, tmp_path / "said", file_bytes=256 * 1024, files=10_000, lines=LINES)
    assert problems(place) == []
    links = [link_of(line) for line in lines_of(place)]
    assert None not in links
    assert acknowledged <= {(link.seq, link.hash) for link in links if link}
    assert len(acknowledged) >= LINES
    for line in lines_of(place):
        json.loads(line)
    assert len(older_files(str(place))) > 1


def test_rotation_under_many_writers_keeps_the_newest_lines(place: Path, tmp_path: Path) -> None:
    hammered(place, tmp_path / "said", file_bytes=20_000, files=5, lines=max(LINES // 4, 1000))
    Ledger(str(place), file_bytes=20_000, files=5).append('"last": 1')
    report = verify(str(place))
    assert report.problems == ()
    assert len(older_files(str(place))) <= 5
    assert report.dropped > 0


CRASHES = """
import itertools, os, shutil, sys
sys.path.insert(0, {source!r})
from corral.audit.query import verify
from corral.audit.ledger import Ledger, link_of

CALLS = ("write", "pwrite", "rename", "unlink", "ftruncate")
real = {{name: getattr(os, name) for name in CALLS}}

def append(place, deadly, torn):
    # In a child that is killed right before its n-th change of the disk, or in the middle of it.
    child = os.fork()
    if child == 0:
        left = [deadly]
        def dies_at(name):
            def call(*arguments):
                left[0] -= 1
                if left[0] == 0:
                    if torn and name == "write":
                        real[name](arguments[0], arguments[1][: len(arguments[1]) // 2])
                    os.kill(os.getpid(), 9)
                return real[name](*arguments)
            return call
        for name in CALLS:
            setattr(os, name, dies_at(name))
        Ledger(place, file_bytes=1500, files=3).append('"x": 1')
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])

def lines(place):
    names = sorted(n for n in os.listdir(place) if n.startswith("log-")) + ["log.jsonl"]
    return [line for n in names if os.path.exists(place + "/" + n) for line in open(place + "/" + n, "rb")]

template, place = {place!r} + "/template", {place!r} + "/place"
tried = killed = 0
for before in (1, 5, 6, 11, 12, 17, 18, 19):  # around each rotation
    os.mkdir(template)
    log = Ledger(template, file_bytes=1500, files=3)
    for _ in range(before):
        log.append('"x": 1')
    for torn in (False, True):
        for one, two in itertools.product(range(1, 9), repeat=2):
            shutil.copytree(template, place)
            known = {{link_of(line).hash for line in lines(place)}}
            killed += append(place, one, torn) + append(place, two, torn)
            last = Ledger(place, file_bytes=1500, files=3).append('"x": 1')
            report = verify(place)
            assert report.problems == (), (before, torn, one, two, report.problems)
            kept = {{link_of(line).hash for line in lines(place)}}
            lost = [h for h in known - kept]
            assert last.hash in kept and last.seq == report.last
            assert not lost or report.dropped >= len(lost), (before, torn, one, two)
            shutil.rmtree(place)
            tried += 1
    shutil.rmtree(template)
print(tried, killed > tried // 2)
"""


@pytest.mark.real
def test_ledger_survives_kills_at_every_write_and_repair(
    tmp_path: Path,
) -> None:
    code = CRASHES.format(source=SOURCE, place=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == f"{8 * 2 * 64} True\n", done.stderr


FULL = """
import os, sys
sys.path.insert(0, {source!r})
from corral.model.errors import AuditError
from corral.audit.query import verify
from corral.audit.ledger import Ledger
place = {place!r} + "/audit"
os.mkdir(place)
log = Ledger(place)
log.append('"x": 1')
with open({place!r} + "/filler", "wb") as filler:
    filler.write(b"x" * 200 * 1024)
count, said = 1, ""
while not said:
    try:
        log.append('"text": "%s"' % ("y" * 3000))
        count += 1
    except AuditError as error:
        said = str(error)
full = verify(place)
try:
    log.check()
    checked = ""
except AuditError as error:
    checked = str(error)
os.unlink({place!r} + "/filler")
log.check()
log.append('"x": 2')
after = verify(place)
print(said, "|", checked, "|", full.problems, full.last == count, "|", after.problems, after.last == count + 1)
print(open(place + "/log.jsonl", "rb").read().endswith(b"}}\\n"))
"""


def test_full_disk_raises_and_leaves_no_torn_line(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    code = FULL.format(source=SOURCE, place=str(small))
    words = f'mount -t tmpfs -o size=256k tmpfs {small} && exec {shlex.quote(sys.executable)} -I -S -c "$1"'
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    namespaces = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    done = subprocess.run(
        [*namespaces, "sh", "-c", words, "sh", code], capture_output=True, text=True, timeout=60, check=False
    )
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        assert os.environ.get("CORRAL_MUST_CONTAIN") != "1", done.stderr
        pytest.skip("no file system can be mounted here")
    error = f"the audit log in {small}/audit cannot be written"
    assert done.stdout.splitlines() == [
        f"{error}: No space left on device | {error}: no space is left; free some | () True | () True",
        "True",
    ], done.stderr
