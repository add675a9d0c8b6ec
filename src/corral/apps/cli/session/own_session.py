"""The user's own session of a project: `corral session start` makes it, and `corral run` uses it where it runs."""

from __future__ import annotations

import os

from corral._lib.terminal import printable
from corral.apps.cli.call import config_of, uses_terminal
from corral.model.errors import ContainmentError, PolicyError
from corral.policy.config import checked_root
from corral.sessions import client, protocol
from corral.sessions.queries import SessionFacts, ask, running_sessions
from corral.sessions.socket_paths import socket_path, socket_paths
from corral.sessions.start_service import ensure_service

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.apps.cli.verb import Options
    from corral.policy.config import SandboxConfig

OWN = "user"  # the name of the user's own session; those of agents begin with the name of their host


def start_own_session(config: SandboxConfig) -> str:
    """Start the user's session of a project unless it runs, and return the path of its socket."""
    refuse_inside_sandbox()
    path = socket_path(config, OWN, os.environ, make=True)
    if path and not is_running(path):
        refuse_without_mounts(config)
    if not path:
        raise PolicyError(
            "there is no place for a session's socket that only you can enter and that no command sees; "
            "choose a smaller project, or check the permissions of ~/.local/state/corral/sessions"
        )
    if not ensure_service(path, config.project_root, OWN, os.environ) or ask(path, (protocol.LIST,)) is None:
        raise PolicyError("the session's service did not start; run: corral doctor")
    return path


def refuse_inside_sandbox() -> None:
    """Raise PolicyError inside a sandbox, where no session can be reached."""
    from corral.apps.cli.questions.terminal_prompt import is_in_sandbox  # noqa: PLC0415  few verbs ask

    if is_in_sandbox():
        raise PolicyError("sessions are not available inside a sandbox")


def is_running(path: str) -> bool:
    """Return whether a service answers at a path."""
    sock = client.connect(path)
    if sock is not None:
        sock.close()
    return sock is not None


def refuse_without_mounts(config: SandboxConfig) -> None:
    """Raise ContainmentError where commands have no mounts: there corral protects a project only between commands."""
    from corral.apps.cli.session.calls import has_mounts  # noqa: PLC0415  only for a new session
    from corral.sandbox import Sandbox  # noqa: PLC0415  as above

    with Sandbox(config) as box:
        if not has_mounts(box):
            raise ContainmentError(
                "a session needs the layer mount, which this machine lacks; run: corral doctor. "
                "Commands run without a session: corral run"
            )


def request_of(options: Options) -> dict[str, Any]:
    """Return the call of the command line, as a service takes it."""
    cwd = None if options.cwd is None else os.path.join(checked_root(options.root), options.cwd)
    return {"shell": options.shell, "command": options.command, "cwd": cwd, "timeout": options.timeout}


def run_in_own_session(options: Options) -> int | None:
    """Run a call in the user's session. Return its exit status, or None where it must run without the session."""
    if options.json or options.call or uses_terminal(options):
        return None
    if options.network or options.local or options.publish:
        return None
    if options.agent is not None or options.profile is not None or options.backend != "auto":
        return None
    if not socket_paths(os.environ):
        return None
    path = socket_path(config_of(options), OWN, os.environ)
    sock = client.connect(path) if path else None
    if sock is None:
        return None
    status = client.run(sock, (protocol.RUN, request_of(options)))
    if status == client.LOST:
        client.write(2, client.LOST_TEXT)
        return client.FAILURE_STATUS
    return status


def find_process(name: str) -> tuple[SessionFacts, dict[str, Any]]:
    """Return the process whose id begins with `name`, and its session. Raise PolicyError where there is not exactly one."""
    found = [
        (session, dict(process))
        for session in running_sessions(os.environ)
        for process in session.processes
        if str(process["id"]).startswith(name)
    ]
    if len(found) != 1:
        why = "no process has" if not found else "several processes have"
        raise PolicyError(f"{why} the id {printable(name)}; list them: corral ps")
    return found[0]


def command_text(process: dict[str, Any]) -> str:
    """Return the command of a process as one line."""
    from corral._lib.quoting import shell_join  # noqa: PLC0415  only for people

    return printable(process["shell"] if "shell" in process else shell_join(process["argv"]))
