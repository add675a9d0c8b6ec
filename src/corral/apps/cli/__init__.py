"""The command line. Machine output goes to stdout, words for people to stderr, and 125 is corral's own failure."""

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
_MODULES = {"try": "try_"}  # a word of Python names no module
_CANNOT_WRITE = (EDQUOT, EFBIG, EIO, ENOSPC)
_CANNOT_OPEN = (
    *_CANNOT_WRITE,
    EACCES,
    EISDIR,
    ELOOP,
    ENOTDIR,
    EPERM,
    EROFS,
)  # the place is at fault, not a line of code


def main(argv: Sequence[str] | None = None) -> int:
    """Run one corral command and return the exit code of the process."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] == ["hook"] and not {"-h", "--help"} & set(arguments):
        return _hook(arguments[1:])
    try:
        from importlib import import_module  # noqa: PLC0415  a verb loads only what it needs

        from corral.apps.cli.arguments import parse  # noqa: PLC0415  as above

        _open_streams()
        _find_home()
        options = parse(arguments)
        status: int = import_module(f"corral.apps.cli.verbs.{_MODULES.get(options.verb, options.verb)}").main(options)
        sys.stdout.flush()
    except CorralError as error:
        print(message(f"corral: {error}", sys.stderr, os.environ), file=sys.stderr)
        return FAILURE_STATUS
    except BrokenPipeError:
        _abandon_stdout()
        return FAILURE_STATUS
    except KeyboardInterrupt:
        return INTERRUPTED_STATUS
    except Exception as error:  # noqa: BLE001  Python's own exit code for a crash, 1, would pass for the command's
        if _was_interrupted(error):
            return INTERRUPTED_STATUS
        if isinstance(error, OSError) and error.errno in _CANNOT_WRITE and error.filename is None:
            print(f"corral: the answer could not be written: {error.strerror}", file=sys.stderr)
            _abandon_stdout()
            return FAILURE_STATUS
        if isinstance(error, OSError) and error.errno in _CANNOT_OPEN and error.filename is not None:
            words = f"corral: {os.fsdecode(error.filename)}: {error.strerror}"
            print(message(words, sys.stderr, os.environ), file=sys.stderr)
            return FAILURE_STATUS
        import traceback  # noqa: PLC0415

        traceback.print_exc()
        return FAILURE_STATUS
    return status


def _find_home() -> None:
    """Let an environment without a home have that of the user's account: what is kept for the owner must lie somewhere."""
    if not os.environ.get("HOME"):
        from pwd import getpwuid  # noqa: PLC0415  few need it

        try:
            os.environ["HOME"] = getpwuid(os.geteuid()).pw_dir
        except KeyError:
            return  # a user without an account, as in some containers


def _was_interrupted(error: BaseException | None) -> bool:
    """Say whether an error came of an interrupt, as where a library puts in order what the interrupt had left."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _hook(arguments: list[str]) -> int:
    try:
        from corral.apps.cli.verbs import hook  # noqa: PLC0415  as above

        _find_home()
        return hook.main(arguments)
    except BaseException as error:  # noqa: BLE001  any other exit code lets the call run at most hosts
        print(f"corral failed ({type(error).__name__}: {error}), so the call is refused.", file=sys.stderr)
        return HOOK_REFUSED_STATUS


class _Words(FileIO):
    """Standard error, on which nothing depends: what cannot be said there changes neither an answer nor an exit code."""

    def write(self, data: Any) -> int:
        """Write, or lose what cannot be written."""
        try:
            # None where somebody made the stream non-blocking and it is full.
            return super().write(data) or len(data)
        except OSError:
            return len(data)


def _abandon_stdout() -> None:
    # Python would complain again when it flushes what is left at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _open_streams() -> None:
    # A stream that was closed before the start is None, and print(file=None) would put words for people on stdout.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  open as long as the process
    if isinstance(sys.stdout, TextIOWrapper):
        # What a locale has no letter for is shown by its number. JSON is ASCII whatever the locale.
        sys.stdout.reconfigure(errors="backslashreplace")
    said = sys.stderr
    if said is sys.__stderr__ and said is not None:
        words: Any = _Words(2, "wb", closefd=False)
        sys.stderr = TextIOWrapper(BufferedWriter(words), said.encoding, said.errors, line_buffering=True)
