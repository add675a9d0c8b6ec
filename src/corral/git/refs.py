"""Reads the refs and stashes of a git directory, and writes them into a command's own. The user's are written by git alone.

It also keeps commits under `refs/corral` that a command's change would lose, and reports branches and tags that a command moved.
"""

from __future__ import annotations

import os
import stat
from time import gmtime, strftime

from corral.git.host_git import path_in
from corral.git.names import OID, STASH, plain, typed
from corral.git.work_files import units_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from corral.git.comparison import Comparison, Update
    from corral.git.safe_files import SafeTree

    Stash = tuple[str, str]  # a commit and a message

MAX_PACKED_BYTES = 1 << 26
MAX_REFS = 100_000
MAX_STASHES = 100
SYMBOLIC = "ref: "
KEPT = "refs/corral/"  # where the command's value of a ref is kept that the user changed too
MOVED = "a command moved"
MAX_OWN_COMMITS = 500  # that are remembered as the commands'
MAX_LOOKED_AT = 100  # refs that moved
_HEADS, _TAGS = "refs/heads/", "refs/tags/"


def read_value(text: str) -> str:
    """Return the value of a ref file: an object name, or a symbolic ref as `ref: NAME`; "" if it is neither."""
    line = text.strip("\n \t")
    if line.startswith(SYMBOLIC):
        target = line[len(SYMBOLIC) :].strip()
        return f"{SYMBOLIC}{target}" if target.startswith("refs/") and "\n" not in target else ""
    return line if OID.match(line) else ""


def read_refs(tree: SafeTree) -> dict[str, str]:
    """Return all refs below `refs/`. A loose one hides a packed one.

    The loose ones are read first: git removes one only after it has written the packed one.
    """
    loose: dict[str, str] = {}
    for path, _ in tree.files("refs"):
        if path.endswith(".lock") or path.rpartition("/")[2].startswith(".corral-"):
            continue
        value = read_value(tree.text(path))
        if value:
            loose[path] = value
        if len(loose) > MAX_REFS:
            raise OSError(7, f"it has more than {MAX_REFS} refs")
    return _packed(tree) | loose


def _packed(tree: SafeTree) -> dict[str, str]:
    data = tree.read("packed-refs", MAX_PACKED_BYTES)
    found: dict[str, str] = {}
    for line in (data or b"").decode("utf-8", "surrogateescape").split("\n"):
        oid, _, name = line.partition(" ")
        if name.startswith("refs/") and OID.match(oid):
            found[name] = oid
        if len(found) > MAX_REFS:
            raise OSError(7, f"it has more than {MAX_REFS} refs")
    return found


def _packed_text(refs: dict[str, str]) -> bytes:
    lines = sorted((name.encode("utf-8", "surrogateescape"), value.encode()) for name, value in refs.items())
    return b"# pack-refs with: sorted \n" + b"".join(b"%s %s\n" % (value, name) for name, value in lines)


def write_packed(tree: SafeTree, refs: dict[str, str]) -> None:
    """Write the file of packed refs, with those that are not symbolic."""
    found = tree.status("packed-refs")
    if found is not None and not stat.S_ISREG(found.st_mode):
        tree.remove("packed-refs")
    plain = {name: value for name, value in refs.items() if not value.startswith(SYMBOLIC)}
    tree.write("packed-refs", _packed_text(plain))


def write_refs(tree: SafeTree, wanted: dict[str, str]) -> None:
    """Make these the refs of a command's git directory: in `packed-refs`, and symbolic ones as files."""
    loose = {path for path, _ in tree.files("refs") if not path.endswith(".lock")}
    symbolic = {name: value for name, value in wanted.items() if value.startswith(SYMBOLIC)}
    write_packed(tree, wanted)
    for name in loose:
        if name not in symbolic and read_value(tree.text(name)) != wanted.get(name):
            tree.remove(name)
    for name, value in symbolic.items():
        if read_value(tree.text(name)) != value:
            tree.write(name, f"{value}\n".encode("utf-8", "surrogateescape"))
    for name in ("refs", "refs/heads", "refs/tags"):
        found = tree.status(name)
        if found is None or not stat.S_ISDIR(found.st_mode):
            tree.make_directory(name)


def update_ref(tree: SafeTree, name: str, old: str, new: str) -> bool:
    """Change a ref of a command's git directory, as git does: under its lock. Return false if it has another value by now."""
    above = name.rpartition("/")[0]
    try:
        if above and new:
            _make_folders(tree, above)
        elif above and tree.status(above) is None:
            return not new
    except OSError:
        return False
    lock = f"{name}.lock"
    if not tree.create(lock, f"{new}\n".encode("utf-8", "surrogateescape")):
        # A command's git changes it now, or a ref has the name of the directory.
        return False
    now = read_value(tree.text(name)) or _packed(tree).get(name, "")
    if now != old:
        tree.remove(lock)
        return False
    if new:
        found = tree.status(name)
        if found is not None and stat.S_ISDIR(found.st_mode):
            tree.remove(name)
        tree.rename(lock, name)
        return True
    is_unpacked = _remove_packed(tree, name)
    if is_unpacked:
        tree.remove(name)
    tree.remove(lock)
    return is_unpacked


