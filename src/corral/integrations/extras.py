"""Reports a missing optional dependency, with the command that installs it into corral's own environment."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def install_command(extra: str, prefix: str = sys.prefix, python: str = sys.executable) -> str:
    """Return the command that installs an extra into the environment that corral runs in."""
    from shlex import quote  # noqa: PLC0415  only a message needs it

    wanted = f"install 'corral[{extra}]'"
    if os.path.exists(os.path.join(prefix, "pipx_metadata.json")):
        # `pipx install 'corral[…]'` reports that corral is already installed, and adds nothing.
        return f"pipx runpip {quote(os.path.basename(prefix))} {wanted}"
    if _is_made_by_uv(prefix):
        # An environment that uv made contains no pip.
        return f"uv pip install --python {quote(python)} 'corral[{extra}]'"
    return f"{quote(python)} -m pip {wanted}"


def _is_made_by_uv(prefix: str) -> bool:
    if os.path.exists(os.path.join(prefix, "uv-receipt.toml")):
        return True
    with suppress(OSError, ValueError), open(os.path.join(prefix, "pyvenv.cfg"), encoding="utf-8") as settings:
        return any(line.partition("=")[0].strip() == "uv" for line in settings)
    return False


class MissingExtraError(ImportError):
    """A package of an extra is not installed, or has the wrong version."""

    def __init__(self, part: str, extra: str, error: ImportError) -> None:
        # The outermost caller knows which extra the user wants; the innermost error knows which package is missing.
        self.cause: ImportError = error.cause if isinstance(error, MissingExtraError) else error
        name = self.cause.name or "a package"
        is_there = not isinstance(self.cause, ModuleNotFoundError)
        why = (
            f"another version of {name} ({self.cause})"
            if is_there
            else f"the Python package {name}, which is not installed"
        )
        super().__init__(f"{part} needs {why}. Run: {install_command(extra)}", name=self.cause.name)


def missing_extra(extra: str, error: ImportError) -> MissingExtraError:
    """Return the error for an integration whose package cannot be imported."""
    return MissingExtraError(f"corral[{extra}]", extra, error)
