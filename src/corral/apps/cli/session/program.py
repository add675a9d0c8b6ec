"""Runs as the service of a session: `corral session start` and the hook start it, and it ends by itself."""

from __future__ import annotations

import os
from _socket import socket

from corral.apps.cli.session.calls import SessionCalls
from corral.integrations.hooks.session_client import alias_name
from corral.sessions.service import Service
from corral.sessions.start_service import LISTENER, LOCK

PROCESS_NAME = "corral-session"  # in lists of processes, and where a message names the process that uses a port


def main(path: str, root: str, session: str) -> None:
    """Serve a session at a socket until it ends."""
    os.chdir("/")
    with open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write(PROCESS_NAME)
    for descriptor in (LISTENER, LOCK):
        os.set_inheritable(descriptor, False)
    host, _, id_ = session.partition(":")
    name = alias_name(host, id_)
    alias = f"{os.path.dirname(path)}/{name}" if name else ""
    try:
        service = Service(path, SessionCalls(root, session), socket(fileno=LISTENER))
        if alias:
            _link(path, alias)
        service.serve()
    finally:
        try:
            if alias and os.readlink(alias) == os.path.basename(path):
                os.unlink(alias)
        finally:
            os._exit(0)


def _link(path: str, alias: str) -> None:
    """Make the name by which the hook finds the service. The session's last project has it; any service gives the same answers."""
    partial = f"{alias}.{os.getpid()}"
    os.symlink(os.path.basename(path), partial)
    os.rename(partial, alias)
