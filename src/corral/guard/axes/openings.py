"""Finds the bounded openings that would make a refused effect pass. Pure but for `Machine`.

An effect without an opening is hard: privileges, credentials, planted files, the machine itself, text that cannot be shown, and a
command that both connects and runs something. A yes to an opening always works, so a program that ignores the proxy gets none.
"""

from __future__ import annotations

from corral._lib.records import Record, frozen
from corral.guard import broker_shapes
from corral.guard.analysis.command import PLAIN_SSH
from corral.guard.rules.loader import quiet_names
from corral.guard.rules.registries import registry_of
from corral.guard.shell.braces import HOLE
from corral.guard.shell.expansion import NUMBER_HOLE
from corral.model.call import Axis, Decision, Finding
from corral.model.grant import BROKER, NETWORK, REGISTRY, Grant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from corral.guard.analysis.command import Command
    from corral.guard.machine import Machine
    from corral.guard.shell.expansion import Word
    from corral.policy.config import SandboxConfig

IN_CALL = "in the call"
STANDING_RULE = "argv-standing-grant"
CONTAINER = "container"  # the group of names: container engines and clusters
MAY_ALWAYS_SEND = "none"  # `proxied` of a row: no option is needed to send something, such as standard input
WEB_PORTS = frozenset({80, 443})
_CODE = frozenset({"code", "code-stdin", "code-option", "code-loaded", "code-unproven", "run-written"})
_NETWORK = frozenset({"network", "install", "fetch", "fetch-missing"})
_UNPROVEN = frozenset({"name-unproven", "code-unproven"})
# Kinds of which nothing can take more than the grant says: the broker compares every request with it.
_USED_BY_OTHERS = frozenset({NETWORK, REGISTRY})
# Cloud providers answer every program there with the machine's credentials.
_METADATA = ("169.254.", "fd00:ec2:", "metadata.google.internal", "metadata.goog", "100.100.100.200", "instance-data")
_NOT_PLAIN = frozenset(" '\"$`\\|&;<>(){}*?!~#[]")  # what a [[grant]] does not take in its words
_RUNNERS = frozenset({"npx", "pnpx", "uvx", "bunx"})
_RUNNING_VERBS = (
    ("go", "run"),
    ("uv", "run"),
    ("uv", "tool", "run"),
    ("npm", "create"),
    ("npm", "init"),
    ("npm", "innit"),
    ("pnpm", "create"),
    ("yarn", "create"),
)


@frozen
class Opening(Record):
    """The openings of one effect, and how they are given."""

    grants: tuple[Grant, ...]
    family: str = ""  # the command that the user can allow for a time; "" if only once
    # Without grants and with postures: the command can reach nothing, so it needs no opening.
    unasked: tuple[str, ...] = ()  # the postures that give it without a question
    stands_for: str = ""  # the effect that is meant instead, if the command would reach nothing; without grants

    def decision(self, posture: str) -> Decision:
        """Return the decision of a posture."""
        return Decision.ALLOW if posture in self.unasked else Decision.ASK


def with_opening(found: Finding, opening: Opening | None, config: SandboxConfig) -> Finding:
    """Return a finding with its opening and the posture's decision on it, or unchanged if it has none."""
    if opening is None or found.decision == Decision.ASK:
        return found
    decision = opening.decision(config.posture)
    return found.replace(decision=decision, grants=opening.grants, family=opening.family)


def is_given(opening: Opening, config: SandboxConfig) -> bool:
    """Say whether this very call has all grants of an opening already."""
    given = {grant.opening for grant in config.grants}
    return all(grant.opening in given for grant in opening.grants)


def served_opening(key: str, command: Command, config: SandboxConfig, machine: Machine | None) -> Opening | None:
    """Return the opening of a command that needs more than the proxy, unless the policy opens the network as a whole."""
    if machine is None or config.containment.network == "on" or f"effects.{key}" in config.rules.closed:
        return None
    found = _special(command, machine)
    return found if found is not None and found.grants and not _runs_something(command) else None


