"""The result of a call, its JSON form and the published schema."""

import importlib.resources
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.call import (
    DENIED_EXIT_CODE,
    TIMED_OUT_EXIT_CODE,
    Axis,
    Connection,
    Decision,
    Finding,
    Usage,
    Verdict,
    Violation,
)
from corral.model.grant import Grant
from corral.model.result import SandboxResult

SCHEMA = json.loads((importlib.resources.files("corral") / "model" / "schemas" / "result.schema.json").read_text())
FINDING = Finding(Axis.NAME, "name-rm", Decision.DENY, "rm is on the denylist.", "rm", 0, 2, 0, "Leave it.")
GRANT = Grant("network", "api.example:443", "in the call")
ASKED = Finding(
    Axis.ARGV, "argv-curl-network", Decision.ASK, "curl needs it.", "x", 0, 1, 0, "Ask.", (GRANT,), family="curl"
)
RAN = SandboxResult(("ls",), 0, b"a\n", duration_ms=1.5, id="1", started_at="2026-01-01T00:00:00+00:00", cwd="/p")
DENIED = SandboxResult(
    ("rm", "x"), DENIED_EXIT_CODE, denied=True, reason="rm is on the denylist. Leave it.", verdict=Verdict((FINDING,))
)
TIMED_OUT = SandboxResult(("sleep", "9"), TIMED_OUT_EXIT_CODE, b"so far", timed_out=True, signal=9, killed=3)
CONNECTION = Connection("evil.example:443", "refused", "", "it is not granted", "evil.example:443", 2)
FULL = RAN.replace(
    exit_code=139,
    signal=11,
    stdout=b"\xff\xfe\x00caf\xc3\xa9",
    stderr="\ud800".encode("utf-8", "surrogatepass"),
    truncated=True,
    enforcement="partial",
    missing_layers=("landlock",),
    violations=(Violation("path", "/etc/x", "read", "Stay inside.", inferred=True),),
    connections=(CONNECTION,),
    usage=Usage(0.1, 0.2, 4096),
    stdout_bytes=10,
    full_output_path="/p/out",
    transaction="t1",
    grants=(GRANT.replace(by="once"),),
)
EXAMPLES = [
    pytest.param(RAN, id="ran"),
    pytest.param(DENIED, id="denied"),
    pytest.param(TIMED_OUT, id="timed out"),
    pytest.param(FULL, id="every field"),
    pytest.param(RAN.replace(verdict=Verdict((ASKED,), others=("python3 x.py",))), id="with a grant"),
]


def through_json(result: SandboxResult) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(result.to_dict()))
    return data


@pytest.mark.parametrize("result", EXAMPLES)
def test_result_round_trips_through_json(result: SandboxResult) -> None:
    assert SandboxResult.from_dict(through_json(result)) == result


@given(stdout=st.binary(), stderr=st.binary(), argv=st.lists(st.text()), code=st.integers(-101, 255))
def test_any_bytes_round_trip_through_json(stdout: bytes, stderr: bytes, argv: list[str], code: int) -> None:
    result = SandboxResult(tuple(argv), code, stdout, stderr)
    assert SandboxResult.from_dict(through_json(result)) == result


@pytest.mark.parametrize("result", EXAMPLES)
def test_result_fits_the_published_schema(result: SandboxResult) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(through_json(result))


def test_published_schema_is_valid_and_has_every_field() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    written = set(FULL.to_dict()) - {"stdout_base64", "stderr_base64"}
    assert set(SCHEMA["required"]) == written
    assert set(SCHEMA["properties"]) == written | {"stdout_base64", "stderr_base64"}
    for name, record in (
        ("violation", Violation("x")),
        ("connection", CONNECTION),
        ("usage", Usage()),
    ):
        assert SCHEMA["$defs"][name]["required"] == list(record._fields), name
    grant, finding = SCHEMA["$defs"]["grant"], SCHEMA["$defs"]["finding"]
    assert [*grant["required"], "by"] == list(GRANT._fields) == list(grant["properties"])
    assert [*finding["required"], "grants", "family"] == list(FINDING._fields) == list(finding["properties"])
    assert list(DENIED.verdict.to_dict()) == SCHEMA["$defs"]["verdict"]["required"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"exit_code": "0"}, id="exit code as text"),
        pytest.param({"denied": True}, id="denied without a reason"),
        pytest.param({"reason": "why not"}, id="a reason without a denial"),
        pytest.param({"timed_out": True}, id="timed out with the exit code 0"),
        pytest.param({"ok": False}, id="exit code 0 that is not ok"),
        pytest.param({"schema": "corral.result/2"}, id="another schema"),
        pytest.param({"enforcement": "some"}, id="an unknown enforcement"),
        pytest.param({"verdict": {"decision": "deny"}}, id="a verdict without findings"),
        pytest.param({"usage": {}}, id="usage without figures"),
    ],
)
def test_inconsistent_result_does_not_fit_the_schema(change: dict[str, object]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(through_json(RAN) | change)


def test_base64_is_present_only_for_invalid_utf8() -> None:
    data = FULL.to_dict()
    assert (data["stdout"], data["stdout_base64"]) == ("\ufffd\ufffd\x00café", "//4AY2Fmw6k=")
    assert not {"stdout_base64", "stderr_base64"} & set(RAN.to_dict())


def test_text_and_ok_are_derived() -> None:
    assert (RAN.ok, RAN.stdout_text, RAN.stderr_text) == (True, "a\n", "")
    assert (FULL.ok, FULL.stdout_text) == (False, "\ufffd\ufffd\x00café")
    assert (DENIED.ok, TIMED_OUT.ok) == (False, False)


def test_result_is_immutable() -> None:
    with pytest.raises(AttributeError, match="frozen"):
        RAN.exit_code = 1  # type: ignore[misc]


def test_exit_codes_and_schema_name_are_fixed() -> None:
    assert (DENIED_EXIT_CODE, TIMED_OUT_EXIT_CODE, RAN.schema) == (-100, -101, "corral.result/1")
