"""The repository that the demo's agent fixes: splitting a bill loses cents."""

from __future__ import annotations

import os
from difflib import unified_diff

from corral.apps.evals.run_task import write_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

TASK = "The tests in tests/ fail: when a bill is split, cents get lost. Fix the program, and show that the tests pass."
BILLS = 4000  # too many to read them all
PROGRAM = '''\
"""Splits a bill."""


def split(cents: int, people: int) -> list[int]:
    """Return the shares in cents. Their sum is the bill, and they differ by at most one cent."""
    return [cents // people] * people
'''
TESTS = """\
import csv
import unittest

from shares.split import split


class Split(unittest.TestCase):
    def test_an_even_bill(self):
        self.assertEqual(split(900, 3), [300, 300, 300])

    def test_an_odd_bill(self):
        self.assertEqual(split(1000, 3), [333, 333, 334])

    def test_no_cent_of_any_bill_is_lost(self):
        with open("data/bills.csv") as file:
            bills = [(int(cents), int(people)) for cents, people in csv.reader(file)]
        self.assertEqual([bill for bill in bills if sum(split(*bill)) != bill[0]][:1], [])
"""
FILES = {
    "README.md": "# shares\n\nSplits a bill. `python3 -m unittest -q` runs the tests; `data/bills.csv` has real ones: cents, people.\n",
    "shares/__init__.py": "",
    "shares/split.py": PROGRAM,
    "tests/__init__.py": "",
    "tests/test_split.py": TESTS,
    "data/bills.csv": "".join(f"{1000 + 37 * n},{2 + n % 7}\n" for n in range(BILLS)),
}


def write(root: str) -> None:
    """Create the repository in a directory that does not exist yet."""
    write_files(root, FILES)


def changes(root: str) -> Iterator[str]:
    """Yield a diff between the created files and the present ones. A missing file counts as empty."""
    for name, before in FILES.items():
        try:
            with open(os.path.join(root, name), encoding="utf-8", errors="replace") as file:
                after = file.read()
        except OSError:
            after = ""
        yield from unified_diff(before.splitlines(), after.splitlines(), name, name, n=0, lineterm="")
