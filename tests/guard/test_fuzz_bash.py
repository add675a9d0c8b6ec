"""Random scripts that `strict` allows do no harm in real bash, and every hole that the fuzzer found once stays closed."""

import subprocess
import sys
from pathlib import Path

import pytest
from attempt import must_hold
from sampling import sampled

import corral

PROJECT = Path(corral.__file__).parents[2]
HOLES = Path(__file__).with_name("bash_holes.toml")
MUTATIONS = Path(__file__).with_name("bash_mutations.toml")
NO_NAMESPACES = 4


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the fuzzer on this source."""
    command = [sys.executable, str(PROJECT / "tools" / "fuzz_bash.py"), *arguments]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(PROJECT / "src")}, capture_output=True, text=True, check=False
    )
    if done.returncode == NO_NAMESPACES:
        must_hold()
    return done


@pytest.mark.parametrize("count", sampled([2500, 8000], every=2))
def test_random_scripts_that_strict_allows_do_no_harm(count: int) -> None:
    done = fuzz("--count", str(count), "--seed", "17", "--max-holes", "5")
    assert done.returncode == 0, done.stdout + done.stderr


def test_holes_that_were_found_once_are_refused_and_work_in_bash() -> None:
    done = fuzz("--replay", str(HOLES))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_makes_the_same_script_again() -> None:
    first, second, other = (fuzz("--seed", seed, "--show", "5").stdout for seed in ("1", "1", "2"))
    assert first == second != other


def test_fuzzer_finds_the_hole_of_a_fix_that_is_undone() -> None:
    done = fuzz("--mutations", str(MUTATIONS), "--mutation", "W19", "--count", "4000")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.real
def test_fuzzer_finds_the_hole_of_every_fix_that_is_undone() -> None:
    done = fuzz("--mutations", str(MUTATIONS))
    assert done.returncode == 0, done.stdout + done.stderr
