"""Hands what was decided to run to a warden, and returns the handle of it."""

from __future__ import annotations

import os
from time import monotonic, time

from corral.containment import protocol
from corral.model.errors import ContainmentError
from corral.runtime.driver import Driver
from corral.runtime.handle import Handle
from corral.runtime.streams import Streams, is_outer_end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.model.call import Call, Launch, Verdict
    from corral.policy.config import SandboxConfig
    from corral.runtime.driver import OnResult
    from corral.runtime.pool import Pool
    from corral.runtime.processes import WardenClient
    from corral.runtime.waiters import OnOutput


def start(
    pool: Pool,
    launch: Launch,
    config: SandboxConfig,
    call: Call,
    verdict: Verdict,
    *,
    warden: WardenClient | None = None,
    open_stdin: bool = False,
    inherit_stdin: bool = False,
    inherit_stdio: bool = False,
    terminal: tuple[int, int] | None = None,
    on_output: OnOutput | None = None,
    on_result: OnResult | None = None,
) -> Handle:
    """Hand a command to a warden: the one given, or one of the pool. `terminal` is rows and columns."""
    streams = Streams()
    holds_output = False
    try:
        if warden is None:
            # Before the clock starts: a deadline is the command's, not ours.
            warden = pool.acquire()
        nonce = os.urandom(protocol.NONCE_BYTES)
        # Before the command can do anything: what is told of it is what came since.
        began_at, started_at = time(), monotonic()
        deadline = 0.0 if launch.timeout_seconds is None else started_at + launch.timeout_seconds
        if inherit_stdio:
            streams.lend_own()
        elif terminal is None:
            # Who listens wants to hear at once.
            listens = on_output is not None or config.output.silence_seconds is not None
            holds_output = not (listens or open_stdin or inherit_stdin)
            if holds_output:
                warden.make_room()
            else:
                streams.open_output()
            if launch.stdin is not None:
                streams.give_input(launch.stdin)
            elif inherit_stdin:
                streams.lend_input()
            elif open_stdin:
                streams.open_input()
        request = _request(launch, config, nonce, deadline, streams, terminal=terminal, holds_output=holds_output)
    except BaseException as error:
        streams.close()
        if warden is not None:
            pool.release(warden)
        raise _own(error) from error
    try:
        warden = pool.dispatch(warden, request, streams.lent)
    except BaseException as error:
        streams.close()
        raise _own(error) from error
    try:
        if terminal is not None:
            _take_terminal(warden, nonce, streams)
            if launch.stdin is not None:
                streams.write(launch.stdin)
                streams.end_input()
        driver = Driver(
            pool,
            warden,
            streams,
            launch,
            config,
            judged=(call, verdict),
            nonce=nonce,
            began_at=began_at,
            started_at=started_at,
            inherits=inherit_stdio,
            on_output=on_output,
            on_result=on_result,
        )
        return Handle(driver)
    except BaseException:
        streams.close()
        warden.close()
        raise


def _own(error: BaseException) -> BaseException:
    if isinstance(error, OSError):
        return ContainmentError(f"the command could not be handed to a warden: {error}")
    return error


def _take_terminal(warden: WardenClient, nonce: bytes, streams: Streams) -> None:
    """Take the outer end of the command's terminal; or its outcome, which the handle acts on, where it could not start."""
    message, descriptors = warden.receive()
    if len(message) == protocol.OUTCOME.size and not descriptors:
        warden.inbox[: len(message)] = message
        return
    fits = message == protocol.CONTROL.pack(protocol.TERMINAL, nonce, 0) and len(descriptors) == 1
    if not fits or not is_outer_end(descriptors[0]):
        protocol.close_all(descriptors)
        raise ContainmentError("the warden gave no terminal; it was killed, or is not to be trusted")
    streams.open_terminal(descriptors[0])


def _request(
    launch: Launch,
    config: SandboxConfig,
    nonce: bytes,
    deadline: float,
    streams: Streams,
    *,
    terminal: tuple[int, int] | None,
    holds_output: bool,
) -> bytes:
    flags = protocol.WARDEN_MAKES_PIPES if holds_output else 0
    if len(streams.lent) > (0 if holds_output else 2):
        flags |= protocol.HAS_STDIN
    rows = columns = 0
    if terminal is not None:
        flags = protocol.ON_TERMINAL
        rows, columns = terminal
    body, environment_bytes = _body(launch)
    if len(body) > protocol.MAX_PACKET_BYTES:
        streams.lent.append(protocol.sealed("request", body))
        flags |= protocol.HAS_BODY
        body = b""
    drain = config.output.drain_seconds or 0.0
    return protocol.REQUEST.pack(protocol.RUN, nonce, deadline, drain, flags, environment_bytes, rows, columns) + body


_last: tuple[Launch | None, Mapping[str, str], bytes, bytes] = (None, {}, b"", b"")


def _body(launch: Launch) -> tuple[bytes, int]:
    """Return a request's variable part, and how many bytes of it are the environment, which most launches have in common."""
    global _last  # noqa: PLW0603  one assignment, so threads see the old one or the new
    seen, env, block, body = _last
    if launch is not seen:
        if launch.env is not env:
            block = protocol.environment_block(launch.env)
        body = protocol.request_body(launch.executable, launch.cwd, launch.argv, block)
        _last = (launch, launch.env, block, body)
    return body, len(block)
