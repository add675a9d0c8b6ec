"""Says which package of an extra is missing, and the command that installs it where corral itself is installed."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def install_command(extra: str, prefix: str = sys.prefix, python: str = sys.executable) -> str:
    """Return the command that adds an extra to the environment that corral runs in."""
    from shlex import quote  # noqa: PLC0415  only a message needs it

    wanted = f"install 'corral[{extra}]'"
    if os.path.exists(os.path.join(prefix, "pipx_metadata.json")):
        # `pipx install 'corral[…]'` says that corral is already there, and adds nothing.
        return f"pipx runpip {quote(os.path.basename(prefix))} {wanted}"
    if _is_made_by_uv(prefix):
        # Such an environment has no pip of its own.
        return f"uv pip install --python {quote(python)} 'corral[{extra}]'"
    return f"{quote(python)} -m pip {wanted}"


def _is_made_by_uv(prefix: str) -> bool:
    if os.path.exists(os.path.join(prefix, "uv-receipt.toml")):
        return True
    with suppress(OSError, ValueError), open(os.path.join(prefix, "pyvenv.cfg"), encoding="utf-8") as settings:
        return any(line.partition("=")[0].strip() == "uv" for line in settings)
    return False


class MissingExtraError(ImportError):
    """The package of an extra is not installed, or is of a version that does not fit."""

    def __init__(self, part: str, extra: str, error: ImportError) -> None:
        # The outermost part knows which extra the user wants; the innermost error knows which package is missing.
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
    """Return the error of an integration whose package cannot be imported: what is missing, and the command to run."""
    return MissingExtraError(f"corral[{extra}]", extra, error)
