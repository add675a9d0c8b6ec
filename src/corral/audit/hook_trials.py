"""Marks the calls by which corral itself tries an installed hook, so that the log does not count them as an agent's.

A trial names a file in the user's state directory that exists only while the trial runs. An agent can copy the text of a trial and set
the variable, but it can neither read nor write that directory. So it cannot hide its refusals among the trials.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from stat import S_ISREG
from time import time

from corral.model.errors import PolicyError
from corral.policy import user_dirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VARIABLE = "CORRAL_TRIAL"
STALE_SECONDS = 3600.0  # a killed doctor leaves its ticket behind
_NAME_BYTES = 16


def is_trial(environ: Mapping[str, str]) -> bool:
    """Return whether the environment names an existing ticket of the user."""
    name = environ.get(VARIABLE, "")
    if len(name) != 2 * _NAME_BYTES or not set(name) <= set("0123456789abcdef"):
        return False
    place = _directory(environ)
    try:
        user_dirs.refuse_writable_by_others(place)
        user_dirs.refuse_writable_by_others(f"{place}/{name}")
        return S_ISREG(os.lstat(f"{place}/{name}").st_mode)
    except (OSError, PolicyError):
        return False


@contextmanager
def ticket(environ: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the variables that mark a trial, or none if the user's state directory cannot be written."""
    try:
        user_dirs.private_directory("state", environ)
        os.makedirs(_directory(environ), 0o700, exist_ok=True)
        user_dirs.refuse_writable_by_others(_directory(environ))
        _sweep(_directory(environ))
        name = os.urandom(_NAME_BYTES).hex()
        path = f"{_directory(environ)}/{name}"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except (OSError, PolicyError):
        yield {}
        return
    try:
        yield {VARIABLE: name}
    finally:
        os.unlink(path)


def _directory(environ: Mapping[str, str]) -> str:
    return f"{user_dirs.user_directory('state', environ)}/trials"


def _sweep(place: str) -> None:
    for name in os.listdir(place):
        if time() - os.lstat(f"{place}/{name}").st_mtime > STALE_SECONDS:
            os.unlink(f"{place}/{name}")
