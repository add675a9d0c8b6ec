"""Copies objects from a command's git directory to the user's, as a pack that the user's git verifies and writes.

The host inflates each loose object, and checks that its name is the hash of its content. Only objects that a crossing ref or index
entry reaches are copied. An object that the user has is never replaced.
"""

from __future__ import annotations

import os
import zlib
from _hashlib import openssl_sha1
from _struct import pack
from errno import ESTALE
from time import monotonic

from corral.git.host_git import MAX_SECONDS
from corral.git.names import OID

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import IO

    from corral.git.host_git import OpenGit
    from corral.git.safe_files import SafeTree

MAX_OBJECT_BYTES = 1 << 28
MAX_TOTAL_BYTES = 1 << 31
MAX_OBJECTS = 500_000
MAX_FILES = 5_000_000  # of one tree
MAX_PACK_BYTES = 1 << 32
MAX_PACKS = 50  # that one comparison copies
LOOSE_OBJECTS = 200  # more than this stay in one pack, as after a fetch
_TOO_SLOW = f"git did not check the new packs in {MAX_SECONDS:.0f} seconds"
_TYPES = {b"commit": 1, b"tree": 2, b"blob": 3, b"tag": 4}
# Defects that old histories have. A repository that a command cloned may have them.
_LENIENT = "--strict=" + ",".join(
    f"{name}=ignore"
    for name in (
        *("zeroPaddedFilemode", "missingSpaceBeforeDate", "missingSpaceBeforeEmail", "missingNameBeforeEmail"),
        *("badTimezone", "missingEmail", "badEmail", "multipleAuthors", "missingTaggerEntry"),
    )
)


class ObjectsRefusedError(Exception):
    """Objects could not be copied. The message says why."""


