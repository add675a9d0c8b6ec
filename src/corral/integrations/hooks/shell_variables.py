"""What the environment makes the host's own shell load before it runs anything: nothing of that may lie where commands can write.

That shell is not contained: what an agent has put there runs with all of the owner's rights.
"""

from __future__ import annotations

import os

from corral.guard.path_zones import inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_LISTS = frozenset({"LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH"})
_EXPANDED = frozenset({"BASH_ENV", "ENV"})


def why_unsafe(names: tuple[str, ...], environ: Mapping[str, str], root: str, cwd: str) -> str:
    """Return why the host's shell would run what a command may have written, or nothing."""
    home = environ.get("HOME", "")
    for name in names:
        value = environ.get(name, "")
        if name in _EXPANDED:
            value = value.replace("${HOME}", home).replace("$HOME", home)
            if "$" in value or "`" in value:
                return f"the variable {name} of the host's environment holds an expansion, which its shell would run"
        # An empty entry of a list is a slip of many a start-up file.
        parts = value.replace(" ", ":").split(":") if name in _LISTS else [value]
        for part in filter(None, parts):
            path = f"{home}{part[1:]}" if part.startswith("~/") else part
            if "/" in path and inside(os.path.realpath(os.path.join(cwd, path)), root):
                return f"the variable {name} of the host's environment leads into the project, where commands can write"
    return ""
