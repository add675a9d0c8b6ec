"""Takes over repositories that commands make in the project, and the `.git` files that lead to them.

The command's git directory becomes the commands' copy. The host makes a new, empty one in its place and writes into it what may
cross, as for any other repository. So a configuration or hook of a command's stays its own.
"""

from __future__ import annotations

import os
import stat
from errno import EFBIG, EXDEV
from shutil import copyfileobj, rmtree

from corral._lib.dirfd_tree import split
from corral._lib.nofollow import NEW_FILE, open_directory
from corral.containment.filesystem.quarantine import move_to_quarantine
from corral.git import work_files
from corral.git.safe_files import SafeTree
from corral.guard.path_zones import inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from corral.git.host_git import HostGit
    from corral.git.mirror import Mirror
    from corral.model.call import Violation

MAX_COPIED_BYTES = 1 << 33
_PIECE_BYTES = 1 << 20
# Names in a bare repository. A directory with others in it is not taken for one.
_BARE_NAMES = frozenset(
    {"HEAD", "objects", "refs", "config", "description", "hooks", "info", "branches", "packed-refs", "logs", "FETCH_HEAD",
     "ORIG_HEAD", "shallow", "worktrees", "modules", "index", "lfs", "gc.log", "COMMIT_EDITMSG"}
)  # fmt: skip
_SHELTER = "new"  # in the directory of a mirror: where the user's repository is made
_MARKS = ("HEAD", "commondir", "config", "config.worktree", "hooks", "objects", "refs")


def is_plain(path: str) -> bool:
    """Say whether a directory is a git directory and nothing else."""
    try:
        names = os.listdir(path)
    except OSError:
        return False
    if os.path.basename(path) == ".git":
        return all(
            os.path.isdir(f"{path}/{name}") and not os.path.islink(f"{path}/{name}") for name in ("objects", "refs")
        )
    return {"HEAD", "objects", "refs"} <= set(names) <= _BARE_NAMES


def take_over(mirror: Mirror, git: HostGit, source: str = "") -> list[str]:
    """Move a repository that a command made to the commands' side, make a new one for the user, and write what crosses.

    It lies where the user gets it, or at `source`.
    """
    source = source or mirror.user_dir
    # It is missing if a process was killed that had moved it.
    if os.path.lexists(source) or not os.path.lexists(mirror.private_dir):
        mirror.set_aside()
        _keep_shelter(mirror)
        move(source, mirror.private_dir)
    return _remake(mirror, git, {"core.bare": "false"} if os.path.basename(mirror.user_dir) == ".git" else {})


def take_over_module(parent: Mirror, mirror: Mirror, git: HostGit, worktree: str) -> list[str]:
    """Do the same for a submodule's repository, which lies in the commands' copy of the repository above it."""
    below = mirror.user_dir[len(parent.user_dir) + 1 :]
    mirror.set_aside()
    _keep_shelter(mirror)
    above, name = split(below)
    with SafeTree(parent.private_dir) as private:
        os.rename(name, mirror.private_dir, src_dir_fd=private.directory(above))
    with SafeTree(parent.user_dir, is_strict=True) as user:
        user.make_directory(above)
    return _remake(mirror, git, {"core.bare": "false", "core.worktree": os.path.relpath(worktree, mirror.user_dir)})


def _remake(mirror: Mirror, git: HostGit, settings: Mapping[str, str]) -> list[str]:
    """Make the user's repository where no command can reach it, write what crosses, and move it to its place.

    Commands that still run can write in the project. The host's git must not read what they write. What crossed is in the new
    repository alone. So it stays where it was made if it cannot be moved, and if a process is killed, the next one continues.
    """
    path = mirror.user_dir
    shelter = f"{mirror.place}/{_SHELTER}"
    built = f"{shelter}/{os.path.basename(path)}"
    os.makedirs(shelter, 0o700, exist_ok=True)
    answer = git.run({}, "init", "-q", "--template=", "--bare", built)
    if answer.code:
        return [f"the repository was moved to {mirror.private_dir}: {answer.errors}"]
    if settings:
        settings = {**settings, "core.logAllRefUpdates": "true"}
    for key, value in settings.items():
        git.run({"GIT_DIR": built}, "config", "--file", f"{built}/config", key, value)
    notes = mirror.adopt(built)
    above = open_directory(os.path.dirname(path))
    try:
        _place(built, above, os.path.basename(path))
    finally:
        os.close(above)
    mirror.note_place()
    # Its worktrees need their place.
    notes += mirror.compare()
    rmtree(shelter)
    return notes


