"""A task: files, calls, and what must come of them. Plain data, all of it checked; equal tasks have equal digests."""

from __future__ import annotations

import hashlib
import json

from corral._lib.records import Record, frozen
from corral.model.call import Call
from corral.policy.config import Containment, Limits, Output, SandboxConfig
from corral.runtime.batch import BatchCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

RECORDS: dict[str, type[Any]] = {"limits": Limits, "containment": Containment, "output": Output}
DIGEST_CHARACTERS = 16  # enough to tell the versions of one task apart


@frozen
class Task(Record):
    """One task, as its file gives it: `data` is plain, with the file's defaults. `source` is where it stands."""

    id: str
    data: Mapping[str, Any]
    source: str = ""

    @property
    def tags(self) -> tuple[str, ...]:
        """What it is about, for rates and for choosing."""
        return tuple(self.data.get("tags", ()))

    @property
    def needs(self) -> tuple[str, ...]:
        """The layers without which it shows nothing; or `root`, or `not-root`."""
        return tuple(self.data.get("needs", ()))

    @property
    def calls(self) -> tuple[Mapping[str, Any], ...]:
        """Its calls, each with what is expected of it."""
        return tuple(self.data["calls"]) if "calls" in self.data else (self.data,)

    @property
    def transaction(self) -> str:
        """What becomes of the transaction that its calls run in; empty where they run in none."""
        return str(self.data.get("transaction", ""))

    @property
    def digest(self) -> str:
        """What tells it from any task that differs in a letter; its place in a file does not matter."""
        text = json.dumps(self.data, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]

    def config(self, project: str) -> SandboxConfig:
        """Return the config of its sandbox."""
        return config_of(self.data, project)


def config_of(data: Mapping[str, Any], project: str) -> SandboxConfig:
    """Return the config that a task asks for; PolicyError names a field that is wrong."""
    settings = {name: data[name] for name in SETTINGS if name in data}
    for name, record in RECORDS.items():
        if name in data:
            settings[name] = record(**data[name])
    return SandboxConfig(project, **settings)


def entry_of(call: Mapping[str, Any]) -> BatchCall:
    """Return a task's call as it is to run."""
    stdin = call.get("stdin")
    return BatchCall(
        Call(call.get("argv", call.get("shell", "")), "shell" in call, call.get("cwd"), call.get("env")),
        None if stdin is None else stdin.encode("utf-8", "surrogateescape"),
    )


SETTINGS = ("profile", "timeout_seconds", "max_output_bytes", "denylist", "interpreter_block", "env_allowlist")
