"""The published schemas are valid, and fit the JSON output of the command line."""

import json
from pathlib import Path

import jsonschema
import pytest
from machines import IN_DOCKER, run_corral, run_corral_without

import corral

SCHEMAS = Path(corral.__file__).parent / "model" / "schemas"


def schema(name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    return found


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.json")), ids=lambda path: path.name)
def test_schema_is_valid(path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))


@pytest.mark.parametrize("verb", ["doctor", pytest.param("selftest", marks=pytest.mark.real)])
def test_output_fits_the_schema(verb: str, project: Path) -> None:
    done = run_corral(verb, "--json", cwd=project)
    data = json.loads(done.stdout)
    jsonschema.Draft202012Validator(schema(verb)).validate(data)
    assert (data["schema"], done.stdout.count("\n")) == (f"corral.{verb}/1", 1)


@pytest.mark.parametrize("verb", ["doctor", pytest.param("selftest", marks=pytest.mark.real)])
def test_output_with_missing_layers_fits_the_schema(verb: str, project: Path) -> None:
    done = run_corral_without(IN_DOCKER, verb, "--backend", "warden", "--json", cwd=project)
    jsonschema.Draft202012Validator(schema(verb)).validate(json.loads(done.stdout))
