"""Copies files of a git directory other than objects, refs and the index: configuration, merges and rebases in progress.

The user's files are copied to the command's side whenever the user changes them. From the command's side only the few files cross
whose content this module can check and write itself.
"""

from __future__ import annotations

import os
import stat
from _blake2 import blake2b

from corral._lib.nofollow import NEW_FILE, open_directory
from corral.git.host_git import path_in
from corral.git.names import OID, STASH
from corral.git.safe_files import SafeTree

TYPE_CHECKING = False
if TYPE_CHECKING:
    Signature = tuple[tuple[str, int, int, int], ...]

MAX_FILE_BYTES = 1 << 20
MAX_MESSAGE_BYTES = 1 << 18
MAIN = ""  # the unit of the main worktree; others are worktrees/NAME
_FOLDER, _STASHES = "worktrees", f"logs/{STASH}"
_PRESENT = (("", 0, 0, 0),)  # a file of the commands' whose content never crosses
# Kept by the other modules, or never copied.
_ELSEWHERE = frozenset(
    {
        "objects",
        "refs",
        "packed-refs",
        "HEAD",
        "index",
        "hooks",
        "logs",
        "lfs",
        "modules",
        "worktrees",
        "gitdir",
        "commondir",
        "locked",
    }
)
# Files with object names, one in each line.
_HEADS = frozenset({"MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "ORIG_HEAD"})
_MESSAGES = frozenset({"MERGE_MSG", "SQUASH_MSG"})
CROSSING = _HEADS | _MESSAGES | {"MERGE_MODE"}
# A merge, rebase or bisection in progress. If the command ends one that the user began, it ends for the user too.
_IN_PROGRESS = frozenset(
    {"rebase-merge", "rebase-apply", "sequencer", "BISECT_LOG", "BISECT_START", "BISECT_TERMS", "BISECT_NAMES",
     "BISECT_EXPECTED_REV", "BISECT_ANCESTORS_OK", "BISECT_FIRST_PARENT", "BISECT_RUN", "AUTO_MERGE"}
)  # fmt: skip
_USUAL = CROSSING | _IN_PROGRESS | {
    *("config", "config.worktree", "description", "info", "COMMIT_EDITMSG", "FETCH_HEAD", "rr-cache", "shallow", "branches"),
    *("gc.log", "MERGE_RR", "NOTES_EDITMSG", "TAG_EDITMSG", "EDIT_DESCRIPTION", "ADD_EDIT.patch", "gitk.cache", "BISECT_HEAD"),
    *("REBASE_HEAD", "NOTES_MERGE_WORKTREE", "NOTES_MERGE_REF", "NOTES_MERGE_PARTIAL", "qgit_cache.dat", "filter-repo"),
}  # fmt: skip
# The state of work that the user may want to continue.
ENDED = {"rebase-merge": "rebase", "rebase-apply": "rebase", "sequencer": "range of picks", "BISECT_LOG": "bisection"}
# With them git shows fewer files or differences.
HIDING = ("exclude", "attributes")
# The result names these.
TOLD = {"rebase-merge": "rebase", "rebase-apply": "rebase", "BISECT_LOG": "bisection"}


def names_in(tree: SafeTree, unit: str) -> list[str]:
    """Return the names of such files and directories in a worktree's git directory."""
    try:
        listed = tree.names(unit)
    except OSError:
        return []
    return [
        name
        for name in listed
        if name not in _ELSEWHERE and not name.endswith((".lock", ".pid", ".ipc")) and not name.startswith(".corral-")
    ]


def is_unusual(name: str) -> bool:
    """Say whether git has no file of this name at the top of a git directory."""
    return name not in _USUAL and not name.startswith(("BISECT_", "sharedindex.", "tmp", "fsmonitor--daemon"))


def hiding_files(user: SafeTree, private: SafeTree) -> dict[str, str]:
    """Return files of the command's that make git leave out changes and that differ from the user's, with a digest of their content."""
    texts = {name: private.text(f"info/{name}", MAX_FILE_BYTES) for name in HIDING}
    return {
        f"info/{name}": blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
        for name, text in texts.items()
        if _patterns(text) != _patterns(user.text(f"info/{name}", MAX_FILE_BYTES))
    }


def _patterns(text: str) -> list[str]:
    """Return the lines that git reads. `git init` makes a file that has comments alone."""
    return [line for line in text.split("\n") if line.strip() and not line.startswith("#")]


def is_in_progress(name: str) -> bool:
    """Say whether a name belongs to a merge, rebase or bisection in progress."""
    return name in _IN_PROGRESS or name in CROSSING


def signature(tree: SafeTree, path: str) -> Signature:
    """Return inode, size and time of a file, or of all files in a directory. It is empty if there are none."""
    return tuple((name, found.st_ino, found.st_size, found.st_mtime_ns) for name, found in tree.files(path))


def copy_in(user: SafeTree, private: SafeTree, path: str) -> None:
    """Replace a file or directory on the command's side by the user's."""
    files = list(user.files(path))
    found = private.status(path)
    if found is not None and (stat.S_ISDIR(found.st_mode) or not files):
        private.remove(path)
    for name, status in files:
        data = user.read(name, MAX_FILE_BYTES)
        if data is not None:
            private.write(name, data, status)
    status_of = user.status(path)
    if status_of is not None and stat.S_ISDIR(status_of.st_mode):
        private.make_directory(path)


def crossing_content(tree: SafeTree, unit: str, name: str) -> bytes | None:
    """Return the content of a file that may cross, as the host writes it; or None if it must not."""
    data = tree.read(f"{unit}/{name}" if unit else name, MAX_MESSAGE_BYTES)
    if data is None:
        return None
    text = data.decode("utf-8", "replace")
    if name in _HEADS:
        lines = text.split()
        return "".join(f"{oid}\n" for oid in lines).encode() if lines and all(map(OID.match, lines)) else None
    if name == "MERGE_MODE":
        return data if data in (b"", b"no-ff", b"no-ff\n") else None
    is_plain = all(letter.isprintable() or letter in "\n\t" for letter in text)
    return text.encode() if is_plain else None


def oids_in(content: bytes | None, name: str) -> list[str]:
    """Return the object names in a file that crosses."""
    return (content or b"").decode().split() if name in _HEADS else []


def write_pointer(directory: str, target: str) -> None:
    """Write a `.git` file that leads to a git directory."""
    # By descriptor: a command may put a link in the place of a directory of the project at any time.
    at = open_directory(directory)
    partial = f".corral-{os.urandom(6).hex()}"
    try:
        with open(os.open(partial, NEW_FILE, 0o644, dir_fd=at), "wb") as file:
            file.write(f"gitdir: {target}\n".encode("utf-8", "surrogateescape"))
        try:
            os.rename(partial, ".git", src_dir_fd=at, dst_dir_fd=at)
        except OSError:
            os.unlink(partial, dir_fd=at)
            raise
    finally:
        os.close(at)


def pointer_target(pointer: str) -> str:
    """Return the path that a `.git` file names, or "". The file is read without following a link."""
    above, _, name = pointer.rpartition("/")
    try:
        at = open_directory(above)
    except OSError:
        return ""
    try:
        with SafeTree(f"/proc/self/fd/{at}/.") as tree:
            word, _, target = tree.text(name).rstrip("\n").partition(": ")
    except OSError:
        return ""
    finally:
        os.close(at)
    if word != "gitdir" or not target or "\n" in target or "\0" in target:
        return ""
    return os.path.normpath(os.path.join(above, target))


class OtherFiles:
    """The files of a git directory as they were read first, or written by the host since then."""

    def __init__(self, tree: SafeTree, *, is_private: bool) -> None:
        self._tree = tree
        self._is_private = is_private
        self.units: dict[str, dict[str, Signature]] = {}
        for unit in units_of(tree):
            self.units[unit] = {name: self._signature(unit, name) for name in names_in(tree, unit)}
        self._stashes = signature(tree, _STASHES)

    def _signature(self, unit: str, name: str) -> Signature:
        path = path_in(unit, name)
        if self._is_private and not (is_in_progress(name) or name in ("config", "info")):
            # It may be a directory with more files than can be listed.
            return _PRESENT if self._tree.status(path) is not None else ()
        return signature(self._tree, path)

    def note(self, unit: str, name: str) -> None:
        """Note a file that the host has written or removed."""
        self.units.setdefault(unit, {})[name] = self._signature(unit, name)

    def note_stashes(self) -> None:
        """Note the list of stashes, which the host has written."""
        self._stashes = signature(self._tree, _STASHES)

    def is_current(self) -> bool:
        """Say whether only the host has changed something."""
        now = OtherFiles(self._tree, is_private=self._is_private)
        return now._present() == self._present() and now._stashes == self._stashes

    def _present(self) -> dict[str, dict[str, Signature]]:
        return {unit: {name: own for name, own in found.items() if own} for unit, found in self.units.items()}


def units_of(tree: SafeTree) -> list[str]:
    """Return the units of a git directory: the main worktree and the others."""
    try:
        return [MAIN, *(f"{_FOLDER}/{name}" for name in tree.names(_FOLDER))]
    except OSError:
        return [MAIN]
