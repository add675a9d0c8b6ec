"""Runs the line into which a hook rewrites a command: `corral go ID TEXT`. Everything else about the call is stored under the id.

Only the hook's launcher comes here: `go` is no verb of the command line, and the guard refuses it in an agent's command.
"""

from __future__ import annotations

import os

from corral.apps.cli.arguments import parse
from corral.apps.cli.shell_state import prepare_shell_file
from corral.apps.cli.verbs import run
from corral.model.errors import PolicyError
from corral.policy.answers.pending_calls import is_id, is_of_session, take_pending_call
from corral.policy.user_dirs import apply_directory_options

_WORDS = (2, 3)  # `go`, the id, and the text if the line shows it


def main(words: list[str]) -> int:
    """Run the call under an id. `words` are corral's state directory, and the launcher's arguments."""
    state, *line = words
    if line[:1] != ["go"] or len(line) not in _WORDS or not is_id(line[1]):
        raise PolicyError("this program only runs commands that a hook of corral rewrote. Use `corral` instead")
    call = take_pending_call(line[1], {"XDG_STATE_HOME": os.path.dirname(state)})
    if call is None or call.keeps:
        prepare_shell_file(f"{state}/pending/{line[1]}")
    # Bytes: the locale decides how Python decodes an argument.
    is_same = call is not None and (len(line) < max(_WORDS) or os.fsencode(line[2]) == call.text.encode())
    if call is None or not is_same or not is_of_session(call):
        raise PolicyError("corral has not allowed this command here and now, or it has run already. Repeat the call")
    if call.directories:
        apply_directory_options(list(call.directories), os.environ)
    where = ["--root", call.root, "--cwd", call.cwd, "--timeout", "0"]
    options = parse(["run", *where, "--call", call.log_id, f"--shell={call.text}"])
    return run.run_call(options, call, f"{state}/pending/{line[1]}.state")
