"""Runs the calls and attacks of `corral demo` in a temporary project and checks each outcome."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import tomllib
from contextlib import suppress
from signal import SIGKILL
from time import monotonic, sleep

from corral._lib.records import Record, frozen
from corral.apps.evals.run_task import write_files
from corral.apps.evals.task import Task, call_of
from corral.apps.evals.task_loader import FIXTURES, merged
from corral.apps.unguarded import unguarded
from corral.containment.filesystem.temp_dirs import process_temp_dir
from corral.model.call import Call
from corral.policy.config import Containment, Limits
from corral.sandbox import Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any, Self

    from corral.model.result import SandboxResult

UNCONTAINED_SECONDS = 30  # for a script without containment, in case it hangs
ENDED = b"the script has ended"
KILL_SECONDS = 30  # until a killed process is gone, on a busy machine
# The command that starts such a script looks harmless to the guard.
SCRIPT = (
    "import os, socket, subprocess, sys\n\ntry:\n    {code}\nexcept OSError as error:\n    sys.exit(error.strerror)\n"
)
HOOK = ".git/hooks/pre-commit"
_OUTCOME_WORDS = {"denied": "denied", "timed_out": "timed out", "truncated": "truncated"}  # otherwise "ran"


@frozen
class Case(Record):
    """A call and its expected outcome: `ran`, `timed out`, `truncated`, or `denied` by the axis that the group names."""

    group: str
    call: Call
    expected: str = "denied"
    exit_code: int = 0


@frozen
class Attempt(Record):
    """A script that attacks while it runs. `success` describes the effect of the attack.

    Contained, it must end with `exit_code`: 1 where the kernel makes a system call fail, 0 where the script cannot notice.
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
        """Return the outcome in the form of `Case.expected`."""
        return next((word for name, word in _OUTCOME_WORDS.items() if getattr(self.result, name)), "ran")

    @property
    def as_expected(self) -> bool:
        """True if the outcome is the expected one."""
        if self.word != self.case.expected:
            return False
        if self.word == "denied":
            return self.case.group == str(min(f.axis for f in self.result.verdict.findings))
        return self.word == "timed out" or self.result.exit_code == self.case.exit_code

    def to_dict(self) -> dict[str, object]:
        """Return the outcome as JSON-ready data."""
        case = self.case
        return _outcome_dict(case.group, case.call, self.result, case.expected, self.word, as_expected=self.as_expected)


@frozen
class Trial(Record):
    """The result of an attempt, run without corral (`works_alone`) and contained (`got_out`)."""

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
        """True if the attack works without corral and the kernel stopped it."""
        return self.word == "held" and self.works_alone and self.result.exit_code == self.attempt.exit_code

    def to_dict(self) -> dict[str, object]:
        """Return the trial as JSON-ready data."""
        call = Call(["python3", self.attempt.script])
        data = _outcome_dict("kernel", call, self.result, "held", self.word, as_expected=self.as_expected)
        return data | {"attempt": self.attempt.title, "works_alone": self.works_alone}


def _outcome_dict(
    group: str, call: Call, result: SandboxResult, expected: str, word: str, *, as_expected: bool
) -> dict[str, object]:
    names = ("exit_code", "denied", "timed_out", "truncated", "reason", "stdout_bytes", "killed")
    return {
        "group": group,
        "call": call.argv if isinstance(call.argv, str) else list(call.argv),
        "shell": call.shell,
        "cwd": call.cwd,
        "expected": expected,
        "outcome": word,
        "as_expected": as_expected,
        "rules": [finding.rule for finding in result.verdict.findings],
        **{name: getattr(result, name) for name in names},
        "duration_ms": round(result.duration_ms, 3),
    }


def _demo_tasks() -> list[Task]:
    with open(os.path.join(FIXTURES, "demo.toml"), "rb") as file:
        data = tomllib.load(file)
    return [Task(own["id"], merged(data["defaults"], own)) for own in data["task"]]


def _case(task: Task, call: Mapping[str, Any]) -> Case:
    expect = call["expect"]
    expected = next((word for name, word in _OUTCOME_WORDS.items() if name in expect), "ran")
    return Case(task.id.split("/")[1], call_of(call), expected, expect.get("exit_code", 0))


