"""Stops a transaction before each system call that changes the disk."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from worlds import Tree, World, owner, tree

from corral.containment.kernel import syscalls

CHANGING = frozenset(
    ("chmod", "chown", "fsync", "link", "mkdir", "mknod", "rename", "rmdir", "symlink", "unlink", "utime", "write")
)
RENAMES = syscalls.syscall.__code__


def at_step(step: int, action: Callable[[], object]) -> None:
    """Call a function in this process before the system call of this number, counting only calls that change the disk."""
    seen = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal seen
        is_call = event == "c_call" and argument.__module__ == "posix" and argument.__name__ in CHANGING
        if is_call or (event == "call" and frame.f_code is RENAMES):
            seen += 1
            if seen == step:
                action()

    sys.setprofile(count)


def made(top: Path, state: Path) -> tuple[World, Tree, Tree]:
    world = World(top, owner(top, state))
    few = not state.is_relative_to(top.parent)  # a real disk makes each call slow, so make fewer changes there
    if few:
        (world.root / "changed").write_text("before\n")
        (world.root / "deleted").mkdir()
    else:
        world.fill()
    before = tree(world.root)
    layer = world.begin()
    if few:
        (layer / "changed").write_text("after\n")
        (layer / "deleted").rmdir()
        (layer / "made").mkdir()
        (layer / "made" / "file").touch()
    else:
        world.change()
    return world, before, world.expected()


def is_clean(world: World) -> bool:
    """Return True if the project has no leftover files of a transaction."""
    return not [name for name in os.listdir(world.root) if name.startswith(".corral")]
