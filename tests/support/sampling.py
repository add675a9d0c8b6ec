"""Chooses the cases of parametrised tests that run every time; the others run only in `make test-real`.

A pytest plugin: of a test that starts processes and has many cases, it keeps the first and one of six. `sampled` chooses by hand.
"""

import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

import pytest

# One of six cases, and the first, of a test that has at least so many.
EVERY, MANY = 6, 3
# The rooms and the fixtures of tests whose cases start processes, most of them a sandbox.
ROOMS = {"apps", "broker", "containment", "git", "integrations", "runtime", "transactions"}
STARTING = {"sandbox", "project", "owner", "home", "work", "world", "user", "screen", "places", "remote"}


def sampled(cases: Iterable[Any], keep: Collection[Any] = (), every: int = 0) -> list[Any]:
    """Return all cases, and mark as `real` those that are neither in `keep` nor each so many-th one.

    A tuple has the values of several parameters.
    """
    return [
        case
        if case in keep or (every and number % every == 0)
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.real)
        for number, case in enumerate(cases)
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark five of six cases of each test with several cases that start processes, unless the test itself marks some."""
    tests: defaultdict[tuple[object, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        if ROOMS & set(item.nodeid.split("/")) and STARTING & set(item.fixturenames):
            tests[item.parent, item.originalname].append(item)
    for cases in tests.values():
        if any(mark.name == "real" for case in cases for mark in case.callspec.marks):
            continue
        rest = [case for case in cases if not case.get_closest_marker("real")]
        # By name: counting would leave out a value of each parameter that changes fastest.
        for case in rest[1:] if len(rest) >= MANY else []:
            if zlib.crc32(case.name.encode()) % EVERY:
                case.add_marker(pytest.mark.real("sampled"))
