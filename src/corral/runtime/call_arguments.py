"""Turns what callers give to `run` and its like into a Call. Takes what `subprocess` takes; what no call can have is an error at once."""

from __future__ import annotations

import os

from corral.model.call import Call
from corral.policy.settings import MAX_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


def call_of(
    argv: Sequence[object] | str | os.PathLike[str],
    shell: bool,
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str] | None,
) -> Call:
    """Return a call that is a copy of what was given, in plain strings."""
    # What was judged must be what runs, although the caller's own may change meanwhile, and although a subclass of str may
    # show the guard another text than the kernel gets.
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
            # No mapping at all; the guard says so.
            return Call(argv, bool(shell), _directory(cwd), env)  # type: ignore[arg-type]  # as above
    return Call(argv, bool(shell), _directory(cwd), env)  # type: ignore[arg-type]  # the guard refuses what is no words


def _directory(cwd: object) -> Any:
    found = _plain(cwd)
    # The guard refuses what a path's own code leaves.
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


def input_of(stdin: object) -> bytes | None:
    """Return what a command reads; text as UTF-8."""
    if stdin is None or type(stdin) is bytes:
        return stdin
    if isinstance(stdin, str):
        return stdin.encode("utf-8", "surrogateescape")
    if isinstance(stdin, (bytes, bytearray, memoryview)):
        return bytes(stdin)
    raise TypeError(f"stdin must be bytes or str, not {type(stdin).__name__}")


def timeout_of(seconds: object) -> float | None:
    """Return how long a command may run; None is the config's."""
    if seconds is None:
        return None
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        raise TypeError(f"timeout_seconds must be a number, not {type(seconds).__name__}")
    if not 0 < seconds <= MAX_SECONDS:
        raise ValueError(
            f"timeout_seconds must be above 0 and at most {MAX_SECONDS:g}, not {seconds!r}. "
            "Leave it out to use the config's limit; SandboxConfig(timeout_seconds=None) sets no limit"
        )
    return float(seconds)
