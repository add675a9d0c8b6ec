"""Returns the command that starts the keeper: this interpreter, or a launcher that root installed for an AppArmor profile.

Where AppArmor restricts user namespaces, a profile for the interpreter would lift that for every Python program. A profile for
the launcher lifts it for the keeper alone. The launcher counts only if its text is exactly what this corral would write, so it can
start nothing else, and no other version of corral.
"""

from __future__ import annotations

import os
import stat
import sys

LAUNCHER = "/usr/local/libexec/corral-keeper"
MAX_SHEBANG_BYTES = 255  # the kernel reads no more of the first line
_MAX_BYTES = 8192
_OTHERS_WRITE = 0o022
# As the hook does, so that corral's modules load in less time. Appended: a package beside corral must not replace a module of the
# standard library.
_PROGRAM = """\
import sys
sys.path.insert(0, sys.argv[1] + "/corral/_lib")
import fast_import
sys.path[:] = [*sys.path[1:], sys.argv[1]]
fast_import.begin()
from corral.containment.processes.keeper import main
main()
"""
_HEAD = """\
#!{python} -IS
# Starts corral's keeper, and nothing else: it reads no arguments and no environment. An AppArmor profile for this file gives corral
# user namespaces. Written by `corral doctor --emit launcher`; write it again when corral or Python has moved.
import sys
sys.argv[1:] = [{parent!r}]
"""


def keeper_command() -> tuple[str, ...]:
    """Return the words that start a keeper."""
    if _is_installed():
        return (LAUNCHER,)
    python, parent = _installation()
    return (python, "-I", "-S", "-c", _PROGRAM, parent)


def launcher_text() -> str:
    """Return the launcher of this installation. ValueError if the kernel could not start it."""
    python, parent = _installation()
    text = _HEAD.format(python=python, parent=parent) + _PROGRAM
    first = text.partition("\n")[0]
    if len(os.fsencode(first)) > MAX_SHEBANG_BYTES or set(python) & set(" \t\n"):
        raise ValueError(
            f"the kernel cannot start a script by the interpreter {python!r}: its path is too long or has a space"
        )
    return text


def _installation() -> tuple[str, str]:
    python = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]  # there since 3.3
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return python, os.path.dirname(package)


def _is_installed() -> bool:
    try:
        descriptor = os.open(LAUNCHER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        found = os.fstat(descriptor)
        is_roots = stat.S_ISREG(found.st_mode) and found.st_uid == 0 and not found.st_mode & _OTHERS_WRITE
        if not is_roots or not found.st_mode & stat.S_IXOTH:
            return False
        return os.read(descriptor, _MAX_BYTES) == os.fsencode(launcher_text())
    except (OSError, ValueError):
        return False
    finally:
        os.close(descriptor)
