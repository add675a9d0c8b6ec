"""Opens a sandbox under the user's policy, runs shell text with merged streams, and collects output up to a limit."""

from __future__ import annotations

import os

from corral.policy import loader
from corral.sandbox import Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.integrations.gates import GatedSandbox
    from corral.model.result import SandboxResult

# No newline: bash must count the lines of the command from 1.
ONE_STREAM = "exec 2>&1; "
MAX_OUTPUT_BYTES = 10 * 1024 * 1024  # of each stream
MAX_FILE_BYTES = 100 * 1024 * 1024  # read into memory at once


def open_box(root: str | os.PathLike[str], *, profile: str = "", **changes: Any) -> Sandbox:
    """Open a sandbox over a project under the user's policy, with its own /tmp. `changes` replace fields of the config.

    A config file of a framework may name the `profile`, and an agent may have written it. So it cannot loosen the policy's.
    """
    config = loader.load(os.fspath(root), os.environ, profile=profile or None).config
    return Sandbox(config.replace(containment=config.containment.replace(scratch="sandbox"), **changes))


def run_merged(box: Sandbox | GatedSandbox, command: str, **options: Any) -> SandboxResult:
    """Run shell text with stderr merged into stdout, in the order in which the command writes."""
    text, meant = _one_stream(box, command, options)
    return box.run(text, shell=True, **meant, **options)


async def arun_merged(box: Sandbox | GatedSandbox, command: str, **options: Any) -> SandboxResult:
    """Run as `run_merged` does, in an event loop. Cancelling the task kills the command."""
    text, meant = _one_stream(box, command, options)
    return await box.arun(text, shell=True, **meant, **options)


def _one_stream(box: Sandbox | GatedSandbox, command: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    # Judge the caller's text first: a refusal must quote the command as the model wrote it.
    if not box.check(command, shell=True, cwd=options.get("cwd"), env=options.get("env")).allowed:
        return command, {}
    # Gates judge the caller's text too: a pattern such as ^deploy must still match.
    return ONE_STREAM + command, {"meant": command} if hasattr(box, "chain") else {}


class OutputCollector:
    """Keeps the first `limit_bytes` of each stream. Pass it as `on_output`. With `merged`, both streams go to stdout."""

    def __init__(self, limit_bytes: int = MAX_OUTPUT_BYTES, *, merged: bool = False) -> None:
        self.limit_bytes = limit_bytes
        self.exceeded = False
        self.stdout = bytearray()
        self._stderr = self.stdout if merged else bytearray()

    def __call__(self, stream: str, data: bytes) -> None:
        kept = self.stdout if stream == "stdout" else self._stderr
        room = self.limit_bytes - len(kept)
        self.exceeded = self.exceeded or len(data) > room
        kept += data[:room]

    def decode(self, result: SandboxResult, errors: str = "replace") -> tuple[str, str]:
        """Return stdout and stderr as text, or those of the result, which alone has the message of a failed start."""
        stdout, stderr = self.stdout or result.stdout, self._stderr or result.stderr
        return stdout.decode("utf-8", errors), "" if self._stderr is self.stdout else stderr.decode("utf-8", errors)
