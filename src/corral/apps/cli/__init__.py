"""The command line. JSON and other machine output goes to stdout, messages go to stderr, and 125 means that corral itself failed."""

from __future__ import annotations

import os
import sys
from errno import EACCES, EDQUOT, EFBIG, EIO, EISDIR, ELOOP, ENOSPC, ENOTDIR, EPERM, EROFS
from io import BufferedWriter, FileIO, TextIOWrapper

from corral._lib.terminal import message
from corral.model.errors import CorralError
from corral.model.render_result import FAILURE_STATUS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

HOOK_REFUSED_STATUS = 2
INTERRUPTED_STATUS = 130  # 128 + SIGINT, as a shell reports it
# Errors of a file or a disk. Their message is enough; a traceback would not help the user.
_CANNOT_WRITE = (EDQUOT, EFBIG, EIO, ENOSPC)
_CANNOT_OPEN = (*_CANNOT_WRITE, EACCES, EISDIR, ELOOP, ENOTDIR, EPERM, EROFS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one corral command and return the exit code of the process."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    status: int
    if arguments[:1] == ["hook"] and not {"-h", "--help"} & set(arguments):
        return _hook(arguments[1:])
    try:
        from corral.apps.cli.arguments import parse  # noqa: PLC0415  `corral hook` does without
        from corral.apps.cli.verb import load_verb  # noqa: PLC0415

        _open_streams()
        _set_home()
        if arguments[:1] == ["go"] and argv is not None:
            from corral.apps.cli import go  # noqa: PLC0415  only a rewritten command needs it

            status = go.main(arguments[1:])
        else:
            options = parse(arguments)
            status = load_verb(options.verb).main(options)
        sys.stdout.flush()
    except CorralError as error:
        print(message(f"corral: {error}", sys.stderr, os.environ), file=sys.stderr)
        return FAILURE_STATUS
    except BrokenPipeError:
        _abandon_stdout()
        return FAILURE_STATUS
    except KeyboardInterrupt:
        return INTERRUPTED_STATUS
    except Exception as error:  # noqa: BLE001  Python's exit code for a crash, 1, would look like the command's
        if _was_interrupted(error):
            return INTERRUPTED_STATUS
        if isinstance(error, OSError) and error.errno in _CANNOT_WRITE and error.filename is None:
            print(f"corral: the answer could not be written: {error.strerror}", file=sys.stderr)
            _abandon_stdout()
            return FAILURE_STATUS
        if isinstance(error, OSError) and error.errno in _CANNOT_OPEN and error.filename is not None:
            text = f"corral: {os.fsdecode(error.filename)}: {error.strerror}"
            print(message(text, sys.stderr, os.environ), file=sys.stderr)
            return FAILURE_STATUS
        import traceback  # noqa: PLC0415

        traceback.print_exc()
        return FAILURE_STATUS
    return status


def _set_home() -> None:
    """Set HOME from the user's account if the environment has none: corral stores the user's files below it."""
    if not os.environ.get("HOME"):
        from pwd import getpwuid  # noqa: PLC0415  rarely needed

        try:
            os.environ["HOME"] = getpwuid(os.geteuid()).pw_dir
        except KeyError:
            return  # a user without an account, as in some containers


def _was_interrupted(error: BaseException | None) -> bool:
    """Return whether an error was raised while KeyboardInterrupt was handled, as by a library that cleans up."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _hook(arguments: list[str]) -> int:
    try:
        from corral.apps.cli.verbs import hook  # noqa: PLC0415

        _set_home()
        return hook.main(arguments)
    except BaseException as error:  # noqa: BLE001  most hosts run the call on any other exit code
        print(f"corral failed ({type(error).__name__}: {error}), so the call is refused.", file=sys.stderr)
        return HOOK_REFUSED_STATUS


class _LossyFile(FileIO):
    """Standard error. A message that cannot be written is dropped and changes neither an answer nor an exit code."""

    def write(self, data: Any) -> int:
        """Write the data, or drop it."""
        try:
            # FileIO returns None if another process made the stream non-blocking and it is full.
            return super().write(data) or len(data)
        except OSError:
            return len(data)


def _abandon_stdout() -> None:
    # Otherwise Python fails again when it flushes stdout at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _open_streams() -> None:
    # A stream that was closed before the start is None, and print(file=None) would write messages to stdout.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  open as long as the process
    if isinstance(sys.stdout, TextIOWrapper):
        # Escapes characters that the locale cannot encode. JSON is ASCII in any locale.
        sys.stdout.reconfigure(errors="backslashreplace")
    stderr = sys.stderr
    if stderr is sys.__stderr__ and stderr is not None:
        raw: Any = _LossyFile(2, "wb", closefd=False)
        sys.stderr = TextIOWrapper(BufferedWriter(raw), stderr.encoding, stderr.errors, line_buffering=True)
