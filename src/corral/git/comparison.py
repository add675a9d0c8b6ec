"""Compares a git directory of the user's with the commands' copy, and writes on both sides what changed on the other."""

from __future__ import annotations

import os
from time import gmtime, monotonic, strftime

from corral.git import config_file, new_worktrees, refs, work_files
from corral.git.configuration import crossing_settings
from corral.git.configuration.carried_settings import is_true
from corral.git.configuration.user_settings import read_settings
from corral.git.host_git import OpenGit, path_in
from corral.git.large_files import copy_large_files
from corral.git.names import STASH, is_private_ref, is_safe_symref, plain, typed, why_not_ref
from corral.git.objects import ObjectsRefusedError, PrivateObjects
from corral.git.refs import (
    KEPT,
    MAX_PACKED_BYTES,
    MOVED,
    SYMBOLIC,
    kept_name,
    read_log,
    read_refs,
    update_ref,
    write_packed,
    write_refs,
)
from corral.git.split_index import tracks
from corral.git.work_files import MAIN, OtherFiles, units_of
from corral.git.worktree import Worktree, free_own_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.git.mirror import Mirror
    from corral.git.safe_files import SafeTree

    Update = tuple[str, str, str]  # a ref, its old value and its new one, or ""

MAX_CONFIG_BYTES = 1 << 18
MAX_LOG_BYTES = 1 << 24
MAX_NEW_REFS = 5000
MAX_SINGLE_REFS = 100  # to write one by one, after git has refused all of them together
MAX_SINGLE_SECONDS = 30.0
MAX_TOLD = 1000  # names of which the user gets a note once
_ZERO = "0" * 40
_COMMITS = ("refs/remotes/", "refs/notes/")  # of branches git itself sees to it
_ENDED_NAME, MAX_ENDED = ".corral-ended-", 5
CONFIG, USER_CONFIG = "config", "user_config"  # the file; and among the facts, its text on the user's side
UNSIGNED = "not signed:"
ENDED = "a command ended"
# Notes that begin so tell what was done, others what stays in the sandbox.
INFORMING = (*crossing_settings.INFORMING, UNSIGNED, MOVED, ENDED)