class PrivateObjects:
    """The objects that commands wrote."""

    def __init__(self, tree: SafeTree, git: OpenGit, others: tuple[str, ...] = ()) -> None:
        self._tree = tree
        self._git = git
        self._others = others  # objects of the user's other repositories, if a command's repository borrows from them
        self._user = f"{git.path}/objects"
        self.is_lenient = False
        self.refused_packs: dict[str, str] = {}  # by name, and why
        self._trees: dict[str, list[str]] = {}  # new trees, and what they refer to
        self.commits: dict[str, list[str]] = {}  # new commits and tags, and what they refer to
        self.unsigned: set[str] = set()  # the commits of them that have no signature

    def _loose(self, oid: str) -> tuple[bytes, bytes] | None:
        """Return type and content of a loose object of a command's, or None."""
        try:
            descriptor = self._tree.open(f"objects/{oid[:2]}/{oid[2:]}")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ObjectsRefusedError(f"object {oid} cannot be read: {error.strerror}") from None
        with open(descriptor, "rb") as file:
            whole = _inflated(file, oid)
        if openssl_sha1(whole, usedforsecurity=False).hexdigest() != oid:
            raise ObjectsRefusedError(f"object {oid} has another content than its name says")
        head, _, content = whole.partition(b"\0")
        kind, _, length = head.partition(b" ")
        if kind not in _TYPES or length != b"%d" % len(content):
            raise ObjectsRefusedError(f"object {oid} is broken")
        return kind, content

    def _is_users(self, oid: str) -> bool:
        return os.path.exists(f"{self._user}/{oid[:2]}/{oid[2:]}")

    def reachable(self, roots: Iterable[str]) -> Iterator[str]:
        """Yield the objects of commands that are reachable from these, and that the user does not have as loose objects."""
        size = 0
        pending = list(dict.fromkeys(oid for oid in roots if OID.match(oid)))
        seen = set(pending)
        while pending:
            oid = pending.pop()
            if self._is_users(oid):
                continue
            found = self._loose(oid)
            if found is None:
                continue
            size += len(found[1])
            if size > MAX_TOTAL_BYTES:
                raise ObjectsRefusedError(f"the new objects have more than {MAX_TOTAL_BYTES >> 30} GiB")
            yield oid
            references = list(_references(*found))
            if found[0] == b"tree":
                self._trees[oid] = references
            elif found[0] in (b"commit", b"tag"):
                self.commits[oid] = references
                if found[0] == b"commit" and b"\ngpgsig" not in found[1].partition(b"\n\n")[0]:
                    self.unsigned.add(oid)
            for inner in references:
                if inner not in seen:
                    seen.add(inner)
                    pending.append(inner)
                if len(seen) > MAX_OBJECTS:
                    raise ObjectsRefusedError(f"there are more than {MAX_OBJECTS} new objects")

    def packs(self) -> list[str]:
        """Return the names of the packs that commands wrote."""
        try:
            names = self._tree.names("objects/pack")
        except OSError:
            return []
        found = [name for name in names if name.startswith("pack-") and name.endswith(".pack")]
        return [name for name in found if name not in self.refused_packs][:MAX_PACKS]

    def _index_packs(self, names: list[str], stage: str) -> dict[str, str]:
        """Have git check and write packs. Return those that it refuses, and why. One can need the objects of another."""
        refused: dict[str, str] = {}
        give_up_at = monotonic() + MAX_SECONDS
        while names:
            failed: dict[str, str] = {}
            for name in names:
                try:
                    if monotonic() > give_up_at:
                        # A command can make any number of packs, each of them just quick enough.
                        raise ObjectsRefusedError(_TOO_SLOW)
                    self._index_pack(name, stage)
                except ObjectsRefusedError as error:
                    failed[name] = str(error)
                    if failed[name] == _TOO_SLOW:
                        # At once: whatever else fails, no later comparison tries it again.
                        self.refused_packs[name] = _TOO_SLOW
            if len(failed) in (0, len(names)):
                return failed
            names, refused = [*failed], failed
        return refused

    def kinds(self, oids: Iterable[str]) -> dict[str, str]:
        """Return the types of these objects of the user's, without those that the user does not have."""
        found = {oid: _loose_kind(f"{self._user}/{oid[:2]}/{oid[2:]}") for oid in dict.fromkeys(oids)}
        unknown = [oid for oid, kind in found.items() if not kind]
        if unknown:
            given = ["".join(f"{oid}\n" for oid in unknown).encode()]
            answer = self._git.run("cat-file", "--batch-check=%(objectname) %(objecttype)", given=given)
            lines = answer.output.decode("ascii", "replace").splitlines()
            found |= {oid: kind for oid, _, kind in (line.partition(" ") for line in lines) if kind != "missing"}
        return {oid: kind for oid, kind in found.items() if kind}

    def why_not(self, needs: Iterable[tuple[str, tuple[str, ...]]]) -> str:
        """Return which of these objects the user lacks, or has with another type than these; or ""."""
        needs = list(needs)
        kinds = self.kinds(oid for oid, _ in needs)
        for oid, expected in needs:
            if oid not in kinds:
                return f"object {oid} is missing"
            if kinds[oid] not in expected:
                return f"object {oid} is a {kinds[oid]}, not a {expected[0]}"
        return ""

    def copy(self, roots: Iterable[str]) -> None:
        """Copy to the user what these objects reach: all of it, or nothing."""
        roots = [oid for oid in roots if OID.match(oid)]
        found = list(self.reachable(roots))
        # After the loose ones: git removes those only after it has written them to a pack.
        names = self.packs()
        _refuse_bombs(self._trees)
        if not names and not found and not self._others:
            return
        # Git writes objects before it has checked all of them, so it writes them to another directory first.
        stage = f"{self._user}/tmp_objdir-corral-{os.urandom(6).hex()}"  # noqa: S108  git removes such directories
        os.mkdir(stage, 0o700)
        try:
            refused = self._index_packs(names, stage)
            if 0 < len(found) <= LOOSE_OBJECTS:
                self._run(stage, "unpack-objects", "-q", given=self._pack_of(found))
                # Git writes none that the user has. A command can have a copy of the user's.
                self._forget([oid for oid in found if not os.path.exists(f"{stage}/{oid[:2]}/{oid[2:]}")])
            elif found:
                self._forget(self.kinds(oid for oid in found if oid in self.commits))
                self._run(stage, "index-pack", "--stdin", given=self._pack_of(found))
            if refused and found:
                # They may refer to objects that were not in a pack.
                slow = {name: why for name, why in refused.items() if why == _TOO_SLOW}
                refused = slow | self._index_packs([name for name in refused if name not in slow], stage)
            self.refused_packs |= {name: why for name, why in refused.items() if name not in self.refused_packs}
            if self._others:
                self._copy_borrowed(roots, stage)
            if names:
                self._refuse_packed_bombs(roots, stage)
            _move_objects(stage, self._user)
        finally:
            _remove(stage)
        # The command's git finds them among the user's objects from now on.
        for oid in found:
            self._tree.remove(f"objects/{oid[:2]}/{oid[2:]}")
        for name in names:
            if name in refused:
                continue
            for inner in self._tree.names("objects/pack"):
                if inner.startswith((f"{name.removesuffix('.pack')}.", "multi-pack-index")):
                    self._tree.remove(f"objects/pack/{inner}")

    def _forget(self, oids: Iterable[str]) -> None:
        for oid in oids:
            self.commits.pop(oid, None)

    def is_forward(self, old: str, new: str) -> bool:
        """Say whether a commit is among those from which a new one was made. Without git, so it may not know of one."""
        pending, seen = [new], {new}
        while pending:
            oid = pending.pop()
            if oid == old:
                return True
            pending += [inner for inner in self.commits.get(oid, ()) if inner not in seen]
            seen.update(pending)
        return False

    def _pack_of(self, oids: list[str]) -> Iterator[bytes]:
        """Yield a pack of loose objects. Each is read and checked again, so that only one is in memory."""
        total = openssl_sha1(usedforsecurity=False)
        head = b"PACK" + pack(">II", 2, len(oids))
        total.update(head)
        yield head
        for oid in oids:
            found = self._loose(oid)
            if found is None:
                raise OSError(ESTALE, f"object {oid} was removed meanwhile")
            kind, content = found
            size, number = len(content), _TYPES[kind] << 4
            number |= size & 15
            size >>= 4
            start = bytearray()
            while size:
                start.append(number | 0x80)
                number, size = size & 0x7F, size >> 7
            start.append(number)
            piece = bytes(start) + zlib.compress(content, 1)
            total.update(piece)
            yield piece
        yield total.digest()

    def _run(self, stage: str, *words: str, given: Iterable[bytes]) -> None:
        strict = "--strict" if not self.is_lenient else _LENIENT
        answer = self._git.run(*words, strict, given=given, others=(self._user, *self._others), into=stage)
        if answer.code:
            raise ObjectsRefusedError(f"git refuses the new objects: {answer.errors or answer.code}")

    def _copy_borrowed(self, roots: list[str], stage: str) -> None:
        """Copy what these objects reach in the user's other repositories."""
        words = ("pack-objects", "--revs", "--stdout", "-q", "--missing=allow-any")
        given = "".join(f"{oid}\n" for oid in roots).encode()
        answer = self._git.run(*words, given=[given], others=(self._user, *self._others), into=stage)
        if answer.code:
            raise ObjectsRefusedError(f"git cannot read the borrowed objects: {answer.errors or answer.code}")
        self._run(stage, "index-pack", "--stdin", given=[answer.output])

    def _refuse_packed_bombs(self, roots: list[str], stage: str) -> None:
        give_up_at = monotonic() + MAX_SECONDS
        for oid in roots:
            try:
                if monotonic() > give_up_at:
                    # Each of them can be just small enough.
                    raise TimeoutError
                self._git.run("ls-tree", "-r", "--name-only", oid, others=(self._user, *self._others), into=stage)
            except TimeoutError:
                raise ObjectsRefusedError(f"{oid[:12]} has too many files") from None

    def _index_pack(self, name: str, stage: str) -> None:
        try:
            descriptor = self._tree.open(f"objects/pack/{name}")
        except OSError:
            return
        with open(descriptor, "rb") as file:
            if os.fstat(descriptor).st_size > MAX_PACK_BYTES:
                raise ObjectsRefusedError(f"the pack {name} has more than {MAX_PACK_BYTES >> 30} GiB")
            chunks = iter(lambda: file.read(1 << 20), b"")
            try:
                self._run(stage, "index-pack", "--stdin", "--fix-thin", given=chunks)
            except TimeoutError:
                # A few kilobytes can unfold to objects of many terabytes. Without a refusal, every later command would wait again.
                raise ObjectsRefusedError(_TOO_SLOW) from None