def group_opening(group: str, command: Command, config: SandboxConfig, machine: Machine | None) -> Opening | None:
    """Return the opening of a command whose name the profile denies: only the broker serves some of these."""
    if machine is None or f"groups.{group}" in config.rules.closed or group != CONTAINER or _runs_something(command):
        return None
    found = _special(command, machine)
    return found if found is not None and found.grants else None


def opening_of(
    key: str, command: Command, words: Sequence[Word], config: SandboxConfig, machine: Machine | None
) -> Opening | None:
    """Return the openings that would let a command have an effect, or None if there are none."""
    if machine is None or not config.opens or f"effects.{key}" in config.rules.closed or _runs_something(command):
        return None
    special = _special(command, machine)
    if special is not None:
        is_known = special.grants or special.unasked or (special.stands_for and key == "network")
        return special if is_known else None
    if key == "network":
        return _by_address(command, words)
    return None


def _special(command: Command, machine: Machine) -> Opening | None:
    """Return the openings of a command that corral serves by more than the proxy. Without grants: it knows the command and opens nothing."""
    name = command.real or command.name.rpartition("/")[2]
    words = tuple(word.text for word in command.words[1:])
    if name == "git":
        from corral.guard.axes.git_openings import git_opening, lacks_repository  # noqa: PLC0415  most calls use no remote

        if lacks_repository(command, machine):
            return Opening((), stands_for="push-missing")
        return Opening(*git_opening(command, machine))
    if broker_shapes.is_brokered(name):
        return _brokered(name, words, command)
    return _registry(name, words, command)


def _brokered(name: str, words: tuple[str, ...], command: Command) -> Opening:
    """Return the opening of a command that the broker runs outside, if it has one of the broker's shapes."""
    match = broker_shapes.match_shape(name, words)
    if any(not word.proven for word in command.words) or not isinstance(match, broker_shapes.Match):
        return Opening(())
    is_stored = match.asks == "family"
    grant = Grant(BROKER, broker_shapes.granted_target(match, words), IN_CALL)
    # What reads standard input, such as `docker build -`, runs what the agent wrote.
    is_read = is_stored and not match.takes_stdin
    return Opening((grant,), family_of(command) if is_stored else "", ("open",) if is_read else ())


def other_forms(command: Command) -> str:
    """Return what to do instead of a command that the broker runs outside in other forms only, or ""."""
    name = command.real or command.name.rpartition("/")[2]
    if not broker_shapes.is_brokered(name) or any(not word.proven for word in command.words):
        return ""
    found = broker_shapes.match_shape(name, tuple(word.text for word in command.words[1:]))
    if isinstance(found, broker_shapes.Match):
        return ""
    instead = f" Use `{found.instead}`." if found.instead else ""
    return f"corral can ask the user about other forms of `{name}`, not about this one. {found.reason}{instead}"


def _registry(name: str, words: tuple[str, ...], command: Command) -> Opening | None:
    """Return the opening of a package manager that fetches from the registry that it is configured for."""
    found = registry_of(name, words)
    if found is None:
        return None
    if any(key == "network" and "://" not in word.text for key, word, _ in command.effects):
        return Opening(())  # it publishes, or logs in
    tool, is_pinned = found
    own = Grant(REGISTRY, tool, IN_CALL)
    named = [text for text in words if "://" in text]
    if not named and not any(HOLE in word for word in words):
        if _runs_package(name, command):
            return Opening((own,))
        return Opening((own,), family_of(command), ("balanced", "open") if is_pinned else ("open",))
    hosts = [_named_host(text) for text in named]
    # Another place to fetch from is the agent's choice, so it is asked about each time.
    return Opening(() if None in hosts or not hosts else (own, *(host for host in hosts if host is not None)))


def _runs_package(name: str, command: Command) -> bool:
    """Say whether a package manager runs what it fetches at once, as `uvx NAME` and `go run ADDRESS@VERSION` do."""
    verbs = tuple(verb.text for verb in command.verbs)
    return name in _RUNNERS or any((name, *verbs)[: len(words)] == words for words in _RUNNING_VERBS)


