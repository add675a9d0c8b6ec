"""deepagents: a sandbox backend whose commands are judged and contained; a refusal is exit code 126 with its reason as output."""

from __future__ import annotations

from corral.integrations.extras import missing_extra
from corral.integrations.frameworks._common import Gathered, open_box, run_merged
from corral.integrations.frameworks._files import CommandFiles, now
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

MAX_OUTPUT_BYTES = 10 * 1024 * 1024  # deepagents cuts what the model is shown itself
MAX_FILE_BYTES = 100 * 1024 * 1024
TIMED_OUT_AS_PROCESS = 124  # as coreutils' timeout does


class CorralSandbox(BaseSandbox):
    """The commands and files of one project."""

    def __init__(self, root: str | os.PathLike[str] = ".", *, box: Sandbox | None = None) -> None:
        self.box = box or open_box(root)
        self._files = CommandFiles(self.box, waits=False)

    @property
    def id(self) -> str:
        """The project's directory."""
        return f"corral:{self.box.config.project_root}"

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run shell text to its end, and whatever it started with it."""
        gathered = Gathered(MAX_OUTPUT_BYTES)
        try:
            result = run_merged(self.box, command, timeout_seconds=timeout, on_output=gathered)
        except ContainmentError as error:
            return ExecuteResponse(output=f"corral could not run this: {error}", exit_code=None, truncated=False)
        if result.denied:
            said = f"corral refused this. {result.reason}"
            return ExecuteResponse(output=said, exit_code=NOT_EXECUTABLE_EXIT_CODE, truncated=False)
        # What was not started has its message in the result alone.
        printed = (gathered.stdout + gathered.stderr or result.stderr).decode("utf-8", "replace")
        exit_code = result.exit_code
        if exit_code == TIMED_OUT_EXIT_CODE:
            printed += "\n[corral: this took too long and was ended, with all it started]"
            exit_code = TIMED_OUT_AS_PROCESS
        return ExecuteResponse(output=printed, exit_code=exit_code, truncated=gathered.exceeded)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files; what fails says why, and the others are written."""
        return [FileUploadResponse(path=path, error=self._upload(path, data)) for path, data in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files; what fails says why, and the others are read."""
        return [self._download(path) for path in paths]

    def close(self) -> None:
        """End everything that was started; the project stays."""
        self.box.close()

    def _upload(self, path: str, data: bytes) -> str | None:
        if not path.startswith("/"):
            return "invalid_path"
        try:
            now(self._files.write(path, data))
        except OSError as error:
            return _word(error)
        return None

    def _download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, content=None, error="invalid_path")
        try:
            return FileDownloadResponse(path=path, content=now(self._files.read(path, MAX_FILE_BYTES)), error=None)
        except OSError as error:
            return FileDownloadResponse(path=path, content=None, error=_word(error))


def _word(error: OSError) -> str:
    """Return deepagents' word for an error."""
    if isinstance(error, FileNotFoundError):
        return "file_not_found"
    if isinstance(error, IsADirectoryError):
        return "is_directory"
    if isinstance(error, PermissionError):
        return "permission_denied"
    return "invalid_path"