class Comparison:
    """One comparison of both sides. `base` is what they had in common after the last one."""

    def __init__(self, mirror: Mirror, user: SafeTree, private: SafeTree, base: dict[str, Any]) -> None:
        self.mirror = mirror
        self.user = user
        self.private = private
        self.base = base
        self.is_first = "refs" not in base
        self.notes: list[str] = []
        self.copied: dict[str, dict[str, Any]] = {}  # files that were copied in, by unit, with their new signatures
        # Before anything else is read: what changes from here on is found at the end.
        self.user_files = OtherFiles(user, is_private=False)
        self.private_files = OtherFiles(private, is_private=True)
        self.user_refs = read_refs(user)
        self.private_refs = read_refs(private)
        if base.get("refs") and private.read("packed-refs", MAX_PACKED_BYTES) is None:
            # Git never removes this file. Without it, refs are not deleted but unreadable.
            write_packed(private, base["refs"])
            self.private_refs = base["refs"] | self.private_refs
        self._private_config = private.text(CONFIG, MAX_CONFIG_BYTES)
        self._user_config = self._common_config = ""  # of the user, and if copied, what the commands got
        self._refs: dict[str, str] = dict(base.get("refs", {}))  # those that both have in common
        self.git = OpenGit(mirror.git, user.descriptor, mirror.user_dir)
        self.objects = PrivateObjects(private, self.git, mirror.borrowed(private))
        self.objects.is_lenient = mirror.is_new
        self.objects.refused_packs = base.setdefault("refused_packs", {})
        self._log_message = ""
        self._must_retry = False  # git refused a ref for the first time

    def run(self) -> bool:
        """Compare and write. Return false if something could not be written for the user, and must be tried again."""
        free_own_lock(self.mirror.place, self.user)
        self._copy_user_files()
        if not self.is_first and not self.mirror.is_new:
            new_worktrees.remove_gone(self)
            new_worktrees.make_new(self)
        outgoing, incoming = ([], []) if self.is_first else self._compare_refs()
        worktrees = [Worktree(self, name) for name in self._units()]
        for worktree in worktrees:
            worktree.look()
        private_stash = refs.read_stash(self.private, self.private_refs)
        dropped, stashed = refs.stash_changes(self, private_stash)
        roots = [new for _, _, new in outgoing if new and not new.startswith(SYMBOLIC)]
        roots += [oid for worktree in worktrees for oid in worktree.roots()] + [oid for oid, _ in stashed]
        try:
            if roots:
                self.objects.copy(roots)
                refused = self.base.setdefault("refused_large_files", {})
                self.notes += copy_large_files(self.private, self.git.path, refused)
        except ObjectsRefusedError:
            outgoing = self._copy_singly(outgoing, worktrees, stashed)
        except OSError as error:
            self.notes.append(f"the command's work in git stays in the sandbox: {error}")
            return False
        for name, why in self.objects.refused_packs.items():
            self.tell_once(f"objects/pack/{name}", f"the objects in {name} stay in the sandbox: {why}")
        for worktree in worktrees:
            if why := self.objects.why_not(worktree.needs()):
                worktree.refuse(why)
        outgoing = self._without_wrong_types(outgoing)
        try:
            # All or nothing: without the index, the new commits would show as changes that are staged.
            if not all(worktree.lock_index() for worktree in worktrees):
                self.mirror.save(self.base)
                return False
            self._write_refs(outgoing, incoming)
            if self._must_retry:
                self.mirror.save(self.base)
                return False
            for worktree in worktrees:
                worktree.write_head()
                worktree.replace_index()
                worktree.write_files()
        finally:
            for worktree in worktrees:
                worktree.unlock_index()
        is_stashed = refs.write_stash(self, dropped, stashed)
        if self.base.get("config") not in (None, self._private_config):
            self._user_config = crossing_settings.write(self, self._private_config, self._user_config)
        self._copy_in(incoming, worktrees, private_stash if is_stashed else None)
        return is_stashed

    def _copy_singly(
        self, outgoing: list[Update], worktrees: list[Worktree], stashed: list[tuple[str, str]]
    ) -> list[Update]:
        """Copy what can be copied. One object that git refuses must not keep all other work in the sandbox for ever."""
        give_up_at = monotonic() + MAX_SINGLE_SECONDS
        kept: list[Update] = []
        for number, (name, old, new) in enumerate(outgoing):
            try:
                if number > MAX_SINGLE_REFS or monotonic() > give_up_at:
                    raise ObjectsRefusedError("git refuses an object that was made with it")
                if new and not new.startswith(SYMBOLIC):
                    self.objects.copy([new])
            except ObjectsRefusedError as error:
                self._refuse(name, new, old, str(error))
            else:
                kept.append((name, old, new))
        for worktree in worktrees:
            try:
                self.objects.copy(worktree.roots())
            except ObjectsRefusedError as error:
                worktree.refuse(str(error))
        for each in stashed[:]:
            try:
                self.objects.copy([each[0]])
            except ObjectsRefusedError as error:
                stashed.remove(each)
                self.notes.append(f"a stash stays in the sandbox: {error}")
        return kept

    def _without_wrong_types(self, outgoing: list[Update]) -> list[Update]:
        """Leave out remote branches and notes that are not commits: git ends with an error when it reads them."""
        kinds = self.objects.kinds(new for name, _, new in outgoing if new and name.startswith(_COMMITS))
        wrong = [each for each in outgoing if kinds.get(each[2], "commit") != "commit" and each[0].startswith(_COMMITS)]
        for name, old, new in wrong:
            self._refuse(name, new, old, f"it is a {kinds[new]}, not a commit")
        return [each for each in outgoing if each not in wrong]

    def why_not_commit(self, oid: str) -> str:
        """Copy a commit to the user. Return why the user does not have it then, or ""."""
        try:
            self.objects.copy([oid])
        except (ObjectsRefusedError, OSError) as error:
            return str(error)
        return self.objects.why_not([(oid, ("commit",))])

    def tell_once(self, name: str, note: str) -> None:
        """Add a note about a name, unless an earlier comparison had it."""
        told: list[str] = self.base.setdefault("told", [])
        if name not in told and len(told) < MAX_TOLD:
            told.append(name)
            self.notes.append(note)

    def is_current(self) -> bool:
        """Say whether both sides still are as this comparison has left them."""
        refs = {name: value for name, value in read_refs(self.user).items() if not name.startswith(KEPT)}
        own = self._own_refs()
        private = {name: value for name, value in read_refs(self.private).items() if name not in own}
        if refs != self._refs or private != {name: value for name, value in self._refs.items() if name not in own}:
            return False
        if not all(Worktree(self, name).is_current() for name in self.base.get("units", {})):
            return False
        return self.user_files.is_current() and self.private_files.is_current()

    def _own_refs(self) -> set[str]:
        """Return the refs that only the commands' side has, or has with another value."""
        refused: dict[str, str] = self.base.get("refused", {})
        return {name for name, value in self.private_refs.items() if is_private_ref(name) or refused.get(name) == value}

    def is_crossing_branch(self, name: str) -> bool:
        """Say whether the user has a branch by now, or neither side has it and its name may cross."""
        known = read_refs(self.user)
        return name in known or (name not in self.private_refs and not why_not_ref(name, known))

    def keep_other_head(self, head: str) -> None:
        """Report that both sides moved HEAD, and keep the commit of a command's that is on no branch."""
        self.notes.append("HEAD was changed by the user too: the user's stays")
        if not head.startswith(SYMBOLIC):
            why = "HEAD of the command's was on no branch"
            refs.keep(self, {name: (oid, why) for name, oid in refs.unreached(self, {"HEAD": head}).items()})

    def message(self) -> str:
        """Return the text for the user's reflog."""
        if not self._log_message:
            log = read_log(self.private, "HEAD")
            self._log_message = f"corral: {plain(log[0][1] if log else 'changed in a sandbox')}"
        return self._log_message

    # --- refs ---------------------------------------------------------------------------------------------------------

    def _compare_refs(self) -> tuple[list[Update], list[Update]]:
        """Return the refs to write for the user, and those to write for the commands."""
        outgoing: list[Update] = []
        incoming: list[Update] = []
        refused: dict[str, str] = self.base.get("refused", {})
        for name in sorted({*self._refs, *self.private_refs, *self.user_refs}):
            old, mine = self._refs.get(name, ""), self.private_refs.get(name, "")
            theirs = self.user_refs.get(name, "")
            if name == STASH or is_private_ref(name):
                continue
            if mine == theirs:
                self.agree(name, theirs)
            elif mine == old:
                incoming.append((name, mine, theirs))
            elif refused.get(name) == mine:
                self.agree(name, theirs)
            elif why := self._why_not(name, old, mine):
                self._refuse(name, mine, theirs, why)
            elif not old and len(outgoing) >= MAX_NEW_REFS:
                self._refuse(name, mine, theirs, f"one command may write {MAX_NEW_REFS} refs")
            elif theirs == old:
                outgoing.append((name, old, mine))
            else:
                self._keep_both(name, mine)
                incoming.append((name, mine, theirs))
        return outgoing, incoming

    def _why_not(self, name: str, old: str, mine: str) -> str:
        """Return why the command's value of a ref must not cross, or ""."""
        if name.startswith("refs/replace/"):
            return "a replacement would change what other commits show"
        if mine.startswith(SYMBOLIC) and old and name not in self.base.get("own_refs", ()):
            return "it says which branch the name of a remote of the user's means"
        if mine.startswith(SYMBOLIC) and not is_safe_symref(name, mine.removeprefix(SYMBOLIC), self.user_refs):
            return "it is a symbolic ref"
        if not mine or old:
            return ""
        why = why_not_ref(name, self.user_refs.keys() | self._refs.keys())
        if not why and name.startswith(("refs/heads/", "refs/tags/")):
            # `git checkout NAME` restores a file, but switches to a branch of its name.
            why = "a tracked file has this name" if tracks(self.user, name.split("/", 2)[2]) else ""
        return why

    def agree(self, name: str, value: str) -> None:
        """Note the value of a ref that both sides have now."""
        if value:
            self._refs[name] = value
        else:
            self._refs.pop(name, None)

    def _refuse(self, name: str, mine: str, theirs: str, why: str) -> None:
        self.base.setdefault("refused", {})[name] = mine
        self.agree(name, theirs)
        self.notes.append(f"{name} stays in the sandbox: {why}")

    def _keep_both(self, name: str, mine: str) -> None:
        """Keep the command's value of a ref under another name."""
        if not mine:
            return
        what = f"{name} was changed by the user and by a command: the user's stays"
        try:
            self.objects.copy([mine])
        except (ObjectsRefusedError, OSError) as error:
            # Its objects stay on the commands' side.
            kept = kept_name(name)
            self.private.write(kept, f"{mine}\n".encode())
            self.notes.append(f"{what}. The command's is {kept} in the sandbox, because {error}")
            return
        refs.keep(self, {name: (mine, f"{what}, and the command's was moved")})

    def _write_refs(self, outgoing: list[Update], incoming: list[Update]) -> None:
        plain = [each for each in outgoing if not each[2].startswith(SYMBOLIC)]
        gone = [each for each in plain if not each[2]]
        lost = refs.store_lost(self, gone, plain)
        for group in (gone, [each for each in plain if each[2]]):
            if group and self._update_refs(group):
                for number, each in enumerate(group):
                    why = (
                        self._update_refs([each])
                        if number < MAX_SINGLE_REFS
                        else "git refuses a ref that was made with it"
                    )
                    if why:
                        self._explain(each, why, incoming)
        refs.tell_deleted(self, gone, plain, lost)
        refused = self.base.get("refused", {})
        if self._must_retry:
            return
        self.base.pop("failed", None)
        refs.tell_moved(self, [each for each in plain if each[1] and each[2] and each[0] not in refused])
        self._tell_unsigned([each for each in plain if each[2] and each[0] not in refused])
        symbolic = [each for each in outgoing if each[2].startswith(SYMBOLIC)]
        for number, (name, old, new) in enumerate(symbolic):
            if number >= MAX_SINGLE_REFS:
                self._refuse(name, new, old, "there are too many symbolic refs")
            else:
                answer = self.git.run("symbolic-ref", name, new.removeprefix(SYMBOLIC))
                if answer.code:
                    self._refuse(name, new, old, answer.errors)
                else:
                    self.agree(name, new)

    def _tell_unsigned(self, written: list[Update]) -> None:
        """Report the commits of commands without a signature, if the user's git signs commits in this repository."""
        if not self.objects.unsigned:
            return
        fetched = self._new_commits([new for name, _, new in written if not name.startswith("refs/heads/")])
        for name, old, new in written:
            made = (self._new_commits([new]) - fetched) & self.objects.unsigned
            if not name.startswith("refs/heads/") or not made:
                continue
            if not self._signs_commits():
                return
            count = f"{len(made)} commits are" if len(made) > 1 else "1 commit is"
            branch, since = name.removeprefix("refs/heads/"), old or "--root"
            again = f"git rebase -f -S {since} {typed(branch)}"
            self.notes.append(f"{UNSIGNED} {count} new on {branch}, and the user's git signs commits. To sign: {again}")

    def _signs_commits(self) -> bool:
        root = self.mirror.roots[0]
        if self.mirror.user_dir != f"{root}/.git":
            return self.git.run("config", "--bool", "commit.gpgSign").output.strip() == b"true"
        # From the memory of an earlier answer, because each commit asks.
        settings, _ = read_settings(root, os.environ, (os.path.dirname(self.mirror.git.program),))
        return is_true({key: value for _, _, key, value in settings}.get("commit.gpgsign", "false"))

    def _new_commits(self, roots: list[str]) -> set[str]:
        """Return the commits of commands that are reachable from these."""
        pending, seen = list(roots), set(roots)
        while pending:
            inner = [oid for oid in self.objects.commits.get(pending.pop(), ()) if oid not in seen]
            seen.update(inner)
            pending += inner
        return seen & self.objects.commits.keys()

    def _update_refs(self, group: list[Update]) -> str:
        """Write refs for the user in one transaction of git's. Return why git refuses, or ""."""
        lines = [
            f"update {name} {new} {old or _ZERO}\n" if new else f"delete {name} {old}\n" for name, old, new in group
        ]
        words = ("update-ref", "-m", self.message(), "--create-reflog", "--stdin")
        answer = self.git.run(*words, given=["".join(lines).encode("utf-8", "surrogateescape")])
        if answer.code:
            return answer.errors or f"git ended with {answer.code}"
        own: list[str] = self.base.setdefault("own_refs", [])
        deleted: list[str] = self.base.setdefault("deleted_refs", [])  # of the user's
        known = {*own, *deleted}
        for name, old, new in group:
            self.agree(name, new)
            if name not in known and not (old and new):
                (own if new else deleted).append(name)
        return ""

    def _explain(self, each: Update, why: str, incoming: list[Update]) -> None:
        name, old, new = each
        theirs = read_refs(self.user).get(name, "")
        failed: dict[str, str] = self.base.setdefault("failed", {})
        if theirs == old and failed.get(name) != new:
            # It may be a lock, or objects that the command's git packs now.
            failed[name] = new
            self._must_retry = True
            self.notes.append(f"{name} stays in the sandbox until the next command: {why}")
        elif theirs == old:
            self._refuse(name, new, old, why)
        else:
            # The user has changed it since it was read.
            self._keep_both(name, new)
            incoming.append((name, new, theirs))

    # --- configuration and other files --------------------------------------------------------------------------------

    def _copy_user_files(self) -> None:
        """Copy in what the user changed, apart from refs, HEADs and indexes."""
        known: dict[str, Any] = self.base.get("files", {})
        for unit, own in self.user_files.units.items():
            if unit == MAIN:
                self._user_config = self.user.text(CONFIG, MAX_CONFIG_BYTES)
            for name in {*own, *known.get(unit, {})}:
                if own.get(name, ()) != tuple(map(tuple, known.get(unit, {}).get(name, ()))):
                    path = path_in(unit, name)
                    known_config = self.base.get(USER_CONFIG)
                    if path == CONFIG and self._user_config:
                        text = self._user_config
                        if known_config and self._private_config:
                            text = config_file.merged(known_config, text, self._private_config)
                        self.private.write(CONFIG, text.encode("utf-8", "surrogateescape"), self.user.status(CONFIG))
                        self._common_config = text
                    else:
                        work_files.copy_in(self.user, self.private, path)
                    self.copied.setdefault(unit, {})[name] = work_files.signature(self.private, path)
                    self.private_files.note(unit, name)

    def keep_ended(self, unit: str, name: str) -> None:
        """Keep the state of a rebase, bisection or range of picks that the user began and a command ended. Tell the way back."""
        kept = f"{_ENDED_NAME}{strftime('%Y%m%dT%H%M%S', gmtime())}-{os.urandom(2).hex()}-{name}"
        self.user.rename(path_in(unit, name), kept)
        earlier = [each for each in self.user.names(unit) if each.startswith(_ENDED_NAME)]
        for each in earlier[:-MAX_ENDED]:
            self.user.remove(path_in(unit, each))
        what, folder = work_files.ENDED[name], path_in(self.mirror.user_dir, unit)
        back = "git bisect replay" if what == "bisection" else "mv"
        target = f" {typed(f'{folder}/{name}')}" if back == "mv" else ""
        kept = typed(f"{folder}/{kept}")
        self.notes.append(f"{ENDED} a {what} that the user began. To restore it: {back} {kept}{target}")

    def copy_log(self, path: str) -> None:
        """Replace a reflog on the commands' side by the user's."""
        data = self.user.read(path, MAX_LOG_BYTES)
        if data is None:
            self.private.remove(path)
        else:
            self.private.write(path, data)

    def _units(self) -> list[str]:
        return [unit for unit in units_of(self.user) if self.user.status(path_in(unit, "HEAD")) is not None]

    # --- the end ------------------------------------------------------------------------------------------------------

    def _copy_in(
        self, incoming: list[Update], worktrees: list[Worktree], private_stash: list[tuple[str, str]] | None
    ) -> None:
        """Copy the user's changes to the commands' side, and note what both have in common now."""
        if self.is_first:
            self._refs = {name: value for name, value in self.user_refs.items() if not name.startswith(KEPT)}
            write_refs(self.private, self._refs)
            self.private_refs = dict(self._refs)
            incoming = [(name, "", value) for name, value in self._refs.items()]
        for name, mine, theirs in incoming:
            if self.is_first or update_ref(self.private, name, mine, theirs):
                self.agree(name, theirs)
                self.copy_log(f"logs/{name}")
        if private_stash is not None:
            refs.copy_stash(self, private_stash)
        for name in self.base.get("units", {}):
            if self.user.status(name) is None:
                self.private.remove(name)
                self.private_files.units.pop(name, None)
        for worktree in worktrees:
            worktree.copy_in()
            self.private_files.units.setdefault(worktree.name, {})
        for name in work_files.names_in(self.private, MAIN):
            if work_files.is_unusual(name) and self.user.status(name) is None:
                self.tell_once(name, f".git/{plain(name)} stays in the sandbox")
        for path, digest in {} if self.is_first else work_files.hiding_files(self.user, self.private).items():
            self.tell_once(
                f"{path}:{digest}", f".git/{path} stays in the sandbox: git outside shows what it hides inside"
            )
        self.base |= {
            "mirrors": [self.mirror.user_dir, self.mirror.alternates],
            "refs": self._refs,
            USER_CONFIG: self._user_config,
            "config": self._common_config or self._private_config,
            "files": self.user_files.units,
            "units": {worktree.name: worktree.facts() for worktree in worktrees},
        }
        self.mirror.save(self.base)