def _named_host(text: str) -> Grant | None:
    """Return the host of an address in an argument such as `--index-url=https://index.example/`, or None."""
    from corral._lib.network.network_grants import format_destination  # noqa: PLC0415  few commands name one
    from corral.guard.analysis.addresses import destination  # noqa: PLC0415

    scheme, _, rest = text.partition("://")
    if scheme.rpartition("=")[2].rpartition("+")[2].rpartition(" ")[2] != "https" or HOLE in text:
        return None
    try:
        place = destination(f"https://{rest}")
    except ValueError:
        return None
    if place is None or place[1] is None or place[0].startswith(_METADATA):
        return None
    return Grant(NETWORK, format_destination(place[0], place[1]), IN_CALL)


def _runs_something(command: Command) -> bool:
    """Say whether a command both connects and runs code: the remote end could then act inside."""
    return any(key in _CODE and detail != PLAIN_SSH for key, _, detail in command.effects)


def _by_address(command: Command, words: Sequence[Word]) -> Opening | None:
    """Return the openings of a program that honours the proxy and whose addresses are in the call."""
    from corral._lib.network.network_grants import format_destination  # noqa: PLC0415  most calls use no network
    from corral.guard.analysis.addresses import destination, network_effect  # noqa: PLC0415

    row = command.row
    if row is None or not row.get("proxied") or words[0].text.startswith("tcp://"):
        from corral.guard.axes.direct_openings import direct_grants  # noqa: PLC0415  few commands connect themselves

        direct = direct_grants(command, words)
        return Opening(direct) if direct and not any(grant.target.startswith(_METADATA) for grant in direct) else None
    grants = []
    is_public = True
    for word in words:
        if any(c in word.text for c in "{}[]*"):
            return None  # curl expands braces and brackets to several addresses
        if network_effect(word.text) == "network-local":
            continue
        try:
            place = destination(word.text)
        except ValueError:
            return None
        if place is None:
            return None
        host, port = place
        scheme = word.text.partition("://")[0].lower() if "://" in word.text else "http"
        if scheme not in ("http", "https") or host.startswith(_METADATA):
            return None
        port = port or 80
        is_public = is_public and scheme == "https" and _is_plain_address(word.text, host) and port in WEB_PORTS
        grants.append(Grant(NETWORK, format_destination(host, port), IN_CALL))
    if not grants:
        return None
    is_plain = is_public and _is_own_program(command) and _only_downloads(command, row)
    return Opening(tuple(grants), family_of(command) if is_plain else "", ("open",) if is_plain else ())


def _is_plain_address(text: str, host: str) -> bool:
    """Say whether an address is a public name that looks like what it is: no user name before it, and ASCII letters only."""
    from corral._lib.network.network_grants import is_address  # noqa: PLC0415  as above

    authority = text.partition("://")[2].partition("/")[0]
    return "." in host and not is_address(host) and "@" not in authority and text.isascii() and "xn--" not in host


def _is_own_program(command: Command) -> bool:
    """Say whether a command's name is found in PATH: a program that is called by its path can be any, and the agent's own."""
    return "/" not in command.name and all(key != "runs" for key, _, _ in command.effects)


def _only_downloads(command: Command, row: dict[str, object]) -> bool:
    """Say whether every option is one that sends nothing. An unknown option may send a file."""
    harmless = set(str(row["proxied"]).split())
    if harmless == {MAY_ALWAYS_SEND}:
        return False
    for word in command.words[1:]:
        text = word.text
        # A part that is only known at run time may be a file's content, and `-H @file` sends a file.
        if not word.proven or HOLE in text or NUMBER_HOLE in text or text.rpartition("=")[2][:1] == "@":
            return False
        if text[:1] != "-" or text == "-":
            continue
        name = text.partition("=")[0]
        is_cluster = text[1:2] != "-" and all(f"-{letter}" in harmless for letter in text[1:])
        if not (name in harmless or is_cluster):
            return False
    return True


def family_of(command: Command) -> str:
    """Return a command's name with its first subcommand: what a stored yes is for."""
    return " ".join((command.real or command.name, *(verb.text for verb in command.verbs[:1])))


