"""What fills a feed: the owner's log, files of results, runs of evals. Each is read to its end, and then on as it grows."""

from __future__ import annotations

import json
import os
import stat
from time import monotonic

from corral.apps.evals import journal, results
from corral.apps.evals.outcome import Outcome
from corral.apps.viewer import call_list, evals, transactions
from corral.audit import query
from corral.model.errors import CorralError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from typing import Any, Protocol

    from corral.apps.viewer.feed import Feed

    class Source(Protocol):
        """What a page is about. `look` takes in what is new and says whether there was anything."""

        name: str
        kind: str

        def look(self, feed: Feed) -> bool: ...
        def close(self) -> None: ...


CHUNK = 2000  # calls that are taken in at once
MAX_FILE_BYTES = 512 * 1024 * 1024  # of results or a journal that is read
MAX_LINE_BYTES = 64 * 1024 * 1024  # against a file without an end
EVALS_SECONDS = 0.5  # between two documents about a run that goes on


class LogSource:
    """The owner's log: those entries that fit a wish, of the newest so many where a number is given."""

    kind = "log"

    def __init__(self, place: str, wish: query.LogFilter, *, last: int = 0) -> None:
        self.name = place
        self._news = self._entries(wish, last)

    def _entries(self, wish: query.LogFilter, last: int) -> Generator[query.Entry | None]:
        known = iter(query.entries(self.name, wish, last=last)) if last else query.walk(self.name, wish)
        seq = 0
        for entry in known:
            seq = entry["seq"]
            yield entry
        yield from query.follow(self.name, wish, after=seq)

    def look(self, feed: Feed) -> bool:
        """Take in what is new; waits a moment where nothing is."""
        chunk: list[tuple[call_list.Data, call_list.Data | None]] = []
        for entry in self._news:
            if entry is not None:
                told = transactions if entry.get("event") == "transaction" else call_list
                chunk.append((told.of_entry(entry), None))
            if entry is None or len(chunk) >= CHUNK:
                break
        feed.put(chunk)
        return bool(chunk)

    def close(self) -> None:
        """Read no more."""
        self._news.close()


class ResultSource:
    """A file of results, one a line, as `corral run --json` and `corral batch` print them."""

    kind = "results"

    def __init__(self, path: str, *, root: str = "") -> None:
        self.name = path
        self._root = root
        self._lines = _Lines(path)
        self._count = 0
        self._has_results = False

    def look(self, feed: Feed) -> bool:
        """Take in what is new."""
        found = []
        for data in self._lines.objects(CHUNK):
            self._count += 1
            result = data["result"] if isinstance(data.get("result"), dict) else data
            self._has_results = self._has_results or "exit_code" in result or "error" in data
            if "exit_code" in result:
                call, output = call_list.of_result(result, root=self._root)
                call["key"] = call.get("key") or f"line {self._count}"
                found.append((call, output))
                if "transaction" in data and "outcome" in data:
                    found.append((transactions.of_trial(data, root=self._root, at=call.get("at")), {}))
        feed.put(found)
        if self._lines.whole and not self._has_results and not self._lines.has_more:
            raise CorralError(f"{self.name} holds no results of corral run --json, corral batch or corral eval")
        return bool(found) or self._lines.has_more

    def close(self) -> None:
        """Read no more."""
        self._lines.close()


