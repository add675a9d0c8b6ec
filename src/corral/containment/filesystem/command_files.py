"""Tells which links lead to files that commands write and corral does not search: their /tmp and HOME, and copies of git directories.

Commands can learn where these lie outside. A link there, or the address of a remote, would let the user's git read a repository whose
settings and hooks are a command's.
"""

from __future__ import annotations

import os

from corral._lib.lazy_regex import pattern
from corral._lib.symlink_chain import resolve_links
from corral.containment.filesystem.running_sandboxes import lies_in, scratch_bases
from corral.containment.filesystem.temp_dirs import STANDARD
from corral.policy.user_dirs import user_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES = ("corral", "/proc/")  # a link there has one of them in its text
_PROCESS = pattern(r"/proc/[0-9]+/")  # `self` is the process that looks, and an unpacked system has links to it
QUARANTINE = "corral-quarantine"  # the directory for planted files
_PREFIX = "corral-"  # of the directories that corral makes below a directory for temporary files


def is_link_to_command_files(text: str, directory: str, environ: Mapping[str, str]) -> bool:
    """Say whether a symbolic link with this text, in a directory, leads to files of commands."""
    return any(name in text for name in _NAMES) and leads_to_command_files(os.path.join(directory, text), environ)


def leads_to_command_files(path: str, environ: Mapping[str, str]) -> bool:
    """Say whether a path leads to files of commands, or through those of a process: its root can be a sandbox."""
    try:
        links, real = resolve_links(path)
    except OSError:
        return True
    if any(_PROCESS.match(f"{each}/") for each in (*links, real)):
        return True
    state = user_directory("state", environ)
    # The second is the quarantine, whose names results tell.
    places = [state, f"{os.path.dirname(state)}/{QUARANTINE}", user_directory("cache", environ)]
    places += ["/".join((base, below[0])) for base, below in scratch_bases(environ, "scratch")]
    temporary = {os.path.realpath(each) for each in (environ.get("TMPDIR", ""), *STANDARD) if each.startswith("/")}
    return any(lies_in(real, place) for place in places) or any(
        real.startswith(f"{place}/{_PREFIX}") for place in temporary
    )
