"""The battery's form, and outcomes as text and exit code."""

import ast

import pytest

from corral._lib.terminal import Terminal, columns
from corral.apps.selftest import run_attacks
from corral.apps.selftest.attacks import Attempt, all_attacks
from corral.apps.selftest.report import GROUPS, counts, heading, outcome_text, status, summary, to_dict
from corral.apps.selftest.run_attacks import HELD, NOT_HELD, NOT_SHOWN, NOT_TESTABLE, Outcome, Setting
from corral.containment.layers import LAYERS

ATTEMPT = Attempt("files", "read a file outside", ("mount", "landlock"), "return True")
SETTING = Setting("warden", "partial", ("net",), "workspace", "profile workspace needs the kernel")


def outcomes(*results: str) -> list[Outcome]:
    return [Outcome(ATTEMPT, result, "No such file or directory") for result in results]


def test_attacks_are_many_and_distinct() -> None:
    names = [attempt.name for attempt in all_attacks()]
    assert len([attempt for attempt in all_attacks() if "root" not in attempt.needs]) >= 25
    assert len(names) == len(set(names))
    assert {attempt.group for attempt in all_attacks()} == set(GROUPS)


def test_every_attackable_layer_is_attacked() -> None:
    named = {layer for attempt in all_attacks() for layer in attempt.layers}
    attacked = {name for name, layer in LAYERS.items() if not isinstance(layer.self_test, str)}
    assert named == attacked | {"quarantine"}


@pytest.mark.parametrize("attempt", all_attacks(), ids=lambda attempt: attempt.name)
def test_attack_is_a_program_with_known_needs(attempt: Attempt) -> None:
    ast.parse(attempt.source)
    assert "return" in attempt.program
    assert set(attempt.needs) <= {*run_attacks._CONDITIONS, "no network", "project", "planted"}


@pytest.mark.parametrize(
    ("results", "code"),
    [
        pytest.param([HELD, HELD], 0, id="all held"),
        pytest.param([HELD, NOT_TESTABLE], 0, id="one that is not testable here"),
        pytest.param([HELD, NOT_HELD], 1, id="one got through"),
        pytest.param([HELD, NOT_SHOWN], 3, id="one was not shown"),
        pytest.param([NOT_HELD, NOT_SHOWN], 1, id="the worse counts"),
        pytest.param([NOT_TESTABLE], 3, id="nothing was tested"),
        pytest.param([], 3, id="nothing was tried"),
    ],
)
def test_exit_code_is_0_only_if_all_held(results: list[str], code: int) -> None:
    assert status(outcomes(*results)) == code


def test_wide_terminal_shows_an_outcome_on_one_line() -> None:
    (outcome,) = outcomes(HELD)
    assert outcome_text(outcome, Terminal(100)) == (
        "  ✓ held          read a file outside                   mount, landlock: No such file or directory"
    )


def test_narrow_terminal_shows_the_detail_below() -> None:
    (outcome,) = outcomes(NOT_SHOWN)
    assert outcome_text(outcome, Terminal(60)).splitlines() == [
        "  ⚠ not shown     read a file outside",
        "                    mount, landlock: No such file or",
        "                    directory",
    ]


@pytest.mark.parametrize("width", [24, 40, 60, 100])
@pytest.mark.parametrize("result", [HELD, NOT_HELD, NOT_SHOWN, NOT_TESTABLE])
def test_text_fits_and_needs_no_colour(width: int, result: str) -> None:
    plain, painted = Terminal(width), Terminal(width, color=True)
    found = outcomes(result, HELD)
    for text in (heading(SETTING, 48, plain), outcome_text(found[0], plain), summary(found, plain)):
        assert max(columns(line) for line in text.splitlines()) <= width
    assert result in " ".join(outcome_text(found[0], painted).split())


def test_json_counts_every_result() -> None:
    data = to_dict(SETTING, outcomes(HELD, HELD, NOT_SHOWN))
    assert data["counts"] == {"held": 2, "not_held": 0, "not_shown": 1, "not_testable": 0}
    assert counts(outcomes()) == {HELD: 0, NOT_HELD: 0, NOT_SHOWN: 0, NOT_TESTABLE: 0}
