"""Says whether a repository's newest commits were written after its last contact with a remote, so that no remote has them.

It compares the time at which the file of a commit was written with the times of all remote-tracking refs and of FETCH_HEAD. No fact is
assumed: a commit in a pack, a merge, a repository in another format and everything unreadable count as pushed.
"""

from __future__ import annotations

import os
import stat

MAX_FILE = 1 << 20  # bytes of a file of the repository; packed-refs of 10,000 refs has about this
MAX_REFS = 1024  # files and directories of remote-tracking refs that are looked at
MAX_DEPTH = 10  # commits
_HEX = frozenset("0123456789abcdef")


def is_unpushed(folder: str, root: str, depth: int) -> bool:
    """Say whether no remote has the newest `depth` commits of the repository to which a directory below root belongs."""
    try:
        found = _directories(folder, root)
        if found is None or not 1 <= depth <= MAX_DEPTH or os.path.lexists(f"{found[1]}/reftable"):
            return False
        private, common = found
        commit = _head(private, common)
        contact = _last_contact(private, common)
        if not contact:
            return contact == 0
        for left in range(depth, 0, -1):
            name = f"{common}/objects/{commit[:2]}/{commit[2:]}"
            if os.lstat(name).st_mtime_ns <= contact:
                return False
            commit = _only_parent(name) if left > 1 else ""
        return True
    except (OSError, ValueError):
        return False


def _directories(folder: str, root: str) -> tuple[str, str] | None:
    """Return the directory of a worktree's own HEAD, and that of the refs and objects."""
    while not os.path.lexists(f"{folder}/.git"):
        if folder == root or not folder.startswith(f"{root}/"):
            return None
        folder = folder.rpartition("/")[0]
    private = f"{folder}/.git"
    if not os.path.isdir(private):
        private = os.path.join(folder, _text(private).removeprefix("gitdir: ").strip())
    try:
        common = os.path.join(private, _text(f"{private}/commondir").strip())
    except FileNotFoundError:
        common = private
    return private, common


def _text(path: str) -> str:
    # A pipe would never end, and opening a device may do something: commands can put either into a repository.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"{path} is no file")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        content = os.read(descriptor, MAX_FILE + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_FILE:
        raise ValueError(f"{path} is too long")
    return content.decode("latin-1")


def _packed(common: str) -> str:
    try:
        return _text(f"{common}/packed-refs")
    except FileNotFoundError:
        return ""


def _head(private: str, common: str) -> str:
    """Return the id of the commit that is checked out."""
    text = _text(f"{private}/HEAD").strip()
    if not text.startswith("ref: "):
        return _checked(text)
    name = text.removeprefix("ref: ")
    try:
        return _checked(_text(f"{common}/{name}").strip())
    except FileNotFoundError:
        lines = (line.partition(" ") for line in _packed(common).splitlines())
        return _checked(next((commit for commit, _, ref in lines if ref == name), ""))


def _checked(commit: str) -> str:
    if len(commit) not in (40, 64) or not _HEX.issuperset(commit):
        raise ValueError("no id of a commit")
    return commit


def _only_parent(name: str) -> str:
    """Return the parent of a commit; raise ValueError where it has none or several."""
    from zlib import decompressobj  # noqa: PLC0415  only for a reset by several commits

    text = decompressobj().decompress(_text(name).encode("latin-1"), MAX_FILE).decode("latin-1")
    header = text.partition("\n\n")[0].split("\n")
    parents = [line.removeprefix("parent ") for line in header if line.startswith("parent ")]
    if not text.startswith("commit ") or len(parents) != 1:
        raise ValueError("not a commit with one parent")
    return _checked(parents[0])


def _last_contact(private: str, common: str) -> int | None:
    """Return the time of the last change that a push or a fetch made, 0 if there never was one, None if that is too much to look at."""
    times = [_time(f"{folder}/FETCH_HEAD") for folder in {private, common}]
    if " refs/remotes/" in _packed(common):
        times.append(_time(f"{common}/packed-refs"))
    pending = [f"{common}/refs/remotes"] if os.path.lexists(f"{common}/refs/remotes") else []
    seen = 0
    while pending:
        folder = pending.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                seen += 1
                if seen > MAX_REFS:
                    return None
                # A directory changes with every ref in it, those that were deleted included.
                times += [entry.stat(follow_symlinks=False).st_mtime_ns, os.stat(folder).st_mtime_ns]
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return max(times)


def _time(path: str) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except FileNotFoundError:
        return 0
