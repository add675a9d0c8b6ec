"""Runs one command to its end: on a pseudo-terminal shown in the user's terminal, or with corral's own streams.

The command never holds the user's terminal, so nothing that it does to its pseudo-terminal outlives it.
"""

from __future__ import annotations

import os
import sys
from signal import SIG_DFL, SIG_IGN, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH, getsignal, signal

from corral.apps.cli.call import is_in_foreground, uses_terminal
from corral.apps.cli.output_relay import OutputRelay, can_relay
from corral.runtime.run_options import RunOptions
from corral.sandbox import Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

    from corral.apps.cli.verb import Options
    from corral.model.call import Call
    from corral.model.result import SandboxResult
    from corral.runtime.handle import Handle
    from corral.transactions.transaction import Transaction

POLL_SECONDS = 0.1  # the longest that a signal waits until corral passes it on
DEFAULT_SIZE = (24, 80)
_RECORDED = (SIGINT, SIGTERM, SIGHUP)
_RECORDED_ON_TERMINAL = (*_RECORDED, SIGWINCH, SIGTSTP, SIGCONT, SIGQUIT)


def run_command(
    box: Sandbox | Transaction, call: Call, options: Options, while_waiting: Callable[[], None] | None = None
) -> SandboxResult:
    """Run a call to its end: on a pseudo-terminal, or with corral's streams, or captured for --json.

    `while_waiting` is called again and again. Neither output nor keys are passed on meanwhile, if there is a pseudo-terminal.
    """
    if not uses_terminal(options):
        live = not options.json
        if getattr(options, "call", "") and live and isinstance(box, Sandbox) and can_relay():
            return _relayed(box, call, while_waiting)
        with (
            Console(_RECORDED) as console,
            box.start(call.argv, shell=call.shell, cwd=call.cwd, inherit_stdin=not live, inherit_stdio=live) as handle,
        ):
            return console.wait(handle, while_waiting)
    rows, columns = _size()
    handle = box.start(call.argv, shell=call.shell, cwd=call.cwd, pty=True, rows=rows, columns=columns, on_output=_show)
    if handle.result is not None:
        return handle.result
    handle.relay(0)
    with handle, Console(_RECORDED_ON_TERMINAL) as console:
        console.set_raw()
        return console.wait(handle, while_waiting)


def _relayed(box: Sandbox, call: Call, while_waiting: Callable[[], None] | None) -> SandboxResult:
    """Run a host's call. Its agent reads the result, so that names what the errors report, and the user's setting for it."""
    relay = OutputRelay()
    sent = RunOptions(call, inherit_stdio=True, stdio=relay.stdio, printed=relay.printed)
    with Console(_RECORDED) as console, box._runner.start(sent) as handle:
        relay.start()
        return console.wait(handle, while_waiting)


def shares_terminal(options: Options) -> bool:
    """Return whether the command gets a terminal of corral's as a stream: it could write over a question, or take its answer."""
    return not uses_terminal(options) and any(map(os.isatty, (0,) if options.json else (0, 1, 2)))


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


class Console:
    """The user's terminal and corral's own signals while a command runs. Restores both at the end."""

    def __init__(self, recorded: tuple[int, ...]) -> None:
        self._recorded = recorded
        self._received: list[int] = []
        self._interrupts = 0
        self._handlers: dict[int, Any] = {}
        self._settings: list[Any] | None = None

    def __enter__(self) -> Self:
        for number in self._recorded:
            if getsignal(number) is not SIG_IGN:
                # The handler only records the signal: an exception raised inside the handle's code would lose the result.
                self._handlers[number] = signal(number, lambda number, _: self._received.append(number))
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        for number, handler in self._handlers.items():
            signal(number, handler)

    def wait(self, handle: Handle, while_waiting: Callable[[], None] | None = None) -> SandboxResult:
        """Wait for the end of the command, and handle the signals that come meanwhile."""
        while True:
            try:
                return handle.wait(POLL_SECONDS)
            except TimeoutError:
                self._handle_signals(handle)
                if while_waiting is not None:
                    while_waiting()

    def set_raw(self) -> None:
        """Send every key to the command, if corral may use the terminal."""
        if not os.isatty(0) or not is_in_foreground():
            return
        import termios  # noqa: PLC0415  most runs have no terminal
        import tty  # noqa: PLC0415

        if self._settings is None:
            self._settings = termios.tcgetattr(0)
        # TCSADRAIN, because TCSAFLUSH would drop keys that the user typed ahead for the command.
        tty.setraw(0, termios.TCSADRAIN)

    def _restore(self) -> None:
        if self._settings is not None and is_in_foreground():
            import termios  # noqa: PLC0415

            termios.tcsetattr(0, termios.TCSADRAIN, self._settings)

    def _handle_signals(self, handle: Handle) -> None:
        while self._received:
            number = self._received.pop(0)
            if number == SIGWINCH:
                handle.resize(*_size())
            elif number == SIGINT:
                # The command has a session of its own, so corral passes the signal on. The second one kills.
                self._interrupts += 1
                handle.signal(SIGINT)
                if self._interrupts > 1:
                    handle.kill()
            elif number == SIGTSTP:
                self._stop()
            elif number == SIGCONT:
                # The shell has changed the terminal's settings in the meantime.
                self.set_raw()
                handle.resize(*_size())
            else:
                sys.exit(128 + number)

    def _stop(self) -> None:
        """Stop this process by the default action of SIGTSTP. Returns when it is continued."""
        self._restore()
        handler = signal(SIGTSTP, SIG_DFL)
        os.kill(os.getpid(), SIGTSTP)
        signal(SIGTSTP, handler)
