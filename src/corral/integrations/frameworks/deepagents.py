"""deepagents: a sandbox backend that judges and contains commands. A refusal is exit code 126 with the reason as output."""

from __future__ import annotations

from corral._lib.coroutines import run_coroutine
from corral.integrations.extras import missing_extra
from corral.integrations.frameworks._commands import MAX_FILE_BYTES, OutputCollector, open_box, run_merged
from corral.integrations.frameworks._files import CommandFiles
from corral.model.call import NOT_EXECUTABLE_EXIT_CODE, TIMED_OUT_EXIT_CODE
from corral.model.errors import ContainmentError

try:
    from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
    from deepagents.backends.sandbox import BaseSandbox
except ImportError as error:
    raise missing_extra("deepagents", error) from error

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from corral.sandbox import Sandbox

TIMED_OUT_AS_PROCESS = 124  # the exit code of timeout(1)
ERROR_WORDS = {
    FileNotFoundError: "file_not_found",
    IsADirectoryError: "is_directory",
    PermissionError: "permission_denied",
}


class CorralSandbox(BaseSandbox):
    """Runs the commands and transfers the files of one project."""

    def __init__(self, root: str | os.PathLike[str] = ".", *, box: Sandbox | None = None) -> None:
        self.box = box or open_box(root)
        self._files = CommandFiles(self.box, waits=False)

    @property
    def id(self) -> str:
        """The name of the sandbox, made from the project root."""
        return f"corral:{self.box.config.project_root}"

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run shell text, and kill the processes that it leaves behind."""
        collector = OutputCollector()
        try:
            result = run_merged(self.box, command, timeout_seconds=timeout, on_output=collector)
        except ContainmentError as error:
            return ExecuteResponse(output=f"corral could not run this: {error}", exit_code=None, truncated=False)
        if result.denied:
            message = f"corral refused this. {result.reason}"
            return ExecuteResponse(output=message, exit_code=NOT_EXECUTABLE_EXIT_CODE, truncated=False)
        output = "".join(collector.decode(result))
        exit_code = result.exit_code
        if exit_code == TIMED_OUT_EXIT_CODE:
            output += "\n[corral: the command timed out; corral killed it and all its processes]"
            exit_code = TIMED_OUT_AS_PROCESS
        return ExecuteResponse(output=output, exit_code=exit_code, truncated=collector.exceeded)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files. Each response has the error of its own file."""
        return [FileUploadResponse(path=path, error=self._upload(path, data)) for path, data in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files. Each response has the error of its own file."""
        return [self._download(path) for path in paths]

    def close(self) -> None:
        """Kill every process that the commands left. The project stays."""
        self.box.close()

    def _upload(self, path: str, data: bytes) -> str | None:
        if not path.startswith("/"):
            return "invalid_path"
        try:
            run_coroutine(self._files.write(path, data))
        except OSError as error:
            return ERROR_WORDS.get(type(error), "invalid_path")
        return None

    def _download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, content=None, error="invalid_path")
        try:
            content = run_coroutine(self._files.read(path, MAX_FILE_BYTES))
        except OSError as error:
            return FileDownloadResponse(path=path, content=None, error=ERROR_WORDS.get(type(error), "invalid_path"))
        return FileDownloadResponse(path=path, content=content, error=None)
