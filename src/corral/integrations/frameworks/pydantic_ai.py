"""pydantic-ai: a workspace backend whose commands are judged and contained; a refusal is exit code 126 with its reason as error output.

Files are read and written by commands, so nothing is reached that a command could not reach.
"""

from __future__ import annotations

import os
from stat import S_ISDIR

from corral.containment.filesystem.temp_dirs import make_temp_dir
from corral.guard.path_zones import inside
from corral.integrations.extras import missing_extra
from corral.integrations.frameworks._common import Gathered, open_box
from corral.integrations.frameworks._files import CommandFiles
from corral.model.call import NOT_EXECUTABLE_EXIT_CODE
from corral.model.errors import ContainmentError, PolicyError

try:
    from pydantic_ai.workspaces import (
        CommandResult,
        FileEntry,
        SupportsCommands,
        SupportsFilesystem,
        SupportsRealpath,
        WorkspaceBackend,
        WorkspaceOutputLimitError,
        WorkspaceRef,
        WorkspaceTimeoutError,
        WorkspaceUnavailableError,
    )
except ImportError as error:
    raise missing_extra("pydantic-ai", error) from error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.sandbox import Sandbox

PROVIDER = "corral"
MAX_OUTPUT_BYTES = 10 * 1024 * 1024  # of each stream, as pydantic-ai's local backend allows; what is more is an error
MAX_FILE_BYTES = 100 * 1024 * 1024  # that is read into memory at once
SHOWN_BYTES = 64 * 1024


class CorralWorkspaceBackend(WorkspaceBackend, SupportsCommands, SupportsFilesystem, SupportsRealpath):
    """Commands in one directory. Without one, the first operation makes it; with a ref, it must be there."""

    def __init__(
        self,
        working_dir: str | os.PathLike[str] | None = None,
        *,
        ref: WorkspaceRef | None = None,
        box: Sandbox | None = None,
    ) -> None:
        if ref is not None and ref.provider != PROVIDER:
            raise ValueError(f"a workspace of {ref.provider!r} is none of corral's")
        self._box = box
        place = box.config.project_root if box is not None else ref.id if ref is not None else working_dir
        self._root = None if place is None else os.path.abspath(place)

    @property
    def ref(self) -> WorkspaceRef | None:
        """The directory, once there is one."""
        return None if self._root is None else WorkspaceRef(provider=PROVIDER, id=self._root)

    async def working_dir(self) -> str:
        """Return the directory that commands start in, through every link."""
        return self._opened().config.project_root

    async def run(
        self,
        command: Sequence[str] | str,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a command to its end, and whatever it started with it."""
        if isinstance(command, str) != shell:
            raise TypeError("a string needs shell=True, and a sequence of words shell=False")
        if timeout is not None and not 0 < timeout < float("inf"):
            raise ValueError("timeout must be a positive finite number or None")
        box = self._opened()
        gathered = Gathered(MAX_OUTPUT_BYTES)
        argv = command if isinstance(command, str) else list(command)
        try:
            result = await box.arun(argv, shell=shell, env=env, timeout_seconds=timeout, on_output=gathered)
        except ContainmentError as error:
            raise WorkspaceUnavailableError(str(error)) from error
        self._opened()  # or the directory went away meanwhile, and nothing the command said counts
        if result.denied:
            return CommandResult(exit_code=NOT_EXECUTABLE_EXIT_CODE, stdout="", stderr=f"corral: {result.reason}\n")
        # What was not started has its message in the result alone.
        stdout = (gathered.stdout or result.stdout).decode("utf-8", "replace")
        stderr = (gathered.stderr or result.stderr).decode("utf-8", "replace")
        if result.timed_out:
            message = "the command took too long and was ended, with all it started"
            raise WorkspaceTimeoutError(message, stdout=stdout, stderr=stderr)
        if gathered.exceeded:
            raise WorkspaceOutputLimitError(
                "the command printed too much; let it write to a file and read part of that",
                limit=MAX_OUTPUT_BYTES,
                stdout=stdout[:SHOWN_BYTES],
                stderr=stderr[:SHOWN_BYTES],
            )
        return CommandResult(exit_code=result.exit_code, stdout=stdout, stderr=stderr)

    async def read_bytes(self, path: str) -> bytes:
        """Return what a file holds."""
        return await self._files(path).read(path, MAX_FILE_BYTES)

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Replace what a file holds, through a link too, and make the directories above it."""
        await self._files(path).write(path, data)

    async def stat(self, path: str) -> FileEntry:
        """Return what a path leads to."""
        mode, size = await self._files(path).status(path)
        is_dir = S_ISDIR(mode)
        return FileEntry(
            name=os.path.basename(path.rstrip("/")), path=path, is_dir=is_dir, size=None if is_dir else size
        )

    async def list_dir(self, path: str) -> list[FileEntry]:
        """Return what a directory holds."""
        return [
            FileEntry(name=entry.name, path=os.path.join(path, entry.name), is_dir=entry.is_directory, size=entry.size)
            for entry in await self._files(path).entries(path)
        ]

    async def make_dir(self, path: str) -> None:
        """Make a directory and those above it, if they are not there."""
        await self._files(path).make_directory(path)

    async def remove(self, path: str) -> None:
        """Remove a file, a link, or a directory with all in it; never the workspace itself or what it lies in."""
        files = self._files(path)
        # A link is removed itself, so only what it lies in is followed.
        above, name = os.path.split(path.rstrip("/") or "/")
        named = name if name not in ("", ".", "..") else ""
        target = os.path.join(await files.real(above), named) if named else await files.real(path)
        if target == "/" or inside(self._opened().config.project_root, target):
            raise ValueError("the workspace itself, or what it lies in, cannot be removed")
        await files.remove(path.rstrip("/") or path)

    async def exists(self, path: str) -> bool:
        """Say whether a path leads to something."""
        try:
            await self._files(path).status(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def realpath(self, path: str) -> str:
        """Return where a path leads through every link."""
        return await self._files(path).real(path)

    def close(self) -> None:
        """End everything that was started; the directory stays, and so does its ref."""
        if self._box is not None:
            self._box.close()

    def _files(self, path: str) -> CommandFiles:
        if not path.startswith("/"):
            raise ValueError(f"the path must be absolute, not {path!r}")
        return CommandFiles(self._opened())

    def _opened(self) -> Sandbox:
        # No await in here: of operations that come first together, one makes the directory.
        if self._root is None:
            self._root = make_temp_dir("corral-workspace-")
        if not os.path.isdir(self._root):
            raise WorkspaceUnavailableError(f"the workspace's directory {self._root} does not exist")
        if self._box is None:
            try:
                self._box = open_box(self._root, timeout_seconds=None)
            except PolicyError as error:
                raise WorkspaceUnavailableError(str(error)) from error
        return self._box
