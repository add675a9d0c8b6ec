"""Writes the program that a rewritten command names: `~/.local/state/corral/bin/corral go ID TEXT`.

It is a file of the user's, not the installed `corral`: it starts the interpreter without site-packages and without PYTHON
variables, as the hook itself runs. Commands in the sandbox can neither see nor write it.
"""

from __future__ import annotations

import os
import sys

from corral.model.errors import PolicyError
from corral.policy.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_INTERPRETER = 200  # characters; the kernel reads 256 bytes of the first line
MAX_FILE_BYTES = 64 * 1024  # of another installation's launcher
_NAME = "corral"
_TEXT = """\
#!{} -IS
import posix, sys
sys.path += {!r}
state, line = {!r}, sys.argv[1:]
from corral.sessions.client import run_pending
status = run_pending(state, line)
if status is not None:
    posix._exit(status)
from corral.apps.cli import main
sys.exit(main(["go", state, *line]))
"""


def launcher(root: str, environ: Mapping[str, str], paths: Sequence[str]) -> list[str]:
    """Return the words that start the launcher. Write it if it is missing, or of another installation of corral."""
    if not sys.executable:
        raise PolicyError("Python does not know the path of its own interpreter, so no command can be started")
    store = Store("state", "bin", environ, root)
    store.create()
    folders = [__file__.rsplit("/", 4)[0], *[word for word in paths if word.startswith("/")]]
    data = _TEXT.format(sys.executable, folders, store.path.rpartition("/")[0]).encode("utf-8", "surrogateescape")
    file = f"{store.path}/{_NAME}"
    if store.read(_NAME, MAX_FILE_BYTES) != data:
        store.write(_NAME, data, mode=0o700)
    is_plain = len(sys.executable) <= MAX_INTERPRETER and not set(sys.executable) & set(" \t\n")
    # The home directory may be on a file system from which nothing can be executed.
    return [file] if is_plain and os.access(file, os.X_OK) else [sys.executable, "-IS", file]


def remove_launcher(environ: Mapping[str, str]) -> None:
    """Remove the launcher, because no host has a hook any more."""
    store = Store("state", "bin", environ)
    if store.exists():
        store.remove(_NAME)
