"""The command line. Machine output goes to stdout, words for people to stderr, and 125 is corral's own failure."""

from __future__ import annotations

import os
import sys

from corral.errors import CorralError
from corral.record import FAILURE_STATUS
from corral.terminal import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED_STATUS = 130  # 128 + SIGINT, as a shell reports it


def main(argv: Sequence[str] | None = None) -> int:
    """Run one corral command and return the exit code of the process."""
    from importlib import import_module  # noqa: PLC0415  a verb loads only what it needs

    from corral.cli.arguments import parse  # noqa: PLC0415  as above

    _open_streams()
    options = parse(sys.argv[1:] if argv is None else list(argv))
    try:
        status: int = import_module(f"corral.cli.{options.verb}").main(options)
        sys.stdout.flush()
    except CorralError as error:
        print(f"corral: {visible(str(error))}", file=sys.stderr)
        return FAILURE_STATUS
    except BrokenPipeError:
        # The reader is gone. Python would complain again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILURE_STATUS
    except KeyboardInterrupt:
        return INTERRUPTED_STATUS
    except Exception:  # noqa: BLE001  Python's own exit code for a crash, 1, would pass for the command's
        import traceback  # noqa: PLC0415

        traceback.print_exc()
        return FAILURE_STATUS
    return status


def _open_streams() -> None:
    # A stream that was closed before the start is None, and print(file=None) would put words for people on stdout.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  open as long as the process
