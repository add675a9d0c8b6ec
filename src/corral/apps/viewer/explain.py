"""Judges calls again for the page: each command in a call with its effects, and the findings with their positions. Runs nothing."""

from __future__ import annotations

import os

from corral.apps.viewer.feed import DROPPED, dumps
from corral.audit.render_log import call_of
from corral.containment.filesystem.persistent_scratch import project_tmp
from corral.guard.evaluate import trace, vet
from corral.guard.machine import Machine
from corral.guard.rules.loader import effects, profile_names
from corral.model.errors import CorralError
from corral.model.render_result import Explanation
from corral.policy.loader import load
from corral.transactions.transaction import transaction_config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from corral.apps.viewer.feed import Feed
    from corral.apps.viewer.spans import Spans
    from corral.policy.config import SandboxConfig

    Data = dict[str, Any]
    Told = Callable[[str, int], None]  # receives a step of the work and the number of calls done

MAX_STEPS = 200  # shown; the rest is counted
MAX_READ = 5000  # calls judged again for a report, refused ones first; one takes about a millisecond
MAX_CHARACTERS = 32 * 1024 * 1024  # of output in a report


class Reader:
    """Judges calls under the policy of their project. With `keeps`, the policy of a project is loaded only once."""

    def __init__(self, environ: Mapping[str, str], *, root: str = "", keeps: bool = False) -> None:
        self._environ = environ
        self._root = root  # for calls that do not name their project
        self._keeps = keeps
        self._known: dict[tuple[str, str, bool], tuple[SandboxConfig, Machine] | str] = {}
        self._axis_of = {key: str(row["axis"]) for key, row in effects().items()}

    def read(self, call: Mapping[str, Any]) -> Data:
        """Return the parts of a call as JSON-ready data, or the reason why there are none as `said`."""
        root = str(call.get("root") or self._root)
        given = call_of({"cwd": root, **call, "root": root})
        if given is None:
            return {"said": "The log does not have the whole call: it was cut, or had secrets."}
        if call.get("event") == "eval":
            # The project of the task is deleted, so paths cannot be resolved in it.
            root = self._root
            given = given.replace(cwd=None)
        if not root or not os.path.isdir(root):
            return {"said": f"The project {root} does not exist any more." if root else "The project is unknown."}
        found = self._policy(root, str(call.get("profile") or ""), in_transaction=bool(call.get("transaction")))
        if isinstance(found, str):
            return {"said": found}
        config, machine = found
        try:
            steps = trace(given, config, machine)
        except Exception as error:  # noqa: BLE001  the call is hostile, and the page must show the others
            return {"said": f"The guard failed on this call ({type(error).__name__})."}
        reasoning = Explanation(
            given, vet(given, config, machine), steps, self._axis_of, config.rules.name, config.project_root
        )
        data = reasoning.to_dict()
        names = ("decision", "complete", "findings", "axes", "profile", "root")
        made = {name: data[name] for name in names} | {"steps": data["steps"][:MAX_STEPS]}  # type: ignore[index]  # a list
        return made | ({"more": len(steps) - MAX_STEPS} if len(steps) > MAX_STEPS else {})

    def _policy(self, root: str, profile: str, *, in_transaction: bool) -> tuple[SandboxConfig, Machine] | str:
        key = (root, profile, in_transaction)
        if key in self._known and self._keeps:
            return self._known[key]
        try:
            config = load(root, self._environ, profile=profile if profile in profile_names() else None).config
        except CorralError as error:
            self._known[key] = f"The policy cannot be read: {error}"
        else:
            config = transaction_config(config) if in_transaction else config
            self._known[key] = config, Machine.of(config, project_tmp(config, self._environ))
        return self._known[key]


def details_of(key: str, feed: Feed, reader: Reader, spans: Spans | None) -> Data:
    """Return the parts, the output and the spans of a call, an empty dict for an unknown call."""
    call = feed.call(key)
    if call is None:
        return {}
    made: Data = {"parts": reader.read(call), "output": feed.output(key)}
    return made | {"spans": spans.of(call)} if spans is not None else made


def details_of_all(feed: Feed, reader: Reader, spans: Spans | None, told: Told | None = None) -> Data:
    """Return the details of all calls for a report, the newest first, within bounds.

    Equal calls in one directory are judged once: `parts` lists the readings, and `calls` maps a key to its index in `parts`.
    """
    made: Data = {"parts": [], "calls": {}, "left_out": 0}
    known: dict[str, int] = {}
    room = MAX_CHARACTERS
    calls = _newest_first(feed, told)
    for number, call in enumerate(sorted(calls, key=lambda call: call.get("decision") == "allow")):
        if told is not None:
            told(f"of {len(calls)} calls judged again", number)
        details: Data = {}
        names = ("argv", "shell", "cwd", "root", "profile", "cut")
        same = dumps([bool(call.get("transaction")), *(call.get(name) for name in names)])
        if same not in known and len(known) < MAX_READ:
            known[same] = len(known)
            made["parts"].append(reader.read(call))
        if same in known:
            details["parts"] = known[same]
        else:
            made["left_out"] += 1
        output = feed.output(call["key"])
        if output is not None:
            size = len(dumps(output))
            fits = size <= room
            room -= size if fits else 0
            details["output"] = output if fits else DROPPED
        if spans is not None and (found := spans.of(call)):
            details["spans"] = found
        if details:
            made["calls"][call["key"]] = details
    return made


def _newest_first(feed: Feed, told: Told | None) -> list[Data]:
    keys = feed.keys()
    found: list[Data] = []
    for key in reversed(keys):
        if told is not None:
            told(f"of {len(keys)} calls sorted", len(found))
        call = feed.call(key)
        if call is not None:
            found.append(call)
    return found
