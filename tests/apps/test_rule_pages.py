"""Rule pages: every rule that a finding can name has one, and it is read from the tables."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.apps.rule_pages import EXAMPLES_PROFILE, SHAPES, Page, page_of, rule_ids
from corral.guard.evaluate import vet
from corral.guard.machine import Machine
from corral.guard.rules.compiler import read_tables
from corral.model.call import Call
from corral.policy.config import SandboxConfig

SHAPELESS = {
    "structure-cwd": Call(["ls"], cwd="a\0b"),
    "structure-empty": Call([]),
    "structure-env": Call(["ls"], env={"A=B": "x"}),
    "structure-list": Call(["ls", "x"], shell=True),
    "structure-nul": Call(["ls", "a\0b"]),
    "structure-size": Call(["ls", *["x"] * 100_000]),
    "structure-string": Call("ls -la"),
    "structure-type": Call(["ls", 3]),
    "path-cwd": Call(["ls"], cwd=".."),
}


def denied_examples(row: dict[str, object]) -> Iterator[str]:
    for key in ("deny", "workspace"):
        found = row.get(key, ())
        yield from found.get("deny", ()) if isinstance(found, dict) else found  # type: ignore[misc]


@pytest.mark.real
def test_every_rule_that_an_example_meets_has_a_page(tmp_path: Path) -> None:
    met: set[str] = set()
    for profile in ("strict", "workspace"):
        config = SandboxConfig(str(tmp_path), profile=profile)
        for row in read_tables()[1].values():
            for example in denied_examples(row):
                met |= {f.rule for f in vet(Call(example, shell=True), config).findings}
    assert len(met) > 50
    assert sorted(rule for rule in met if page_of(rule) is None) == []


@pytest.mark.parametrize(("rule", "call"), SHAPELESS.items(), ids=list(SHAPELESS))
def test_a_call_without_a_shape_meets_a_rule_with_a_page(rule: str, call: Call, tmp_path: Path) -> None:
    findings = vet(call, SandboxConfig(str(tmp_path))).findings
    assert [f.rule for f in findings] == [rule]
    page = page_of(rule)
    assert page is not None
    assert page.instead


def test_every_shape_is_shown_by_a_call_but_the_crash() -> None:
    assert set(SHAPES) - set(SHAPELESS) == {"structure-crash"}


def test_a_page_of_a_name_is_its_groups() -> None:
    assert page_of("name-reboot") == Page(
        "name-reboot",
        "name",
        "reboot is on the denylist: it would stop or restart the machine that the agent runs on.",
        "There is nothing to do instead.",
        (("strict", "deny"), ("workspace", "deny")),
        page_of("name-reboot").refused,  # type: ignore[union-attr]
        page_of("name-reboot").allowed,  # type: ignore[union-attr]
    )


def test_a_page_of_an_effect_is_for_any_command_or_for_one() -> None:
    pages = [page_of(f"argv-{command}-code") for command in ("COMMAND", "call", "python")]
    said = "{} is an interpreter given code inline (ARGUMENT), so the code is in no file that can be reviewed."
    assert [p.what for p in pages if p] == [said.format(name) for name in ("COMMAND", "call", "python")]
    assert [bool(p.refused) for p in pages if p] == [False, False, True]


def test_a_page_of_a_subcommand_has_the_examples_of_its_command() -> None:
    page, whole = page_of("argv-git-push-history"), page_of("argv-git-history")
    assert page is not None
    assert whole is not None
    assert (page.refused, page.allowed) == (whole.refused, whole.allowed)


@pytest.mark.parametrize(
    "rule",
    ["", "name", "name-", "name-cat", "argv-code", "argv-no such-code", "path-code", "structure-", "moon-code", "\0"],
)
def test_what_is_no_rule_has_no_page(rule: str) -> None:
    assert page_of(rule) is None


@pytest.mark.real
def test_the_list_is_sorted_unique_and_has_pages() -> None:
    ids = rule_ids()
    assert ids == sorted(set(ids))
    assert [rule for rule in ids if page_of(rule) is None] == []


@pytest.mark.real
def test_no_page_is_silent() -> None:
    assert [rule for rule in rule_ids() if not page_of(rule).what] == []  # type: ignore[union-attr]


def every_rule() -> list[str]:
    """All rules of which some example of a row has a finding, by their ids as findings have them."""
    config = SandboxConfig("/usr")
    met: set[str] = set()
    for row in read_tables()[1].values():
        for example in denied_examples(row):
            met |= {f.rule for f in vet(Call(example, shell=True), config).findings}
    return sorted(met)


@pytest.mark.real
def test_a_page_shows_only_examples_that_its_rule_refuses() -> None:
    config = SandboxConfig("/usr", profile=EXAMPLES_PROFILE)
    pages = [(rule, page) for rule in every_rule() if (page := page_of(rule)) is not None]
    refused = [(rule, text) for rule, page in pages for text in page.refused]
    assert len(refused) > 500
    assert [(rule, text) for rule, text in refused if rule not in rules_of(text, config)] == []
    assert [(rule, text) for rule, page in pages for text in page.allowed if rules_of(text, config)] == []


def rules_of(text: str, config: SandboxConfig) -> set[str]:
    return {found.rule for found in vet(Call(text, shell=True), config).findings}


def test_a_page_has_no_example_of_another_rule() -> None:
    network, install = page_of("argv-git-network"), page_of("argv-pip-install")
    assert network is not None
    assert install is not None
    assert "git -c core.fsmonitor=./x status" not in network.refused
    assert "git push origin main" in network.refused
    assert "pip list" not in install.refused
    assert "pip install x" in install.refused


def test_the_written_pages_show_only_examples_that_their_rule_refuses() -> None:
    config = SandboxConfig("/usr", profile=EXAMPLES_PROFILE)
    machine = Machine("/nonexistent/project", home="/home/user")
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
                rules = {f.rule for f in vet(Call(text, shell=True), config, machine).findings}
                if not any(r.startswith(f"{axis}-") and (axis == "name" or r.endswith(key)) for r in rules):
                    wrong.append((page.stem, text))
    assert wrong == []
