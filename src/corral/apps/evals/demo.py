"""Shows the guard and the kernel at work: calls in a temporary project, each run for real and its outcome checked."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from signal import SIGKILL
from time import monotonic, sleep

from corral._lib.records import Record, frozen
from corral.containment.filesystem.temp_dirs import process_temp_dir
from corral.model.call import Call
from corral.policy.config import Containment, Limits, SandboxConfig
from corral.runtime.unguarded import unguarded
from corral.sandbox import Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from corral.model.result import SandboxResult

TIMEOUT_SECONDS = 0.5
MAX_OUTPUT_BYTES = 2000
ALONE_SECONDS = 30  # for a script that runs uncontained; against a machine where it hangs
ENDED = b"the script has ended"
GONE_SECONDS = 30  # until a killed process is gone; against a machine that is busy
FILES = {
    "notes.txt": "pears\napples\nquinces\n",
    "src/main.py": "print('The answer is', 6 * 7)\n",
    "src/flood.py": "for n in range(100_000):\n    print('line', n)\n",
    "src/linger.py": "import time\n\ntime.sleep(60)\n",
    ".git/HEAD": "ref: refs/heads/main\n",
    ".git/config": "[core]\n\trepositoryformatversion = 0\n",
    ".git/hooks/README": "Programs that git runs.\n",
}
# Scripts look harmless to whoever judges the command that starts them.
TRY = "import os, socket, subprocess, sys\n\ntry:\n    {code}\nexcept OSError as error:\n    sys.exit(error.strerror)\n"
HOOK = ".git/hooks/pre-commit"


@frozen
class Case(Record):
    """One call and its expected outcome: `ran`, `timed out`, `truncated`, or `denied` by its group's axis."""

    group: str
    call: Call
    expected: str = "denied"
    exit_code: int = 0


@frozen
class Attempt(Record):
    """A script that does harm at run time: what it tries, its code, and the words for its success.

    Contained it must end with `exit_code`: 1 where the kernel refuses, 0 where it lets the script go on.
    """

    title: str
    script: str
    code: str
    success: str
    exit_code: int = 1


@frozen
class Outcome(Record):
    """The result of a case."""

    case: Case
    result: SandboxResult

    @property
    def word(self) -> str:
        """What happened, in the vocabulary of `Case.expected`."""
        result = self.result
        if result.denied:
            return "denied"
        return "timed out" if result.timed_out else "truncated" if result.truncated else "ran"

    @property
    def as_expected(self) -> bool:
        """Whether it is what must happen."""
        if self.word != self.case.expected:
            return False
        if self.word == "denied":
            return self.case.group == str(min(f.axis for f in self.result.verdict.findings))
        return self.word == "timed out" or self.result.exit_code == self.case.exit_code

    def to_dict(self) -> dict[str, object]:
        """Return the outcome as JSON-ready data."""
        case = self.case
        return _told(case.group, case.call, self.result, case.expected, self.word, as_expected=self.as_expected)


@frozen
class Trial(Record):
    """The result of an attempt: whether it succeeded without corral, and whether it succeeded contained."""

    attempt: Attempt
    result: SandboxResult
    works_alone: bool
    got_out: bool

    @property
    def word(self) -> str:
        """Return `held`, `denied` or `got out`."""
        return "got out" if self.got_out else "denied" if self.result.denied else "held"

    @property
    def as_expected(self) -> bool:
        """Whether the kernel held what works without it."""
        return self.word == "held" and self.works_alone and self.result.exit_code == self.attempt.exit_code

    def to_dict(self) -> dict[str, object]:
        """Return the trial as JSON-ready data."""
        call = Call(["python3", self.attempt.script])
        told = _told("kernel", call, self.result, "held", self.word, as_expected=self.as_expected)
        return told | {"attempt": self.attempt.title, "works_alone": self.works_alone}


def _told(
    group: str, call: Call, result: SandboxResult, expected: str, word: str, *, as_expected: bool
) -> dict[str, object]:
    kept = ("exit_code", "denied", "timed_out", "truncated", "reason", "stdout_bytes", "killed")
    return {
        "group": group,
        "call": call.argv if isinstance(call.argv, str) else list(call.argv),
        "shell": call.shell,
        "cwd": call.cwd,
        "expected": expected,
        "outcome": word,
        "as_expected": as_expected,
        "rules": [finding.rule for finding in result.verdict.findings],
        **{name: getattr(result, name) for name in kept},
        "duration_ms": round(result.duration_ms, 3),
    }


