"""Records of settled transactions are the same from a log, from `corral try` and from a task, and bounded for any data."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from corral.apps.viewer import call_list, transactions
from corral.apps.viewer.feed import dumps

LINE: dict[str, Any] = {
    "seq": 8, "at": "2026-11-15T10:00:00.500Z", "id": "b" * 32, "event": "transaction", "root": "/p", "profile": "workspace", "transaction": "1f", "decision": "allow",
    "reason": "applied", "in_part": True, "changed": 3, "changes": [{"kind": "added", "path": "a"}, {"kind": "renamed", "path": "c", "old_path": "b"}],
    "refused": [{"path": ".envrc", "why": "it is protected"}],
}  # fmt: skip
SETTLED = {name: LINE[name] for name in ("in_part", "changed", "changes", "refused")} | {"became": "applied"}


def test_log_entry_becomes_a_note() -> None:
    assert transactions.of_entry(LINE) == {
        "id": "b" * 32, "key": "b" * 32, "seq": 8, "at": 1794736800500, "root": "/p", "profile": "workspace", "event": "transaction", "transaction": "1f",
        "decision": "allow", "outcome": "note", "settled": SETTLED,
    }  # fmt: skip


def test_try_output_has_applied_changes_and_conflicts() -> None:
    changes = [*LINE["changes"], {"kind": "added", "path": ".envrc"}]
    trial = {"result": {}, "transaction": "1f", "outcome": "applied", "changes": changes}
    applied = {"ok": True, "changes": LINE["changes"], "conflicts": [], "refused": LINE["refused"]}
    found = transactions.of_trial(trial | {"applied": applied}, root="/p", at=5)
    assert (found["at"], found["transaction"]) == (5, "1f")
    assert found["settled"] == {
        "became": "applied",
        "changes": LINE["changes"],
        "changed": 2,
        "refused": LINE["refused"],
    }
    conflict = {"ok": False, "changes": [], "conflicts": [{"path": "a", "why": "later"}], "refused": []}
    found = transactions.of_trial(trial | {"outcome": "conflict", "applied": conflict})
    assert found["settled"] == {
        "became": "conflict",
        "changes": changes,
        "changed": 3,
        "conflicts": conflict["conflicts"],
    }
    assert transactions.of_trial(trial | {"outcome": "kept", "applied": None})["settled"]["changed"] == 3


def test_task_and_log_entry_give_the_same_record() -> None:
    told = {"became": "applied", "changes": {"a": "added", "c": "renamed from b"}, "conflicts": {}, "refused": {".envrc": "it is protected"}, "more_changes": 1}  # fmt: skip
    found = transactions.of_task("run", "one", told)
    assert found["settled"] == {name: value for name, value in SETTLED.items() if name != "in_part"}
    assert (found["key"], found["transaction"], found["task"]) == ("run/one/transaction", "run/one", "one")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["path", "kind", "why", "ok"]), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*LINE, "conflicts", "outcome", "applied", "became", "more_changes"]), JSON))
def test_any_data_gives_a_bounded_record(data: dict[str, Any]) -> None:
    for found in (transactions.of_entry(data), transactions.of_trial(data), transactions.of_task("run", "task", data)):
        dumps(found)
        assert (found["event"], found["outcome"], isinstance(found["settled"], dict)) == ("transaction", "note", True)
        assert all(
            len(found["settled"].get(name, ())) <= call_list.MAX_ITEMS for name in ("changes", "conflicts", "refused")
        )


def test_long_lists_and_texts_are_cut() -> None:
    found = transactions.of_entry(LINE | {"changes": [{"kind": "x", "path": "y" * 10**6}] * 10**4, "changed": None})
    assert (len(found["settled"]["changes"]), found["settled"]["changed"]) == (call_list.MAX_ITEMS, 10**4)
    assert len(dumps(found)) < 10**6
