"""SWE-ReX: a runtime and its deployment, whose commands are judged and contained; a refusal is exit code 126 with its reason.

A session is one bash on a terminal of its own, contained as a whole. What is typed into a program that runs in it is not judged.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets

from corral.integrations.extras import missing_extra
from corral.integrations.frameworks._common import Gathered, arun_merged, open_box
from corral.integrations.frameworks._files import CommandFiles
from corral.integrations.frameworks.swerex_session import BashSession
from corral.model.call import NOT_EXECUTABLE_EXIT_CODE
from corral.model.errors import ContainmentError

try:
    from swerex.deployment.abstract import AbstractDeployment
    from swerex.exceptions import (
        CommandTimeoutError,
        DeploymentNotStartedError,
        NonZeroExitCodeError,
        SessionDoesNotExistError,
        SessionExistsError,
    )
    from swerex.runtime.abstract import (
        AbstractRuntime,
        BashObservation,
        CloseBashSessionResponse,
        CloseResponse,
        CommandResponse,
        CreateBashSessionResponse,
        IsAliveResponse,
        ReadFileResponse,
        UploadResponse,
        WriteFileResponse,
    )
except ImportError as error:
    raise missing_extra("swerex", error) from error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.model.result import SandboxResult
    from corral.sandbox import Sandbox

MAX_OUTPUT_BYTES = 10 * 1024 * 1024  # of each stream
MAX_FILE_BYTES = 100 * 1024 * 1024


class CorralRuntime(AbstractRuntime):
    """The commands, sessions and files of one project."""

    def __init__(self, root: str | os.PathLike[str] = ".", *, box: Sandbox | None = None) -> None:
        self.logger = logging.getLogger("corral.swerex")
        # SWE-ReX sets the time of every command.
        self.box = box or open_box(root, timeout_seconds=None)
        self._files = CommandFiles(self.box)
        self._sessions: dict[str, BashSession] = {}

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Say whether commands can be run here, and why not."""
        try:
            result = await self.box.arun(["true"], timeout_seconds=timeout)
        except ContainmentError as error:
            return IsAliveResponse(is_alive=False, message=str(error))
        return IsAliveResponse(is_alive=result.ok, message=result.hint)

    async def create_session(self, request: Any) -> CreateBashSessionResponse:
        """Start a bash that lives until it is closed."""
        if request.session in self._sessions:
            raise SessionExistsError(f"session {request.session} already exists")
        session = await asyncio.to_thread(BashSession, self.box, f"/tmp/.corral-session-{secrets.token_hex(8)}")  # noqa: S108  the commands' own
        self._sessions[request.session] = session
        for path in request.startup_source:
            await asyncio.to_thread(session.run, f"source {path}", request.startup_timeout)
        return CreateBashSessionResponse()

    async def run_in_session(self, action: Any) -> BashObservation:
        """Run a command in a session, or interrupt what runs there."""
        session = self._session(action.session)
        if action.action_type == "bash_interrupt":
            return await asyncio.to_thread(session.interrupt, action)
        if action.is_interactive_command or action.is_interactive_quit:
            return await asyncio.to_thread(session.converse, action)
        seen = await asyncio.to_thread(session.run, action.command, action.timeout, action.expect)
        if action.check == "ignore":
            return BashObservation(output=seen.output, exit_code=None, expect_string=seen.expect_string)
        if action.check == "raise" and seen.exit_code != 0:
            raise NonZeroExitCodeError(_failure(action, seen.exit_code, seen.output))
        return seen

    async def close_session(self, request: Any) -> CloseBashSessionResponse:
        """End a session and everything it started."""
        await asyncio.to_thread(self._session(request.session).close)
        del self._sessions[request.session]
        return CloseBashSessionResponse()

    async def execute(self, command: Any) -> CommandResponse:
        """Run a command outside any session."""
        if command.shell and not str(command.command).strip():
            return CommandResponse(exit_code=0)  # nothing to judge, and nothing to run
        given = {"cwd": command.cwd, "env": command.env, "timeout_seconds": command.timeout}
        response = await self._executed(command, given)
        if command.check and response.exit_code != 0:
            raise NonZeroExitCodeError(_failure(command, response.exit_code, response.stdout + response.stderr))
        return response

    async def read_file(self, request: Any) -> ReadFileResponse:
        """Read a file as a command could."""
        data = await self._files.read(request.path, MAX_FILE_BYTES)
        return ReadFileResponse(content=data.decode(request.encoding or "utf-8", request.errors or "strict"))

    async def write_file(self, request: Any) -> WriteFileResponse:
        """Write a file as a command could, and make the directories above it."""
        await self._files.write(request.path, request.content.encode())
        return WriteFileResponse()

    async def upload(self, request: Any) -> UploadResponse:
        """Copy a file or a directory of the host's into the sandbox."""
        for source, target in await asyncio.to_thread(_pairs, request.source_path, request.target_path):
            await self._files.write(target, await asyncio.to_thread(_content, source))
        return UploadResponse()

    async def close(self) -> CloseResponse:
        """End everything that was started."""
        for session in self._sessions.values():
            await asyncio.to_thread(session.close)
        self._sessions.clear()
        await asyncio.to_thread(self.box.close)
        return CloseResponse()

    def _session(self, name: str) -> BashSession:
        if name not in self._sessions:
            raise SessionDoesNotExistError(f"session {name!r} does not exist")
        return self._sessions[name]

    async def _executed(self, command: Any, given: dict[str, Any]) -> CommandResponse:
        merged = _Merged(MAX_OUTPUT_BYTES) if command.merge_output_streams else Gathered(MAX_OUTPUT_BYTES)
        if command.shell and command.merge_output_streams:
            result = await arun_merged(self.box, command.command, on_output=merged, **given)
        else:
            result = await self.box.arun(command.command, shell=command.shell, on_output=merged, **given)
        return _response(command, result, merged)


