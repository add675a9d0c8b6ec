"""Sends a planned command to a warden and returns its handle."""

from __future__ import annotations

import os
from time import monotonic, time

from corral.containment import protocol
from corral.containment.system_limits import explained
from corral.model.errors import ContainmentError
from corral.runtime.driver import Driver
from corral.runtime.handle import Handle
from corral.runtime.run_options import SentCommand
from corral.runtime.streams import Streams, is_pty_master

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.model.call import Launch, Verdict
    from corral.policy.config import SandboxConfig
    from corral.runtime.driver import OnResult
    from corral.runtime.pool import Pool
    from corral.runtime.processes import WardenClient
    from corral.runtime.run_options import RunContext, RunOptions


def start(
    pool: Pool,
    context: RunContext,
    launch: Launch,
    options: RunOptions,
    verdict: Verdict,
    *,
    warden: WardenClient | None = None,
    on_result: OnResult | None = None,
) -> Handle:
    """Send a command to `warden`, or to one from the pool, and return its handle."""
    streams = Streams()
    try:
        if warden is None:
            # Before the clock starts: making a warden must not use up the command's time limit.
            warden = pool.acquire()
        # Before the request is sent: connections and kernel audit records are assigned to the command by time.
        sent = SentCommand(launch, options, verdict, os.urandom(protocol.NONCE_BYTES), time(), monotonic())
        warden_makes_pipes = _open_streams(streams, warden, context.config, launch, options)
        request = _request(sent, context.config, streams, warden_makes_pipes=warden_makes_pipes)
    except BaseException as error:
        streams.close()
        if warden is not None:
            pool.release(warden)
        raise _containment_error(error) from error
    try:
        warden = pool.dispatch(warden, request, streams.lent)
    except BaseException as error:
        streams.close()
        raise _containment_error(error) from error
    try:
        if options.pty:
            _receive_terminal(warden, sent.nonce, streams)
            if launch.stdin is not None:
                streams.write(launch.stdin)
                streams.end_input()
        return Handle(Driver(pool, context, warden, streams, sent, on_result=on_result))
    except BaseException:
        streams.close()
        warden.close()
        raise


def _containment_error(error: BaseException) -> BaseException:
    if isinstance(error, OSError):
        return explained(error, "the command could not be sent to a warden")
    return error


def _open_streams(
    streams: Streams, warden: WardenClient, config: SandboxConfig, launch: Launch, options: RunOptions
) -> bool:
    """Open the descriptors that the command gets. Returns whether the warden makes the output pipes itself."""
    if options.stdio:
        streams.lend(*options.stdio)
        return False
    if options.inherit_stdio:
        streams.lend_own()
        return False
    if options.descriptors:
        streams.lent += map(os.dup, options.descriptors)
        return False
    if options.pty:
        return False
    # Live output, and a silence limit, need pipes that the host reads from the start.
    is_live = options.on_output is not None or config.output.silence_seconds is not None
    warden_makes_pipes = not (is_live or options.open_stdin or options.inherit_stdin)
    if warden_makes_pipes:
        warden.reserve_descriptors()
    else:
        streams.open_output()
    if launch.stdin is not None:
        streams.give_input(launch.stdin)
    elif options.inherit_stdin:
        streams.lend_input()
    elif options.open_stdin:
        streams.open_input()
    return warden_makes_pipes


def _receive_terminal(warden: WardenClient, nonce: bytes, streams: Streams) -> None:
    """Receive the master of the command's terminal. If the command could not start, leave its outcome to the driver."""
    message, descriptors = warden.receive()
    if len(message) == protocol.OUTCOME.size and not descriptors:
        warden.inbox[: len(message)] = message
        return
    is_valid = message == protocol.CONTROL.pack(protocol.TERMINAL, nonce, 0) and len(descriptors) == 1
    if not is_valid or not is_pty_master(descriptors[0]):
        protocol.close_all(descriptors)
        raise ContainmentError("the warden sent no terminal; it was killed or cannot be trusted")
    streams.open_terminal(descriptors[0])


def _request(sent: SentCommand, config: SandboxConfig, streams: Streams, *, warden_makes_pipes: bool) -> bytes:
    flags = protocol.WARDEN_MAKES_PIPES if warden_makes_pipes else 0
    if len(streams.lent) > (0 if warden_makes_pipes else 2):
        flags |= protocol.HAS_STDIN
    if sent.options.descriptors:
        flags |= protocol.HAS_CONTROL
    rows = columns = 0
    if sent.options.pty:
        flags = protocol.ON_TERMINAL
        rows, columns = sent.options.rows, sent.options.columns
    limit = sent.launch.timeout_seconds
    deadline = 0.0 if limit is None else sent.started_at + limit
    body, environment_bytes = _body(sent.launch)
    if len(body) > protocol.MAX_PACKET_BYTES:
        streams.lent.append(protocol.sealed("request", body))
        flags |= protocol.HAS_BODY
        body = b""
    drain = config.output.drain_seconds or 0.0
    header = protocol.REQUEST.pack(protocol.RUN, sent.nonce, deadline, drain, flags, environment_bytes, rows, columns)
    return header + body


_last: tuple[Launch | None, Mapping[str, str], bytes, bytes] = (None, {}, b"", b"")


def _body(launch: Launch) -> tuple[bytes, int]:
    """Return the variable part of a request and the size of its environment block. The last one is cached."""
    global _last  # noqa: PLW0603  one assignment, so threads see the old one or the new
    seen, env, block, body = _last
    if launch is not seen:
        if launch.env is not env:
            block = protocol.environment_block(launch.env)
        body = protocol.request_body(launch.executable, launch.cwd, launch.argv, block)
        _last = (launch, launch.env, block, body)
    return body, len(block)
