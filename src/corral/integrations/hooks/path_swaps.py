"""Detects that a running command swaps parts of a path. The host opens the path after the hook has resolved it, outside the sandbox.

Only a link leads out of the project, and a command can put one in the place of a directory or file at any time. A rename changes the
ctime of the entry and of its directory, which no program can set. So while a sandbox runs, a path counts only after it was left alone
for QUIET_NS. The hook cannot see a swap that happens once, after its last look and before the host opens the file.
"""

from __future__ import annotations

import os
from time import monotonic, sleep, time_ns

from corral._lib.symlink_chain import resolve_links
from corral.guard.path_zones import inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

QUIET_NS = 1_000_000_000
COARSE_NS = 2_100_000_000  # added where a file system stores whole seconds, or two
WAIT_SECONDS = 2.0  # for a path to become quiet: an edit often follows another; the hook refuses after 4 seconds
STEP_SECONDS = 0.05


def wait_until_quiet(paths: Iterable[str], tops: Iterable[str]) -> None:
    """Wait until no part of the paths was swapped in the last second, but not long. `tops` are the directories that commands can write."""
    paths, tops = list(paths), list(tops)
    give_up_at = monotonic() + WAIT_SECONDS
    while swapped_path(paths, tops) and monotonic() < give_up_at:
        sleep(STEP_SECONDS)


def swapped_path(paths: Iterable[str], tops: Iterable[str]) -> str:
    """Return the first part of the paths that may have been swapped in the last second, or an empty string."""
    tops = list(tops)
    return next((entry for path in paths for entry in _entries(path, tops) if _is_new(entry)), "")


def _entries(path: str, tops: list[str]) -> Iterator[str]:
    """Yield everything that a command can swap on the way to a file: directories, links, the file itself."""
    try:
        links, final = resolve_links(path)
    except OSError:
        # A link was removed between two looks at it.
        yield path
        return
    for each in dict.fromkeys((*links, final)):
        at = each
        while any(inside(at, top) and at != top for top in tops):
            yield at
            at = os.path.dirname(at)


def _is_new(entry: str) -> bool:
    """Say whether an entry may have come to its place, or left it, less than QUIET_NS ago."""
    above, own = _ctime(os.path.dirname(entry)), _ctime(entry)
    return above is not None and _is_recent(above) and (own is None or _is_recent(own))


def _ctime(path: str) -> int | None:
    try:
        return os.lstat(path).st_ctime_ns
    except OSError:
        return None


def _is_recent(ctime: int) -> bool:
    return time_ns() - ctime < QUIET_NS + (0 if ctime % 1_000_000_000 else COARSE_NS)
