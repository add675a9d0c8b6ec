"""The journal of a run: a line for every task as soon as it is done. Append-only: after a crash exactly the rest runs.

A line counts once it ends in a newline; what a crash tore is no line, and its task runs again. It lies in the user's state and not
beside the results, where a command could write one that says everything has passed.
"""

from __future__ import annotations

import fcntl
import json
import os
from hashlib import blake2b

from corral import __version__
from corral._lib.timestamps import format_utc
from corral.apps.evals.outcome import Outcome
from corral.model.errors import CorralError
from corral.policy import user_dirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

SCHEMA = "corral.eval/1"
NAME = "journal.jsonl"  # of those that earlier versions kept beside the results
_READ_BYTES = 1 << 20


class Journal:
    """One run's journal, which one process writes. `done` holds what is finished already, by id and digest."""

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
        """Note that a run begins, or goes on, with so many tasks."""
        head = {"event": "start", "schema": SCHEMA, "corral": __version__, "at": format_utc(at), "tasks": count}
        self._append(head)

    def add(self, outcome: Outcome) -> None:
        """Note what became of a task."""
        self._append({"event": "task", **outcome.to_dict()})

    def finish(self, at: float) -> None:
        """Note that all tasks are done, and their results written: the next run begins anew."""
        self._append({"event": "end", "at": format_utc(at)})

    def close(self) -> None:
        """Let others write."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CorralError(f"{self.path} is being written by another corral eval; choose another --out") from None

    def _read(self) -> bool:
        """Read what is there; return whether it is a run that came to its end."""
        ended = False
        with open(self.path, "rb", buffering=_READ_BYTES) as file:
            for line in file:
                self._is_torn = not line.endswith(b"\n")
                entry = None if self._is_torn else _entry(line)
                if entry is None:
                    continue
                event = entry.get("event")
                ended = event == "end"
                if event == "start":
                    self._check_start(entry)
                elif event == "task":
                    self._check_task(entry)
        return ended

    def _check_start(self, entry: dict[str, Any]) -> None:
        if entry.get("schema") != SCHEMA:
            raise self._foreign()
        self.version = str(entry.get("corral", ""))

    def _check_task(self, entry: dict[str, Any]) -> None:
        try:
            outcome = Outcome.from_dict(entry)
        except TypeError:
            raise self._foreign() from None
        if not outcome.is_sound:
            raise self._foreign()
        self.done[outcome.id, outcome.digest] = outcome

    def _foreign(self) -> CorralError:
        return CorralError(f"{self.path} is no journal of this corral eval; choose another --out, or --fresh")

    def _append(self, entry: dict[str, Any]) -> None:
        # Alone on its line, what was torn is skipped for ever.
        data = b"\n" * self._is_torn + json.dumps(entry).encode() + b"\n"
        self._is_torn = False
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            raise CorralError(
                f"{self.path} cannot be written: {error.strerror}; what it has is done, and the same command goes on"
            ) from None


def place(folder: str, environ: Mapping[str, str]) -> str:
    """Return where the journal of the run with this --out lies."""
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
        raise CorralError(f"{path} cannot be written: {error.strerror}; look at XDG_STATE_HOME") from None


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        # Torn by a crash, and ended by the run after it.
        return None
    return entry if isinstance(entry, dict) else None
