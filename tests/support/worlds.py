"""Makes a project and a transaction over it. The transaction's commands are replaced by plain changes to its copy."""

import os
import stat
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from corral.transactions import copying, workspace
from corral.transactions.apply import Applied, LayerView, apply
from corral.transactions.changes import Change
from corral.transactions.undo_store import UndoStore

Tree = dict[str, tuple[object, ...]]


def tree(root: Path, *, times: bool = True) -> Tree:
    """Return everything below a directory: types, modes, contents, link targets, hard links, and the times of files other than directories."""
    found: Tree = {}
    names: dict[int, list[str]] = {}
    paths = sorted(root.rglob("*"))
    for path in paths:
        if not stat.S_ISDIR(path.lstat().st_mode):
            names.setdefault(path.lstat().st_ino, []).append(str(path.relative_to(root)))
    for path in paths:
        status = path.lstat()
        content: object = None
        if stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(status.st_mode):
            content = path.read_bytes() if os.access(path, os.R_OK) else "closed"
        kept = status.st_mtime_ns if times and not stat.S_ISDIR(status.st_mode) else 0
        found[str(path.relative_to(root))] = (status.st_mode, content, kept, *names.get(status.st_ino, [""])[1:])
    return found


class World:
    """A project, its transaction, and the copy that the transaction's commands see."""

    def __init__(self, top: Path, environ: Mapping[str, str]) -> None:
        self.top = top
        self.root = top / "project"
        self.root.mkdir(parents=True)
        self.environ = environ
        self.place: workspace.Place | None = None

    def fill(self) -> None:
        """Put a file of every type into the project."""
        root = self.root
        for name in ("kept", "changed", "deleted", "moved", "dressed"):
            (root / name).write_text(f"{name}\n" * 3)
        (root / "folder" / "inner").mkdir(parents=True)
        (root / "folder" / "inner" / "leaf").write_text("leaf\n")
        (root / "emptied" / "old").mkdir(parents=True)
        (root / "emptied" / "old" / "file").write_text("old\n")
        (root / "link").symlink_to("kept")
        (root / "becomes-directory").write_text("file\n")

    def begin(self) -> Path:
        """Begin a transaction, and return the copy that its commands would see."""
        self.place = workspace.make(str(self.root), (), self.environ)
        self.place.begin()
        copying.copy_tree(str(self.root), self.place)
        return Path(self.place.layer)

    def change(self) -> None:
        """Make a change of every kind in the copy."""
        copy = Path(self.held.layer)
        (copy / "changed").write_text("changed by a call\n")
        (copy / "deleted").unlink()
        (copy / "moved").rename(copy / "moved-to")
        (copy / "dressed").chmod(0o755)
        (copy / "added").write_text("added\n")
        (copy / "made" / "below").mkdir(parents=True)
        (copy / "made" / "below" / "file").write_text("made\n")
        subprocess.run(["rm", "-r", str(copy / "emptied" / "old")], check=True)
        (copy / "link").unlink()
        (copy / "link").symlink_to("added")
        (copy / "becomes-directory").unlink()
        (copy / "becomes-directory").mkdir(mode=0o750)
        (copy / "becomes-directory" / "in").write_text("in\n")
        (copy / "folder").chmod(0o700)

    @property
    def held(self) -> workspace.Place:
        """Return the place of the transaction, which must have begun."""
        assert self.place is not None
        return self.place

    def look(self, kept: tuple[str, ...] = ()) -> LayerView:
        """Open project and copy to be read."""
        return LayerView(str(self.root), self.held, kept)

    def changes(self) -> dict[str, str]:
        """Return the kind of change by path."""
        with self.look() as look:
            return {change.path: change.kind for change in look.changes()}

    def change_at(self, path: str) -> Change:
        """Return the change at a path."""
        with self.look() as look:
            return next(change for change in look.changes() if change.path == path)

    def diff(self) -> str:
        """Return the changes as a diff."""
        with self.look() as look:
            return look.diff()

    def apply(self, paths: list[str] | None = None) -> Applied:
        """Apply the changes."""
        with self.look() as look:
            return apply(look, self.environ, paths, ["a call"])

    def apply_and_be_killed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Begin to apply, and stop when the changes are recorded but none of them is made."""

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(UndoStore, "complete", killed)
            with pytest.raises(KeyboardInterrupt):
                self.apply()

    def expected(self) -> Tree:
        """Return the tree that the project has after all changes are applied."""
        return tree(Path(self.held.layer))


def owner(top: Path, state: Path | None = None) -> dict[str, str]:
    """Return an environment with the user's directories below a directory of the test."""
    return {
        "HOME": str(top / "home"),
        "XDG_STATE_HOME": str(state or top / "state"),
        "XDG_CACHE_HOME": str(top / "cache"),
    }


Doing = Callable[[World], object]
