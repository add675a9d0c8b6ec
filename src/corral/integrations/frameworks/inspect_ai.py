"""inspect_ai: the sandbox provider `corral`, which gives every sample a temporary project. A refusal is a PermissionError.

It reads and writes files by running commands, so that the sandbox applies to file operations too.
"""

from __future__ import annotations

import os
import pwd
from contextlib import contextmanager
from errno import EACCES

from corral.containment.filesystem.scratch import remove
from corral.containment.filesystem.temp_dirs import make_temp_dir
from corral.guard.path_zones import inside
from corral.integrations.extras import missing_extra
from corral.integrations.frameworks._commands import OutputCollector, open_box
from corral.integrations.frameworks._files import CommandFiles, TooLarge
from corral.model.call import NOT_EXECUTABLE_EXIT_CODE
from corral.model.errors import ContainmentError

try:
    import anyio.to_thread
    from inspect_ai import util
    from inspect_ai.util import SandboxEnvironment, SandboxEnvironmentLimits
except ImportError as error:
    raise missing_extra("inspect", error) from error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


@util.sandboxenv(name="corral")
class CorralSandboxEnvironment(SandboxEnvironment):
    """The temporary project of a sample, and its sandbox."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = make_temp_dir("corral-sample-")
        try:
            # Inspect gives every command its own timeout.
            self.box = open_box(self.directory, timeout_seconds=None)
        except BaseException:
            remove(self.directory)
            raise
        self._files = CommandFiles(self.box)

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        """Create the only environment of a sample."""
        return {"default": cls()}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        """Kill the processes of a sample and remove its project."""
        for environment in environments.values():
            await anyio.to_thread.run_sync(environment.as_type(cls).close)

    @classmethod
    def default_concurrency(cls) -> int | None:
        """Return the number of samples that inspect runs at a time."""
        return 2 * (os.cpu_count() or 1)

    def close(self) -> None:
        """Kill every process that the commands left, and remove the project."""
        self.box.close()
        remove(self.directory)

    def default_polling_interval(self) -> float:
        """Return the seconds between two polls of a service in the sandbox."""
        return 0.2

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,  # ignored: a killed command may have done half its work, so it is not repeated
        concurrency: bool = True,  # ignored: the sandbox has its own pool
    ) -> util.ExecResult[str]:
        """Run a command. A refusal raises PermissionError, which inspect shows to the model."""
        if user is not None and not _is_current_user(user):
            raise util.SandboxUserUnsupportedError(f"corral runs every command as the current user, not as {user!r}")
        output = OutputCollector(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE)
        stdin = input.encode() if isinstance(input, str) else input
        argv, cwd = self._enter_directory(cmd, cwd)
        with _available():
            result = await self.box.arun(argv, cwd=cwd, env=env, stdin=stdin, timeout_seconds=timeout, on_output=output)
        if result.denied:
            raise PermissionError(EACCES, f"corral refused this. {result.reason}", cmd[0] if cmd else "")
        if result.timed_out:
            raise TimeoutError(f"the command took longer than {timeout} seconds")
        if result.exit_code == NOT_EXECUTABLE_EXIT_CODE and b"Permission denied" in result.stderr:
            raise PermissionError(EACCES, result.stderr_text.strip(), cmd[0])
        stdout, stderr = output.decode(result)
        if output.exceeded:
            raise util.OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, stdout + stderr)
        return util.ExecResult(result.ok, result.exit_code, stdout, stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        with _available():
            await self._files.write(file, contents.encode() if isinstance(contents, str) else bytes(contents))

    async def read_file(self, file: str, text: bool = True) -> Any:
        try:
            with _available():
                data = await self._files.read(file, SandboxEnvironmentLimits.MAX_READ_FILE_SIZE)
        except TooLarge:
            raise util.OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from None
        return data.decode() if text else data

    def _enter_directory(self, cmd: list[str], cwd: str | None) -> tuple[list[str], str | None]:
        """Return a call that starts in `cwd`. `env -C`, which the guard sees through, enters one outside the project."""
        if cwd is None or not cwd.startswith("/") or inside(os.path.normpath(cwd), self.box.config.project_root):
            return cmd, cwd
        if not cmd or "=" in cmd[0]:
            return cmd, cwd  # env would take the first word for an assignment
        return ["/usr/bin/env", "-C", cwd, *cmd], None


@contextmanager
def _available() -> Iterator[None]:
    """Raise inspect's own error where the sandbox cannot contain commands."""
    try:
        yield
    except ContainmentError as error:
        raise util.SandboxUnavailableError(str(error)) from error


def _is_current_user(user: str) -> bool:
    try:
        return (int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid) == os.geteuid()
    except KeyError:
        return False
