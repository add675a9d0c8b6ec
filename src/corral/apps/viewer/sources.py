"""Fills a feed from the audit log, a file of results, or runs of evals. Each is read to its end and then followed as it grows."""

from __future__ import annotations

import os
import stat
from time import monotonic

from corral.apps.evals import journal, results
from corral.apps.evals.outcome import Outcome, parse_object
from corral.apps.viewer import call_list, evals, transactions
from corral.audit import query
from corral.model.errors import CorralError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, Protocol

    from corral.apps.viewer.feed import Feed

    class Source(Protocol):
        """Data of a page. `look` adds new data to the feed and returns True if there was any."""

        name: str
        kind: str

        def look(self, feed: Feed) -> bool: ...
        def close(self) -> None: ...


CHUNK = 2000  # calls that are added at once
MAX_FILE_BYTES = 512 * 1024 * 1024  # of results or a journal
MAX_LINE_BYTES = 64 * 1024 * 1024  # bounds the memory for a file without newlines
EVALS_SECONDS = 0.5  # between two updates of the evals page


class LogSource:
    """The entries of the audit log that match a filter, only the `last` newest if that is not 0."""

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
        """Add new entries. Waits a moment if there are none."""
        chunk: list[tuple[call_list.Data, call_list.Data | None]] = []
        for entry in self._news:
            if entry is not None:
                module = transactions if entry.get("event") == "transaction" else call_list
                chunk.append((module.of_entry(entry), None))
            if entry is None or len(chunk) >= CHUNK:
                break
        feed.put(chunk)
        return bool(chunk)

    def close(self) -> None:
        """Close the files."""
        self._news.close()


class ResultSource:
    """A file with one result per line, as `corral run --json` and `corral batch` print them."""

    kind = "results"

    def __init__(self, path: str, *, root: str = "") -> None:
        self.name = path
        self._root = root
        self._lines = _Lines(path)
        self._count = 0
        self._has_results = False

    def look(self, feed: Feed) -> bool:
        """Add new calls."""
        found = []
        for data in self._lines.objects(CHUNK):
            self._count += 1
            result = data["result"] if isinstance(data.get("result"), dict) else data
            self._has_results = self._has_results or "exit_code" in result or "error" in data
            if "exit_code" in result:
                call, output = call_list.of_result(result, root=self._root)
                found.append((call, output))
                if "transaction" in data and "outcome" in data:
                    found.append((transactions.of_trial(data, root=self._root, at=call.get("at")), {}))
        feed.put(found)
        if self._lines.whole and not self._has_results and not self._lines.has_more:
            raise CorralError(f"{self.name} has no results of corral run --json, corral batch or corral eval")
        return bool(found) or self._lines.has_more

    def close(self) -> None:
        """Close the files."""
        self._lines.close()


class EvalSource:
    """A run of `corral eval`, or two to compare, given by their directories. An unfinished run is read from its journal."""

    kind = "eval"

    def __init__(self, folders: list[str]) -> None:
        self.name = " → ".join(folders)
        self._runs = [_Run(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]
        self._updated_at = 0.0
        self._waits = False

    def look(self, feed: Feed) -> bool:
        """Add new calls."""
        news = [call for run in self._runs for call in run.news()]
        feed.put(news)
        self._waits = self._waits or bool(news) or feed.evals is None
        if self._waits and (not news or monotonic() - self._updated_at > EVALS_SECONDS):
            feed.put_evals(evals.document([(run.name, run.outcomes, run.total) for run in self._runs]))
            self._updated_at, self._waits = monotonic(), False
        return bool(news)

    def close(self) -> None:
        """Close the files."""
        for run in self._runs:
            run.close()


class _Run:
    """A run, read from its results or its journal."""

    def __init__(self, folder: str, name: str) -> None:
        self.name = name
        self.total = 0
        self._done: dict[str, Outcome] = {}
        finished = os.path.join(folder, results.RESULTS) if os.path.isdir(folder) else folder
        path = journal.place(folder, os.environ)
        is_finished = finished == folder or (os.path.exists(finished) and not _is_unfinished(path))
        self._finished = finished if is_finished else ""
        self._lines = None if is_finished else _Lines(path)

    @property
    def outcomes(self) -> list[Outcome]:
        return list(self._done.values())

    def news(self) -> list[tuple[call_list.Data, call_list.Data | None]]:
        if self._finished:
            found, self._finished = results.read_lines(self._finished), ""
        else:
            found = [] if self._lines is None else [self._entry(data) for data in self._lines.objects(CHUNK)]
        made: list[tuple[call_list.Data, call_list.Data | None]] = []
        for outcome in filter(None, found):
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

    def _entry(self, data: dict[str, Any]) -> Outcome | None:
        if data.get("event") == "start" and isinstance(data.get("tasks"), int):
            self.total = data["tasks"]
        return Outcome.parse(data) if data.get("event") == "task" else None


def _is_unfinished(path: str) -> bool:
    """Return True for the journal of a run that has not ended."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 200))
            return b'"event": "end"' not in file.read().rpartition(b"\n{")[2]
    except OSError:
        return False


def _names(folders: list[str]) -> list[str]:
    """Return the last part of each path, or numbered paths if those are equal."""
    short = [os.path.basename(os.path.abspath(folder)) for folder in folders]
    return short if len(set(short)) == len(short) else [f"{n}. {name}" for n, name in enumerate(folders, 1)]


class _Lines:
    """Reads the JSON objects of a growing file line by line."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            # O_NONBLOCK: opening a pipe must not wait for a writer.
            self._file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115  `close` closes it
            if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                self._file.close()
                raise CorralError(f"{path} is not a regular file")
        except OSError as error:
            raise CorralError(f"{path}: {error.strerror}") from None
        self._rest = b""
        self._read = 0
        self.whole = 0  # complete lines, whether objects or not
        self.has_more = False

    def close(self) -> None:
        """Close the files."""
        self._file.close()

    def objects(self, most: int) -> list[dict[str, Any]]:
        """Return up to `most` objects that were added since the last call. Skips other lines."""
        found: list[dict[str, Any]] = []
        self.has_more = False
        while line := self._file.readline(MAX_LINE_BYTES):
            self._read += len(line)
            if self._read > MAX_FILE_BYTES:
                raise CorralError(f"{self._path} is longer than {MAX_FILE_BYTES} bytes")
            self._rest += line
            data = parse_object(self._rest)
            # The last line may lack its newline. If it parses it is complete, because no object is a prefix of another.
            if not line.endswith(b"\n") and data is None:
                break
            self.whole += bool(self._rest.strip())
            self._rest = b""
            found += [data] if data is not None else []
            if len(found) >= most:
                self.has_more = True
                break
        return found


def source_of(paths: list[str], *, log: Callable[[], Source], root: str) -> Source:
    """Return the source for paths: none for the log, one or two runs of `corral eval`, or a file of results."""
    if not paths:
        return log()
    kinds = [_is_eval(path) for path in paths]
    if all(kinds) and len(paths) <= 2:
        return EvalSource(paths)
    if len(paths) > 1:
        raise CorralError("too many sources: only two runs of corral eval can be compared")
    return ResultSource(paths[0], root=root)


def _is_eval(path: str) -> bool:
    if os.path.isdir(path):
        found = (os.path.join(path, results.RESULTS), journal.place(path, os.environ))
        if not any(os.path.exists(each) for each in found):
            raise CorralError(f"{path} has no {results.RESULTS}, and no corral eval writes there")
        return True
    lines = _Lines(path)
    first = next(iter(lines.objects(1)), {})
    lines.close()
    return "status" in first and "digest" in first
