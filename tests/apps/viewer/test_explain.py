"""The guard judges a call again for the page, under the policy of its project."""

from pathlib import Path

import pytest

from corral.apps.viewer import explain, write
from corral.apps.viewer import spans as span_files
from corral.apps.viewer.explain import MAX_STEPS, Reader, details_of, details_of_all
from corral.apps.viewer.feed import Feed

OUTSIDE = "cat /etc/shadow"


def test_parts_have_effects_and_findings_have_positions(home: dict[str, str], project: Path) -> None:
    read = Reader(home).read(
        {"shell": f"ls && {OUTSIDE}", "root": str(project), "cwd": str(project), "profile": "strict"}
    )
    assert [(step["name"], [effect["key"] for effect in step["effects"]]) for step in read["steps"]] == [
        ("ls", []),
        ("cat", ["read-secret"]),
    ]
    (finding,) = read["findings"]
    assert (finding["rule"], finding["start"], finding["length"]) == ("path-read-secret", 10, 11)
    assert finding["instead"]
    assert (read["decision"], read["profile"]) == ("deny", "strict")


def test_argv_is_not_parsed_as_shell_text(home: dict[str, str], project: Path) -> None:
    (step,) = Reader(home).read({"argv": ["echo", "a b"], "root": str(project)})["steps"]
    assert step["name"] == "echo"


def test_policy_of_the_project_applies(home: dict[str, str], project: Path) -> None:
    call = {"shell": "python3 -c 1", "root": str(project)}
    assert Reader(home).read(call)["decision"] == "allow"
    (project / "corral.toml").write_text('profile = "strict"\n')
    assert Reader(home).read(call)["decision"] == "deny"


@pytest.mark.parametrize(
    "call",
    [
        {"shell": "ls", "cut": 9000, "root": "{project}"},
        {"shell": "curl -H [redacted]", "root": "{project}"},
        {"event": "trust", "root": "{project}"},
        {"shell": "ls", "root": "/nonexistent/project"},
        {"shell": "ls"},
    ],
    ids=["cut", "redacted", "no call", "no project", "not told where"],
)
def test_incomplete_call_gives_a_reason(home: dict[str, str], project: Path, call: dict[str, object]) -> None:
    given = {name: str(project) if value == "{project}" else value for name, value in call.items()}
    assert set(Reader(home).read(given)) == {"said"}


def test_broken_policy_gives_a_reason(home: dict[str, str], project: Path) -> None:
    (project / "corral.toml").write_text("profile = 7\n")
    assert "policy cannot be read" in Reader(home).read({"shell": "ls", "root": str(project)})["said"]


def test_steps_of_a_long_call_are_cut(home: dict[str, str], project: Path) -> None:
    read = Reader(home).read({"shell": "true;" * (MAX_STEPS + 7), "root": str(project)})
    assert (len(read["steps"]), read["more"]) == (MAX_STEPS, 7)


def test_unknown_call_has_no_details(home: dict[str, str]) -> None:
    assert details_of("nothing", Feed(), Reader(home), None) == {}


def test_report_judges_refused_calls_first_and_equal_calls_once(
    home: dict[str, str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Feed()
    for key, text, decision in (
        ("a", "ls", "allow"),
        ("b", OUTSIDE, "deny"),
        ("c", OUTSIDE, "deny"),
        ("d", "pwd", "allow"),
    ):
        call = {"key": key, "shell": text, "root": str(project), "decision": decision, "outcome": "judged"}
        feed.put([(call, {"stdout": key * 20})])
    monkeypatch.setattr(explain, "MAX_READ", 2)
    monkeypatch.setattr(explain, "MAX_CHARACTERS", 100)
    made = details_of_all(feed, Reader(home, keeps=True), None)
    assert {key: about.get("parts") for key, about in made["calls"].items()} == {"b": 0, "c": 0, "d": 1, "a": None}
    assert [len(made["parts"]), made["left_out"]] == [2, 1]
    assert made["calls"]["a"]["output"] == {"dropped": True}
    assert made["calls"]["c"]["output"] == {"stdout": "c" * 20}


def test_report_is_written_atomically(home: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "r.html").write_text("old")

    class Broken(Reader):
        def read(self, call: object) -> dict[str, object]:  # type: ignore[override]
            raise RuntimeError

    feed = Feed()
    feed.put([({"key": "a", "shell": "ls", "decision": "allow", "outcome": "ok"}, None)])
    with pytest.raises(RuntimeError):
        write(str(folder / "r.html"), feed, {}, Broken(home))
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"r.html": "old"}


def test_spans_belong_to_the_result_named_in_their_trace(tmp_path: Path) -> None:
    span = '{"traceId":"t","spanId":"%s","parentSpanId":"%s","name":"%s","startTimeUnixNano":"%d","endTimeUnixNano":"%d","attributes":[%s]}'
    named = '{"key":"corral.result.id","value":{"stringValue":"r1"}},{"key":"n","value":{"intValue":"3"}}'
    spans = ",".join(
        (
            span % ("2", "1", "process", 2_000_000, 5_000_000, ""),
            span % ("1", "", "execute_tool", 1_000_000, 9_000_000, named),
        )
    )
    path = tmp_path / "spans.jsonl"
    path.write_text(
        f'{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{spans},7,{{}}]}}]}}]}}\nno json\n[]\n{{"resourceSpans":7}}\n'
    )
    found = span_files.read(str(path)).of({"id": "r1"})
    assert [(item["name"], item["start"], item["end"]) for item in found] == [
        ("execute_tool", 1.0, 9.0),
        ("process", 2.0, 5.0),
    ]
    assert found[0]["attributes"] == {"corral.result.id": "r1", "n": "3"}
    assert span_files.read(str(path)).of({"id": "r2"}) == []
