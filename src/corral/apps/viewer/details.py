"""What is shown of one call when it is opened: how the guard reads it, what it printed, its spans. For a report, of many."""

from __future__ import annotations

from corral.apps.viewer.feed import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from corral.apps.viewer.explain import Reader
    from corral.apps.viewer.feed import Feed
    from corral.apps.viewer.spans import Spans

    Data = dict[str, Any]
    Told = Callable[[str, int], None]  # of what, and how many by now

MAX_READ = (
    5000  # calls that are read again for a report, those that were not allowed first; one takes about a millisecond
)
MAX_CHARACTERS = 32 * 1024 * 1024  # of what a report keeps of output


def details_of(key: str, feed: Feed, reader: Reader, spans: Spans | None) -> Data:
    """Return what else is known of a call; nothing of one that is not there."""
    call = feed.call(key)
    if call is None:
        return {}
    made: Data = {"parts": reader.read(call), "output": feed.output(key)}
    return made | {"spans": spans.of(call)} if spans is not None else made


def details_of_all(feed: Feed, reader: Reader, spans: Spans | None, told: Told | None = None) -> Data:
    """Return what a report keeps of its calls besides themselves, within bounds; the newest calls first.

    Calls of one text in one place are read once: `parts` lists what was read, `calls` says which of it belongs to which key.
    """
    made: Data = {"parts": [], "calls": {}, "left_out": 0}
    known: dict[str, int] = {}
    room = MAX_CHARACTERS
    calls = _newest_first(feed, told)
    for number, call in enumerate(sorted(calls, key=lambda call: call.get("decision") == "allow")):
        if told is not None:
            told(f"of {len(calls)} calls looked at again", number)
        about: Data = {}
        names = ("argv", "shell", "cwd", "root", "profile", "cut")
        same = dumps([bool(call.get("transaction")), *(call.get(name) for name in names)])
        if same not in known and len(known) < MAX_READ:
            known[same] = len(known)
            made["parts"].append(reader.read(call))
        if same in known:
            about["parts"] = known[same]
        else:
            made["left_out"] += 1
        output = feed.output(call["key"])
        size = len(dumps(output))
        if output is not None and size <= room:
            room -= size
            about["output"] = output
        elif output is not None:
            about["output"] = {"dropped": True}
        if spans is not None and (found := spans.of(call)):
            about["spans"] = found
        if about:
            made["calls"][call["key"]] = about
    return made


def _newest_first(feed: Feed, told: Told | None) -> list[Data]:
    keys = feed.keys()
    found: list[Data] = []
    for key in reversed(keys):
        if told is not None:
            told(f"of {len(keys)} calls put in order", len(found))
        call = feed.call(key)
        if call is not None:
            found.append(call)
    return found
