"""Runs the user's git on the host, to write into a git directory of the user's. Only this module starts processes in this room.

No hook, file system monitor or maintenance runs. Variables that steer git are not passed on.
"""

from __future__ import annotations

import os
from _signal import SIGKILL  # type: ignore[import-not-found]  # `signal` loads enum
from resource import RLIMIT_DATA, prlimit
from select import POLLERR, POLLHUP, POLLIN, POLLOUT, poll
from time import monotonic

from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MAX_SECONDS = 120.0
MAX_OUTPUT_BYTES = 1 << 27
MAX_MEMORY_BYTES = 1 << 31
MAX_ERROR_CHARACTERS = 500
_SETTINGS = (
    *("core.hooksPath=/dev/null", "core.fsmonitor=false", "core.splitIndex=false", "core.compression=1"),
    *("gc.auto=0", "maintenance.auto=false"),
    # Milliseconds to wait for locks of the user's git.
    *("core.filesRefLockTimeout=2000", "core.packedRefsTimeout=2000"),
)


_NO_WORKTREE = "/proc/self/fdinfo"  # exists always, and the host's working directory is never in it


@frozen
class Answer(Record):
    """The outcome of one git command: its exit code, output and error messages."""

    code: int
    output: bytes
    errors: str


class HostGit:
    """The user's git program."""

    def __init__(self, program: str, environ: Mapping[str, str]) -> None:
        self.program = program
        self._environ = {name: value for name, value in environ.items() if not name.startswith(("GIT_", "LD_"))}
        self._environ |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_ADVICE": "0"}
        # A partial clone fetches missing objects with the program that its configuration names.
        self._environ |= {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}

    def run(
        self,
        environ: dict[str, str],
        *words: str,
        given: Iterable[bytes] = (),
        others: Iterable[str] = (),
        into: str = "",
        held: int = -1,
    ) -> Answer:
        """Run a git command with variables that name a git directory, and with input from `given`.

        It also sees the objects of `others`. It writes objects into the directory `into`. It inherits the descriptor `held`.
        """
        environ = self._environ | environ
        environ |= {"GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(map(_quoted, others))} if others else {}
        environ |= {"GIT_OBJECT_DIRECTORY": into} if into else {}
        descriptors: list[int] = []
        try:
            for _ in range(3):
                descriptors += os.pipe()
            input_out, input_in, output_out, output_in, errors_out, errors_in = descriptors
            ends = ((input_out, 0), (output_in, 1), (errors_in, 2))
            actions = [(os.POSIX_SPAWN_DUP2, end, number) for end, number in ends]
            # A descriptor that is copied to itself stays open in the new process.
            actions += [(os.POSIX_SPAWN_DUP2, held, held)] if held >= 0 else []
            options = [word for setting in _SETTINGS for word in ("-c", setting)]
            argv = [self.program, *options, *words]
            pid = os.posix_spawn(self.program, argv, environ, file_actions=actions, setsid=True, setsigmask=())
            # A small delta in a pack can make a very large object. Before the process gets its input.
            _limit_memory(pid)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        for end, _ in ends:
            os.close(end)
        try:
            output, errors = _exchange(input_in, output_out, errors_out, iter(given))
        except BaseException:
            os.kill(pid, SIGKILL)
            os.waitpid(pid, 0)
            raise
        finally:
            for descriptor in (output_out, errors_out):
                os.close(descriptor)
        status = os.waitpid(pid, 0)[1]
        text = errors.decode("utf-8", "replace").strip()[:MAX_ERROR_CHARACTERS]
        return Answer(os.waitstatus_to_exitcode(status), output, text)


class OpenGit:
    """The user's git program and an open git directory of the user's.

    Commands can put a link in the place of a directory above it. So git and the host reach it by descriptor, at `path`.
    """

    def __init__(self, git: HostGit, descriptor: int, shown: str) -> None:
        self._git = git
        self._descriptor = descriptor
        self._shown = shown
        self.path = f"/proc/self/fd/{descriptor}"

    def run(
        self, *words: str, unit: str = "", given: Iterable[bytes] = (), others: Iterable[str] = (), into: str = ""
    ) -> Answer:
        """Run a git command, in the directory of a worktree if `unit` names one."""
        # No command here needs a working tree. The one that a configuration names may not exist.
        environ = {"GIT_DIR": path_in(self.path, unit), "GIT_WORK_TREE": _NO_WORKTREE}
        # Else git would look for the path of the common directory, and use that.
        environ |= {"GIT_COMMON_DIR": self.path} if unit else {}
        answer = self._git.run(environ, *words, given=given, others=others, into=into, held=self._descriptor)
        return answer.replace(errors=answer.errors.replace(self.path, self._shown))


def path_in(folder: str, name: str) -> str:
    """Return the path of a name in a folder. Each can be empty."""
    return f"{folder}/{name}" if folder and name else folder or name


def _exchange(given: int, output: int, errors: int, chunks: Iterator[bytes]) -> tuple[bytes, bytes]:
    """Write the chunks, read both outputs until they end, and close `given`. Raise TimeoutError if that takes too long."""
    poller = poll()
    found: dict[int, list[bytes]] = {output: [], errors: []}
    for descriptor in found:
        poller.register(descriptor, POLLIN)
    pending = memoryview(next(chunks, b""))
    if pending:
        os.set_blocking(given, False)
        poller.register(given, POLLOUT)
    else:
        os.close(given)
        given = -1
    left, size, ends_at = 2, 0, monotonic() + MAX_SECONDS
    try:
        while left:
            events = poller.poll(1000)
            if monotonic() > ends_at or size > MAX_OUTPUT_BYTES:
                raise TimeoutError("git took too long")
            for descriptor, event in events:
                if descriptor == given:
                    try:
                        pending = pending[os.write(given, pending) :] if not event & POLLERR else memoryview(b"")
                    except BrokenPipeError:
                        pending, chunks = memoryview(b""), iter(())
                    if event & POLLERR:
                        chunks = iter(())
                    if not pending:
                        pending = memoryview(next(chunks, b""))
                    if not pending:
                        poller.unregister(given)
                        os.close(given)
                        given = -1
                elif event & (POLLIN | POLLHUP):
                    data = os.read(descriptor, 1 << 16)
                    size += len(data)
                    found[descriptor].append(data)
                    if not data:
                        poller.unregister(descriptor)
                        left -= 1
    finally:
        if given >= 0:
            os.close(given)
    return b"".join(found[output]), b"".join(found[errors])


def _limit_memory(pid: int) -> None:
    try:
        prlimit(pid, RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    except ProcessLookupError:
        # It has ended already.
        return


def _quoted(path: str) -> str:
    """Return a path for a list of git's that colons separate."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def find_program(directories: Iterable[str]) -> str:
    """Return the git program in one of these directories, or ""."""
    for directory in directories:
        path = f"{directory}/git"
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return ""