class CorralDeployment(AbstractDeployment):
    """A runtime that starts with the deployment and ends with it."""

    def __init__(self, root: str | os.PathLike[str] = ".") -> None:
        self.logger = logging.getLogger("corral.swerex")
        self._root = root
        self._runtime: CorralRuntime | None = None

    def add_hook(self, hook: Any) -> None:
        """Take a hook; nothing here takes long enough to tell it."""

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Say whether the runtime is there."""
        if self._runtime is None:
            return IsAliveResponse(is_alive=False, message="Runtime is None.")
        return await self._runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """Make the runtime."""
        self._runtime = CorralRuntime(self._root)

    async def stop(self) -> None:
        """End the runtime and everything it started."""
        if self._runtime is not None:
            await self._runtime.close()
            self._runtime = None

    @property
    def runtime(self) -> CorralRuntime:
        """The runtime, once it is started."""
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime


class _Merged(Gathered):
    """Both streams as one, in the order in which they came."""

    def __call__(self, stream: str, data: bytes) -> None:
        super().__call__("stdout", data)


def _response(command: Any, result: SandboxResult, gathered: Gathered) -> CommandResponse:
    if result.denied:
        said = f"corral refused this. {result.reason}"
        return CommandResponse(stderr=said, exit_code=NOT_EXECUTABLE_EXIT_CODE)
    if result.timed_out:
        raise CommandTimeoutError(f"Timeout ({command.timeout}s) exceeded while running command")
    # What was not started has its message in the result alone.
    stderr = gathered.stderr or (b"" if gathered.stdout or command.merge_output_streams else result.stderr)
    return CommandResponse(
        stdout=gathered.stdout.decode("utf-8", "backslashreplace"),
        stderr=stderr.decode("utf-8", "backslashreplace"),
        exit_code=result.exit_code,
    )


def _failure(command: Any, exit_code: int | None, output: str) -> str:
    said = f"Command {command.command!r} failed with exit code {exit_code}. Here is the output:\n{output!r}"
    return f"{command.error_msg}: {said}" if command.error_msg else said


def _pairs(source: str, target: str) -> list[tuple[str, str]]:
    if not os.path.isdir(source):
        return [(source, target)]
    return [
        (os.path.join(folder, name), os.path.join(target, os.path.relpath(os.path.join(folder, name), source)))
        for folder, _, names in os.walk(source)
        for name in names
    ]


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
