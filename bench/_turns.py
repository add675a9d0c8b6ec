"""Times functions in turns in one process, in a random order each round, so that other load and warm caches affect all of them alike."""

from collections.abc import Callable, Mapping
from random import Random
from time import monotonic, perf_counter_ns

from bench._rows import Goal, Row
from corral._lib.records import Record, frozen

ROUNDS = 300
WARM_UP = 5
FEWEST = 5  # samples of a function that is too slow for every round
COMPARISON_SECONDS = 15.0  # for one comparison; on a busy machine there are fewer rounds instead
FEWEST_IN_TIME = 3  # samples of each function, even if the time is up


@frozen
class Timing(Record):
    """The median of many times in milliseconds, half their interquartile range as a fraction of the median, and the tenth percentile."""

    ms: float
    spread: float
    quiet_ms: float
    samples: int


@frozen
class Options(Record):
    """The options of the command line."""

    rounds: int = ROUNDS
    peers: str = ""  # the directory of the other sandboxes, or empty


def timing(nanoseconds: list[int]) -> Timing:
    """Return the timing of many samples."""
    ranked = sorted(nanoseconds)
    tenth, quarter, middle, three_quarters = (ranked[int(len(ranked) * part)] for part in (0.1, 0.25, 0.5, 0.75))
    spread = (three_quarters - quarter) / 2 / middle if middle else 0.0
    return Timing(middle / 1e6, spread, tenth / 1e6, len(ranked))


def compared(what: str, ours: Timing, bare: Timing, goal: Goal | None = None) -> Row:
    """Return a row that compares one timing with another."""
    quiet = ours.quiet_ms / bare.quiet_ms if bare.quiet_ms else None
    return Row(what, ours.ms, "ms", bare.ms, ours.spread, goal, quiet)


def in_turns(
    functions: Mapping[str, Callable[[], object]], rounds: int, *, seconds_each: float = 0.0
) -> dict[str, Timing]:
    """Time every function once a round. With `seconds_each`, a slow function takes part in fewer rounds, to stay within that time."""
    samples: dict[str, list[int]] = {name: [] for name in functions}
    stride = {name: _stride(function, rounds, seconds_each) for name, function in functions.items()}
    order, names = Random(0), list(functions)
    deadline = monotonic() + COMPARISON_SECONDS
    for turn in range(rounds):
        if monotonic() > deadline and all(len(kept) >= min(FEWEST_IN_TIME, rounds) for kept in samples.values()):
            break
        order.shuffle(names)
        for name in names:
            if turn % stride[name] == 0:
                samples[name].append(timed(functions[name]))
    return {name: timing(kept) for name, kept in samples.items()}


def timed(function: Callable[[], object]) -> int:
    """Return the nanoseconds of one call, or the number that the function returns if it measures itself."""
    begun = perf_counter_ns()
    own = function()
    spent = perf_counter_ns() - begun
    return own if type(own) is int else spent


def _stride(function: Callable[[], object], rounds: int, seconds: float) -> int:
    """Warm a function up, and return the number of rounds between its turns."""
    spent = [timed(function) for _ in range(1 if seconds else WARM_UP)]
    if not seconds:
        return 1
    affordable = max(FEWEST, int(seconds * 1e9 / max(spent[-1], 1)))
    return max(1, -(-rounds // affordable))