def _keep_shelter(mirror: Mirror) -> None:
    """Keep a repository under another name that could not be moved to its place."""
    shelter = f"{mirror.place}/{_SHELTER}"
    if os.path.lexists(shelter):
        os.rename(shelter, f"{shelter}-{os.urandom(4).hex()}")


def _place(built: str, above: int, name: str) -> None:
    """Move a repository into an open directory. Raise OSError if something has its name."""
    try:
        os.rename(built, name, dst_dir_fd=above)
    except OSError as error:
        if error.errno != EXDEV:
            raise
        os.mkdir(name, 0o755, dir_fd=above)
        # By descriptor: a command that still runs can put a link in the place of every directory here.
        with SafeTree(built) as source, SafeTree(f"/proc/self/fd/{above}/{name}") as target:
            for folder in source.directories(""):
                target.make_directory(folder)
            for path, status in source.files(""):
                inner, last = split(path)
                new = os.open(last, NEW_FILE, stat.S_IMODE(status.st_mode), dir_fd=target.directory(inner))
                with open(source.open(path), "rb") as old, open(new, "wb") as file:
                    copyfileobj(old, file)


def move(path: str, target: str) -> None:
    """Move a directory without following links, to another file system if need be."""
    above, name = os.path.split(path)
    source = open_directory(above)
    try:
        os.rename(name, target, src_dir_fd=source)
        return
    except OSError as error:
        if error.errno != EXDEV:
            raise
    finally:
        os.close(source)
    os.mkdir(target, 0o700)
    with SafeTree(above) as tree, SafeTree(target) as copy:
        left = min(MAX_COPIED_BYTES, _free_bytes(target) // 2)
        for inner, status in tree.files(name):
            folder, last = split(inner[len(name) + 1 :])
            copy.make_directory(folder)
            new = os.open(last, NEW_FILE, 0o600, dir_fd=copy.directory(folder))
            # In pieces: a file without data on the disk can have any size.
            with open(new, "wb") as file, open(tree.open(inner), "rb") as old:
                while piece := old.read(_PIECE_BYTES):
                    left -= len(piece)
                    if left < 0:
                        raise OSError(EFBIG, "the repository is too large to be moved to another file system")
                    file.write(piece)
                os.fchmod(new, stat.S_IMODE(status.st_mode) & 0o777)
                file.flush()
                os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
        tree.remove(name)


def _free_bytes(path: str) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def quarantine_marks(path: str, root: str) -> list[Violation]:
    """Move the names away that make git take a directory for a repository."""
    return [move_to_quarantine(f"{path}/{name}", root) for name in _MARKS if os.path.lexists(f"{path}/{name}")]


def target_of(pointer: str) -> str:
    """Return the git directory that a `.git` file names, as a path without links; or ""."""
    path = work_files.pointer_target(pointer)
    try:
        return path if os.path.realpath(os.path.dirname(path)) == os.path.dirname(path) else ""
    except OSError:
        return ""


def rewrite_pointer(pointer: str, target: str) -> str:
    """Write a new `.git` file, so that none of its bytes is a command's. Return its text."""
    above = os.path.dirname(pointer)
    relative = os.path.relpath(target, above)
    found = os.lstat(pointer)
    text = target if not stat.S_ISREG(found.st_mode) or found.st_size > len(relative) + 20 else relative
    work_files.write_pointer(above, text)
    return f"gitdir: {text}"


def is_known_target(target: str, known: Collection[str]) -> bool:
    """Say whether a git directory is one of these, or a worktree's directory in one of them."""
    above, _, _ = target.rpartition("/worktrees/")
    # The git directory of another worktree has no second one.
    return (target in known and os.path.basename(target) != ".git") or above in known


def new_modules(mirror: Mirror, known: Iterable[str]) -> list[str]:
    """Return the paths that submodules made by commands would have in the user's git directory."""
    found = []
    with SafeTree(mirror.private_dir) as private:
        for path in private.directories("modules"):
            if private.status(f"{path}/HEAD") is not None and private.status(f"{path}/objects") is not None:
                own = f"{mirror.user_dir}/{path}"
                # A directory of that name can hold the repositories of other submodules.
                is_free = not os.path.lexists(own)
                if is_free and not any(inside(own, other) for other in known if other != mirror.user_dir):
                    found.append(own)
    return [path for path in found if not any(inside(path, other) and path != other for other in found)]
