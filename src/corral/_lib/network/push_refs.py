"""Reads the refs that a git push changes from the beginning of its stream, and compares them with a grant. Pure.

Nothing of the stream is passed on before the list of refs has ended. Only its plainest form is understood: certificates, shallow
histories and push options, which can steer a server, are refused.
"""

from __future__ import annotations

from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_BYTES = 1 << 20  # of the list of refs, which is held in memory
MAX_COMMANDS = 4096
MAX_LINE = 65520  # of a packet, by the protocol
MAX_SHOWN = 120
_HEX = frozenset(b"0123456789abcdef")
_OID_LENGTHS = (40, 64)
_CAPABILITIES = frozenset(
    [b"report-status", b"report-status-v2", b"side-band-64k", b"quiet", b"atomic", b"ofs-delta", b"delete-refs"]
)
_VALUES = (b"agent=", b"object-format=", b"session-id=")
_BRANCHES = "refs/heads/"
_BAD = frozenset(' ~^:?*[\\"')


class PushError(ValueError):
    """The push is malformed, or changes a ref that is not granted."""


@frozen
class RefChange(Record):
    """One line of a push: a ref that it creates, updates or deletes."""

    ref: str
    kind: str  # create, update or delete


@frozen
class PushGrant(Record):
    """The refs that may be pushed to one repository. Without names: branches, but not the default one."""

    updates: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    is_open: bool = False
    default: str = ""  # the default branch of the repository, in full

    def why_not(self, change: RefChange) -> str:
        """Return why a change is not granted, or ""."""
        if change.ref in (self.deletes if change.kind == "delete" else self.updates):
            return ""
        if change.kind == "delete":
            return f"deleting {change.ref} is not granted"
        if self.is_open and change.ref.startswith(_BRANCHES):
            if not self.default:
                return f"{change.ref} could be the default branch of the repository, which is not known"
            if change.ref != self.default:
                return ""
            return f"{change.ref} is the default branch of the repository, and only a grant that names it includes it"
        return f"pushing to {change.ref} is not granted"


def parse_push_grant(words: Iterable[str]) -> PushGrant:
    """Return the grant of the words after a URL: refs that may be created and updated, and `-REF` that may be deleted."""
    updates: list[str] = []
    deletes: list[str] = []
    for word in words:
        name = word.removeprefix("-")
        full = name if name.startswith("refs/") else _BRANCHES + name
        if not is_plain_ref(full):
            raise PushError(f"{word[:MAX_SHOWN]!r} is not the name of a ref")
        (deletes if word.startswith("-") else updates).append(full)
    return PushGrant(tuple(updates), tuple(deletes), not updates and not deletes)


def is_plain_ref(name: str) -> bool:
    """Return whether a text is a complete ref name that every program reads in the same way."""
    if not name.startswith("refs/") or not name.isprintable() or _BAD & {*name} or len(name) > 1000:
        return False
    if ".." in name or "@{" in name or name.count("/") < 2:
        return False
    return all(part and part[0] not in ".-" and not part.endswith((".", ".lock")) for part in name.split("/"))


class PushReader:
    """Reads the client's side of a push, and holds it back until all refs are known to be granted."""

    def __init__(self, grant: PushGrant) -> None:
        self._grant = grant
        self._held = bytearray()
        self._at = 0  # how much of it was read
        self._count = 0
        self._is_open = False  # all refs are granted

    @property
    def is_open(self) -> bool:
        """Return whether the list of refs has ended, and all of them are granted."""
        return self._is_open

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that may be passed on. Raise PushError for a ref that is not granted."""
        if self._is_open:
            return data
        self._held += data
        while not self._is_open:
            head = bytes(self._held[self._at : self._at + 4])
            if len(head) < 4:
                break
            length = _length(head)
            if length == 0:
                self._at += 4
                self._is_open = True
                break
            if self._at + length > MAX_BYTES:
                raise PushError("the list of refs of this push is too long")
            if len(self._held) < self._at + length:
                break
            self._read(bytes(self._held[self._at + 4 : self._at + length]))
            self._at += length
        if not self._is_open:
            if len(self._held) > MAX_BYTES + MAX_LINE:
                raise PushError("the list of refs of this push is too long")
            return b""
        passed, self._held = bytes(self._held), bytearray()
        return passed

    def end(self) -> bytes:
        """Return nothing, and raise PushError if the stream ended within the list of refs."""
        if not self._is_open and self._held:
            raise PushError("the push ended within its list of refs")
        return b""

    def _read(self, line: bytes) -> None:
        self._count += 1
        if self._count > MAX_COMMANDS:
            raise PushError(f"more than {MAX_COMMANDS} refs in one push")
        command, has_capabilities, capabilities = line.partition(b"\0")
        if has_capabilities:
            if self._count > 1:
                raise PushError("capabilities after the first ref of a push")
            _check_capabilities(capabilities)
        if why := self._grant.why_not(parse_change(command.removesuffix(b"\n"))):
            raise PushError(why)


def _length(head: bytes) -> int:
    if not _HEX.issuperset(head.lower()):
        raise PushError("the length of a packet is not a number")
    length = int(head, 16)
    # 1 to 3 have no meaning in a push, and 4 is an empty packet.
    if 0 < length < 5 or length > MAX_LINE:
        raise PushError(f"a packet of {length} bytes in the list of refs")
    return length


def _check_capabilities(text: bytes) -> None:
    for word in text.strip(b" \n").split(b" "):
        if word and word not in _CAPABILITIES and not word.startswith(_VALUES):
            shown = word[:MAX_SHOWN].decode("ascii", "replace")
            raise PushError(f"a push with {shown!r} is not granted: corral does not know what it makes the server do")


def parse_change(command: bytes) -> RefChange:
    """Return the change of one line `old new ref`. Raise PushError for anything else, such as a certificate."""
    old, _, rest = command.partition(b" ")
    new, _, name = rest.partition(b" ")
    shown = command[:MAX_SHOWN].decode("ascii", "replace")
    if len(old) not in _OID_LENGTHS or len(old) != len(new) or not _HEX.issuperset(old + new):
        raise PushError(f"{shown!r} is not a change of a ref")
    try:
        ref = name.decode("utf-8")
    except UnicodeDecodeError:
        ref = ""
    if not is_plain_ref(ref):
        raise PushError(f"{shown!r} does not name a ref")
    was_there, is_there = old.strip(b"0") != b"", new.strip(b"0") != b""
    if not was_there and not is_there:
        raise PushError(f"{shown!r} neither creates nor deletes a ref")
    return RefChange(ref, "delete" if not is_there else "update" if was_there else "create")
