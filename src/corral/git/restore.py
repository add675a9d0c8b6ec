"""Notes the refs, HEAD and index of a git directory of the user's, and restores them."""

from __future__ import annotations

import os
from _blake2 import blake2b
from time import monotonic, sleep

from corral.git import index_file
from corral.git.host_git import OpenGit
from corral.git.made_repositories import move
from corral.git.refs import SYMBOLIC, read_refs, read_value
from corral.git.safe_files import SafeTree
from corral.git.split_index import read_index

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from corral.git.host_git import HostGit

MAX_INDEX_BYTES = 1 << 28
MAX_FILE_BYTES = 1 << 24
LOCK_SECONDS = 2.0  # to wait for the user's git
WAIT_SECONDS = 0.02
_NO_INDEX = b"corral undo\n"  # in the lock, if there was no index before
CHANGED = "it was changed since"
MADE, KEPT_AS = "made", "kept_as"  # among the facts of a git directory that the transaction made


def state_of(git_dir: str) -> dict[str, Any]:
    """Return refs and HEAD, and a digest of the entries of the index. Git changes the rest of it at any time."""
    with SafeTree(git_dir, is_strict=True) as tree:
        return _state(tree)


def _state(tree: SafeTree) -> dict[str, Any]:
    data = read_index(tree, "") or b""
    try:
        text = repr([entry.as_dict() for entry in index_file.entries(data)]).encode() if data else b""
    except ValueError:
        text = data
    return {"refs": read_refs(tree), "head": read_value(tree.text("HEAD")), "index": _digest(text)}


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def _whole_state(git_dir: str) -> dict[str, Any]:
    """Return the state of a git directory that goes as a whole: also its settings, hooks and other files."""
    with SafeTree(git_dir, is_strict=True) as tree:
        files = {
            path: _digest(tree.read(path, MAX_FILE_BYTES) or b"")
            for path, _ in tree.files("")
            if path != "index" and not path.startswith("objects/")
        }
        return _state(tree) | {"files": files}


def snapshot(git_dir: str, index_copy: str) -> dict[str, Any]:
    """Return the state of a git directory, and copy its index."""
    with SafeTree(git_dir, is_strict=True) as tree:
        data = read_index(tree, "")
        before = _state(tree)
    if data is not None:
        with open(os.open(index_copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
    copy = os.path.basename(index_copy) if data is not None else ""
    return {"git_dir": git_dir, "before": before, "copy": copy}


def noted_after(each: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts about a git directory with its state of now, after an apply. A repository that was not made has none."""
    if not each.get(MADE):
        return {**each, "after": state_of(each["git_dir"])}
    return {**each, "after": _whole_state(each["git_dir"])} if os.path.isdir(each["git_dir"]) else {}


def why_not(facts: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the git directories that cannot be restored, and why."""
    found = []
    for each in facts:
        git_dir = each["git_dir"]
        try:
            now = _whole_state(git_dir) if each.get(MADE) else state_of(git_dir)
        except OSError:
            now = {}
        if now != each["after"]:
            found.append((git_dir, CHANGED))
        elif not each.get(MADE) and os.path.lexists(f"{git_dir}/index.lock"):
            found.append((git_dir, f"{git_dir}/index.lock exists. If no git runs there, remove it"))
    return found


def restore(git: HostGit, facts: Iterable[Mapping[str, Any]], folder: str) -> list[tuple[str, str]]:
    """Restore the states that `snapshot` noted. Return each git directory that stays as it is, and why.

    What is restored already stays, so that this can be repeated after a crash.
    """
    found = []
    for each in facts:
        git_dir = each["git_dir"]
        try:
            if each.get(MADE):
                if os.path.lexists(git_dir):
                    move(git_dir, f"{folder}/{each[KEPT_AS]}")
                continue
            with SafeTree(git_dir, is_strict=True) as tree:
                why = _restore(OpenGit(git, tree.descriptor, git_dir), tree, each, folder)
        except OSError as error:
            why = error.strerror or str(error)
        if why:
            found.append((git_dir, why))
    return found


def _restore(git: OpenGit, tree: SafeTree, facts: Mapping[str, Any], folder: str) -> str:
    before, after, now = facts["before"], facts["after"], _state(tree)
    if now == before:
        return ""
    for name in {*before["refs"], *after["refs"], *now["refs"]}:
        if now["refs"].get(name) not in (before["refs"].get(name), after["refs"].get(name)):
            return CHANGED
    has_other_index = now["index"] != before["index"]
    if has_other_index and now["index"] != after["index"]:
        return CHANGED
    data = _NO_INDEX
    if has_other_index and facts["copy"]:
        with open(f"{folder}/{facts['copy']}", "rb") as file:
            data = file.read()
    # Before the refs: without the index, their changes would show as staged.
    if has_other_index and not _lock(tree, data):
        return f"{facts['git_dir']}/index.lock exists. If no git runs there, remove it and type: git reset"
    is_done = False
    try:
        why = _restore_refs(git, now, before)
        if not why and has_other_index:
            if facts["copy"]:
                tree.rename("index.lock", "index")
                is_done = True
            else:
                tree.remove("index")
        return why
    finally:
        if has_other_index and not is_done:
            tree.remove("index.lock")


def _lock(tree: SafeTree, data: bytes) -> bool:
    """Lock the index with these bytes. A lock that has them is that of a process that was killed."""
    give_up_at = monotonic() + LOCK_SECONDS
    while not tree.create("index.lock", data) and tree.read("index.lock", MAX_INDEX_BYTES) != data:
        if monotonic() > give_up_at:
            return False
        sleep(WAIT_SECONDS)
    return True


def _restore_refs(git: OpenGit, now: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Restore refs and HEAD: all, or as far as git does. Return why git refuses, or ""."""
    gone, others, symbolic = [], [], []
    for name in sorted({*before["refs"], *now["refs"]}):
        old, new = now["refs"].get(name, ""), before["refs"].get(name, "")
        if old == new:
            continue
        if (old or new).startswith(SYMBOLIC) or new.startswith(SYMBOLIC):
            symbolic.append((name, new.removeprefix(SYMBOLIC)))
        elif not new:
            gone.append(f"delete {name} {old}\n")
        else:
            others.append(f"update {name} {new} {old}\n" if old else f"create {name} {new}\n")
    # One after the other: a new ref can have the name of a directory of a deleted one.
    words = ("update-ref", "-m", "corral: undo")
    for group in (gone, others):
        if group:
            answer = git.run(*words, "--stdin", given=["".join(group).encode()])
            if answer.code:
                return answer.errors
    for name, target in symbolic:
        answer = git.run("symbolic-ref", name, target) if target else git.run("symbolic-ref", "-d", name)
        if answer.code:
            return answer.errors
    head = before["head"]
    if head == now["head"]:
        return ""
    if head.startswith(SYMBOLIC):
        return git.run("symbolic-ref", "-m", "corral: undo", "HEAD", head.removeprefix(SYMBOLIC)).errors
    return git.run(*words, "--no-deref", "HEAD", head).errors