def _refuse_bombs(trees: dict[str, list[str]]) -> None:
    """Raise an error for a tree that unfolds to so many files that git would take for ever to list them."""
    counts: dict[str, int] = {}
    for top in trees:
        pending = [top]
        while pending:
            oid = pending[-1]
            unknown = [inner for inner in trees[oid] if inner in trees and inner not in counts]
            if unknown:
                pending += unknown
                continue
            pending.pop()
            counts[oid] = sum(counts.get(inner, 1) for inner in trees[oid])
            if counts[oid] > MAX_FILES:
                raise ObjectsRefusedError(f"the tree {oid[:12]} has more than {MAX_FILES} files")


def _move_objects(stage: str, target: str) -> None:
    """Move what git has written to the user's objects. An object that is there already stays."""
    for name in sorted(os.listdir(stage)):
        if name == "info":
            continue
        os.makedirs(f"{target}/{name}", exist_ok=True)
        # The pack before its index, by which git finds it.
        for inner in sorted(os.listdir(f"{stage}/{name}"), key=lambda inner: inner.endswith(".idx")):
            if not os.path.lexists(f"{target}/{name}/{inner}"):
                os.rename(f"{stage}/{name}/{inner}", f"{target}/{name}/{inner}")


def _loose_kind(path: str) -> str:
    """Return the type of a loose object of the user's, or "" if it is not there."""
    try:
        with open(path, "rb", buffering=0) as file:
            return zlib.decompressobj().decompress(file.read(64), 32).partition(b" ")[0].decode("ascii", "replace")
    except (OSError, zlib.error):
        return ""


