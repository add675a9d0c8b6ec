"""Reads one payload from stdin and writes one answer in the host's protocol.

A crash, a payload that cannot be read, an exceeded limit and the hook's own timeout all refuse the call.
"""

from __future__ import annotations

import os
import sys
from _signal import (  # type: ignore[import-not-found]  # `signal` imports enum
    ITIMER_REAL,
    SIG_IGN,
    SIG_UNBLOCK,
    SIGALRM,
    pthread_sigmask,
    setitimer,
    signal,
)

from corral.integrations.hooks.protocol import (
    NOT_GUARDED,
    REFUSED_STATUS,
    Answer,
    BadPayload,
    HookOutput,
    ToolCall,
    loads,
    session_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.integrations.hooks.hosts import Host

LOG_SECONDS = 1.0  # for the audit entry about a call that corral failed on
OWN_SECONDS = 4.0  # well below the shortest timeout of a host, after which the host would run the call
MAX_PAYLOAD_BYTES = 32 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024
_HOSTS = f"{__file__.rpartition('/')[0]}/hosts"


class _TimeoutExceeded(BaseException):
    """The hook's own time is up. Not an Exception, so that no guard check handles it as its own crash. Its argument is the rule."""


def _on_alarm(*_: object) -> None:
    raise _TimeoutExceeded


def main(arguments: list[str], begun: bytes = b"") -> int:
    """Answer one payload and return the exit code. Arguments: the host's name, then the directories of dependencies and user files.

    `begun` is what was read from stdin already.
    """
    name = arguments[0] if arguments else ""
    if not _is_host(name):
        known = sorted(file[:-3] for file in os.listdir(_HOSTS) if file.endswith(".py") and file[0] != "_")
        text = f"there is no host {name!r}" if name else "no host is named"
        return _write_output(
            HookOutput("", f"corral: {text}, so the call is refused; known: {', '.join(known)}\n", REFUSED_STATUS)
        )
    try:
        signal(SIGALRM, _on_alarm)
        pthread_sigmask(SIG_UNBLOCK, (SIGALRM,))  # a host may start its hooks with signals blocked
        setitimer(ITIMER_REAL, OWN_SECONDS)
        if options := [word for word in arguments if word.startswith("--")]:
            from corral.policy.user_dirs import apply_directory_options  # noqa: PLC0415  only an installed hook has options

            apply_directory_options(options, os.environ)
        output = respond(_load_host(name), arguments[1:], lambda: begun + _read_payload(len(begun)))
        setitimer(ITIMER_REAL, 0)
    except BaseException as error:  # noqa: BLE001  whatever it is, the call was not judged
        output = _refusal(name, error)
    return _write_output(output)


def _is_host(name: str) -> bool:
    return name.isidentifier() and os.path.isfile(f"{_HOSTS}/{name}.py")


def host_named(name: str) -> Host | None:
    """Return the host of this name, or None."""
    return _load_host(name) if _is_host(name) else None


def _load_host(name: str) -> Host:
    module = f"corral.integrations.hooks.hosts.{name}"
    __import__(module)  # importlib would import contextlib
    host: Host = sys.modules[module].HOST
    return host


def respond(host: Host, paths: list[str], read: Callable[[], bytes], process: int = 0) -> HookOutput:
    """Return the answer to a payload. `process` is the one that started the hook, if that is not this process's parent."""
    call: ToolCall | None = None
    try:
        payload = loads(read())
        call = host.read(payload, os.environ)
        answer = Answer("allow")
        if call is not None:
            answer = _judge(call.replace(session=session_of(payload), process=process), host.name, paths)
            if answer is NOT_GUARDED:
                call = None
    except BadPayload as error:
        from corral._lib.terminal import printable  # noqa: PLC0415  most payloads are good

        _log_unjudged(host.name, error)
        why = printable(str(error))
        answer = Answer("deny", f"corral could not read the call: {why}. It was not checked, so it is refused.")
    return host.render(answer, call)


def _judge(call: ToolCall, name: str, paths: list[str]) -> Answer:
    from corral.guard.shell.parser import set_parse_trial  # noqa: PLC0415
    from corral.integrations.hooks.decide import judge  # noqa: PLC0415  tools that corral ignores do not need it

    if not call.process:
        # A service has threads, so it does not fork, and answers only short payloads.
        set_parse_trial(_parses)
    try:
        return judge(call, name, os.environ, paths)
    except _TimeoutExceeded:
        raise _TimeoutExceeded("[structure-limit]") from None


def _parses(parser: object, source: bytes) -> bool:
    from corral.integrations.hooks.parse_limit import parses  # noqa: PLC0415  few texts are long

    return parses(parser, source)


def _log_unjudged(name: str, error: object) -> None:
    from corral.integrations.hooks.decide import log_unjudged  # noqa: PLC0415  as above

    log_unjudged(name, error, os.environ)


def _read_payload(size: int = 0) -> bytes:
    parts: list[bytes] = []
    while data := os.read(0, CHUNK_BYTES):
        parts.append(data)
        size += len(data)
        if size > MAX_PAYLOAD_BYTES:
            raise BadPayload(f"it is longer than {MAX_PAYLOAD_BYTES} bytes")
    return b"".join(parts)


def _refusal(name: str, error: BaseException) -> HookOutput:
    """Return the refusal of a call that corral failed on, and log it if that takes at most LOG_SECONDS."""
    signal(SIGALRM, SIG_IGN)
    reason = f"corral failed on this call ({type(error).__name__}: {error}), so it is refused. Run: corral doctor"
    if isinstance(error, _TimeoutExceeded):
        rule = f". {error}" if error.args else ""
        reason = (
            "corral refused this call because checking it took too long. "
            f"Split it into shorter commands, or run: corral doctor{rule}"
        )
    answer = Answer("deny", reason)
    try:
        signal(SIGALRM, _on_alarm)
        setitimer(ITIMER_REAL, LOG_SECONDS)
        _log_unjudged(name, answer.reason)
        signal(SIGALRM, SIG_IGN)
    except BaseException:  # noqa: BLE001, S110  the refusal matters more than the entry; the alarm is not repeated
        pass
    try:
        return _load_host(name).render(answer, None)
    except BaseException:  # noqa: BLE001  every host refuses the call after this exit code
        return HookOutput("", f"{answer.reason}\n", REFUSED_STATUS)


def _write_output(output: HookOutput) -> int:
    """Write an answer and return the exit code. If the answer cannot be written, refuse: hosts run the call after no output."""
    is_written = _write(1, output.stdout)
    _write(2, output.stderr)
    return output.status if is_written else REFUSED_STATUS


def _write(descriptor: int, text: str) -> bool:
    left = text.encode("utf-8", "backslashreplace")
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError:
        return False
    return True
