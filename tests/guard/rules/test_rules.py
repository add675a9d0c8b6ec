"""Tests every row of the rules by its own examples."""

from __future__ import annotations

import pytest
from rule_tables import ROWS

from corral import Decision, SandboxConfig
from corral.guard.evaluate import vet
from corral.model.call import Call


def examples(name: str, kind: str) -> list[tuple[str, str]]:
    """Return the examples of a row, each with the profile that it is about."""
    row = ROWS[name]
    sources = (("strict", row), ("workspace", row.get("workspace", {})))
    return [(profile, text) for profile, source in sources for text in source.get(kind, [])]


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SandboxConfig]:
    root = tmp_path_factory.mktemp("project")
    return {profile: SandboxConfig(project_root=str(root), profile=profile) for profile in ("strict", "workspace")}


@pytest.mark.parametrize("name", sorted(ROWS))
def test_examples_of_a_row_are_judged_as_it_says(name: str, configs: dict[str, SandboxConfig]) -> None:
    allowed = []
    for profile, text in examples(name, "deny"):
        verdict = vet(Call(text, shell=True), configs[profile])
        if verdict.decision <= Decision.ALLOW or any(found.rule == "structure-crash" for found in verdict.findings):
            allowed.append((profile, text, verdict))
    verdicts = [
        (profile, text, vet(Call(text, shell=True), configs[profile])) for profile, text in examples(name, "allow")
    ]
    refused = [example for example in verdicts if example[2].findings != ()]
    assert (allowed, refused) == ([], [])


def test_rows_have_examples_of_both_kinds() -> None:
    assert [name for name in ROWS for kind in ("deny", "allow") if not examples(name, kind)] == []
