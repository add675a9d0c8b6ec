"""The options of one run, as callers give them, and the context that all commands of a sandbox share.

Accepts the types that `subprocess` accepts. A type that no option can have raises an error before the call is judged.
"""

from __future__ import annotations

import os

from corral._lib.records import Record, frozen
from corral.model.call import Call
from corral.policy.settings import MAX_SECONDS
from corral.runtime.capture import Capture
from corral.runtime.streams import checked_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from corral.model.call import Connection, Launch, Verdict, Violation
    from corral.model.grant import Grant
    from corral.policy.config import SandboxConfig
    from corral.runtime.waiters import OnOutput

    Inspect = Callable[..., tuple[Violation, ...]]


@frozen
class RunOptions(Record):
    """A call and the options to run it with. `Sandbox.run`, `arun`, `start` and `astart` turn their keywords into one of these."""

    call: Call
    stdin: bytes | str | None = None  # text is encoded when the record is made
    timeout_seconds: float | None = None
    on_output: OnOutput | None = None
    open_stdin: bool = False
    inherit_stdin: bool = False
    inherit_stdio: bool = False
    pty: bool = False
    rows: int = 24
    columns: int = 80
    stdio: tuple[int, ...] = ()  # the three streams that `inherit_stdio` lends, instead of this process's own
    printed: Callable[[], tuple[bytes, bytes]] | None = None  # the end of the stdout and stderr that `stdio` passed on
    call_id: str = ""  # the model's id of the tool call, for observers
    descriptors: tuple[
        int, ...
    ] = ()  # to be the command's stdout, stderr, stdin and number 3; nothing is captured then

    def _validate(self) -> None:
        if self.pty:
            if self.inherit_stdin or self.inherit_stdio:
                raise ValueError("a command has a terminal of its own (pty) or this process's streams, not both")
            checked_size(self.rows, self.columns)
        if self.stdin is not None:
            object.__setattr__(self, "stdin", _input(self.stdin))
        if self.timeout_seconds is not None:
            object.__setattr__(self, "timeout_seconds", _timeout(self.timeout_seconds))


@frozen
class SentCommand(Record):
    """A command as it was sent to a warden. The nonce marks the warden's messages about it and becomes the result's id."""

    launch: Launch
    options: RunOptions
    verdict: Verdict
    nonce: bytes
    began_at: float  # seconds since the epoch
    started_at: float  # the same moment on the monotonic clock


@frozen
class RunContext(Record):
    """Settings and callbacks that are the same for every command of a sandbox, or of one of its transactions."""

    config: SandboxConfig
    inspect: Inspect | None = None  # called after each command; returns the violations that the host can see
    spill: Callable[[], Capture] | None = None  # creates captures that save truncated output to a file
    connections: Callable[[float], tuple[Connection, ...]] | None = None  # returns the proxied connections since a time
    transaction: str | None = None  # id of the transaction in which all commands run
    grants: tuple[Grant, ...] = ()  # of the one call of a granted sandbox

    def new_capture(self) -> Capture:
        """Return a buffer for the output of one command."""
        if self.spill is not None:
            return self.spill()
        return Capture(self.config.max_output_bytes, self.config.output.keep)


def run_options(
    argv: Sequence[object] | str | os.PathLike[str],
    *,
    shell: bool = False,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> RunOptions:
    """Return the options of a call that is given by keywords."""
    return RunOptions(call_of(argv, shell, cwd, env), **options)


def call_of(
    argv: Sequence[object] | str | os.PathLike[str],
    shell: bool,
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str] | None,
) -> Call:
    """Return a call that holds a copy of the arguments, as plain strings."""
    # The guard must judge exactly what runs. The caller may change its list meanwhile, and a subclass of str may show the
    # guard another text than the kernel gets.
    if isinstance(argv, (list, tuple)):
        argv = tuple([word if type(word) is str else _plain(word) for word in argv])
    elif isinstance(argv, str):
        argv = _plain(argv)
    elif isinstance(argv, os.PathLike) and not shell:
        argv = (_plain(argv),)
    if env is not None:
        try:
            env = {_plain(name): _plain(value) for name, value in dict(env).items()}
        except (TypeError, ValueError):
            # Not a mapping: the guard refuses the call.
            return Call(argv, bool(shell), _directory(cwd), env)  # type: ignore[arg-type]  # as above
    return Call(argv, bool(shell), _directory(cwd), env)  # type: ignore[arg-type]  # the guard refuses words of other types


def _directory(cwd: object) -> Any:
    found = _plain(cwd)
    # A PathLike that is left over failed to give its path. The guard refuses a NUL byte.
    return "\0" if isinstance(found, os.PathLike) else found


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value if type(value) is str else str.__str__(value)
    if isinstance(value, os.PathLike):
        try:
            text = os.fspath(value)
        except Exception:  # noqa: BLE001  the caller's own code
            return value
        return str.__str__(text) if isinstance(text, str) else value
    return value


def _input(stdin: object) -> bytes:
    if isinstance(stdin, str):
        return stdin.encode("utf-8", "surrogateescape")
    if isinstance(stdin, (bytes, bytearray, memoryview)):
        return bytes(stdin)
    raise TypeError(f"stdin must be bytes or str, not {type(stdin).__name__}")


def _timeout(seconds: object) -> float:
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        raise TypeError(f"timeout_seconds must be a number, not {type(seconds).__name__}")
    if not 0 < seconds <= MAX_SECONDS:
        raise ValueError(
            f"timeout_seconds must be above 0 and at most {MAX_SECONDS:g}, not {seconds!r}. "
            "Leave it out to use the config's limit; SandboxConfig(timeout_seconds=None) sets no limit"
        )
    return float(seconds)