TASKS = _demo_tasks()
_CALLS = tuple(_case(task, call) for task in TASKS for call in task.calls)
GUARDED = tuple(case for case in _CALLS if case.group != "limits")
LIMITS = tuple(case for case in _CALLS if case.group == "limits")
TIMEOUT_SECONDS: float = next(task.data["timeout_seconds"] for task in TASKS if "timeout_seconds" in task.data)
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
CASES = (*GUARDED, *ATTEMPTS, *LIMITS)


class Stage:
    """A temporary home with a key, a project, a copy of it for runs without corral, and a listener on loopback."""

    def __enter__(self) -> Self:
        self._directory = tempfile.mkdtemp(prefix="corral-demo-", dir=process_temp_dir())
        place = os.path.realpath(self._directory)
        self.home, self.root, self.copy = (os.path.join(place, name) for name in ("home", "project", "copy"))
        self.token = f"corral-demo-{os.urandom(8).hex()}"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        write_files(self.home, {".ssh/id_ed25519": self.token})
        write_files(place, {"outside.txt": "private\n"})
        known = {"key": f"{self.home}/.ssh/id_ed25519", "port": self._listener.getsockname()[1], "token": self.token}
        scripts = {each.script: SCRIPT.format(code=each.code.format(**known)) for each in ATTEMPTS}
        for root in (self.root, self.copy):
            write_files(root, TASKS[0].data["files"] | scripts)
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

    def succeeded(self, attempt: Attempt, root: str, stdout: bytes) -> bool:
        """Return True if the effect of an attempt is there."""
        if attempt.success == "read it":
            return self.token.encode() in stdout
        if attempt.success == "still runs":
            return bool(self.daemons())
        if attempt.success == "planted it":
            return os.path.lexists(os.path.join(root, HOOK))
        try:
            self._listener.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def daemons(self) -> list[int]:
        """Return the processes with the token in their arguments."""
        found = []
        for entry in filter(str.isdecimal, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    arguments = file.read().split(b"\0")
            except OSError:
                continue  # the process has ended, or belongs to another user
            if self.token.encode() in arguments:
                found.append(int(entry))
        return found

    def end_daemons(self) -> None:
        """Kill the processes that an attempt left, and wait until they are gone."""
        deadline = monotonic() + KILL_SECONDS
        while (left := self.daemons()) and monotonic() < deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, SIGKILL)
            sleep(0.01)


def run_demo() -> Iterator[Outcome | Trial]:
    """Run all cases and attempts on a stage and yield each outcome as it arrives.

    Raises ContainmentError after the cases of the guard if this machine cannot contain.
    """
    with Stage() as stage:
        config = TASKS[0].config(stage.root)
        with Sandbox(config=config) as box:
            for case in GUARDED:
                call = case.call
                yield Outcome(case, box.run(call.argv, shell=call.shell, cwd=call.cwd))
        loose = unguarded(config, containment=Containment(backend="none"), limits=Limits())
        # The profile refuses to run anything unless the kernel provides every layer.
        with (
            Sandbox(config=config.replace(profile="workspace", denylist=None)) as box,
            Sandbox(config=loose.replace(project_root=stage.copy)) as bare,
        ):
            for attempt in ATTEMPTS:
                result = box.run(["python3", attempt.script])
                got_out = stage.succeeded(attempt, stage.root, result.stdout)
                stage.end_daemons()
                # Otherwise a script that does nothing would count as held.
                works_alone = _works(attempt, bare, stage)
                yield Trial(attempt, result, works_alone, got_out)
            for case in LIMITS:
                limit = TIMEOUT_SECONDS if case.expected == "timed out" else None
                yield Outcome(case, box.run(case.call.argv, timeout_seconds=limit))


def _works(attempt: Attempt, bare: Sandbox, stage: Stage) -> bool:
    """Return True if an attempt succeeds without containment, while the shell that started it still runs."""
    output = bytearray()
    text = f"python3 {attempt.script}; echo {ENDED.decode()}; sleep {UNCONTAINED_SECONDS}"
    with bare.start(text, shell=True, on_output=lambda _, data: output.extend(data)) as handle:  # noqa: S604  a constant text
        while ENDED not in output:
            try:
                handle.wait(0.02)
            except TimeoutError:
                continue
            break  # the shell has ended, so the script took too long
        return stage.succeeded(attempt, stage.copy, bytes(output))
