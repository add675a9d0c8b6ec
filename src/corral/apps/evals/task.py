"""Defines a task: files, calls, and their expected outcome, as plain data that `validate_tasks` has checked."""

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
SETTINGS = ("profile", "timeout_seconds", "max_output_bytes", "denylist", "interpreter_block", "env_allowlist")
REFUSALS = ("denylist", "interpreter_block")  # lists that a task adds to those of its profile
DIGEST_CHARACTERS = 16  # enough to distinguish the versions of one task


@frozen
class Task(Record):
    """A task. `data` is the task's table merged with the defaults of its file, `source` its file and line."""

    id: str
    data: Mapping[str, Any]
    source: str = ""

    @property
    def tags(self) -> tuple[str, ...]:
        """Return the tags, which select tasks and group the pass rates."""
        return tuple(self.data.get("tags", ()))

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the layers that the task tests, and `root` or `not-root`. The task is skipped where one is missing."""
        return tuple(self.data.get("needs", ()))

    @property
    def calls(self) -> tuple[Mapping[str, Any], ...]:
        """Return the calls, each with its expectations."""
        return tuple(self.data["calls"]) if "calls" in self.data else (self.data,)

    @property
    def transaction(self) -> str:
        """Return how the transaction of the calls ends, or an empty string if they run without one."""
        return str(self.data.get("transaction", ""))

    @property
    def digest(self) -> str:
        """Return a hash of the task's content. Its position in a file does not matter."""
        text = json.dumps(self.data, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]

    def config(self, project: str) -> SandboxConfig:
        """Return the config of the task's sandbox."""
        return config_of(self.data, project)


def config_of(data: Mapping[str, Any], project: str) -> SandboxConfig:
    """Return the config for a task's settings. Raises PolicyError, which names the wrong field."""
    settings = {name: data[name] for name in SETTINGS if name in data}
    settings |= {name: record(**data[name]) for name, record in RECORDS.items() if name in data}
    config = SandboxConfig(project, **settings)
    built_in = SandboxConfig(project, profile=config.profile)
    added = {name: {*getattr(config, name), *getattr(built_in, name)} for name in REFUSALS if name in settings}
    return config.replace(**added)


def call_of(call: Mapping[str, Any]) -> Call:
    """Return a call of a task."""
    return Call(call.get("argv", call.get("shell", "")), "shell" in call, call.get("cwd"), call.get("env"))


def entry_of(call: Mapping[str, Any]) -> BatchCall:
    """Return a call of a task with its standard input."""
    stdin = call.get("stdin")
    return BatchCall(call_of(call), None if stdin is None else stdin.encode("utf-8", "surrogateescape"))
