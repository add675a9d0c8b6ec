"""Finds out whether a repository's newest commits were written after its last contact with a remote, so that no remote has them.

Compares the time when a commit's file was written with the times of all remote-tracking refs, of tags and of FETCH_HEAD. Where this proves
nothing, the commits count as pushed: a commit in a pack, a merge, a commit for review, another repository format, a remote whose tracking refs
do not cover all branches, anything unreadable. Git leaves no trace of a push to a URL, or to a ref that is neither a branch nor a tag, so
those are not detected.
"""

from __future__ import annotations

import os
import stat

MAX_FILE = 1 << 20  # bytes of one file of the repository; packed-refs with 10,000 refs is about this long
MAX_REFS = 1024  # files and directories of refs that are read
MAX_DEPTH = 10  # commits
_HEX = frozenset("0123456789abcdef")
_REVIEWED = "Change-Id: "  # the line of a commit message by which Gerrit identifies a commit


def is_unpushed(folder: str, root: str, depth: int) -> bool:
    """Say whether no remote has the newest `depth` commits of the repository that contains a directory below root."""
    try:
        found = git_directories(folder, root)
        if found is None or not 1 <= depth <= MAX_DEPTH or os.path.lexists(f"{found[1]}/reftable"):
            return False
        private, common = found
        commit = _head(private, common)
        remotes = _remotes(read_text(f"{common}/config") + "\n" + read_text_if_any(f"{private}/config.worktree"))
        contact = _last_contact(private, common, has_remote=bool(remotes))
        if remotes is None or contact is None:
            return False
        if not remotes and not contact:
            return True
        for _ in range(depth):
            name = f"{common}/objects/{commit[:2]}/{commit[2:]}"
            text = _commit(name)
            header = text.partition("\n\n")[0].split("\n")
            parents = [line.removeprefix("parent ") for line in header if line.startswith("parent ")]
            # A push for review leaves no tracking ref.
            if os.lstat(name).st_mtime_ns <= contact or f"\n{_REVIEWED}" in text:
                return False
            commit = _checked(parents[0]) if len(parents) == 1 else ""
        return True
    except (OSError, ValueError):
        return False


def git_directories(folder: str, root: str) -> tuple[str, str] | None:
    """Return the worktree's own git directory, which has HEAD, and the common one, which has refs and objects."""
    while not os.path.lexists(f"{folder}/.git"):
        if folder == root or not folder.startswith(f"{root}/"):
            return None
        folder = folder.rpartition("/")[0]
    private = f"{folder}/.git"
    if not os.path.isdir(private):
        private = os.path.join(folder, read_text(private).removeprefix("gitdir: ").strip())
    try:
        common = os.path.join(private, read_text(f"{private}/commondir").strip())
    except FileNotFoundError:
        common = private
    return private, common


def read_text(path: str) -> str:
    """Return the content of a regular file of a repository. Raise ValueError for any other, OSError if it is missing."""
    # Commands can put a pipe or a device into a repository. Reading a pipe blocks, and opening a device can have effects.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"{path} is not a regular file")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        content = os.read(descriptor, MAX_FILE + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_FILE:
        raise ValueError(f"{path} is too long")
    return content.decode("latin-1")


def read_text_if_any(path: str) -> str:
    """Return the content of a file of a repository, or nothing if it is missing."""
    try:
        return read_text(path)
    except FileNotFoundError:
        return ""


def _remotes(config: str) -> frozenset[str] | None:
    """Return the names of the remotes, or None if a push of a branch may change no tracking ref or the configuration is unusual."""
    tracked: dict[str, bool] = {}
    pushed_to: set[str] = {"."}
    section = name = ""
    for line in map(str.strip, config.split("\n")):
        if line[:1] == "[":
            head, _, name = line[1:-1].partition(" ")
            section, name = head.casefold(), name.strip('"')
            if line[-1] != "]" or not section.replace("-", "").isalnum() or section in ("include", "includeif"):
                return None
            if section == "remote" and name:
                tracked.setdefault(name, False)
        elif section in ("remote", "branch") and line[:1] not in ("", "#", ";"):
            key, _, value = line.partition("=")
            key, value = key.strip().casefold(), value.strip()
            if line[-1] == "\\" or (section == "remote" and (key in ("push", "mirror") or '"' in value)):
                return None
            if key in ("remote", "pushremote", "pushdefault"):
                pushed_to.add(value)
            elif key == "fetch" and value[:1] == "^":
                return None
            elif key == "fetch" and value.removeprefix("+").startswith("refs/heads/*:refs/remotes/"):
                tracked[name] = True
    return frozenset(tracked) if all(tracked.values()) and pushed_to <= {".", *tracked} else None


def _head(private: str, common: str) -> str:
    """Return the id of the checked-out commit."""
    text = read_text(f"{private}/HEAD").strip()
    if not text.startswith("ref: "):
        return _checked(text)
    name = text.removeprefix("ref: ")
    try:
        return _checked(read_text(f"{common}/{name}").strip())
    except FileNotFoundError:
        lines = (line.partition(" ") for line in read_text_if_any(f"{common}/packed-refs").splitlines())
        return _checked(next((commit for commit, _, ref in lines if ref == name), ""))


def _checked(commit: str) -> str:
    if len(commit) not in (40, 64) or not _HEX.issuperset(commit):
        raise ValueError("not a commit id")
    return commit


def _commit(name: str) -> str:
    """Return the text of a commit object: the header, an empty line and the message."""
    from zlib import decompressobj  # noqa: PLC0415  few calls replace commits

    inflater = decompressobj()
    text = inflater.decompress(read_text(name).encode("latin-1"), MAX_FILE).decode("latin-1")
    if not text.startswith("commit ") or not inflater.eof:
        raise ValueError("not a whole commit")
    return text


def _last_contact(private: str, common: str, *, has_remote: bool) -> int | None:
    """Return the time of the last change by a push or a fetch, 0 if there was none, or None if there are too many refs to read.

    A tag can be pushed without a trace, so it counts as pushed when it was made, if there is a remote.
    """
    kinds = ("refs/remotes", "refs/tags") if has_remote else ("refs/remotes",)
    times = [_time(f"{folder}/FETCH_HEAD") for folder in {private, common}]
    packed = read_text_if_any(f"{common}/packed-refs")
    if any(f" {kind}/" in packed for kind in kinds):
        times.append(_time(f"{common}/packed-refs"))
    pending = [f"{common}/{kind}" for kind in kinds if os.path.lexists(f"{common}/{kind}")]
    seen = 0
    while pending:
        folder = pending.pop()
        times.append(os.stat(folder).st_mtime_ns)  # changes with every ref in it, also with a deleted one
        with os.scandir(folder) as entries:
            for entry in entries:
                seen += 1
                if seen > MAX_REFS:
                    return None
                times.append(entry.stat(follow_symlinks=False).st_mtime_ns)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return max(times)


def _time(path: str) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except FileNotFoundError:
        return 0
