"""The four axes. Each judges the acts of one call and returns findings; none runs, opens or changes anything."""

from __future__ import annotations

from corral.guard.axes.arguments import check_argv_interpreter as _check_argv_interpreter
from corral.guard.axes.executable import check_executable_denylist as _check_executable_denylist
from corral.guard.axes.paths import check_path_jail as _check_path_jail
from corral.guard.axes.structure import check_shell_metachars as _check_shell_metachars

__all__ = ["_check_argv_interpreter", "_check_executable_denylist", "_check_path_jail", "_check_shell_metachars"]
