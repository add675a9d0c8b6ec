"""Defines `Grant`: one bounded opening of the sandbox, by kind and target."""

from __future__ import annotations

from corral._lib.records import Record, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NETWORK = "network"  # host:port, never a pattern
REGISTRY = "registry"  # the id of a package manager; corral asks the tool for its hosts before the call runs
READ = "read"  # an absolute real path; a directory means everything below it
WRITE = "write"  # likewise
CREATE = "create"  # the path of a new file, which corral makes
LIST = "list"  # a directory, of which the call sees names, sizes and dates; with LIST_ALL at the end, also of those below it
LIST_ALL = "/**"
LOCAL = "local"  # a port: inside, 127.0.0.1:PORT is the host's
PUBLISH = "publish"  # a port: on the host, 127.0.0.1:PORT is the sandbox's
TRANSPORT = "transport"  # "fetch URL", or "push URL REF ..."
BROKER = "broker"  # program/shape, of the table of commands that run outside for the sandbox; of one command, with the hash of its words
ANY_COMMAND = "any command"  # the family of a path, which several commands may use
POLICY = "policy"  # the user's policy file
POSTURE = "posture"
ONCE = "once"  # the user, for this run
PROJECT = "project"  # the user, for this call in this project
FAMILY = "family"  # the user, for this destination and this kind of command
HOST = "host"  # the user, in the prompt of the agent host
CLIENT = "client"  # the user, in the prompt of an MCP client
PROGRAM = "program"  # `on_ask` of the program that uses the library
GIVER_TEXTS = {
    POLICY: "allowed by your policy",
    POSTURE: "allowed by the posture",
    ONCE: "allowed by you, once",
    PROJECT: "allowed by you, for this call in this project",
    FAMILY: "allowed by you, for this kind of command in this project",
    HOST: "allowed by you, in the host's prompt",
    CLIENT: "allowed by you, in the MCP client's prompt",
    PROGRAM: "allowed by the program that uses corral",
}
GRANT_KINDS = (NETWORK, REGISTRY, READ, WRITE, CREATE, LIST, LOCAL, PUBLISH, TRANSPORT, BROKER)


@frozen
class Grant(Record):
    """One opening, for the time of one call."""

    kind: str
    target: str
    source: str = ""  # where corral found the target, for the user: "in the call", ".git/config, remote origin"
    certain: bool = True  # False: a command could have written the source, so the user can only say yes once
    by: str = ""  # who gave it, in a result: a key of GIVER_TEXTS

    @property
    def opening(self) -> tuple[str, str]:
        """Kind and target: what the grant opens, wherever it was found."""
        return self.kind, self.target

    def to_dict(self) -> dict[str, object]:
        """Return the grant as JSON-ready data. `by` is there only if it was given."""
        made = self.as_dict()
        if not self.by:
            del made["by"]
        return made

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Grant:
        """Rebuild a grant from `to_dict`. Raise ValueError for anything else."""
        kind, target, source, certain = (data.get(name) for name in ("kind", "target", "source", "certain"))
        if kind not in GRANT_KINDS or not isinstance(target, str) or not isinstance(source, str):
            raise ValueError(f"{dict(data)!r} is not a grant")
        by = data.get("by", "")
        return cls(str(kind), target, source, certain is True, by if isinstance(by, str) and by in GIVER_TEXTS else "")


@frozen
class Yes(Record):
    """A yes of `on_ask` that says who gave it. A plain True is one of the program itself."""

    by: str


def unique_grants(grants: Iterable[Grant]) -> tuple[Grant, ...]:
    """Return each opening once, in the order of first appearance. An opening that is uncertain anywhere is uncertain."""
    found: dict[tuple[str, str], Grant] = {}
    for grant in grants:
        known = found.get(grant.opening)
        if known is None or (known.certain and not grant.certain):
            found[grant.opening] = grant
    return tuple(found.values())
