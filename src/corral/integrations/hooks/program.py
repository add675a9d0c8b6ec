"""The hook itself: one payload on stdin, one answer. A crash, a bad payload, a limit or its own timeout refuses.

It runs as `python -I -S program.py HOST`, once for every command of an agent, so it imports as little as it can.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Under -I neither the package's own place nor site-packages is on the path. At its end: nothing there may stand in for
    # a module of the standard library.
    sys.path += [__file__.rsplit("/", 4)[0], *sys.argv[2:3]]

import os
from _signal import ITIMER_REAL, SIGALRM, setitimer, signal  # type: ignore[import-not-found]  # `signal` loads enum

from corral.integrations.hooks.envelope import WRITE, Answer, Asked, BadPayload, Said, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

HOSTS = ("claude", "codex", "gemini", "cursor", "opencode", "copilot")
OWN_SECONDS = 4.0  # well below the shortest timeout that a host has, after which the call would run
MAX_PAYLOAD_BYTES = 32 * 1024 * 1024


class _TooLong(BaseException):
    """Our own time is up; not an Exception, so that no check of the guard takes it for its own crash."""


def _time_is_up(*_: object) -> None:
    raise _TooLong


def main(arguments: list[str]) -> int:
    """Answer one payload; the exit code is the host's."""
    name = arguments[0] if arguments else ""
    if name not in HOSTS:
        _print(Said("", f"corral: there is no host {name!r}; known: {', '.join(HOSTS)}\n", 2))
        return 2
    signal(SIGALRM, _time_is_up)
    setitimer(ITIMER_REAL, OWN_SECONDS)
    try:
        host = _host(name)
        said = _answered(host, name)
        setitimer(ITIMER_REAL, 0)
    except BaseException as error:  # noqa: BLE001  whatever it is, nobody has judged the call
        said = _refusal(name, error)
    _print(said)
    return said.status


def _host(name: str) -> ModuleType:
    module = f"corral.integrations.hooks.{name}"
    __import__(module)  # importlib would load contextlib
    return sys.modules[module]


def _answered(host: ModuleType, name: str) -> Said:
    asked: Asked | None = None
    try:
        asked = host.read(loads(_payload()), os.environ)
        answer = Answer("allow") if asked is None else judge(asked, host, name, os.environ)
    except BadPayload as error:
        _leave_line(name, error)
        answer = Answer("deny", f"corral could not read the call: {error}. Nothing was judged, so it is refused.")
    said: Said = host.render(answer, asked)
    return said


def _payload() -> bytes:
    data = sys.stdin.buffer.read(MAX_PAYLOAD_BYTES + 1)
    if len(data) > MAX_PAYLOAD_BYTES:
        raise BadPayload(f"it is longer than {MAX_PAYLOAD_BYTES} bytes")
    return data


def _refusal(name: str, error: BaseException) -> Said:
    why = "took too long" if isinstance(error, _TooLong) else f"failed ({type(error).__name__}: {error})"
    answer = Answer(
        "deny", f"corral {why} on this call, so it is refused. Try something simpler, or run: corral doctor"
    )
    try:
        if not isinstance(error, _TooLong):
            _leave_line(name, answer.reason)
        said: Said = _host(name).render(answer, None)
    except BaseException:  # noqa: BLE001  every host takes this for a refusal
        return Said("", f"{answer.reason}\n", 2)
    return said


def _leave_line(name: str, error: object) -> None:
    from corral.integrations.hooks.judging import leave_line  # noqa: PLC0415  as below

    leave_line(name, error, os.environ)


def _print(said: Said) -> None:
    try:
        os.write(1, said.stdout.encode("utf-8", "surrogateescape")) if said.stdout else 0
        os.write(2, said.stderr.encode("utf-8", "replace")) if said.stderr else 0
    except OSError:
        # The exit code still says it.
        return


def judge(asked: Asked, host: ModuleType, name: str, environ: Mapping[str, str]) -> Answer:
    """Return the answer to one call of a host."""
    from corral.integrations.hooks import judging  # noqa: PLC0415  not for the calls of other tools

    asked.root = judging.root_of(asked, environ)
    if asked.kind == WRITE:
        return judging.judge_write(asked, name, environ)
    return judging.judge_shell(asked, host, name, environ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
