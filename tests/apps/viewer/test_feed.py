"""The feed returns each call once, the changes since the last request, and a bounded amount of output."""

import json
import threading
from typing import Any

import pytest

from corral.apps.viewer import feed as feeds
from corral.apps.viewer.feed import DROPPED, Feed


def call(key: str, **more: Any) -> tuple[dict[str, Any], None]:
    return {"key": key, "id": key, "decision": "allow", "outcome": "ok", **more}, None


def asked(feed: Feed, after: int, **options: Any) -> tuple[list[str], dict[str, Any]]:
    answer = json.loads(feed.since(after, **options))
    return [item["key"] for item in answer.pop("calls")], answer


def test_feed_returns_new_and_changed_calls() -> None:
    feed = Feed()
    feed.put([call("a"), call("b")])
    keys, answer = asked(feed, 0)
    assert (keys, answer["next"], answer["more"]) == (["a", "b"], 2, False)
    feed.put([call("a", result={"exit_code": 0})])
    keys, answer = asked(feed, 2)
    assert (keys, answer["next"]) == (["a"], 3)
    assert asked(feed, 0)[0] == ["a", "b"]
    assert feed.keys() == ("a", "b")


def test_run_of_a_hook_is_found_by_its_own_id() -> None:
    feed = Feed()
    feed.put([({"key": "hook", "id": "run", "decision": "allow", "outcome": "ok"}, None)])
    feed.put(
        [({"key": "run", "id": "gate", "decision": "allow", "outcome": "judged", "chain": [{"event": "gate"}]}, None)]
    )
    assert feed.keys() == ("hook",)
    assert [step.get("event") for step in feed.call("hook")["chain"]] == ["gate", None]  # type: ignore[index]


def test_answer_has_a_bounded_number_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "MAX_CALLS_AN_ANSWER", 3)
    feed = Feed()
    feed.put([call(str(n)) for n in range(7)])
    got, after = [], 0
    while True:
        keys, answer = asked(feed, after)
        got += keys
        after = answer["next"]
        if not answer["more"]:
            break
    assert got == [str(n) for n in range(7)]


def test_waiting_reader_wakes_at_once() -> None:
    feed = Feed()
    threading.Timer(0.05, feed.put, [[call("a")]]).start()
    assert asked(feed, 0, seconds=60)[0] == ["a"]
    threading.Timer(0.05, feed.close).start()
    assert asked(feed, 1, seconds=60)[1]["closed"]


@pytest.mark.parametrize("after", [-5, 99])
def test_out_of_range_positions_are_clamped(after: int) -> None:
    feed = Feed()
    feed.put([call("a")])
    assert asked(feed, after)[1]["next"] == 1


def test_oldest_outputs_are_marked_as_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "MAX_OUTPUT_CHARACTERS", 10)
    feed = Feed()
    for key in "abc":
        feed.put([(call(key)[0], {"stdout": "12345"})])
    assert [feed.output(key) for key in "abc"] == [DROPPED, {"stdout": "12345"}, {"stdout": "12345"}]
    assert feed.output("d") is None
