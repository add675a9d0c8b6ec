"""One payload on stdin, one answer in the host's protocol. A crash, a bad payload, a limit or its own timeout refuses."""

from __future__ import annotations

import os
import sys
from _signal import (  # type: ignore[import-not-found]  # `signal` loads enum
    ITIMER_REAL,
    SIG_IGN,
    SIG_UNBLOCK,
    SIGALRM,
    pthread_sigmask,
    setitimer,
    signal,
)

from corral.integrations.hooks.protocol import Answer, BadPayload, HookOutput, ToolCall, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

HOSTS = ("claude", "codex", "gemini", "cursor", "opencode", "copilot")
REFUSED_STATUS = 2
LOG_SECONDS = 1.0  # for the line about a call that corral failed on
OWN_SECONDS = 4.0  # well below the shortest timeout that a host has, after which the call would run
MAX_PAYLOAD_BYTES = 32 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024


class _TooLong(BaseException):
    """Our own time is up; not an Exception, so that no check of the guard takes it for its own crash. Its argument is the rule."""


def _time_is_up(*_: object) -> None:
    raise _TooLong


def main(arguments: list[str]) -> int:
    """Answer one payload for a host; the exit code is the host's. What follows its name is where dependencies and the owner's files lie."""
    name = arguments[0] if arguments else ""
    if name not in HOSTS:
        words = f"there is no host {name!r}" if name else "no host is named"
        return _printed(HookOutput("", f"corral: {words}; known: {', '.join(HOSTS)}\n", REFUSED_STATUS))
    try:
        signal(SIGALRM, _time_is_up)
        pthread_sigmask(SIG_UNBLOCK, (SIGALRM,))  # a host may start its hooks with signals blocked
        setitimer(ITIMER_REAL, OWN_SECONDS)
        if pins := [word for word in arguments if word.startswith("--")]:
            from corral.policy.user_dirs import apply_directory_options  # noqa: PLC0415  only an installed hook has some

            apply_directory_options(pins, os.environ)
        said = _answered(_host(name), name, arguments[1:])
        setitimer(ITIMER_REAL, 0)
    except BaseException as error:  # noqa: BLE001  whatever it is, nobody has judged the call
        said = _refusal(name, error)
    return _printed(said)


def _host(name: str) -> ModuleType:
    module = f"corral.integrations.hooks.hosts.{name}"
    __import__(module)  # importlib would load contextlib
    return sys.modules[module]


def _answered(host: ModuleType, name: str, paths: list[str]) -> HookOutput:
    asked: ToolCall | None = None
    try:
        asked = host.read(loads(_payload()), os.environ)
        answer = Answer("allow") if asked is None else _judged(asked, name, paths)
    except BadPayload as error:
        from corral._lib.terminal import printable  # noqa: PLC0415  most payloads are good

        _leave_line(name, error)
        why = printable(str(error))
        answer = Answer("deny", f"corral could not read the call: {why}. Nothing was judged, so it is refused.")
    said: HookOutput = host.render(answer, asked)
    return said


def _judged(asked: ToolCall, name: str, paths: list[str]) -> Answer:
    from corral.guard.shell.parser import set_parse_trial  # noqa: PLC0415
    from corral.integrations.hooks.decide import judge  # noqa: PLC0415  not for the calls of other tools

    set_parse_trial(_parses)
    try:
        return judge(asked, name, os.environ, paths)
    except _TooLong:
        raise _TooLong("[structure-limit]") from None


def _parses(parser: object, source: bytes) -> bool:
    from corral.integrations.hooks.parse_limit import parses  # noqa: PLC0415  few texts are long

    return parses(parser, source)


def _leave_line(name: str, error: object) -> None:
    from corral.integrations.hooks.decide import log_unjudged  # noqa: PLC0415  as above

    log_unjudged(name, error, os.environ)


def _payload() -> bytes:
    """Return all of stdin, whose end the host makes."""
    parts: list[bytes] = []
    size = 0
    while data := os.read(0, CHUNK_BYTES):
        parts.append(data)
        size += len(data)
        if size > MAX_PAYLOAD_BYTES:
            raise BadPayload(f"it is longer than {MAX_PAYLOAD_BYTES} bytes")
    return b"".join(parts)


def _refusal(name: str, error: BaseException) -> HookOutput:
    """Return the refusal of a call on which corral itself failed, and leave a line in the log if that can be done soon."""
    signal(SIGALRM, SIG_IGN)
    reason = f"corral failed on this call ({type(error).__name__}: {error}), so it is refused. Run: corral doctor"
    if isinstance(error, _TooLong):
        rule = f". {error}" if error.args else ""
        reason = (
            "corral refused this call because checking it took too long. "
            f"Split it into shorter commands, or run: corral doctor{rule}"
        )
    answer = Answer("deny", reason)
    try:
        signal(SIGALRM, _time_is_up)
        setitimer(ITIMER_REAL, LOG_SECONDS)
        _leave_line(name, answer.reason)
        signal(SIGALRM, SIG_IGN)
    except BaseException:  # noqa: BLE001, S110  the refusal counts, not the line; the alarm comes once
        pass
    try:
        said: HookOutput = _host(name).render(answer, None)
    except BaseException:  # noqa: BLE001  every host takes this for a refusal
        return HookOutput("", f"{answer.reason}\n", REFUSED_STATUS)
    return said


def _printed(said: HookOutput) -> int:
    """Print an answer and return the exit code; an answer that cannot be heard must not be taken for silence, which allows."""
    heard = _write(1, said.stdout)
    _write(2, said.stderr)
    return said.status if heard else REFUSED_STATUS


def _write(descriptor: int, text: str) -> bool:
    left = text.encode("utf-8", "backslashreplace")
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError:
        return False
    return True
