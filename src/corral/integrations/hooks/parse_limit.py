"""Parses a long text in a forked child first, before the hook itself parses it.

While tree-sitter parses, no Python signal handler runs, so the hook's own alarm cannot interrupt it. The kernel ends the child: by
a timer on its CPU time, whose signal keeps its default action, and by a limit on its memory. The binding's
`progress_callback` would be cheaper, but crashes the process in tree-sitter 0.25 and 0.26.
"""

from __future__ import annotations

import os
from _signal import (  # type: ignore[import-not-found]  # `signal` imports enum
    ITIMER_PROF,
    SIG_DFL,
    SIG_SETMASK,
    SIGCHLD,
    SIGKILL,
    SIGPROF,
    pthread_sigmask,
    setitimer,
    signal,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CPU_SECONDS = 0.15  # three times as long as 128 kB of ordinary shell text take
MEMORY_BYTES = 512 * 1024 * 1024  # of the whole child; 40 kB of `!(a|a|a…` take three gigabytes


def parses(parser: Any, source: bytes) -> bool:
    """Say whether the parser finishes a text within the limits."""
    signal(SIGCHLD, SIG_DFL)  # a host may leave it ignored, and the kernel then keeps no status to wait for
    try:
        child = os.fork()
    except OSError:
        return False
    if child == 0:
        _parse_and_exit(parser, source)
    try:
        return os.waitpid(child, 0)[1] == 0
    except BaseException:  # the hook's alarm, which may arrive just after waitpid() returned
        try:  # noqa: SIM105  contextlib is slow to import
            os.kill(child, SIGKILL)
        except ProcessLookupError:
            pass
        raise


def _parse_and_exit(parser: Any, source: bytes) -> None:
    status = 1
    try:
        from resource import RLIMIT_AS, RLIMIT_CORE, setrlimit  # noqa: PLC0415  only this child needs it

        # Without memory the parser prints an error before it aborts, and the host reads the hook's stderr.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        setrlimit(RLIMIT_CORE, (0, 0))
        setrlimit(RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        pthread_sigmask(SIG_SETMASK, ())
        signal(SIGPROF, SIG_DFL)
        setitimer(ITIMER_PROF, CPU_SECONDS)
        parser.parse(source)
        status = 0
    finally:
        os._exit(status)
