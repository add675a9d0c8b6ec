"""Tests that plans are frozen and arrive as they were sent."""

import pytest

from corral.containment.plan import BubblewrapStart, LimitPlan, Plan, Step, WardenPlan

PLAN = Plan(
    backend="auto",
    layers=("user", "mount"),
    network=("index.example:443",),
    publish=(8000,),
    limits={"memory_bytes": 0.5, "processes": 100},
    rlimits=(("RLIMIT_NOFILE", 256),),
    places=("/work", "/tmp/scratch"),
    project=("/work", 1, 2),
    home_files={".gitconfig": b"\xff"},
    steps=(Step("bind", "/work", "/work", "rw"), Step("mask", "/work/\udcff")),
    rules=(("/", "read"),),
)


@pytest.mark.parametrize("plan", [Plan(), PLAN], ids=["without containment", "with containment"])
def test_keeper_receives_the_plan_of_the_host(plan: Plan) -> None:
    assert Plan.unpack(plan.pack()) == plan


def test_warden_in_bubblewrap_receives_the_plan_of_the_keeper() -> None:
    limits = LimitPlan(
        {"processes": 100}, (("RLIMIT_NPROC", 102),), {"memory": (2, "/sys/fs/cgroup")}, 2, is_metered=True
    )
    told = WardenPlan(PLAN, limits, "bubblewrap", "partial", ("proc",), frozenset(("user", "mount")), 7, {"/s": (1, 2)})
    start = BubblewrapStart(told, is_first=True, has_outlet=False, counters=((10, "pids", b"max "),))
    assert BubblewrapStart.unpack(start.pack()) == start


def test_plan_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        PLAN.backend = "none"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        PLAN.steps[0].access = "ro"  # type: ignore[misc]
