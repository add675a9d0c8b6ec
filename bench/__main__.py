"""Run every module of bench/, print one table, write bench/results/. A module is a function `measure()` that returns rows."""

import json
import platform
import sys
from importlib import import_module
from pathlib import Path
from time import strftime

HERE = Path(__file__).parent
COLUMNS = ("what", "value", "unit", "bare", "ratio", "goal")


def shown(value: object) -> str:
    """Return a cell as a person reads it."""
    if value is None:
        return ""
    return (
        f"{value:.3g}"
        if isinstance(value, float) and abs(value) < 100
        else f"{value:,.0f}"
        if isinstance(value, float)
        else str(value)
    )


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as an aligned table."""
    cells = [list(COLUMNS), *([shown(row.get(column)) for column in COLUMNS] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    )


def main() -> None:
    """Measure what is named on the command line, or everything."""
    names = sys.argv[1:] or sorted(p.stem for p in HERE.glob("*.py") if not p.stem.startswith("_"))
    rows: list[dict[str, object]] = []
    for name in names:
        rows += import_module(f"bench.{name}").measure()
    print(table(rows))
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    machine = {"python": platform.python_version(), "kernel": platform.release(), "machine": platform.machine()}
    report = {"at": strftime("%Y-%m-%dT%H:%M:%S%z"), **machine, "rows": rows}
    (results / f"{'-'.join(names) if sys.argv[1:] else 'all'}.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