def _shell(text: str) -> Call:
    return Call(text, shell=True)  # noqa: S604  a record; what runs it judges it first


LEGAL = (
    Case("legal", Call(["cat", "notes.txt"]), "ran"),
    Case("legal", Call(["grep", "-rn", "answer", "src"]), "ran"),
    Case("legal", Call(["python3", "src/main.py"]), "ran"),
    Case("legal", _shell("sort notes.txt | head -1 > first.txt"), "ran"),
    Case("legal", Call(["grep", "plums", "notes.txt"]), "ran", 1),
    Case("legal", Call(["no-such-program"]), "ran", 127),
)
# The first of each axis is shown with its reason.
ADVERSARIAL = {
    "name": (
        Call(["sudo", "ls"]),
        Call(["rm", "-rf", "src"]),
        Call(["/bin/rm", "notes.txt"]),
        Call(["./link-to-rm", "notes.txt"]),
        Call(["chmod", "-R", "777", "."]),
        Call(["mkfs.ext4", "disk.img"]),
        Call(["dd", "if=/dev/zero", "of=x"]),
        Call(["curl", "http://localhost:9/"]),
        _shell("ls && { echo tidy; \\rm -rf src; }"),
    ),
    "argv": (
        Call(["python3", "-c", "print(1)"]),
        Call(["bash", "-lc", "ls"]),
        Call(["node", "-e", "1"]),
        Call(["perl", "-ne", "print", "notes.txt"]),
        Call(["timeout", "5", "python3", "-Ic", "1"]),
        _shell("cat notes.txt | python3"),
    ),
    "structure": (
        Call(["cat", "notes.txt; ls"]),
        Call(["echo", "$(id)"]),
        Call(["echo", "a\nb"]),
        Call(["ls", "a\0b"]),
        Call([]),
        _shell("echo $("),
    ),
    "path": (
        Call(["cat", "../../../etc/passwd"]),
        Call(["cat", "link-outside.txt"]),
        Call(["grep", "--file=/etc/passwd", "notes.txt"]),
        Call(["cp", "notes.txt", "../stolen.txt"]),
        Call(["ls"], cwd=".."),
        _shell("cd .. && ls"),
        _shell("echo x > ../planted.txt"),
    ),
}
GUARDED = (*LEGAL, *(Case(group, call) for group, calls in ADVERSARIAL.items() for call in calls))
ATTEMPTS = (
    Attempt("read ~/.ssh/id_ed25519", "src/report.py", "print(open({key!r}).read())", "read it"),
    Attempt(
        "send data to a port outside",
        "src/upload.py",
        "socket.create_connection(('127.0.0.1', {port}), 10).sendall(b'stolen')",
        "data arrived",
    ),
    Attempt(
        "leave a daemon",
        "src/serve.py",
        "subprocess.Popen([sys.executable, 'src/linger.py', {token!r}], start_new_session=True, "
        "stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)",
        "still runs",
        exit_code=0,
    ),
    Attempt("plant a git hook", "src/format.py", f"open({HOOK!r}, 'w').write('#!/bin/sh\\n')", "planted it"),
)
LIMITS = (
    Case("limits", Call(["python3", "src/flood.py"]), "truncated"),
    Case("limits", Call(["python3", "src/linger.py"]), "timed out"),
)
CASES = (*GUARDED, *ATTEMPTS, *LIMITS)


