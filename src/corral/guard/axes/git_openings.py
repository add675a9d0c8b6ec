"""Finds the remote, the direction and the refs that a git command needs, as a grant of git's transport. Pure but for `Machine`."""

from __future__ import annotations

from corral.guard.path_zones import inside
from corral.guard.shell.braces import HOLE
from corral.model.grant import TRANSPORT, Grant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.guard.analysis.command import Command
    from corral.guard.git_remotes import Remotes
    from corral.guard.machine import Machine

    Found = tuple[tuple[Grant, ...], str, tuple[str, ...]]  # grants, family, postures that give them unasked

FETCH, PUSH = "fetch", "push"
CONFIG = ".git/config"
IN_CALL = "in the call"
_NOTHING: Found = ((), "", ())
_UNASKED = ("balanced", "open")
_FETCHING = ("fetch", "pull", "ls-remote")
_ASKING_REMOTES = (["update"], ["prune"], ["show"], ["set-head"])
_MAIN = ("main", "master", "trunk")
_REF_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./+@=#,")
_PLAIN_PUSH = frozenset({
    "-u", "--set-upstream", "-q", "--quiet", "-v", "--verbose", "--progress", "--no-progress", "--porcelain", "-4", "-6", "--thin", "--no-thin",
    "--atomic", "--no-verify", "--verify", "-n", "--dry-run", "--no-tags", "--follow-tags",
})  # fmt: skip
# They rewrite or delete on the other side: asked about each time.
_STRONG_PUSH = frozenset(
    {"-f", "--force", "--force-with-lease", "--force-if-includes", "-d", "--delete", "--tags", "--prune"}
)
_PLAIN_FETCH = frozenset({
    "-q", "--quiet", "-v", "--verbose", "--progress", "--no-progress", "-p", "--prune", "-P", "--prune-tags", "-t", "--tags", "-n",
    "--no-tags", "-a", "--append", "-f", "--force", "-k", "--keep", "-4", "-6", "--all", "--unshallow", "--dry-run", "--atomic", "--ff",
    "--ff-only", "--no-ff", "--rebase", "-r", "--no-rebase", "--autostash", "--no-autostash", "--stat", "--no-stat", "--no-edit",
    "--recurse-submodules", "--no-recurse-submodules", "--heads", "--refs", "--symref", "--exit-code", "-h", "--bare", "--single-branch",
    "--no-single-branch", "--squash", "--no-commit", "--commit", "--signoff", "--get-url", "--update-shallow",
})  # fmt: skip
_FETCH_VALUES = frozenset(
    {
        "--depth",
        "--deepen",
        "--shallow-since",
        "--shallow-exclude",
        "-j",
        "--jobs",
        "-b",
        "--branch",
        "-o",
        "--origin",
        "--filter",
        "-s",
        "--strategy",
        "-X",
    }
)


def git_opening(command: Command, machine: Machine) -> Found:
    """Return the transport that a git command needs. Without grants: none is given for this command."""
    if not command.verbs or command.cwds is None or len(command.cwds) != 1 or not _is_plain_call(command):
        return _NOTHING
    verb = command.verbs[0].text
    words = [word.text for word in command.words[command.words.index(command.verbs[-1]) + 1 :]]
    if any(HOLE in word for word in words):
        return _NOTHING
    if verb == "clone":
        return _clone(words)
    if verb in _FETCHING and not machine.is_repository(command.cwds[0]) and not any(map(kind_of_address, words)):
        return (), "", _UNASKED  # without a repository git has no address to connect to
    remotes = machine.remotes(command.cwds[0])
    if remotes is None:
        return _NOTHING
    if verb == "push":
        return _push(words, remotes)
    if verb in _FETCHING:
        return _fetch(verb, words, remotes)
    if verb == "remote" and [each.text for each in command.verbs[1:]] in _ASKING_REMOTES:
        return _fetch("fetch", words, remotes)
    return _NOTHING


def lacks_repository(command: Command, machine: Machine) -> bool:
    """Say whether a push has no repository to push from: git then ends before it connects, and no opening is needed."""
    verbs = [verb.text for verb in command.verbs]
    if verbs != ["push"] or not command.cwds or not _is_plain_call(command):
        return False
    options = [word.text.partition("=")[0] for word in command.words[2:] if word.text[:1] == "-"]
    if not all(word.proven for word in command.words) or not _PLAIN_PUSH.union(_STRONG_PUSH).issuperset(options):
        return False
    # Of a directory outside the project, corral only knows that it is missing.
    is_known = all(inside(cwd, machine.root) or not machine.exists(cwd, "/") for cwd in command.cwds)
    return is_known and not any(map(machine.is_repository, command.cwds))


def _is_plain_call(command: Command) -> bool:
    """Say whether git is called without options of its own: `-c` could change the address, `-C` the repository."""
    return len(command.words) > 1 and command.words[1] is command.verbs[0]


