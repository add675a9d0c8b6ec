"""Shows the output of a background process of a session, and passes input on to it."""

from __future__ import annotations

import os
from select import select

from corral.model.errors import PolicyError
from corral.sessions import protocol
from corral.sessions.queries import ask

WAIT_SECONDS = 1.0
WAIT_WITH_INPUT_SECONDS = 0.1
READ_BYTES = 32 * 1024


def show_output(path: str, name: str, *, follow: bool, takes_input: bool) -> int:
    """Print the output of a process. With `follow`, go on until it ends, and return its exit status."""
    position = 0
    seconds = (WAIT_WITH_INPUT_SECONDS if takes_input else WAIT_SECONDS) if follow else 0.0
    while True:
        answer = ask(path, (protocol.LOGS, name, position, seconds))
        if answer is None or answer[0] != protocol.FACTS:
            raise PolicyError("the session has ended" if answer is None else str(answer[1]))
        facts = answer[1]
        if facts["dropped"]:
            _write(f"corral: {facts['dropped']} bytes of older output were dropped\n".encode(), 2)
        _write(facts["data"])
        position = facts["position"]
        if not facts["data"] and (not follow or not facts["running"]):
            return int(facts["exit_code"] or 0) if follow else 0
        if takes_input and select([0], (), (), 0)[0]:
            data = os.read(0, READ_BYTES)
            takes_input = bool(data)
            if data:
                ask(path, (protocol.INPUT, name, data))


def _write(data: bytes, descriptor: int = 1) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
