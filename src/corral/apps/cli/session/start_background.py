"""Starts a process that stays in the user's own session of a project: `corral run --background`."""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import printable, terminal_of
from corral.apps.cli import run_agent
from corral.apps.cli.call import call_of, config_of, machine_of
from corral.apps.cli.session.own_session import request_of, start_own_session
from corral.apps.cli.session.publish import publish, published_text
from corral.guard.evaluate import vet
from corral.model.call import NOT_EXECUTABLE_EXIT_CODE
from corral.model.errors import PolicyError
from corral.model.render_result import json_text, verdict_text
from corral.sessions import protocol
from corral.sessions.queries import ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.apps.cli.verb import Options
    from corral.policy.config import SandboxConfig


def start_in_background(options: Options) -> int:
    """Start the command of the command line, and print its id."""
    config = config_of(options)
    if options.publish and not _may_publish(options, config):
        print("corral: not started: you said no", file=sys.stderr)
        return NOT_EXECUTABLE_EXIT_CODE
    path = start_own_session(config)
    mask = os.umask(0o077)
    os.umask(mask)
    answer = ask(path, (protocol.START, request_of(options), dict(os.environb), mask))
    if answer is not None and answer[0] == protocol.STARTED:
        name = answer[1]
        published = [publish(path, port, 0) for port in dict.fromkeys(options.publish)]
        if options.json:
            print(json_text({"id": name, **({"published": published} if published else {})}))
        else:
            for each in published:
                print(f"corral: {printable(published_text(each))}", file=sys.stderr)
            text = f"{name} runs in the background; its output: corral logs {name}; end it with: corral stop {name}"
            print(f"corral: {text}", file=sys.stderr)
        return 0
    if answer is not None and answer[0] == protocol.REFUSED:
        raise PolicyError(str(answer[1]))
    call = call_of(options)
    verdict = vet(call, config, machine_of(config))
    if verdict.allowed and not verdict.grants:
        raise PolicyError("the session cannot start this command in the background; run it without --background")
    print(verdict_text(call, verdict, terminal_of(sys.stderr, os.environ)), file=sys.stderr)
    print("corral: not started: nobody is asked about a background command", file=sys.stderr)
    return NOT_EXECUTABLE_EXIT_CODE


def _may_publish(options: Options, config: SandboxConfig) -> bool:
    """Ask the user about the ports that the policy does not publish. Raises PolicyError if corral cannot ask."""
    return run_agent.config_with_grants(options, config, None) is not None
