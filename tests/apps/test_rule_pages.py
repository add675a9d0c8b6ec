"""Tests that every rule that a finding can name has a page, and that its examples meet the rule."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.apps.rule_pages import EXAMPLES_PROFILE, page_of, rule_ids, rules_met_by
from corral.guard.axes.structure import SHAPE_RULES
from corral.guard.evaluate import vet
from corral.guard.rules.compiler import read_tables
from corral.model.call import Call
from corral.policy.config import SandboxConfig


def denied_examples(row: dict[str, object]) -> Iterator[str]:
    for key in ("deny", "workspace"):
        found = row.get(key, ())
        yield from found.get("deny", ()) if isinstance(found, dict) else found  # type: ignore[misc]


@pytest.mark.real
def test_every_rule_met_by_an_example_has_a_page(tmp_path: Path) -> None:
    met: set[str] = set()
    for profile in ("strict", "workspace"):
        config = SandboxConfig(str(tmp_path), profile=profile)
        for row in read_tables()[1].values():
            for example in denied_examples(row):
                met |= {f.rule for f in vet(Call(example, shell=True), config).findings}
    assert len(met) > 50
    assert sorted(rule for rule in met if page_of(rule) is None) == []


@pytest.mark.parametrize("rule", SHAPE_RULES)
def test_rule_about_the_call_itself_has_a_page(rule: str) -> None:
    page = page_of(rule)
    assert page is not None
    assert (page.what, page.instead) == SHAPE_RULES[rule]
    assert set(dict(page.profiles).values()) == {"deny"}


def test_page_of_a_name_is_that_of_its_group() -> None:
    page, group = page_of("name-reboot"), read_tables()[0]["groups"]["power"]
    assert page is not None
    assert "`reboot` is on the denylist" in page.what
    assert group["why"] in page.what
    assert (page.axis, page.instead) == ("name", group["instead"])
    assert page.profiles == (("strict", "deny"), ("workspace", "deny"))


def test_page_of_an_effect_names_the_command() -> None:
    pages = [page_of(f"argv-{command}-code") for command in ("COMMAND", "call", "python")]
    assert [p.what.split()[0] for p in pages if p] == ["`COMMAND`", "`call`", "`python`"]
    assert [bool(p.refused) for p in pages if p] == [False, False, True]


def test_page_of_a_subcommand_has_its_commands_examples() -> None:
    page, whole = page_of("argv-git-push-history"), page_of("argv-git-history")
    assert page is not None
    assert whole is not None
    assert (page.refused, page.allowed) == (whole.refused, whole.allowed)


@pytest.mark.parametrize(
    "rule",
    ["", "name", "name-", "name-cat", "argv-code", "argv-no such-code", "path-code", "structure-", "moon-code", "\0"],
)
def test_unknown_id_has_no_page(rule: str) -> None:
    assert page_of(rule) is None


@pytest.mark.real
def test_rule_ids_are_sorted_unique_and_have_pages() -> None:
    ids = rule_ids()
    assert ids == sorted(set(ids))
    assert [rule for rule in ids if page_of(rule) is None] == []


@pytest.mark.real
def test_every_page_says_what_it_refuses() -> None:
    assert [rule for rule in rule_ids() if not page_of(rule).what] == []  # type: ignore[union-attr]


def every_rule() -> list[str]:
    """Return the ids of all rules that some example of a row meets."""
    config = SandboxConfig("/usr")
    met: set[str] = set()
    for row in read_tables()[1].values():
        for example in denied_examples(row):
            met |= {f.rule for f in vet(Call(example, shell=True), config).findings}
    return sorted(met)


@pytest.mark.real
def test_page_shows_only_examples_its_rule_refuses() -> None:
    config = SandboxConfig("/usr/share", profile=EXAMPLES_PROFILE)
    pages = [(rule, page) for rule in every_rule() if (page := page_of(rule)) is not None]
    refused = [(rule, text) for rule, page in pages for text in page.refused]
    assert len(refused) > 500
    assert [(rule, text) for rule, text in refused if rule not in rules_of(text, config)] == []
    assert [(rule, text) for rule, page in pages for text in page.allowed if rules_of(text, config)] == []


def rules_of(text: str, config: SandboxConfig) -> set[str]:
    return {found.rule for found in vet(Call(text, shell=True), config).findings}


def test_page_has_no_example_of_another_rule() -> None:
    network, install = page_of("argv-git-network"), page_of("argv-pip-install")
    assert network is not None
    assert install is not None
    assert "git -c core.fsmonitor=./x status" not in network.refused
    assert "git push origin main" in network.refused
    assert "pip list" not in install.refused
    assert "pip install x" in install.refused


def test_written_pages_show_only_refused_examples() -> None:
    pages = sorted((Path(__file__).parents[2] / "docs" / "rules").glob("*.md"))
    assert len(pages) > 40
    wrong = []
    for page in pages:
        axis, _, key = page.stem.partition("-")
        _, _, examples = page.read_text().partition("## Examples\n")
        for line in examples.partition("\n## ")[0].splitlines():
            if line.startswith("* "):
                text = (
                    line[2:].strip("`").strip().replace("⏎", "\n")
                    if line.startswith("* `` ")
                    else line[3:-1].replace("⏎", "\n")
                )
                met = rules_met_by(text)
                if not any(rule.startswith(f"{axis}-") and (axis == "name" or rule.endswith(key)) for rule in met):
                    wrong.append((page.stem, text))
    assert wrong == []
