"""OpenAI Agents: a sandbox client whose sessions judge and contain commands. The SDK's own local client adds no confinement on Linux."""

from __future__ import annotations

from corral.integrations.extras import missing_extra
from corral.integrations.frameworks._commands import open_box
from corral.model.call import NOT_EXECUTABLE_EXIT_CODE

try:
    from agents.sandbox.errors import ExecTimeoutError, ExecTransportError, WorkspaceRootNotFoundError
    from agents.sandbox.sandboxes.unix_local import (
        UnixLocalSandboxClient,
        UnixLocalSandboxSession,
        UnixLocalSandboxSessionState,
    )
    from agents.sandbox.types import ExecResult
except ImportError as error:
    raise missing_extra("openai-agents", error) from error

import os
from pathlib import Path

from corral.model.errors import CorralError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agents.sandbox.session.sandbox_session import SandboxSession

    from corral.sandbox import Sandbox


class CorralSandboxSession(UnixLocalSandboxSession):
    """A session whose workspace is a project of corral. A refusal is exit code 126 with the reason on stderr."""

    def __init__(self, *, state: UnixLocalSandboxSessionState) -> None:
        super().__init__(state=state)
        self._box: Sandbox | None = None

    @property
    def box(self) -> Sandbox:
        """The sandbox over the workspace, which the first command opens."""
        if self._box is None:
            root = Path(self.state.manifest.root)
            if not root.is_dir():
                raise WorkspaceRootNotFoundError(path=root)
            self._box = open_box(root, timeout_seconds=None)  # the SDK sets a limit for each command
        return self._box

    def supports_pty(self) -> bool:
        """Return False: the agent gets `exec_command` alone, and each command ends with what it has started."""
        return False

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        words = [os.fspath(word) for word in command]
        # The SDK has put a shell before the agent's text. The guard judges this text as such.
        is_text = len(words) == 3 and words[0] in ("sh", "bash") and words[1] in ("-c", "-lc")
        env = await self.state.manifest.environment.resolve()
        try:
            result = await self.box.arun(
                words[2] if is_text else words, shell=is_text, env=env or None, timeout_seconds=timeout
            )
        except CorralError as error:
            raise ExecTransportError(command=command, cause=error) from error
        if result.timed_out:
            raise ExecTimeoutError(command=command, timeout_s=timeout)
        if result.denied:
            reason = f"corral refused this. {result.reason}\n".encode()
            return ExecResult(stdout=b"", stderr=reason, exit_code=NOT_EXECUTABLE_EXIT_CODE)
        return ExecResult(stdout=result.stdout, stderr=result.stderr, exit_code=result.exit_code or 0)

    async def _after_shutdown(self) -> None:
        await super()._after_shutdown()
        self._close()

    def _close(self) -> None:
        if self._box is not None:
            self._box.close()
            self._box = None


class CorralSandboxClient(UnixLocalSandboxClient):
    """Makes sessions in corral: `RunConfig(sandbox=SandboxRunConfig(client=CorralSandboxClient()))`.

    Commands run under the user's policy. They see no variable of the host but those that the policy names.
    """

    async def create(self, **options: Any) -> SandboxSession:
        """Make a session with a workspace of its own, or with the directory that the manifest names as its root."""
        return self._contained(await super().create(**options))

    async def resume(self, state: Any) -> SandboxSession:
        """Open a session again."""
        return self._contained(await super().resume(state))

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """End the session's processes, and remove its workspace if the client made it."""
        if isinstance(session._inner, CorralSandboxSession):
            session._inner._close()
        return await super().delete(session)

    def _contained(self, session: SandboxSession) -> SandboxSession:
        inner: Any = session._inner
        return self._wrap_session(CorralSandboxSession(state=inner.state), instrumentation=self._instrumentation)
