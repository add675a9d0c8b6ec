"""Keeps the journal of a run: one line for each finished task. After a crash, the next run executes only the missing tasks.

A line counts once it ends in a newline. A line that a crash cut off is ignored, and its task runs again. The journal is in the user's
state directory, not beside the results: there a command could write a journal in which every task has passed.
"""

from __future__ import annotations

import fcntl
import json
import os
from hashlib import blake2b

from corral import __version__
from corral._lib.timestamps import format_utc
from corral.apps.evals.outcome import Outcome, parse_object
from corral.model.errors import CorralError
from corral.policy import user_dirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

SCHEMA = "corral.eval/1"
NAME = "journal.jsonl"  # earlier versions kept it beside the results
_READ_BYTES = 1 << 20


class Journal:
    """The journal of one run, locked for one writing process. `done` has the finished tasks by id and digest."""

    def __init__(self, folder: str, *, fresh: bool = False, root: str = "") -> None:
        self.path = place(folder, os.environ)
        self.done: dict[tuple[str, str], Outcome] = {}
        self.version = ""
        self._is_torn = False
        self._descriptor = _opened(self.path, root)
        try:
            self._lock()
            if fresh or self._read():
                os.ftruncate(self._descriptor, 0)
                self.done, self._is_torn = {}, False
        except BaseException:
            os.close(self._descriptor)
            raise

    def start(self, count: int, at: float) -> None:
        """Record that a run of `count` tasks starts or continues."""
        self._append({"event": "start", "schema": SCHEMA, "corral": __version__, "at": format_utc(at), "tasks": count})

    def add(self, outcome: Outcome) -> None:
        """Record the outcome of a task."""
        self._append({"event": "task", **outcome.to_dict()})
        self.done[outcome.id, outcome.digest] = outcome

    def finish(self, at: float) -> None:
        """Record that all tasks are done and their results are written. The next run starts from the beginning."""
        self._append({"event": "end", "at": format_utc(at)})

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CorralError(f"another corral eval is writing {self.path}; choose another --out") from None

    def _read(self) -> bool:
        """Read the journal and return True if its run is finished."""
        ended = False
        with open(self.path, "rb", buffering=_READ_BYTES) as file:
            for line in file:
                self._is_torn = not line.endswith(b"\n")
                entry = None if self._is_torn else parse_object(line)
                if entry is None:
                    continue
                event = entry.get("event")
                ended = event == "end"
                if event == "start" and entry.get("schema") == SCHEMA:
                    self.version = str(entry.get("corral", ""))
                elif event == "task" and (outcome := Outcome.parse(entry)) is not None:
                    self.done[outcome.id, outcome.digest] = outcome
                elif event in ("start", "task"):
                    raise CorralError(
                        f"{self.path} is not a journal of this version of corral eval; choose another --out, or use --fresh"
                    )
        return ended

    def _append(self, entry: dict[str, Any]) -> None:
        # A newline turns a line that a crash cut off into a line of its own, which every reader skips.
        data = b"\n" * self._is_torn + json.dumps(entry).encode() + b"\n"
        self._is_torn = False
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            raise CorralError(
                f"cannot write {self.path}: {error.strerror}; its tasks are done, run the same command to continue"
            ) from None


def place(folder: str, environ: Mapping[str, str]) -> str:
    """Return the path of the journal for an --out directory."""
    name = blake2b(os.fsencode(os.path.realpath(folder)), digest_size=16).hexdigest()
    return f"{user_dirs.user_directory('state', environ)}/evals/{name}.jsonl"


def _opened(path: str, root: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        user_dirs.private_directory("state", os.environ, root)
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        user_dirs.refuse_writable_by_others(os.path.dirname(path))
        return os.open(path, flags, 0o600)
    except OSError as error:
        raise CorralError(f"cannot write {path}: {error.strerror}; check XDG_STATE_HOME") from None
