"""Gives the answers of hooks in the service, where the guard is loaded: the same as the hook itself would give."""

from __future__ import annotations

import os

from corral.integrations.hooks.respond import host_named, respond
from corral.policy.user_dirs import apply_directory_options
from corral.sessions import protocol
from corral.sessions.socket_paths import PACKAGE, places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def answer_hook(message: tuple[Any, ...], client: int, own_places: tuple[str, ...]) -> tuple[Any, ...]:
    """Return the answer for a hook with the pid `client`. The environment is the hook's. The hook judges after NOT_HERE."""
    _, package, arguments, payload, _ = message
    name, *words = arguments
    if package != PACKAGE or not name.isidentifier() or (host := host_named(name)) is None:
        return (protocol.NOT_HERE,)
    if options := [word for word in words if word.startswith("--")]:
        apply_directory_options(options, os.environ)
    if places(os.environ) != own_places:
        return (protocol.NOT_HERE,)
    output = respond(host, words, lambda: payload, process=_parent(client))
    texts = [text.encode("utf-8", "backslashreplace") for text in (output.stdout, output.stderr)]
    return (protocol.ANSWERED, *texts, output.status)


def _parent(process: int) -> int:
    with open(f"/proc/{process}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])