def _remove_packed(tree: SafeTree, name: str) -> bool:
    """Remove a ref from the packed ones, under their lock. Return false if a command's git has the lock."""
    if name not in _packed(tree):
        return True
    lock = "packed-refs.lock"
    if not tree.create(lock, b""):
        return False
    packed = _packed(tree)
    packed.pop(name, None)
    tree.write("packed-refs", _packed_text(packed))
    tree.remove(lock)
    return True


def _make_folders(tree: SafeTree, path: str) -> None:
    parts = path.split("/")
    for number in range(1, len(parts) + 1):
        at = "/".join(parts[:number])
        if tree.status(at) is None:
            tree.make_directory(at)


def read_log(tree: SafeTree, name: str) -> list[tuple[str, str]]:
    """Return object name and message of each entry of a reflog, the newest first."""
    found: list[tuple[str, str]] = []
    for line in tree.text(f"logs/{name}", 1 << 24).split("\n"):
        head, _, message = line.partition("\t")
        words = head.split(" ")
        if len(words) > 2 and OID.match(words[1]):
            found.append((words[1], message))
    return found[::-1]


# --- stashes ----------------------------------------------------------------------------------------------------------


def read_stash(tree: SafeTree, refs: Collection[str]) -> list[Stash]:
    """Return the stashes of one side, the newest first."""
    return read_log(tree, STASH) if STASH in refs else []


def stash_changes(comparison: Comparison, mine: list[Stash]) -> tuple[list[Stash], list[Stash]]:
    """Return the stashes of the user's to drop, and the new ones, the oldest first."""
    base = [tuple(each) for each in comparison.base.get("stash", ())]
    theirs = read_stash(comparison.user, comparison.user_refs)
    if comparison.is_first or mine == base:
        return [], []
    gone = [each for each in base if each not in mine]
    dropped = [each for each in theirs if each in gone]
    new = [each for each in reversed(mine) if each not in base and each not in theirs]
    if len(new) > MAX_STASHES:
        comparison.notes.append(f"only the newest {MAX_STASHES} stashes leave the sandbox")
    return dropped[-MAX_STASHES:], new[-MAX_STASHES:]


def write_stash(comparison: Comparison, dropped: list[Stash], stashed: list[Stash]) -> bool:
    """Drop and add the user's stashes. Return false if git could not add one."""
    git, notes = comparison.git, comparison.notes
    theirs = read_log(comparison.user, STASH)
    own: list[str] = comparison.base.get("own_stashes", [])
    users = {oid for oid, _ in theirs} - {*own}
    # The highest first. The user may have added one meanwhile.
    for number in reversed([number for number, each in enumerate(theirs) if each in dropped]):
        oid, message = theirs[number]
        if oid not in own:
            notes.append(f"a command dropped the stash {plain(message)!r}: git stash store {oid} restores it")
        git.run("reflog", "delete", "--updateref", "--rewrite", f"{STASH}@{{{number}}}")
    if dropped and not read_log(comparison.user, STASH):
        git.run("update-ref", "-d", STASH)
    written: list[str] = []
    for oid, message in stashed:
        answer = git.run("update-ref", "-m", plain(message) or "a stash", "--create-reflog", STASH, oid)
        if answer.code:
            notes.append(f"a stash stays in the sandbox until the next command: {answer.errors}")
            break
        written.append(oid)
        if oid not in users:
            own = [*own, oid][-MAX_STASHES:]
    comparison.base["own_stashes"] = own
    if dropped or stashed:
        comparison.user_files.note_stashes()
    return len(written) == len(stashed)


def copy_stash(comparison: Comparison, private: list[Stash]) -> None:
    """Copy the user's stashes to the commands' side, and note that both have them."""
    log = read_log(comparison.user, STASH)
    value = read_refs(comparison.user).get(STASH, "")
    mine = comparison.private_refs.get(STASH, "")
    if (log, value) != (private, mine):
        if not update_ref(comparison.private, STASH, mine, value):
            return
        comparison.copy_log(f"logs/{STASH}")
        comparison.private_files.note_stashes()
    comparison.agree(STASH, value)
    comparison.base["stash"] = log if value else []


# --- what a command took away ---------------------------------------------------------------------------------------------


def kept_name(name: str) -> str:
    """Return a new name under which the value of a ref is kept."""
    return f"{KEPT}{strftime('%Y%m%dT%H%M%S', gmtime())}-{os.urandom(2).hex()}/{name.removeprefix('refs/')}"