def _remove(stage: str) -> None:
    for above, folders, files in os.walk(stage, topdown=False):
        for name in files:
            os.unlink(f"{above}/{name}")
        for name in folders:
            os.rmdir(f"{above}/{name}")
    os.rmdir(stage)


def _references(kind: bytes, content: bytes) -> Iterator[str]:
    """Yield the objects that an object refers to, without the commits of submodules."""
    if kind == b"tree":
        at = 0
        while (stop := content.find(b"\0", at)) >= 0:
            if not content.startswith(b"160000", at):
                yield content[stop + 1 : stop + 21].hex()
            at = stop + 21
    elif kind in (b"commit", b"tag"):
        for line in content.partition(b"\n\n")[0].split(b"\n"):
            word, _, value = line.partition(b" ")
            if word in (b"tree", b"parent", b"object"):
                yield value.decode("ascii", "replace")


def _inflated(file: IO[bytes], oid: str) -> bytes:
    """Return the content of a loose object's file, if it is not too large."""
    inflate = zlib.decompressobj()
    pieces: list[bytes] = []
    size = read = 0
    try:
        while not inflate.eof and (data := inflate.unconsumed_tail or file.read(1 << 20)):
            piece = inflate.decompress(data, 1 << 24)
            size += len(piece)
            read += len(data) if not inflate.unconsumed_tail else 0
            pieces.append(piece)
            if max(size, read) > MAX_OBJECT_BYTES:
                raise ObjectsRefusedError(f"object {oid} has more than {MAX_OBJECT_BYTES >> 20} MiB")
    except zlib.error:
        raise ObjectsRefusedError(f"object {oid} is broken") from None
    return b"".join(pieces)