class EvalSource:
    """Runs of evals by their directories: one, or two to compare. Of a run that goes on the journal is read."""

    kind = "eval"

    def __init__(self, folders: list[str]) -> None:
        self.name = " → ".join(folders)
        self._runs = [_Run(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]
        self._told_at = 0.0
        self._waits = False

    def look(self, feed: Feed) -> bool:
        """Take in what is new."""
        news = [call for run in self._runs for call in run.news()]
        feed.put(news)
        self._waits = self._waits or bool(news) or feed.evals is None
        if self._waits and (not news or monotonic() - self._told_at > EVALS_SECONDS):
            feed.put_evals(evals.document([(run.name, run.outcomes, run.total) for run in self._runs]))
            self._told_at, self._waits = monotonic(), False
        return bool(news)

    def close(self) -> None:
        """Read no more."""
        for run in self._runs:
            run.close()


class _Run:
    """One run: what its journal or its results tell."""

    def __init__(self, folder: str, name: str) -> None:
        self.name = name
        self.total = 0
        self._done: dict[str, Outcome] = {}
        whole = os.path.join(folder, results.RESULTS)
        going = journal.place(folder, os.environ)
        is_file = not os.path.isdir(folder)
        self._finished = folder if is_file else whole if os.path.exists(whole) and not _goes_on(going) else ""
        self._lines = None if self._finished else _Lines(going)

    @property
    def outcomes(self) -> list[Outcome]:
        return list(self._done.values())

    def news(self) -> list[tuple[call_list.Data, call_list.Data | None]]:
        if self._finished:
            found, self._finished = results.read_any(self._finished), ""
        else:
            found = [] if self._lines is None else [o for d in self._lines.objects(CHUNK) for o in self._entry(d)]
        made: list[tuple[call_list.Data, call_list.Data | None]] = []
        for outcome in [outcome for outcome in found if outcome.is_sound]:
            self._done[outcome.id] = outcome
            transaction = transactions.name_of(self.name, outcome.id) if outcome.transaction else ""
            made += [
                call_list.of_task(self.name, outcome.id, n, facts, transaction=transaction)
                for n, facts in enumerate(outcome.calls[: call_list.MAX_ITEMS], 1)
            ]
            if outcome.transaction:
                made.append((transactions.of_task(self.name, outcome.id, outcome.transaction), None))
        return made

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()

    def _entry(self, data: dict[str, Any]) -> Iterator[Outcome]:
        if data.get("event") == "start" and isinstance(data.get("tasks"), int):
            self.total = data["tasks"]
        if data.get("event") == "task":
            try:
                yield Outcome.from_dict(data)
            except (KeyError, TypeError):
                return


def _goes_on(path: str) -> bool:
    """Say whether a journal is of a run that has not come to its end."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 200))
            return b'"event": "end"' not in file.read().rpartition(b"\n{")[2]
    except OSError:
        return False


def _names(folders: list[str]) -> list[str]:
    """Return short names that differ: the last part of each path, or all of it."""
    short = [os.path.basename(os.path.abspath(folder)) for folder in folders]
    return short if len(set(short)) == len(short) else [f"{n}. {name}" for n, name in enumerate(folders, 1)]


class _Lines:
    """The JSON objects of a file, line by line, as it grows."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            # What waits for a writer must not hold the page up.
            self._file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115  open as long as the page is shown
            if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                self._file.close()
                raise CorralError(f"{path} is not a regular file")
        except OSError as error:
            raise CorralError(f"{path}: {error.strerror}") from None
        self._rest = b""
        self._read = 0
        self.whole = 0  # lines that were read to their end, whatever they hold
        self.has_more = False

    def close(self) -> None:
        """Read no more."""
        self._file.close()

    def objects(self, most: int) -> list[dict[str, Any]]:
        """Return what was added since the last time, so many at once; what is no object is left out."""
        found: list[dict[str, Any]] = []
        self.has_more = False
        while line := self._file.readline(MAX_LINE_BYTES):
            self._read += len(line)
            if self._read > MAX_FILE_BYTES:
                raise CorralError(f"{self._path}: longer than {MAX_FILE_BYTES} bytes")
            self._rest += line
            data = _object(self._rest)
            # A last line may lack its newline. An object that can be read is whole: no object begins another.
            if not line.endswith(b"\n") and data is None:
                break
            self.whole += bool(self._rest.strip())
            self._rest = b""
            found += [data] if data is not None else []
            if len(found) >= most:
                self.has_more = True
                break
        return found


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def source_of(paths: list[str], *, log: Callable[[], Source], root: str) -> Source:
    """Return what paths are about: none the log, a directory or its results an eval's run, two of them a comparison, a file results."""
    if not paths:
        return log()
    kinds = [_is_eval(path) for path in paths]
    if all(kinds) and len(paths) <= 2:
        return EvalSource(paths)
    if len(paths) > 1:
        raise CorralError("more than one source: only two runs of corral eval can be shown side by side")
    return ResultSource(paths[0], root=root)


def _is_eval(path: str) -> bool:
    if os.path.isdir(path):
        found = (os.path.join(path, results.RESULTS), journal.place(path, os.environ))
        if not any(os.path.exists(each) for each in found):
            raise CorralError(f"{path} has no {results.RESULTS}, and no corral eval run is in progress there")
        return True
    lines = _Lines(path)
    first = next(iter(lines.objects(1)), {})
    lines.close()
    return "status" in first and "digest" in first
