"""pydantic-ai: a workspace backend that judges and contains commands. A refusal is exit code 126 with the reason on stderr.

It reads and writes files by running commands, so that the sandbox applies to file operations too.
"""

from __future__ import annotations

import os
from stat import S_ISDIR

from corral.containment.filesystem.temp_dirs import make_temp_dir
from corral.guard.path_zones import inside
from corral.integrations.extras import missing_extra
from corral.integrations.frameworks._commands import MAX_FILE_BYTES, MAX_OUTPUT_BYTES, OutputCollector, open_box
from corral.integrations.frameworks._files import CommandFiles
from corral.model.call import NOT_EXECUTABLE_EXIT_CODE
from corral.model.errors import ContainmentError, PolicyError

try:
    from pydantic_ai import workspaces
    from pydantic_ai.workspaces import CommandResult, FileEntry, WorkspaceRef, WorkspaceUnavailableError
except ImportError as error:
    raise missing_extra("pydantic-ai", error) from error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.sandbox import Sandbox

PROVIDER = "corral"
MAX_SHOWN = 64 * 1024  # characters of each stream in the error of a command that printed too much


class CorralWorkspaceBackend(
    workspaces.WorkspaceBackend,
    workspaces.SupportsCommands,
    workspaces.SupportsFilesystem,
    workspaces.SupportsRealpath,
):
    """A workspace in one directory. Without one, the first operation creates it. The directory of a `ref` must exist."""

    def __init__(
        self,
        working_dir: str | os.PathLike[str] | None = None,
        *,
        ref: WorkspaceRef | None = None,
        box: Sandbox | None = None,
    ) -> None:
        if ref is not None and ref.provider != PROVIDER:
            raise ValueError(f"corral cannot open a workspace of the provider {ref.provider!r}")
        self._box = box
        place = box.config.project_root if box is not None else ref.id if ref is not None else working_dir
        self._root = None if place is None else os.path.abspath(place)

    @property
    def ref(self) -> WorkspaceRef | None:
        """The reference to the directory, or None before the first operation creates it."""
        return None if self._root is None else WorkspaceRef(provider=PROVIDER, id=self._root)

    async def working_dir(self) -> str:
        """Return the directory that commands start in, with all symlinks resolved."""
        return self._opened().config.project_root

    async def run(
        self,
        command: Sequence[str] | str,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a command, and kill the processes that it leaves behind."""
        if isinstance(command, str) != shell:
            raise TypeError("command must be a string with shell=True, or a sequence of words with shell=False")
        if timeout is not None and not 0 < timeout < float("inf"):
            raise ValueError("timeout must be a positive finite number or None")
        box = self._opened()
        output = OutputCollector()
        argv = command if isinstance(command, str) else list(command)
        try:
            result = await box.arun(argv, shell=shell, env=env, timeout_seconds=timeout, on_output=output)
        except ContainmentError as error:
            raise WorkspaceUnavailableError(str(error)) from error
        self._opened()  # raises if the directory was removed meanwhile: the output then means nothing
        if result.denied:
            return CommandResult(exit_code=NOT_EXECUTABLE_EXIT_CODE, stdout="", stderr=f"corral: {result.reason}\n")
        stdout, stderr = output.decode(result)
        if result.timed_out:
            message = "the command timed out; corral killed it and all its processes"
            raise workspaces.WorkspaceTimeoutError(message, stdout=stdout, stderr=stderr)
        if output.exceeded:
            raise workspaces.WorkspaceOutputLimitError(
                "the command printed too much; redirect its output to a file and read part of that",
                limit=MAX_OUTPUT_BYTES,
                stdout=stdout[:MAX_SHOWN],
                stderr=stderr[:MAX_SHOWN],
            )
        return CommandResult(exit_code=result.exit_code, stdout=stdout, stderr=stderr)

    async def read_bytes(self, path: str) -> bytes:
        return await self._files(path).read(path, MAX_FILE_BYTES)

    async def write_bytes(self, path: str, data: bytes) -> None:
        await self._files(path).write(path, data)

    async def stat(self, path: str) -> FileEntry:
        mode, size = await self._files(path).status(path)
        is_dir = S_ISDIR(mode)
        name = os.path.basename(path.rstrip("/"))
        return FileEntry(name=name, path=path, is_dir=is_dir, size=None if is_dir else size)

    async def list_dir(self, path: str) -> list[FileEntry]:
        return [
            FileEntry(name=entry.name, path=os.path.join(path, entry.name), is_dir=entry.is_directory, size=entry.size)
            for entry in await self._files(path).entries(path)
        ]

    async def make_dir(self, path: str) -> None:
        await self._files(path).make_directory(path)

    async def remove(self, path: str) -> None:
        """Remove a file, a symlink, or a directory with its content, but never the workspace or a parent of it."""
        files = self._files(path)
        # rm removes a symlink itself, so resolve only its parent directory.
        above, name = os.path.split(path.rstrip("/") or "/")
        named = name if name not in ("", ".", "..") else ""
        target = os.path.join(await files.real(above), named) if named else await files.real(path)
        if target == "/" or inside(self._opened().config.project_root, target):
            raise ValueError("the workspace and its parent directories cannot be removed")
        await files.remove(path.rstrip("/") or path)

    async def exists(self, path: str) -> bool:
        try:
            await self._files(path).status(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def realpath(self, path: str) -> str:
        return await self._files(path).real(path)

    def close(self) -> None:
        """Kill every process that the commands left. The directory and its ref stay valid."""
        if self._box is not None:
            self._box.close()

    def _files(self, path: str) -> CommandFiles:
        if not path.startswith("/"):
            raise ValueError(f"the path must be absolute, not {path!r}")
        return CommandFiles(self._opened())

    def _opened(self) -> Sandbox:
        # No await in here: of several concurrent first operations, one creates the directory.
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
