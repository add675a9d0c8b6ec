"""Tests of the line comparison: the result is minimal, and the work is bounded."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from corral.transactions import line_diff
from corral.transactions.line_diff import Budget, differing

# Every line has many equal ones, so the comparison tries many wrong matches.
SLOW = [[*Random(seed).choices("abcdefghijklmnopqrstuvwxyz", k=2999), str(seed)] for seed in range(2)]
Texts = st.lists(st.sampled_from("abcde"), max_size=30)


def longest(old: list[str], new: list[str]) -> int:
    """Return the length of the longest common subsequence."""
    row = [0] * (len(new) + 1)
    for one in old:
        before, row = row, [0]
        for number, other in enumerate(new):
            row.append(before[number] + 1 if one == other else max(before[number + 1], row[number]))
    return row[-1]


@given(Texts, Texts)
def test_spans_are_true_and_minimal(old: list[str], new: list[str]) -> None:
    spans = differing(old, new, Budget())
    here = there = alike = 0
    for from_old, to_old, from_new, to_new in spans:
        assert old[here:from_old] == new[there:from_new]
        assert (from_old, from_new) != (to_old, to_new)
        alike += from_old - here
        here, there = to_old, to_new
    assert old[here:] == new[there:]
    assert alike + len(old) - here == longest(old, new)


def test_texts_that_are_slow_to_compare_are_replaced_whole() -> None:
    budget = Budget()
    assert differing(["x", "a", *SLOW[0]], ["x", "b", *SLOW[1]], budget) == [(1, 3002, 1, 3002)]
    assert budget.steps == line_diff.MAX_ALL_STEPS - line_diff.MAX_STEPS


def test_equal_lines_count_as_work() -> None:
    old = ["x", *["same"] * 100_000, *[f"{number % 7}" for number in range(1000)]]
    new = [f"{number % 5}" for number in range(1000)] + ["same"] * 100_000 + ["z"]
    budget = Budget()
    differing(old, new, budget)
    assert budget.steps >= line_diff.MAX_ALL_STEPS - line_diff.MAX_STEPS


def test_work_for_all_texts_of_a_diff_is_bounded() -> None:
    budget = Budget()
    for _ in range(line_diff.MAX_ALL_STEPS // line_diff.MAX_STEPS):
        differing(*SLOW, budget)
    assert budget.steps == 0
    # From then on, texts are replaced whole.
    assert differing(["1", "2", "3"], ["2", "3", "1"], budget) == [(0, 3, 0, 3)]
