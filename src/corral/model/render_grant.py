"""Renders grants as text: what a call needs, what a yes means, and what the user can type after a refusal. Pure."""

from __future__ import annotations

from corral._lib.network.network_grants import is_address, parse_authority
from corral._lib.quoting import shell_join
from corral._lib.terminal import printable
from corral.model.call import Axis, Decision
from corral.model.grant import (
    ANY_COMMAND,
    BROKER,
    CREATE,
    LIST,
    LIST_ALL,
    LOCAL,
    NETWORK,
    PUBLISH,
    READ,
    REGISTRY,
    TRANSPORT,
    WRITE,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from corral.model.call import Call, Finding, Verdict
    from corral.model.grant import Grant

# What a yes means, by kind. The sentence follows "With that".
MEANING = {
    NETWORK: "it can send anything in this project there.",
    REGISTRY: "the packages it names are downloaded, and their code runs inside.",
    READ: "it can read this and everything below it, and what the call prints reaches the agent.",
    WRITE: "it can change and delete everything below it.",
    CREATE: "it can write this new file, and nothing beside it.",
    LIST: "it can see names, sizes and dates there, and no contents; what the call prints reaches the agent.",
    LOCAL: "it can talk to that service as any program of yours can.",
    PUBLISH: "every user of this machine can reach that port.",
    "push": "it can send anything in this project there.",
    "fetch": "it can read what you can read there.",
}
_ACTIONS = frozenset({READ, WRITE, CREATE, LIST, TRANSPORT, BROKER})  # their texts begin with a verb
OWN_NETWORK = "This is an address of your own network."
KEEP_WORKING = (
    "Do not look for another way. Continue with other work; run this exact command again when the user says so."
)
DEFAULT_BRANCHES = frozenset({"main", "master", "trunk", "develop", "default", "release", "production"})
_LASTING_SHAPES = frozenset({"read", "api-get", "build"})  # of the broker: they change nothing of the user's outside
# Effects without an opening that the user may well want, and can have by typing the command in a terminal of their own.
_BY_HAND = ("-install", "-system", "-privilege", "-process", "-remote")
# Programs whose use of the network the user may well want in their own terminal. Beside others, another program could use what they fetch.
_BY_HAND_ALONE = frozenset(
    {"git", "gh", "glab", "ssh", "scp", "sftp", "rsync", "npm", "pnpm", "yarn", "cargo", "twine", "ping", "dig", "host", "nslookup"}
)  # fmt: skip
_PRINTS_CREDENTIALS = frozenset({"auth", "login", "secret", "token", "variable", "whoami"})
_WORKTREE = "git worktree add ", "path-write-outside"  # a directory beside the project, and a branch in its repository
_SHELL_SIGNS = frozenset(";|&<>$`\\(){}*?[]#!")
_SYSTEM_PACKAGES = frozenset({"apt", "apt-get", "dnf", "yum", "apk", "pacman", "zypper", "snap"})
BY_HAND = "No question can allow it. The user can run it: {}"
MAX_BY_HAND = 300  # characters; a longer command is not one to type


def grant_text(grant: Grant) -> str:
    """Return what a grant opens, in one line."""
    target = printable(grant.target)
    first, _, rest = target.partition(" ")
    if grant.kind == TRANSPORT:
        url, _, refs = rest.partition(" ")
        where = f"{'push to' if first == 'push' else 'fetch from'} {url}"
        if not refs and first == "push":
            refs = "any branch but the default one"
        return f"{where} ({refs})" if refs else where
    if grant.kind == BROKER:
        program, _, shape = first.partition("/")
        return (
            f"run a command on {shape} by ssh" if program == "ssh" else f"run {program} outside the sandbox ({shape})"
        )
    return {
        REGISTRY: f"the package index that {target} is configured for",
        READ: f"read {target}",
        WRITE: f"write {target}",
        CREATE: f"create the file {target}",
        LIST: f"list {target.removesuffix(LIST_ALL)}{' and all below it' * target.endswith(LIST_ALL)}",
        LOCAL: f"port {target} on this machine's loopback",
        PUBLISH: f"port {target} of the sandbox on this machine's loopback",
    }.get(grant.kind, target)


def needs_text(grants: Iterable[Grant]) -> str:
    """Return all grants in one phrase: `a.example:443 and b.example:443`."""
    return _joined([grant_text(grant) for grant in grants])


def needs_sentence(grants: Iterable[Grant]) -> str:
    """Return all grants as they follow "it needs": `a.example:443 and to read /srv/data`."""
    return _joined([f"to {grant_text(each)}" if each.kind in _ACTIONS else grant_text(each) for each in grants])


def _joined(texts: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def meanings(grants: Iterable[Grant]) -> list[str]:
    """Return what a yes to the grants means, each sentence once."""
    found = []
    for grant in grants:
        if grant.kind == BROKER:
            program, _, shape = printable(grant.target).partition(" ")[0].partition("/")
            name = f"ssh {shape}" if program == "ssh" else program
            found.append(f"{name} runs outside, as you, with these very arguments.")
        else:
            found.append(MEANING[grant.target.partition(" ")[0] if grant.kind == TRANSPORT else grant.kind])
        if grant.kind == NETWORK and is_own_network(grant.target):
            found.append(OWN_NETWORK)
    return list(dict.fromkeys(found))


def is_own_network(destination: str) -> bool:
    """Return whether a destination is an address of this machine or of the user's own network, as far as its text says."""
    try:
        host, _ = parse_authority(destination)
    except ValueError:
        return False
    if not is_address(host):
        return "." not in host or host.endswith((".localhost", ".local", ".internal", ".lan", ".home.arpa"))
    from ipaddress import ip_address  # noqa: PLC0415  most destinations are names

    try:
        return not ip_address(host).is_global
    except ValueError:
        return True


def required_word(grants: Iterable[Grant]) -> str:
    """Return the word that the user types instead of a letter, for what cannot be taken back; "" if a letter is enough."""
    for grant in grants:
        if grant.kind in (WRITE, CREATE):
            return "write"
        words = grant.target.split()
        if grant.kind == TRANSPORT and words[:1] == ["push"] and any(map(_is_delicate_ref, words[2:])):
            return "push"
        if grant.kind == BROKER:
            program, _, shape = words[0].partition("/")
            if program in ("ssh", "sign"):
                return program
            if shape not in _LASTING_SHAPES:
                return shape.rpartition("-")[2] or "run"
    return ""


def _is_delicate_ref(ref: str) -> bool:
    """Return whether a ref is a default branch, a tag, a deletion or a forced update."""
    return not ref.startswith("refs/heads/") or ref.removeprefix("refs/heads/") in DEFAULT_BRANCHES


def scope_text(family: str, grants: Iterable[Grant]) -> str:
    """Return what "this destination for this command" covers, for the list of answers."""
    kinds = {grant.kind for grant in grants}
    where = "to this destination" if kinds <= {NETWORK, REGISTRY, TRANSPORT} else "with this"
    if kinds == {READ}:
        where = "that reads there"
    if family == ANY_COMMAND:
        return f"{ANY_COMMAND} {where}"
    return f"any `{printable(family)}` {where}"


def allow_line(id_: str) -> str:
    """Return the line that tells the user how to answer a refusal."""
    return f"The user can allow it: corral allow {id_}"


def refusal_text(verdict: Verdict, id_: str) -> str:
    """Return the refusal of a call whose openings nobody has allowed yet: what it needs, and what user and agent can do."""
    asked = [finding for finding in verdict.findings if finding.decision is Decision.ASK and finding.grants]
    names = [finding.family if finding.family != ANY_COMMAND else "" for finding in asked]
    families = list(dict.fromkeys(name or "this command" for name in names))
    rules = "".join(f" [{printable(rule)}]" for rule in dict.fromkeys(finding.rule for finding in asked))
    verb = "needs" if len(families) == 1 else "need"
    needs = f"{printable(' and '.join(families))} {verb} {needs_sentence(verdict.grants)}"
    lines = [f"not run: {needs}, and nobody has allowed that yet.{rules}"]
    return "\n".join([*lines, *([allow_line(id_)] if id_ else []), KEEP_WORKING])


def declined_text(answered_at: float, now: float, *, never: bool) -> str:
    """Return the refusal after the user's no, which is not asked about again for some time."""
    if never:
        return "not run: the user said never to this in this project. Do something else."
    minutes = int((now - answered_at) // 60)
    ago = f"{minutes} minute{'s' * (minutes != 1)} ago" if minutes > 0 else "just now"
    return f"not run: the user said no to this {ago}. Do something else."


def by_hand(call: Call, verdict: Verdict) -> str:
    """Return the command that the user can run in a terminal of their own, or "" if corral does not suggest it."""
    denied = [finding for finding in verdict.findings if finding.decision is Decision.DENY]
    if not denied or not verdict.complete:
        return ""
    words = [call.argv] if isinstance(call.argv, str) else [str(word) for word in call.argv]
    text = " ".join(words) if call.shell else shell_join(words)
    if not all(_is_usual(finding, text) for finding in denied):
        return ""
    if not text.isascii() or not text.isprintable() or len(text) > MAX_BY_HAND:
        return ""
    first = text.partition(" ")[0]
    return f"sudo {text}" if first in _SYSTEM_PACKAGES and not any(sign in text for sign in ";|&") else text


def _is_usual(denied: Finding, text: str) -> bool:
    """Return whether a refusal is of a kind that users run themselves."""
    if denied.axis is Axis.NAME or denied.rule.endswith(_BY_HAND):
        return True
    parts = [part.split() for part in text.split("&&")]
    if not all(parts) or not all(_SHELL_SIGNS.isdisjoint(word) for part in parts for word in part):
        return False
    begins, rule = _WORKTREE
    is_everyday = all(part[0] in _BY_HAND_ALONE and _PRINTS_CREDENTIALS.isdisjoint(part) for part in parts)
    return is_everyday and (denied.rule.endswith("-network") or (denied.rule == rule and text.startswith(begins)))
