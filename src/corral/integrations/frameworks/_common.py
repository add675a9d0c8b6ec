"""Shared by the framework integrations: opens a sandbox under the user's policy and collects output up to a limit."""

from __future__ import annotations

import os

from corral.policy import loader
from corral.sandbox import Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.integrations.gates import GatedSandbox
    from corral.model.result import SandboxResult

# On the same line, so that bash counts lines as it would.
ONE_STREAM = "exec 2>&1; "


def open_box(root: str | os.PathLike[str], **changes: Any) -> Sandbox:
    """Return a sandbox over a project under the owner's policy, with a /tmp of its own; `changes` are fields of the config."""
    config = loader.load(os.fspath(root), os.environ).config
    return Sandbox(config.replace(containment=config.containment.replace(scratch="sandbox"), **changes))


def run_merged(box: Sandbox | GatedSandbox, command: str, **given: Any) -> SandboxResult:
    """Run shell text with both streams as one, in the order in which they were written."""
    text, meant = _one_stream(box, command, given)
    return box.run(text, shell=True, **meant, **given)


async def arun_merged(box: Sandbox | GatedSandbox, command: str, **given: Any) -> SandboxResult:
    """Do as `run_merged`, in an event loop: a task that is cancelled ends its command."""
    text, meant = _one_stream(box, command, given)
    return await box.arun(text, shell=True, **meant, **given)


def _one_stream(box: Sandbox | GatedSandbox, command: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    # The caller's own text is judged first: a refusal must be about that.
    if not box.check(command, shell=True, cwd=given.get("cwd"), env=given.get("env")).allowed:
        return command, {}
    # And by gates: before what was put in front of it, a pattern such as ^deploy would not find anything.
    return ONE_STREAM + command, {"meant": command} if hasattr(box, "chain") else {}


class Gathered:
    """The beginning of both streams, up to so many bytes each; for `on_output`."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.exceeded = False
        self._streams = {"stdout": bytearray(), "stderr": bytearray()}

    def __call__(self, stream: str, data: bytes) -> None:
        kept = self._streams[stream]
        room = self.limit_bytes - len(kept)
        self.exceeded = self.exceeded or len(data) > room
        kept += data[:room]

    @property
    def stdout(self) -> bytes:
        """What is kept of the output."""
        return bytes(self._streams["stdout"])

    @property
    def stderr(self) -> bytes:
        """What is kept of the error output."""
        return bytes(self._streams["stderr"])
