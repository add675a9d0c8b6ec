"""Applies and undoes transactions on an almost full disk, in a mount namespace, and prints their outcomes as JSON.

Run it with `unshare --user --map-root-user --mount`, a directory, and which of the project and the user's state are on that disk.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from worlds import World, owner, tree

from corral.model.errors import TransactionError
from corral.transactions.undo import history, undo

PAGE = 4096
MOST_FREE_PAGES = 24


def fill(disk: Path, pages: int) -> None:
    """Fill a disk until this many pages are free."""
    with (disk / "filling").open("wb") as file:
        found = os.statvfs(disk)
        os.posix_fallocate(file.fileno(), 0, max((found.f_bavail - pages) * PAGE, 1))


def tried(world: World, disk: Path, pages: int) -> list[object]:
    """Apply and undo a transaction on the full disk. Return the outcome of both, and if the project is unchanged or fully changed."""
    (world.root / "changed").write_bytes(b"before\n" * PAGE)
    (world.root / "deleted").write_bytes(b"deleted\n" * PAGE)
    (world.root / "dressed").write_text("dressed\n")
    before = tree(world.root)
    layer = world.begin()
    (layer / "changed").write_bytes(b"after\n" * PAGE)
    (layer / "deleted").unlink()
    (layer / "dressed").chmod(0o600)
    (layer / "added").write_bytes(b"added\n" * PAGE)
    after = world.expected()
    fill(disk, pages)
    said = attempt(world.apply)
    found = tree(world.root)
    (disk / "filling").unlink()
    entries = history(str(world.root), world.environ)
    clean = {name: value for name, value in found.items() if not name.startswith(".corral-slots")}
    is_whole = clean == (after if entries else before) and tree(world.root) == (after if entries else before)
    if entries:
        fill(disk, pages)
        undone = attempt(lambda: undo(str(world.root), world.environ))
        (disk / "filling").unlink()
        (entry,) = history(str(world.root), world.environ)
        is_whole &= tree(world.root) == (before if entry.state == "undone" else after)
        return [pages, said, "applied", is_whole, undone, entry.state]
    return [pages, said, "nothing", is_whole, "", ""]


def attempt(doing: object) -> str:
    """Call a function, and return "ok", its conflict, or its error message."""
    assert callable(doing)
    try:
        done = doing()
    except TransactionError as error:
        return str(error)
    return "ok" if done.ok else f"conflict: {done.conflicts[0].why}"


def main(top: Path, full: str) -> None:
    found = []
    for pages in range(MOST_FREE_PAGES):
        disk = top / f"disk{pages}"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], check=True)
        state = top / f"state{pages}" if full == "project" else disk / "state"
        project = top / f"elsewhere{pages}" if full == "state" else disk
        project.mkdir(exist_ok=True)
        environ = owner(project, state) | {"XDG_CACHE_HOME": str(top / f"cache{pages}")}
        found.append(tried(World(project, environ), disk, pages))
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
    print(json.dumps(found))


main(Path(sys.argv[1]), sys.argv[2])
