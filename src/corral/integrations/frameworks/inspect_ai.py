"""inspect_ai: `sandbox="corral"` gives every sample a throwaway project of its own; what the guard refuses is a PermissionError with its reason.

Files are read and written by commands, so nothing is reached that a command could not reach.
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
from corral.integrations.frameworks._common import Gathered, open_box
from corral.integrations.frameworks._files import CommandFiles, TooLarge
from corral.model.call import NOT_EXECUTABLE_EXIT_CODE
from corral.model.errors import ContainmentError

try:
    import anyio.to_thread
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxEnvironment,
        SandboxEnvironmentLimits,
        SandboxUnavailableError,
        SandboxUserUnsupportedError,
        sandboxenv,
    )
except ImportError as error:
    raise missing_extra("inspect", error) from error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


@sandboxenv(name="corral")
class CorralSandboxEnvironment(SandboxEnvironment):
    """One sample's project, and the sandbox over it."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = make_temp_dir("corral-sample-")
        try:
            # Inspect sets the time of every command.
            self.box = open_box(self.directory, timeout_seconds=None)
        except BaseException:
            remove(self.directory)
            raise
        self._files = CommandFiles(self.box)

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        """Return the sample's only environment."""
        return {"default": cls()}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        """End what still runs and remove the project."""
        for environment in environments.values():
            await anyio.to_thread.run_sync(environment.as_type(cls).close)

    @classmethod
    def default_concurrency(cls) -> int | None:
        """Return how many samples are worth running at a time."""
        return 2 * (os.cpu_count() or 1)

    def close(self) -> None:
        """End everything that was started, and remove the project."""
        self.box.close()
        remove(self.directory)

    def default_polling_interval(self) -> float:
        """Return how often a service in the sandbox is looked after, in seconds."""
        return 0.2

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,  # ignored: a command that was ended is not run again: it may have done half its work
        concurrency: bool = True,  # ignored: wardens are a pool already
    ) -> ExecResult[str]:
        """Run a command; a refusal is a PermissionError, which the model gets to read."""
        if user is not None and not _is_current(user):
            raise SandboxUserUnsupportedError(f"corral runs every command as its own user, not as {user!r}")
        gathered = Gathered(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE)
        stdin = input.encode() if isinstance(input, str) else input
        argv, cwd = self._placed(cmd, cwd)
        with _available():
            result = await self.box.arun(
                argv, cwd=cwd, env=env, stdin=stdin, timeout_seconds=timeout, on_output=gathered
            )
        if result.denied:
            raise PermissionError(EACCES, f"corral refused this. {result.reason}", cmd[0] if cmd else "")
        if result.timed_out:
            raise TimeoutError(f"the command took longer than {timeout} seconds")
        if result.exit_code == NOT_EXECUTABLE_EXIT_CODE and b"Permission denied" in result.stderr:
            raise PermissionError(EACCES, result.stderr_text.strip(), cmd[0])
        # What was not started has its message in the result alone.
        stdout, stderr = gathered.stdout or result.stdout, gathered.stderr or result.stderr
        if gathered.exceeded:
            kept = (stdout + stderr).decode("utf-8", "replace")
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, kept)
        return ExecResult(
            result.ok, result.exit_code, stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace")
        )

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Replace a file, and make the directories above it."""
        with _available():
            await self._files.write(file, contents.encode() if isinstance(contents, str) else bytes(contents))

    async def read_file(self, file: str, text: bool = True) -> Any:
        """Return what a file holds."""
        try:
            with _available():
                data = await self._files.read(file, SandboxEnvironmentLimits.MAX_READ_FILE_SIZE)
        except TooLarge:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from None
        return data.decode() if text else data

    def _placed(self, cmd: list[str], cwd: str | None) -> tuple[list[str], str | None]:
        """Return a call that starts in a directory; one outside the project, such as /usr/bin, is entered by env, which the guard looks through."""
        if cwd is None or not cwd.startswith("/") or inside(os.path.normpath(cwd), self.box.config.project_root):
            return cmd, cwd
        if not cmd or "=" in cmd[0]:
            return cmd, cwd  # env would take it for a variable
        return ["/usr/bin/env", "-C", cwd, *cmd], None


@contextmanager
def _available() -> Iterator[None]:
    """Say in inspect's words that the kernel does not hold commands here."""
    try:
        yield
    except ContainmentError as error:
        raise SandboxUnavailableError(str(error)) from error


def _is_current(user: str) -> bool:
    try:
        return (int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid) == os.geteuid()
    except KeyError:
        return False
