"""The tasks that come with corral cover every axis, limit and layer, and pass."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from corral import Limits
from corral.apps.evals.task_loader import FIXTURES, load
from corral.apps.evals.transactions import WAYS
from corral.containment.layers import LAYERS
from corral.model.call import Axis

DEADLINE_SECONDS = 300
# The proxy counts network bytes, and a task has no server outside the sandbox to send to.
WITH_A_SERVER = {"limit:network_bytes"}


def test_fixtures_cover_every_axis_limit_and_layer() -> None:
    tasks = load([FIXTURES])
    tags = Counter(tag for task in tasks for tag in task.tags)
    assert len(tasks) >= 60
    assert all(tags[f"axis:{axis}"] >= 10 for axis in Axis)
    assert {f"limit:{name}" for name in Limits._fields} - WITH_A_SERVER <= {*tags}
    assert {"limit:timeout_seconds", "limit:silence_seconds", "limit:max_output_bytes", "limit:tree"} <= {*tags}
    assert {f"layer:{name}" for name in LAYERS} <= {*tags}
    assert {"profile:strict", "profile:workspace", "network", "transaction", "protected", "conflict"} <= {*tags}
    assert {task.transaction for task in tasks} == {"", *WAYS}


def test_documentation_has_the_number_of_fixtures() -> None:
    page = Path(__file__).parents[3] / "docs" / "eval.md"
    assert f"the {len(load([FIXTURES]))} tasks that come with corral" in page.read_text()


def test_fixtures_are_tagged_with_the_limits_they_set() -> None:
    for task in load([FIXTURES]):
        assert {f"limit:{name}" for name in task.data.get("limits", {})} <= {*task.tags}


@pytest.mark.real
def test_fixtures_pass(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "corral", "eval", "--fixtures", "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert (done.returncode, "failed" in done.stdout) == (0, False), done.stdout
    if os.environ.get("CORRAL_MUST_CONTAIN"):
        assert "skipped" not in done.stdout, done.stdout