def other_commands(
    commands: Iterable[Command], grants: Sequence[Grant], config: SandboxConfig, machine: Machine
) -> tuple[str, ...]:
    """Return the commands of a call that could use its grants besides those that need them."""
    if not any(grant.kind in _USED_BY_OTHERS for grant in grants):
        return ()
    quiet = quiet_names()
    others = [
        " ".join(word.text for word in command.words)
        for command in commands
        if _changes_names(command)
        or any(key in _UNPROVEN for key, _, _ in command.effects)
        or (command.name and not _has_own_opening(command, grants, config, machine) and not _is_quiet(command, quiet))
    ]
    return tuple(dict.fromkeys(text.replace("\0", "…").replace("\1", "…")[:80] for text in others))


def standing_openings(commands: Sequence[Command], config: SandboxConfig) -> list[Finding]:
    """Return what the user's policy opens for a command each time, also where the guard sees no need for it.

    There is nothing if another command of the call could use it: the call runs without the opening then, as before.
    """
    known = set(config.containment.destinations)
    quiet = quiet_commands(commands)
    found = []
    for entry in config.policy_grants:
        hosts = [target for kind, target in entry.openings if kind == NETWORK and target not in known]
        if not entry.always or entry.project not in ("", config.project_root) or not hosts:
            continue
        own = [command for command in commands if _begins_with(command, entry.words)]
        rest = [command for command in commands if command.name and command not in own]
        if not own or any(map(_changes_names, commands)) or any(command not in quiet for command in rest):
            continue
        grants = tuple(Grant(NETWORK, host, entry.source) for host in hosts)
        reason = f"The policy opens {', '.join(hosts)} for {entry.family} each time."
        found.append(Finding(Axis.ARGV, STANDING_RULE, Decision.ASK, reason, grants=grants, family=entry.family))
        known.update(hosts)
    return found


def quiet_commands(commands: Sequence[Command]) -> list[Command]:
    """Return the commands that can use no opening, unless one of them changes what a name means."""
    quiet = quiet_names()
    return [] if any(map(_changes_names, commands)) else [each for each in commands if _is_quiet(each, quiet)]


def plain_words(command: Command) -> tuple[str, ...]:
    """Return the first words of a command as a [[grant]] can name them; none if it begins with a path."""
    found: list[str] = []
    for word in command.words:
        if not word.proven or not word.text.isprintable() or not word.text or not _NOT_PLAIN.isdisjoint(word.text):
            break
        found.append(word.text)
    is_name = found and "/" not in found[0] and "=" not in found[0] and found[0][0] != "-"
    return tuple(found) if is_name else ()


def _begins_with(command: Command, words: tuple[str, ...]) -> bool:
    first = command.words[: len(words)]
    return tuple(word.text for word in first) == words and all(word.proven for word in first)


def _changes_names(command: Command) -> bool:
    """Say whether a command brings a directory into PATH, so that a name in the call can be any program."""
    return any(key == "shadow" for key, _, _ in command.effects)


def _has_own_opening(command: Command, grants: Sequence[Grant], config: SandboxConfig, machine: Machine) -> bool:
    """Say whether a command connects to the addresses in its words alone, or needs the grants itself.

    A build fetches packages and runs the project's code, so it is another command unless its own registry is granted.
    """
    if _runs_something(command):
        return False
    # `python -m pip` is judged as a command of its own, and as pip.
    found = registry_of(command.real or command.name, [word.text for word in command.words[1:]])
    if found is not None:
        return any((grant.kind, grant.target) == (REGISTRY, found[0]) for grant in grants)
    for key in {key for key, _, _ in command.effects if key in _NETWORK}:
        words = [word for each, word, _ in command.effects if each == key]
        opening = opening_of(key, command, words, config, machine)
        if opening is not None and opening.grants:
            return True
    return False


def _is_quiet(command: Command, quiet: frozenset[str]) -> bool:
    """Say whether a command can use no opening: it runs no code of its own and opens no connection."""
    if "/" in command.name or any(key == "runs" for key, _, _ in command.effects):
        return False  # a program of the project
    return command.name in quiet and not _runs_something(command)
