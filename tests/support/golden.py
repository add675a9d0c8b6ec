"""Compares text that a person reads with tests/golden/SURFACE.txt, one file per surface.

Set CORRAL_UPDATE_GOLDEN=1 to rewrite the file, and read the diff. Other tests assert rule ids, codes and quoted text, so that
a sentence can be improved by changing one file.
"""

import fcntl
import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "golden"
_HEAD = "== "


def read(surface: str) -> dict[str, str]:
    """Return the entries of a golden file by name."""
    path = FOLDER / f"{surface}.txt"
    found: dict[str, str] = {}
    name = ""
    for line in path.read_text().splitlines() if path.exists() else []:
        if line.startswith(_HEAD):
            name = line.removeprefix(_HEAD)
            found[name] = ""
        else:
            found[name] += f"{line}\n"
    return {key: text.strip("\n") for key, text in found.items()}


def check(surface: str, name: str, text: str) -> None:
    """Fail unless the text is the entry of that name."""
    shown = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
    is_updated = os.environ.get("CORRAL_UPDATE_GOLDEN") == "1"
    expected = _write(surface, name, shown) if is_updated else read(surface).get(name)
    if expected is None:
        pytest.fail(f"tests/golden/{surface}.txt has no entry {name!r}; write it with CORRAL_UPDATE_GOLDEN=1")
    assert shown == expected


def _write(surface: str, name: str, text: str) -> str:
    FOLDER.mkdir(exist_ok=True)
    with open(FOLDER / f"{surface}.txt", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # several workers of `pytest -n` write the same file
        entries = read(surface) | {name: text}
        file.truncate(0)
        file.write("\n".join(f"{_HEAD}{key}\n{value}\n" for key, value in sorted(entries.items())))
    return text
