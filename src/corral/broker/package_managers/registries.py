"""Resolves a package manager to the hosts that it is configured for, as network grants.

The tool's own answer, the user's configuration and the tool's default are certain. A host that only a file of the project names is not:
commands can write that file. No hook imports this module; hooks read `package_managers/lookup.py`.
"""

from __future__ import annotations

from corral._lib.records import Record, frozen
from corral.broker.package_managers import answers, probe
from corral.broker.package_managers.addresses import addresses_in, parse_address
from corral.broker.package_managers.facts import Fact, read_fact, write_fact
from corral.broker.package_managers.files import FoundAddress, project_addresses, user_addresses
from corral.broker.package_managers.lookup import Lookup, is_named, parse_pairs
from corral.model.grant import NETWORK, Grant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from corral.policy.config import SandboxConfig


@frozen
class TimeLimits(Record):
    """Seconds that each way to learn a registry may take."""

    ask: float = 2.0
    observe: float = 20.0
    page: float = 5.0


DEFAULT_LIMITS = TimeLimits()


def resolve(
    tool: str, program: str, environ: Mapping[str, str], *, config: SandboxConfig, limits: TimeLimits = DEFAULT_LIMITS
) -> tuple[Grant, ...]:
    """Return the hosts that a tool needs: those of its configuration, then those that only files of the project name.

    `program` is the path that the command would run, or empty. This may start the tool, so no hook calls it. Empty if nothing
    is known; the proxy then asks when the tool connects.
    """
    lookup = Lookup.of(tool, program, environ, config)
    if lookup is None:
        return ()
    fact = _fact(lookup, environ, limits)
    certain = lookup.certain_grants((*fact.found, *(fact.second or ())))
    known = {grant.target for grant in certain}
    others: dict[str, str] = {}
    for each in project_addresses(lookup.row, config.project_root):
        others.setdefault(each.address.destination, each.source)
    uncertain = [Grant(NETWORK, target, others[target], certain=False) for target in others if target not in known]
    return (*certain, *uncertain)


def registry_variables(tool: str, environ: Mapping[str, str], *, config: SandboxConfig) -> dict[str, str]:
    """Return variables that name the registry of the user's configuration to the tool. A password in it is left out.

    `resolve` has learned what the tool itself says; a registry that is built into the tool needs no variable.
    """
    lookup = Lookup.of(tool, "", environ, config)
    if lookup is None or not lookup.is_certain:
        return {}
    row = lookup.row
    found = [*_variable_addresses(lookup), *user_addresses(row, lookup.environ)]
    fact = read_fact(lookup.key, environ, config.project_root)
    own = [pair for pair in (fact.found if fact else ()) if pair[1] in {" ".join(words) for words in row["asks"]}]
    named = [each.address for each in found if each.replaces] or [address for address, _ in parse_pairs(own)]
    variables = {}
    if named and row["keys_in"]:
        variables = dict.fromkeys(row["gives"] or row["keys_in"][:1], named[0].text)
        if named[0].scheme == "http" and lookup.tool == "pip":
            variables["PIP_TRUSTED_HOST"] = named[0].destination  # otherwise pip does not use an index without TLS
    added = [each.address.text for each in found if not each.replaces]
    if added and lookup.tool == "pip":
        variables[row["more_in"][0]] = " ".join(dict.fromkeys(added))
    return variables


def second_hosts(
    tool: str,
    program: str,
    environ: Mapping[str, str],
    granted: Iterable[Grant],
    *,
    config: SandboxConfig,
    limits: TimeLimits = DEFAULT_LIMITS,
) -> tuple[Grant, ...]:
    """Return the further hosts that a tool's registries serve files from. Only after the user's yes: this connects to them.

    Reads one page of each configured registry that is among the grants, and keeps the answer with the facts.
    """
    lookup = Lookup.of(tool, program, environ, config)
    if lookup is None or not lookup.row["index"]:
        return ()
    fact = _fact(lookup, environ, limits)
    if fact.second is None:
        from corral.broker.package_managers.index import second_addresses  # noqa: PLC0415  loads ssl; most facts are complete

        opened = {grant.target for grant in granted if grant.kind == NETWORK and grant.certain}
        kind, page = lookup.row["index"], lookup.row["page"]
        read = {
            index: second_addresses(index, kind, page, seconds=limits.page)
            for index, _ in parse_pairs(fact.found)
            if index.destination in opened
        }
        pairs = [(other.text, f"named by the index {index.host}") for index in read for other in read[index] or ()]
        fact = fact.replace(second=tuple(pairs))
        if len(read) == len(fact.found) and None not in read.values():
            write_fact(lookup.key, fact, environ, config.project_root)
    known = {address.destination for address, _ in parse_pairs(fact.found)}
    return tuple(grant for grant in lookup.certain_grants(fact.second or ()) if grant.target not in known)


def _fact(lookup: Lookup, environ: Mapping[str, str], limits: TimeLimits) -> Fact:
    """Return what is known about a tool, or learn it. An answer that came too late is not kept."""
    root = lookup.config.project_root
    fact = read_fact(lookup.key, environ, root)
    if fact is None:
        fact, is_whole = _learn(lookup, limits)
        if is_whole and fact.found:
            write_fact(lookup.key, fact, environ, root)
    return fact


def _learn(lookup: Lookup, limits: TimeLimits) -> tuple[Fact, bool]:
    """Return the registries of the user's configuration or the tool's default, and whether every answer came in time."""
    found = [*_variable_addresses(lookup), *user_addresses(lookup.row, lookup.environ)]
    answered = answers.ask(lookup, seconds=limits.ask)
    for addresses, replaces in ((answered.replacing, True), (answered.added, False)):
        found += [FoundAddress(address, answered.source, replaces) for address in addresses]
    if lookup.program.path and not any(each.replaces for each in found):
        found += _defaults(lookup, limits)
    return Fact(tuple(dict.fromkeys((each.address.text, each.source) for each in found))), answered.ended


def _variable_addresses(lookup: Lookup) -> list[FoundAddress]:
    # uv's variables hold `name=address`.
    return [
        FoundAddress(address, name, replaces)
        for key, replaces in (("keys_in", True), ("more_in", False))
        for name, value in lookup.environ.items()
        if is_named(name, lookup.row[key])
        for address in addresses_in(value.replace("=", " "))
    ]


def _defaults(lookup: Lookup, limits: TimeLimits) -> list[FoundAddress]:
    """Return the registries that are built into the tool: from a file of its installation, or where it connects to."""
    row = lookup.row
    built_in = answers.builtin_addresses(row, lookup.program)
    if built_in:
        return [FoundAddress(address, f"built into {lookup.tool}", replaces=True) for address in built_in]
    found: list[FoundAddress] = []
    for destination in probe.observe(lookup, seconds=limits.observe):
        scheme = "http" if destination.endswith(":80") else "https"
        address = parse_address(f"{scheme}://{destination}/{row['root']}")
        found += [] if address is None else [FoundAddress(address, f"seen when {lookup.tool} ran", replaces=True)]
    return found
