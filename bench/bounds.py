"""Measures the most that the guard spends on one call: texts that once took too long, as long as it reads, and large harmless scripts."""

import sys
from importlib import import_module
from pathlib import Path

from bench._place import workplace
from bench._rows import Goal, Row, Section
from bench._turns import Options
from corral.guard.shell.parser import MAX_PARSED_BYTES, MAX_TEXT_BYTES

AS_USER = False
ROUNDS = 3  # a text that is past the bar is measured again, because other programs share the caches
MAX_MILLISECONDS = 250
MAX_MEGABYTES = 200
MIN_ALLOWED = 50


def measure(_: Options) -> Section:
    """Return the largest cost of a call in CPU time and memory, and how many large harmless calls are allowed in their time."""
    sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
    families, cost, large = (import_module(name) for name in ("growth_families", "guard_cost", "large_harmless"))
    sizes = (MAX_PARSED_BYTES - 100, MAX_TEXT_BYTES - 50)
    hostile = [
        (profile, families.grown(name, size))
        for profile in ("strict", "workspace")
        for name in families.KNOWN
        for size in sizes
    ]
    harmless = [("workspace", text) for text in large.large_calls().values()]
    with workplace() as folder:
        costs = {call: min(cost.measured(folder, [call] * ROUNDS)) for call in hostile}
        answers = [decision for _, _, decision, _ in cost.measured(folder, harmless)]
    slowest = max(seconds for seconds, *_ in costs.values()) * 1000
    largest = max(megabytes for _, megabytes, *_ in costs.values())
    allowed = answers.count("allow")
    rows = (
        Row(f"{len(hostile)} hostile texts: CPU of the slowest", slowest, "ms", goal=Goal(MAX_MILLISECONDS, of_value=True)),
        Row(f"{len(hostile)} hostile texts: memory of the largest", largest, "MB", goal=Goal(MAX_MEGABYTES, of_value=True)),
        Row(f"{len(answers)} large harmless texts: allowed", allowed, "", goal=Goal(MIN_ALLOWED, at_least=True, of_value=True)),
    )  # fmt: skip
    return Section("bounds of the guard", rows, (f"the best of {ROUNDS} rounds",))