def kind_of_address(url: str) -> str:
    """Return how git reaches an address: ssh, https, path, or nothing where corral does not serve it."""
    if not url or url[0] == "-" or any(ord(c) <= 32 or ord(c) == 127 for c in url) or "::" in url or not url.isascii():
        return ""
    scheme, found, rest = url.partition("://")
    if found:
        if not rest or rest[0] == "-":
            return ""
        return {"ssh": "ssh", "git+ssh": "ssh", "https": "https", "file": "path"}.get(scheme.lower(), "")
    if url.startswith("/"):
        return "path"
    head, colon, tail = url.partition(":")
    # host:path, as scp writes it. A colon after a slash belongs to a path.
    return "ssh" if colon and tail and "/" not in head and head and head[0] != "-" else ""


def _grants(direction: str, url: str, source: str, *refs: str, certain: bool = True) -> tuple[Grant, ...]:
    if not kind_of_address(url):
        return ()
    return (Grant(TRANSPORT, " ".join((direction, url, *refs)), source, certain),)


def _clone(words: list[str]) -> Found:
    operands = _operands(words)
    if not operands or len(operands) > 2:
        return _NOTHING
    grants = _grants(FETCH, operands[0], IN_CALL)
    # What it clones is named by the call, so the user is asked even where a fetch is not.
    return grants, "git clone" if grants else "", ()


def _operands(words: list[str]) -> list[str] | None:
    """Return the words of a fetching command that are not options, or None for an option that corral does not know."""
    found: list[str] = []
    takes_value = False
    for word in words:
        if takes_value:
            takes_value = False
        elif word[:1] != "-":
            found.append(word)
        elif word in _FETCH_VALUES:
            takes_value = True
        elif word.partition("=")[0] not in _PLAIN_FETCH | _FETCH_VALUES:
            return None
    return found


def _fetch(verb: str, words: list[str], remotes: Remotes) -> Found:
    operands = _operands(words)
    if operands is None:
        return _NOTHING
    name = operands[0] if operands else remotes.fetched()
    names = list(remotes.urls) if verb == "fetch" and "--all" in words else [name]
    grants: tuple[Grant, ...] = ()
    for each in names:
        url, source = remotes.urls.get(each, ""), f"{CONFIG}, remote {each}"
        if not url and kind_of_address(each):
            url, source = each, IN_CALL
        made = _grants(FETCH, url, source, certain=remotes.is_certain_for(each) or source == IN_CALL)
        if not made:
            return _NOTHING
        grants += made
    is_known = all(grant.certain and grant.source != IN_CALL for grant in grants)
    return grants, f"git {verb}", _UNASKED if is_known else ()


def _push(words: list[str], remotes: Remotes) -> Found:
    operands = [word for word in words if word[:1] != "-"]
    options = [word.partition("=")[0] for word in words if word[:1] == "-"]
    if not all(option in _PLAIN_PUSH or option in _STRONG_PUSH for option in options):
        return _NOTHING
    name = operands[0] if operands else remotes.pushed()
    url = remotes.push_urls.get(name, "")
    source = f"{CONFIG}, remote {name}"
    if not url:
        if not kind_of_address(name):
            return _NOTHING
        url, source = name, IN_CALL
    is_strong = any(option in _STRONG_PUSH for option in options)
    is_forced = any(spec.startswith("+") for spec in operands[1:])
    if is_strong and (not operands[1:] or "--tags" in options or "--prune" in options):
        return _NOTHING  # the refs are not in the call
    refs = _pushed_refs(operands[1:], name, remotes, deletes="-d" in options or "--delete" in options)
    if not refs:
        return _NOTHING
    grants = _grants(PUSH, url, source, *refs, certain=remotes.is_certain_for(name))
    default = remotes.defaults.get(name, "")
    # A command can change what the repository says about the default branch, so the usual names count too.
    is_default = any(ref.rpartition("refs/heads/")[2] in (default, *_MAIN) for ref in refs)
    is_branch = all(ref.startswith("refs/heads/") for ref in refs)
    can_be_stored = grants and is_branch and not (is_strong or is_forced or is_default) and source != IN_CALL
    return grants, "git push" if can_be_stored else "", ()


def _pushed_refs(specs: list[str], remote: str, remotes: Remotes, *, deletes: bool) -> list[str]:
    """Return the refs that a push changes on the other side, `-` before a deleted one; none if they cannot be known."""
    if not specs:
        # As push.default: the branch of the same name, or the one it follows.
        merged = remotes.tracked.get(remotes.branch, ("", ""))
        if remotes.push_mode == "upstream" and merged[0] == remote and merged[1]:
            return [merged[1]]
        plain = remotes.push_mode in ("", "simple", "current") and remotes.branch
        return [f"refs/heads/{remotes.branch}"] if plain else []
    found = []
    for spec in specs:
        is_forced = spec.startswith("+")
        source, colon, target = spec.removeprefix("+").partition(":")
        if deletes or (colon and not source):
            name, sign = (source if deletes else target), "-"
        else:
            name, sign = (target if colon else source), "+" if is_forced else ""
        if name == "HEAD" and not colon:
            name = remotes.branch
        if not name or not _REF_LETTERS.issuperset(name) or name.startswith("-") or ".." in name:
            return []
        if not name.startswith("refs/"):
            # git looks whether a tag has the name of a source; only a plain branch name is certain.
            name = f"refs/heads/{name}"
        found.append(("-" if sign == "-" else "") + name)
    return found
