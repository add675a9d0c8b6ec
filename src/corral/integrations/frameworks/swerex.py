"""SWE-ReX: a runtime and its deployment that judge and contain commands. A refusal is exit code 126 with the reason.

A session is one contained bash on its own terminal. corral does not judge the input of a program that runs in it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets

from corral.integrations.extras import missing_extra
from corral.integrations.frameworks._commands import MAX_FILE_BYTES, OutputCollector, arun_merged, open_box
from corral.integrations.frameworks._files import CommandFiles
from corral.integrations.frameworks._swerex_session import BashSession
from corral.model.call import NOT_EXECUTABLE_EXIT_CODE
from corral.model.errors import ContainmentError

try:
    from swerex import exceptions
    from swerex.deployment.abstract import AbstractDeployment
    from swerex.runtime import abstract
    from swerex.runtime.abstract import CommandResponse, IsAliveResponse
except ImportError as error:
    raise missing_extra("swerex", error) from error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.model.result import SandboxResult
    from corral.sandbox import Sandbox


class CorralRuntime(abstract.AbstractRuntime):
    """Runs the commands and sessions of one project, and transfers its files."""

    def __init__(self, root: str | os.PathLike[str] = ".", *, box: Sandbox | None = None) -> None:
        self.logger = logging.getLogger("corral.swerex")
        # SWE-ReX gives every command its own timeout.
        self.box = box or open_box(root, timeout_seconds=None)
        self._files = CommandFiles(self.box)
        self._sessions: dict[str, BashSession] = {}

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Return whether the sandbox can run commands, and the reason if not."""
        try:
            result = await self.box.arun(["true"], timeout_seconds=timeout)
        except ContainmentError as error:
            return IsAliveResponse(is_alive=False, message=str(error))
        return IsAliveResponse(is_alive=result.ok, message=result.hint)

    async def create_session(self, request: Any) -> abstract.CreateBashSessionResponse:
        """Start a bash that runs until the session is closed."""
        if request.session in self._sessions:
            raise exceptions.SessionExistsError(f"session {request.session} already exists")
        session = await asyncio.to_thread(BashSession, self.box, f"/tmp/.corral-session-{secrets.token_hex(8)}")  # noqa: S108  a path inside the sandbox
        self._sessions[request.session] = session
        for path in request.startup_source:
            await asyncio.to_thread(session.run, f"source {path}", request.startup_timeout)
        return abstract.CreateBashSessionResponse()

    async def run_in_session(self, action: Any) -> abstract.BashObservation:
        """Run a command in a session, or interrupt the command that runs there."""
        session = self._session(action.session)
        if action.action_type == "bash_interrupt":
            return await asyncio.to_thread(session.interrupt, action)
        if action.is_interactive_command or action.is_interactive_quit:
            return await asyncio.to_thread(session.converse, action)
        observation = await asyncio.to_thread(session.run, action.command, action.timeout, action.expect)
        if action.check == "ignore":
            return abstract.BashObservation(
                output=observation.output, exit_code=None, expect_string=observation.expect_string
            )
        if action.check == "raise" and observation.exit_code != 0:
            raise exceptions.NonZeroExitCodeError(_failure(action, observation.exit_code, observation.output))
        return observation

    async def close_session(self, request: Any) -> abstract.CloseBashSessionResponse:
        """Kill the bash of a session and all its processes."""
        await asyncio.to_thread(self._session(request.session).close)
        del self._sessions[request.session]
        return abstract.CloseBashSessionResponse()

    async def execute(self, command: Any) -> CommandResponse:
        if command.shell and not str(command.command).strip():
            return CommandResponse(exit_code=0)
        options = {"cwd": command.cwd, "env": command.env, "timeout_seconds": command.timeout}
        output = OutputCollector(merged=command.merge_output_streams)
        if command.shell and command.merge_output_streams:
            result = await arun_merged(self.box, command.command, on_output=output, **options)
        else:
            result = await self.box.arun(command.command, shell=command.shell, on_output=output, **options)
        response = _response(command, result, output)
        if command.check and response.exit_code != 0:
            raise exceptions.NonZeroExitCodeError(
                _failure(command, response.exit_code, response.stdout + response.stderr)
            )
        return response

    async def read_file(self, request: Any) -> abstract.ReadFileResponse:
        data = await self._files.read(request.path, MAX_FILE_BYTES)
        return abstract.ReadFileResponse(content=data.decode(request.encoding or "utf-8", request.errors or "strict"))

    async def write_file(self, request: Any) -> abstract.WriteFileResponse:
        await self._files.write(request.path, request.content.encode())
        return abstract.WriteFileResponse()

    async def upload(self, request: Any) -> abstract.UploadResponse:
        """Copy a file or a directory of the host into the sandbox."""
        for source, target in await asyncio.to_thread(_upload_pairs, request.source_path, request.target_path):
            await self._files.write(target, await asyncio.to_thread(_read_host_file, source))
        return abstract.UploadResponse()

    async def close(self) -> abstract.CloseResponse:
        """Kill all sessions and every process that the commands left."""
        for session in self._sessions.values():
            await asyncio.to_thread(session.close)
        self._sessions.clear()
        await asyncio.to_thread(self.box.close)
        return abstract.CloseResponse()

    def _session(self, name: str) -> BashSession:
        if name not in self._sessions:
            raise exceptions.SessionDoesNotExistError(f"session {name!r} does not exist")
        return self._sessions[name]


class CorralDeployment(AbstractDeployment):
    """Creates a runtime when it starts, and closes it when it stops."""

    def __init__(self, root: str | os.PathLike[str] = ".") -> None:
        self.logger = logging.getLogger("corral.swerex")
        self._root = root
        self._runtime: CorralRuntime | None = None

    def add_hook(self, hook: Any) -> None:
        """Ignore the hook: starting takes too little time to report progress."""

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Return whether the runtime is started and can run commands."""
        if self._runtime is None:
            return IsAliveResponse(is_alive=False, message="Runtime is None.")
        return await self._runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        self._runtime = CorralRuntime(self._root)

    async def stop(self) -> None:
        if self._runtime is not None:
            await self._runtime.close()
            self._runtime = None

    @property
    def runtime(self) -> CorralRuntime:
        """The runtime. Raises DeploymentNotStartedError before `start`."""
        if self._runtime is None:
            raise exceptions.DeploymentNotStartedError
        return self._runtime


def _response(command: Any, result: SandboxResult, output: OutputCollector) -> CommandResponse:
    if result.denied:
        return CommandResponse(stderr=f"corral refused this. {result.reason}", exit_code=NOT_EXECUTABLE_EXIT_CODE)
    if result.timed_out:
        raise exceptions.CommandTimeoutError(f"Timeout ({command.timeout}s) exceeded while running command")
    stdout, stderr = output.decode(result, "backslashreplace")
    return CommandResponse(stdout=stdout, stderr=stderr, exit_code=result.exit_code)


def _failure(command: Any, exit_code: int | None, output: str) -> str:
    message = f"Command {command.command!r} failed with exit code {exit_code}. Here is the output:\n{output!r}"
    return f"{command.error_msg}: {message}" if command.error_msg else message


def _upload_pairs(source: str, target: str) -> list[tuple[str, str]]:
    if not os.path.isdir(source):
        return [(source, target)]
    return [
        (os.path.join(folder, name), os.path.join(target, os.path.relpath(os.path.join(folder, name), source)))
        for folder, _, names in os.walk(source)
        for name in names
    ]


def _read_host_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
