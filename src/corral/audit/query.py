"""Reads the audit log: filters entries, follows new ones, and verifies the hash chain. Never writes.

Entries that cannot be parsed are left out; `verify` names them.
"""

from __future__ import annotations

import json
import os
from time import sleep

from corral._lib.records import Record, frozen
from corral.audit.ledger import LOG, NOTHING, is_genuine, link_of, older_files, read_head
from corral.model.errors import AuditError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader
    from typing import Any

    from corral.audit.ledger import Head, Link

    Entry = dict[str, Any]

POLL_SECONDS = 0.2
MAX_PROBLEMS = 20  # named one by one; the rest is counted
_TRIES = 20  # to open all files while the log is being rotated


@frozen
class LogFilter(Record):
    """Selects entries. An empty field matches everything."""

    since: str = ""  # as `corral._lib.timestamps.format_utc` writes it
    until: str = ""
    decision: str = ""
    rule: str = ""
    project: str = ""
    text: str = ""
    host: str = ""
    event: str = ""
    trials: bool = False  # include the calls by which corral tries hooks

    def fits(self, entry: Entry) -> bool:
        """Return whether an entry matches."""
        at, root = str(entry.get("at", "")), str(entry.get("root", ""))
        rules = [str(finding.get("rule", "")) for finding in entry.get("findings", ())]
        return (
            (not self.since or at >= self.since)
            and (not self.until or at <= self.until)
            and (not self.decision or entry.get("decision") == self.decision)
            and (not self.rule or any(rule == self.rule or rule.startswith(self.rule + "-") for rule in rules))
            and (not self.project or root == self.project or root.startswith(self.project.rstrip("/") + "/"))
            and (not self.text or self.text.lower() in command_of(entry).lower())
            and (not self.host or entry.get("host") == self.host)
            and (not self.event or entry.get("event") == self.event)
            and (self.trials or entry.get("trial") is not True)
        )


@frozen
class Report(Record):
    """Outcome of `verify`. `problems` is empty if no line was removed, changed or added."""

    lines: int = 0
    first: int = 0
    last: int = 0
    hash: str = NOTHING
    dropped: int = 0
    problems: tuple[str, ...] = ()


def command_of(entry: Entry) -> str:
    """Return the call of an entry as one text: shell text, words, or file names."""
    if "shell" in entry:
        return str(entry["shell"])
    changed = [change.get("path", "") for change in entry.get("changes", ()) if isinstance(change, dict)]
    return " ".join(map(str, entry.get("argv") or entry.get("files") or changed))


def entry_of(line: bytes) -> Entry | None:
    """Parse a line. Return None if it is no entry."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("seq"), int) else None


def entries(place: str, wish: LogFilter, *, last: int = 0) -> list[Entry]:
    """Return the matching entries, newest last: the last `last` of them, or all if it is 0."""
    files = _opened(place)
    try:
        return _newest(files, wish, last)[::-1]
    finally:
        for file in files:
            file.close()


def _newest(files: list[BufferedReader], wish: LogFilter, last: int) -> list[Entry]:
    found: list[Entry] = []
    for file in reversed(files):
        lines = file.read().splitlines(keepends=True)
        is_too_old = bool(lines) and bool(wish.since)
        for line in reversed(lines):
            if last and len(found) >= last:
                break
            entry = entry_of(line)
            if entry is not None:
                is_too_old = is_too_old and str(entry.get("at", "")) < wish.since
                found += [entry] if wish.fits(entry) else []
        if is_too_old or (last and len(found) >= last):
            break
    return found


def walk(place: str, wish: LogFilter) -> Iterator[Entry]:
    """Yield the matching entries, newest last, in constant memory."""
    files = _opened(place)
    try:
        for file in files:
            yield from (entry for entry in map(entry_of, file) if entry is not None and wish.fits(entry))
    finally:
        for file in files:
            file.close()


def known_by(place: str, start: str) -> list[Entry]:
    """Return the entries whose id, or whose call's id, begins with `start`."""
    ids = ("id", "call")
    return [
        e for e in entries(place, LogFilter(trials=True)) if any(str(e.get(name, "")).startswith(start) for name in ids)
    ]


def follow(place: str, wish: LogFilter, *, after: int) -> Iterator[Entry | None]:
    """Yield new matching entries for ever, and None when there is nothing new. Handles rotation."""
    reader = _Reader(place, after)
    try:
        while True:
            news = [entry for entry in reader.news() if wish.fits(entry)]
            yield from news
            if not news:
                yield None
                sleep(POLL_SECONDS)
    finally:
        reader.close()


