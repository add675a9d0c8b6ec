"""Counts the refused calls of a corpus that a person can answer: `python tools/answerable.py FILE.jsonl…`.

`--before CORRAL` names an older installation's `corral`: the share is then of the calls that it refused, and calls that it refused and this
one allows are listed, for every posture. Rows are `{"id", "argv": […]}` or `{"id", "shell": "…"}`, with an optional "root". Nothing is run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

Row = dict[str, Any]
POSTURES = ("locked", "balanced", "open")
MEASURED = "balanced"
OWN = Path(sys.executable).with_name("corral")
# A folder that every installation calls outside the temporary directories, as a user's project is.
PROJECTS = "/var/tmp"


def verdicts(corral: Path, rows: list[Row], posture: str = "") -> dict[str, Row]:
    """Return the verdict on each row, by its id."""
    with tempfile.TemporaryDirectory(dir=PROJECTS) as folder:
        root, settings = Path(folder, "project"), Path(folder, "config", "corral")
        root.mkdir()
        settings.mkdir(parents=True, mode=0o700)
        if posture:
            (settings / "policy.toml").write_text(f'posture = "{posture}"\n')
        calls = "".join(json.dumps(_call(row, str(root))) + "\n" for row in rows)
        command = [str(corral), "check", "--profile", "workspace", "--root", str(root), "--jsonl"]
        environ = os.environ | {"XDG_CONFIG_HOME": str(settings.parent)}
        done = subprocess.run(command, input=calls, env=environ, capture_output=True, text=True, check=True)
    answers = {answer["id"]: answer for answer in map(json.loads, filter(None, done.stdout.split("\n")))}
    if len(answers) != len(rows):
        raise SystemExit(f"{len(rows)} calls, {len(answers)} answers: {done.stderr[-500:]}")
    return answers


def _call(row: Row, root: str) -> Row:
    text = json.dumps({key: row[key] for key in ("id", "argv", "shell") if key in row})
    call: Row = json.loads(text.replace(row["root"], root) if row.get("root") else text)
    return call


def _hard(answer: Row) -> str:
    """Return the rules of the refusals that no question covers."""
    return " ".join(sorted({each["rule"] for each in answer["findings"] if each["decision"] == "deny"}))


def main() -> None:
    """Print the share of each file, its hard refusals by rule, and what became allowed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--before", type=Path, help="the corral command of an older installation")
    parser.add_argument("--hard", type=int, default=12, metavar="N", help="show the N most frequent hard refusals")
    parser.add_argument("--dump", type=Path, help="write each refused row with its verdict to this file")
    options = parser.parse_args()
    for path in options.files:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        now = {posture: verdicts(OWN, rows, posture) for posture in POSTURES}
        before = verdicts(options.before, rows) if options.before else now["locked"]
        refused = [row for row in rows if before[row["id"]]["decision"] == "deny"]
        print(f"{path.name}: {len(rows)} calls, {len(refused)} refused before")
        for posture, answers in now.items():
            count = Counter(answers[row["id"]]["decision"] for row in refused)
            shares = ", ".join(
                f"{each} {count[each]} ({count[each] / max(1, len(refused)):.1%})" for each in ("allow", "ask", "deny")
            )
            print(f"  {posture:9} {shares}")
        answers = now[MEASURED]
        hard = Counter(_hard(answers[row["id"]]) for row in refused if answers[row["id"]]["decision"] == "deny")
        for rules, number in hard.most_common(options.hard):
            print(f"  {number:5} {rules}")
        if options.dump:
            with options.dump.open("a") as out:
                for row in refused:
                    out.write(json.dumps({**row, **{each: now[each][row["id"]] for each in POSTURES}}) + "\n")


main()
