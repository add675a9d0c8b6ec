"""Tests every row of the rules by its own examples."""

from __future__ import annotations

import pytest

from corral import Decision, SandboxConfig
from corral.guard.evaluate import vet
from corral.guard.rules.compiler import read_tables
from corral.model.call import Call

TABLES, ROWS = read_tables()


def examples(kind: str) -> list[object]:
    made = []
    for name, row in ROWS.items():
        for profile, source in (("strict", row), ("workspace", row.get("workspace", {}))):
            made += [pytest.param(profile, text, id=f"{profile}-{name}-{text}"[:120]) for text in source.get(kind, [])]
    return made


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SandboxConfig]:
    root = tmp_path_factory.mktemp("project")
    return {profile: SandboxConfig(project_root=str(root), profile=profile) for profile in ("strict", "workspace")}


@pytest.mark.parametrize(("profile", "text"), examples("deny"))
def test_deny_example_is_not_allowed(configs: dict[str, SandboxConfig], profile: str, text: str) -> None:
    verdict = vet(Call(text, shell=True), configs[profile])
    assert verdict.decision > Decision.ALLOW
    assert all(f.rule != "structure-crash" for f in verdict.findings)


@pytest.mark.parametrize(("profile", "text"), examples("allow"))
def test_allow_example_is_allowed(configs: dict[str, SandboxConfig], profile: str, text: str) -> None:
    verdict = vet(Call(text, shell=True), configs[profile])
    assert verdict.findings == ()


@pytest.mark.parametrize("name", sorted(ROWS))
def test_row_has_examples_of_both_kinds(name: str) -> None:
    row = ROWS[name]
    every = [kind for kind in ("deny", "allow") if row.get(kind) or row.get("workspace", {}).get(kind)]
    assert every == ["deny", "allow"]