class _Reader:
    """Reads the lines that were appended since the last call."""

    def __init__(self, place: str, after: int) -> None:
        self._place = place
        self._after = after
        self._file: BufferedReader | None = None
        self._rest = b""

    def news(self) -> list[Entry]:
        news = self._read()
        if not news and self._was_rotated():
            # Lines written just before the rotation are in the file that is still open.
            news = self._read()
            self._open()
            news += self._read()
        return news

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _was_rotated(self) -> bool:
        try:
            now = os.stat(f"{self._place}/{LOG}")
        except FileNotFoundError:
            return False
        return self._file is None or os.fstat(self._file.fileno()).st_ino != now.st_ino

    def _open(self) -> None:
        files = _opened(self._place, after=self._after)
        self.close()
        self._file, self._rest = None, b""
        for file in files:
            if self._file is not None:
                self._rest += self._file.read()
                self._file.close()
            self._file = file

    def _read(self) -> list[Entry]:
        if self._file is None:
            return []
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        news = [entry for entry in map(entry_of, lines) if entry is not None and entry["seq"] > self._after]
        if news:
            self._after = news[-1]["seq"]
        return news


def verify(place: str) -> Report:
    """Check every line of the log against the chain and against `head`."""
    try:
        if _is_absent(place):
            return Report()
        os.listdir(place)  # raises if it is not a readable directory
        before = read_head(place)
        files = _opened(place)
        after = read_head(place)
    except OSError as error:
        raise AuditError(f"the audit log cannot be read: {error.filename or place}: {error.strerror}") from None
    return _Chain(before, after).walked(files)


def _is_absent(place: str) -> bool:
    try:
        os.lstat(place)
    except FileNotFoundError:
        return True
    return False


class _Chain:
    """Walks along the chain and collects problems."""

    def __init__(self, before: Head | None, after: Head | None) -> None:
        self.head = before
        self.dropped = after.dropped if after else 0
        self.dropped_hash = after.dropped_hash if after else NOTHING
        self.problems: list[str] = []
        self.lines = 0
        self.first: Link | None = None
        self.last: Link | None = None
        self.said = False  # whether the line that `head` names was found

    def walked(self, files: list[BufferedReader]) -> Report:
        for number, file in enumerate(files):
            with file:
                for position, line in enumerate(file, 1):
                    if not line.endswith(b"\n") and number == len(files) - 1:
                        break  # being written, or torn by a kill; never acknowledged
                    self._line(f"{os.path.basename(str(file.name))}:{position}", line)
        self._ending()
        first, last = self.first, self.last
        return Report(
            self.lines,
            first.seq if first else 0,
            last.seq if last else 0,
            last.hash if last else NOTHING,
            self.dropped,
            tuple(self.problems),
        )

    def _line(self, where: str, line: bytes) -> None:
        self.lines += 1
        link = link_of(line)
        if link is None:
            self.problems.append(f"{where}: this line is incomplete")
            return
        if not is_genuine(line, link):
            self.problems.append(f"{where}: line {link.seq} was changed: its hash is not that of its text")
        gap = self._gap(link)
        if gap:
            self.problems.append(f"{where}: {gap}")
        if self.head is not None and link.seq == self.head.seq:
            self.said = link.hash == self.head.hash
        self.first = self.first or link
        self.last = link

    def _gap(self, link: Link) -> str:
        seq, hash_ = (self.dropped, self.dropped_hash) if self.last is None else (self.last.seq, self.last.hash)
        if self.last is None and link.seq <= self.dropped:
            return ""  # a file that a killed writer did not remove
        if link.seq > 1 and link.prev == NOTHING:
            return f"`head` was missing or damaged when line {link.seq} was written; lines before it may be missing"
        if link.seq > seq + 1:
            return f"{_numbers(seq + 1, link.seq - 1)} missing before this one"
        if link.seq <= seq:
            return f"line {link.seq} comes after line {seq}"
        return "" if link.prev == hash_ else f"line {link.seq} does not follow the one before it, which was changed"

    def _ending(self) -> None:
        head, last = self.head, self.last
        if head is None:
            if self.lines:
                self.problems.append("head: it is missing or damaged; lines at the end may be missing")
        elif head.seq > (last.seq if last else 0):
            start = (last.seq if last else self.dropped) + 1
            self.problems.append(f"{LOG}: {_numbers(start, head.seq)} missing at the end")
        elif head.seq and not self.said:
            self.problems.append(f"head: line {head.seq} differs from the line that was written")


def _numbers(first: int, last: int) -> str:
    return f"line {first} is" if first == last else f"lines {first} to {last} are"


def _opened(place: str, *, after: int = 0) -> list[BufferedReader]:
    """Open the files that contain lines after `after`, oldest first, as one consistent snapshot."""
    for _ in range(_TRIES):
        files: list[BufferedReader] = []
        try:
            present = older_files(place)
            older = [name for name in present if not name[4:16].isdecimal() or int(name[4:16]) > after]
            files += [open(f"{place}/{name}", "rb") for name in older]  # noqa: SIM115  the caller closes them
            if os.path.exists(f"{place}/{LOG}"):
                files.append(open(f"{place}/{LOG}", "rb"))  # noqa: SIM115
            if older_files(place)[-1:] == present[-1:]:
                return files
        except FileNotFoundError:
            if not os.path.isdir(place):
                return []
        for file in files:
            file.close()
    raise AuditError(f"the audit log in {place} is rotated faster than it can be read")