def store(comparison: Comparison, found: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Keep objects of the user's or a command's, by ref, under names that no command sees. Return the names by object, and an error."""
    known = {value: name for name, value in read_refs(comparison.user).items() if name.startswith(KEPT)}
    lines = []
    for name, oid in found.items():
        if oid not in known:
            known[oid] = kept_name(name)
            lines.append(f"create {known[oid]} {oid}\n".encode("utf-8", "surrogateescape"))
    if not lines:
        return known, ""
    # In one process: a command can delete thousands of branches.
    answer = comparison.git.run("update-ref", "--stdin", given=[b"".join(lines)])
    return known, (answer.errors or f"git ended with {answer.code}") if answer.code else ""


def keep(comparison: Comparison, found: Mapping[str, tuple[str, str]]) -> None:
    """Keep objects, and report them. `found` has by ref the object and why it is kept."""
    known, error = store(comparison, {name: oid for name, (oid, _) in found.items()})
    for name, (oid, why) in found.items():
        if error:
            comparison.notes.append(f"{why}, and {known[oid]} cannot be written: {error}")
            continue
        verb = "switch --detach" if name == "HEAD" else f"update-ref {typed(name)}"
        comparison.notes.append(f"{why}. Its commit is kept; to restore it: git {verb} {typed(known[oid])}")


def unreached(
    comparison: Comparison, gone: Mapping[str, str], *, made: Iterable[str] = (), unit: str | None = None
) -> dict[str, str]:
    """Return those of these refs whose objects nothing else of the user's reaches. Git removes the reflog of a ref with the ref.

    They may still be there. `made` are objects that new refs will have. `unit` is a worktree whose HEAD does not count.
    """
    user = comparison.user
    others = [oid for name, oid in read_refs(user).items() if name not in gone and not name.startswith(KEPT)] + [*made]
    heads = [read_value(user.text(path_in(each, "HEAD"))) for each in units_of(user) if each != unit]
    reached = {oid for oid in (*others, *heads) if OID.match(oid)}
    lines = [*gone.values(), *(f"^{oid}" for oid in reached)]
    answer = comparison.git.run(
        "rev-list", "--ignore-missing", "--stdin", given=["".join(f"{line}\n" for line in lines).encode()]
    )
    lost = {*answer.output.decode().split()} if not answer.code else {*gone.values()}
    if any(name.startswith(_TAGS) for name in gone):
        # Git lists the commit of a tag, but not the tag with its text and signature.
        tags = {oid for oid, kind in comparison.objects.kinds(gone.values()).items() if kind != "commit"}
        lost |= tags - reached - {*comparison.base.get("own_commits", ())}
    return {name: oid for name, oid in gone.items() if oid in lost}


def store_lost(comparison: Comparison, gone: list[Update], plain: list[Update]) -> dict[str, str]:
    """Keep what only refs reach that are to be deleted. Before that: this process may be killed in between."""
    names = {name: old for name, old, _ in gone}
    lost = unreached(comparison, names, made=[new for _, _, new in plain]) if gone else {}
    store(comparison, lost)
    return lost


def tell_deleted(comparison: Comparison, gone: list[Update], plain: list[Update], lost: dict[str, str]) -> None:
    """Report the refs that were deleted and that alone led to something. Not every new ref could be written."""
    if not gone:
        return
    now = read_refs(comparison.user)
    deleted = {name: old for name, old, _ in gone if name not in now}
    if any(new and now.get(name) != new for name, _, new in plain):
        lost = unreached(comparison, deleted)
    why = "was deleted by a command"
    keep(comparison, {name: (oid, f"{name} {why}") for name, oid in deleted.items() if name in lost})


def tell_moved(comparison: Comparison, moved: list[tuple[str, str, str]]) -> None:
    """Report the branches and tags that no longer have a commit that is not a command's own."""
    base, objects = comparison.base, comparison.objects
    own: list[str] = base.get("own_commits", [])
    own_refs = {*base.get("own_refs", ())}
    now = read_refs(comparison.user)
    # The user's first: a command can make any number of its own.
    found = sorted((each for each in moved if now.get(each[0]) == each[2]), key=lambda each: each[0] in own_refs)
    branches = [each for each in found if each[0].startswith(_HEADS) and not objects.is_forward(each[1], each[2])]
    lost = [each for each in found if each[0].startswith(_TAGS) and each[0] not in own_refs]
    for name, old, new in branches[:MAX_LOOKED_AT]:
        # One more than can be remembered.
        words = ("rev-list", f"--max-count={MAX_OWN_COMMITS + 1}", old, f"^{new}")
        answer = comparison.git.run(*words)
        if answer.code or not {*answer.output.decode("ascii", "replace").split()} <= {*own}:
            lost.append((name, old, new))
    for name, old, _ in sorted(lost, key=lambda each: each[0] in own_refs):
        back = f"git update-ref {typed(name)} {old}"
        comparison.notes.append(f"{MOVED} {name} from {old}. To restore it: {back}")
    rest = [name for name, _, _ in branches[MAX_LOOKED_AT:] if name not in own_refs]
    if rest:
        comparison.notes.append(f"{MOVED} {len(rest)} more branches. `git reflog BRANCH` shows where they were")
    base["own_commits"] = [*own, *objects.commits][-MAX_OWN_COMMITS:]