class Stage:
    """A temporary home with a key, a project, a copy of it for runs without corral, and a listener on loopback."""

    def __enter__(self) -> Self:
        self._directory = tempfile.mkdtemp(prefix="corral-demo-", dir=process_temp_dir())
        place = os.path.realpath(self._directory)
        self.home, self.root, self.copy = (os.path.join(place, name) for name in ("home", "project", "copy"))
        self.token = f"corral-demo-{os.urandom(8).hex()}"
        self._key = os.path.join(self.home, ".ssh", "id_ed25519")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._write(self._key, self.token)
        self._write(os.path.join(place, "outside.txt"), "nobody's business\n")
        known = {"key": self._key, "port": self._listener.getsockname()[1], "token": self.token}
        scripts = {each.script: TRY.format(code=each.code.format(**known)) for each in ATTEMPTS}
        for root in (self.root, self.copy):
            for name, text in (FILES | scripts).items():
                self._write(os.path.join(root, name), text)
            os.symlink("../outside.txt", os.path.join(root, "link-outside.txt"))
            os.symlink("/bin/rm", os.path.join(root, "link-to-rm"))
        self._home_before = os.environ.get("HOME")
        os.environ["HOME"] = self.home
        return self

    def __exit__(self, *_: object) -> None:
        self.end_daemons()
        self._listener.close()
        if self._home_before is None:
            del os.environ["HOME"]
        else:
            os.environ["HOME"] = self._home_before
        shutil.rmtree(self._directory)

    def _write(self, path: str, text: str) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def succeeded(self, attempt: Attempt, root: str, stdout: bytes) -> bool:
        """Say whether an attempt in a project had its effect outside, by looking for the effect."""
        if attempt.success == "read it":
            return self.token.encode() in stdout
        if attempt.success == "data arrived":
            return self._has_arrived()
        if attempt.success == "still runs":
            return bool(self.daemons())
        return os.path.lexists(os.path.join(root, HOOK))

    def _has_arrived(self) -> bool:
        try:
            self._listener.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def daemons(self) -> list[int]:
        """Return the processes that carry the token, wherever they run on this machine."""
        found = []
        for entry in filter(str.isdecimal, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    arguments = file.read().split(b"\0")
            except OSError:
                continue  # it has ended, or is another user's
            if self.token.encode() in arguments:
                found.append(int(entry))
        return found

    def end_daemons(self) -> None:
        """Kill what an attempt left running, and wait until it is gone."""
        give_up_at = monotonic() + GONE_SECONDS
        while (left := self.daemons()) and monotonic() < give_up_at:
            for pid in left:
                try:
                    os.kill(pid, SIGKILL)
                except ProcessLookupError:
                    continue
            sleep(0.01)


def run_demo() -> Iterator[Outcome | Trial]:
    """Make the stage, run everything on it, yield each outcome as it comes, and leave nothing behind.

    ContainmentError after the guard's half where this machine cannot contain.
    """
    with Stage() as stage:
        config = SandboxConfig(stage.root, max_output_bytes=MAX_OUTPUT_BYTES)
        with Sandbox(config=config) as box:
            for case in GUARDED:
                call = case.call
                yield Outcome(case, box.run(call.argv, shell=call.shell, cwd=call.cwd))
        loose = unguarded(config, containment=Containment(backend="none"), limits=Limits())
        # The profile runs nothing unless the kernel gives every layer.
        with (
            Sandbox(config=config.replace(profile="workspace", denylist=None)) as box,
            Sandbox(config=loose.replace(project_root=stage.copy)) as bare,
        ):
            for attempt in ATTEMPTS:
                result = box.run(["python3", attempt.script])
                got_out = stage.succeeded(attempt, stage.root, result.stdout)
                stage.end_daemons()
                # Without that, a script that does nothing would pass for one that was held.
                works_alone = _works(attempt, bare, stage)
                yield Trial(attempt, result, works_alone, got_out)
            for case in LIMITS:
                limit = TIMEOUT_SECONDS if case.expected == "timed out" else None
                yield Outcome(case, box.run(case.call.argv, timeout_seconds=limit))


def _works(attempt: Attempt, bare: Sandbox, stage: Stage) -> bool:
    """Say whether an attempt succeeds uncontained, seen from a shell that goes on after it as a person's does."""
    said = bytearray()
    text = f"python3 {attempt.script}; echo {ENDED.decode()}; sleep {ALONE_SECONDS}"
    with bare.start(text, shell=True, on_output=lambda _, data: said.extend(data)) as handle:  # noqa: S604  our own text
        while ENDED not in said:
            try:
                handle.wait(0.02)
            except TimeoutError:
                continue
            break  # the shell itself has ended, or the script never did
        return stage.succeeded(attempt, stage.copy, bytes(said))
