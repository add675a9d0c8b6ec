"""Writes the audit log of a run, and prints the violations that the kernel stopped."""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import terminal_of
from corral.model.errors import AuditError, CorralError
from corral.model.render_result import violation_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.audit.audit_log import Log
    from corral.model.call import Call
    from corral.model.result import SandboxResult


class RunLog:
    """The audit log of one run. If it cannot be written, nothing runs, unless the policy sets audit.required = false."""

    def __init__(self, log: Log, *, required: bool, warn: Callable[[str], object] | None = None) -> None:
        self._log = log
        self._required = required
        self._warn = warn or _print_warning
        # Before the command runs, since its result would be lost.
        self._write(log.check)

    def result(self, result: SandboxResult) -> None:
        """Log the result of the call."""
        self._write(self._log.result, result)

    def failure(self, call: Call, error: CorralError) -> None:
        """Log that corral itself failed."""
        self._write(self._log.failure, call, error)

    def _write(self, write: Callable[..., None], *about: object) -> None:
        try:
            write(*about)
        except AuditError as error:
            if self._required:
                raise AuditError(f"{error}; or set audit.required = false in the policy to run without") from None
            self._warn(f"corral: {error}; the policy allows running without it")


def _print_warning(text: str) -> None:
    print(text, file=sys.stderr)


def print_violations(result: SandboxResult) -> None:
    """Print the violations that the kernel stopped. Lines are wrapped only on a terminal, because logs are searched line by line."""
    width = terminal_of(sys.stderr, os.environ).columns if sys.stderr.isatty() else 0
    for line in violation_lines(result, width):
        print(line, file=sys.stderr)


def violation_lines(result: SandboxResult, width: int) -> list[str]:
    """Return the violations that the kernel stopped as text. A width of 0 does not wrap it."""
    return [violation_text(violation, width) for violation in result.violations]
