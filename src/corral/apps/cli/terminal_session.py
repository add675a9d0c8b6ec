"""The owner's terminal while a command on one of its own is shown there: raw, its size handed on, put back however it ends.

The command never holds the owner's terminal: what it does to its own ends with it.
"""

from __future__ import annotations

import os
import sys
from signal import (
    SIG_DFL,
    SIG_IGN,
    SIGCONT,
    SIGHUP,
    SIGINT,
    SIGQUIT,
    SIGTERM,
    SIGTSTP,
    SIGWINCH,
    getsignal,
    signal,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    from corral.model.call import Call
    from corral.model.result import SandboxResult
    from corral.runtime.handle import Handle
    from corral.sandbox import Sandbox
    from corral.transactions.transaction import Transaction

NOTICE_SECONDS = 0.1  # how long a signal may wait until it is handed on
DEFAULT_SIZE = (24, 80)
_ENDINGS = (SIGHUP, SIGQUIT, SIGTERM)
_NOTED = (SIGWINCH, SIGINT, SIGTSTP, SIGCONT, *_ENDINGS)


def is_wanted(word: bool | None) -> bool:
    """Say whether the command gets a terminal: by the owner's word, else where all three streams are one we may use."""
    if word is not None:
        return word
    return all(map(os.isatty, (0, 1, 2))) and _is_in_foreground()


def drive(box: Sandbox | Transaction, call: Call) -> SandboxResult:
    """Run a call on a terminal of its own, shown in ours, to its end."""
    rows, columns = _size()
    handle = box.start(call.argv, shell=call.shell, cwd=call.cwd, pty=True, rows=rows, columns=columns, on_output=_show)
    if handle.result is not None:
        return handle.result
    handle.relay(0)
    with handle, Console() as console:
        while True:
            try:
                return handle.wait(NOTICE_SECONDS)
            except TimeoutError:
                console.attend(handle)


def _show(_: str, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _size() -> tuple[int, int]:
    for descriptor in (0, 1, 2):
        try:
            columns, rows = os.get_terminal_size(descriptor)
        except OSError:
            continue
        if rows and columns:
            return rows, columns
    return DEFAULT_SIZE


def _is_in_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        # No terminal, or not the one that controls this session.
        return False


class Console:
    """Our terminal in raw mode: every key is the command's, and our own signals are noted."""

    def __init__(self) -> None:
        self.noted: list[int] = []
        self.interrupts = 0
        self.before: dict[int, Any] = {}
        self.settings: list[Any] | None = None

    def __enter__(self) -> Self:
        for number in _NOTED:
            if getsignal(number) is not SIG_IGN:
                # Noted, not raised: an exception in the middle of the handle's work would lose the result.
                self.before[number] = signal(number, lambda number, _: self.noted.append(number))
        self.make_raw()
        return self

    def __exit__(self, *_: object) -> None:
        self.put_back()
        for number, handler in self.before.items():
            signal(number, handler)

    def make_raw(self) -> None:
        """Hand every key on, unless the terminal is another's for now."""
        if not os.isatty(0) or not _is_in_foreground():
            return
        import termios  # noqa: PLC0415  only here: most runs have no terminal
        import tty  # noqa: PLC0415

        if self.settings is None:
            self.settings = termios.tcgetattr(0)
        # Not flushed: what was typed ahead is the command's.
        tty.setraw(0, termios.TCSADRAIN)

    def put_back(self) -> None:
        """Set the terminal as it was."""
        if self.settings is not None and _is_in_foreground():
            import termios  # noqa: PLC0415

            termios.tcsetattr(0, termios.TCSADRAIN, self.settings)

    def attend(self, handle: Handle) -> None:
        """Act on the signals that have come."""
        while self.noted:
            number = self.noted.pop(0)
            if number == SIGWINCH:
                handle.resize(*_size())
            elif number == SIGINT:
                # From outside: the key is the command's. The second one means it.
                self.interrupts += 1
                handle.signal(SIGINT)
                if self.interrupts > 1:
                    handle.kill()
            elif number == SIGTSTP:
                self.stop()
            elif number == SIGCONT:
                # The shell has set the terminal in its own way meanwhile.
                self.make_raw()
                handle.resize(*_size())
            else:
                sys.exit(128 + number)

    def stop(self) -> None:
        """Stop this process as anybody would, and come back when it is continued."""
        self.put_back()
        noting = signal(SIGTSTP, SIG_DFL)
        os.kill(os.getpid(), SIGTSTP)
        signal(SIGTSTP, noting)
