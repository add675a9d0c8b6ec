"""Run every benchmark, print a table for each, and write bench/results/. A benchmark is a module with `measure(options)` and `AS_USER`.

The exit code says whether all benchmarks ran. It does not say whether their goals are met: people judge that.
"""

import argparse
import json
import os
import platform
import pwd
import sys
import traceback
from importlib import import_module
from pathlib import Path
from time import strftime
from typing import Any

from bench import _user
from bench._peers import PLACE
from bench._rows import Section, section_from_dict, shown, summary
from bench._turns import ROUNDS, Options

HERE = Path(__file__).parent
LEGEND = "Medians; spread is half the interquartile range; quiet is the ratio of the tenth percentiles."
NAMES = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))


def parsed(words: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"benchmarks to run, of {', '.join(NAMES)} (default: all)"
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="rounds of each comparison; fewer are faster and less exact"
    )
    parser.add_argument("--json", action="store_true", help="print the report instead of tables")
    parser.add_argument("--own-user", action="store_true", help="as root: do not measure as an ordinary user too")
    parser.add_argument("--peers", default=str(PLACE), metavar="DIR", help="directory of the other sandboxes")
    parser.add_argument("--results", default=str(HERE / "results"), metavar="DIR", help="directory for the report")
    parser.add_argument("--no-peers", action="store_true", help="leave other sandboxes out")
    arguments = parser.parse_args(words)
    unknown = sorted(set(arguments.names) - set(NAMES))
    if unknown or arguments.rounds < 1:
        parser.error(f"there is no benchmark {unknown[0]}" if unknown else "--rounds must be at least 1")
    return arguments


def measured(name: str, options: Options) -> Section:
    """Run one benchmark. If it raises, return a section with the error, so that the other benchmarks still run."""
    try:
        section: Section = import_module(f"bench.{name}").measure(options)
    except Exception as error:  # noqa: BLE001  the other benchmarks must still run; the exit code reports the failure
        traceback.print_exc()
        return Section(name, broke=f"{type(error).__name__}: {error}")
    return section


def as_who() -> str:
    """Return the name of the user and the version of the interpreter, which can differ between users."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        name = f"user {os.geteuid()}"
    return f"as {name}, Python {platform.python_version()}"


def machine() -> dict[str, Any]:
    """Return the facts about the machine that the numbers depend on."""
    facts = {"kernel": platform.release(), "machine": platform.machine(), "cores": os.cpu_count() or 1}
    return {"at": strftime("%Y-%m-%dT%H:%M:%S%z"), **facts, "load": load()}


def load() -> dict[str, float]:
    """Return the load average over one minute and over five minutes."""
    one, five, _ = os.getloadavg()
    return {"one_minute": round(one, 2), "five_minutes": round(five, 2)}


def main() -> int:
    """Run the benchmarks that the command line names, or all of them."""
    arguments = parsed(sys.argv[1:])
    peers = "" if arguments.no_peers else arguments.peers
    options = Options(arguments.rounds, peers)
    report: dict[str, Any] = {**machine(), "rounds": options.rounds}
    if not arguments.json:
        print(
            f"{report['cores']} cores, kernel {report['kernel']}, {options.rounds} rounds, {_load_in_words()}\n{LEGEND}\n",
            flush=True,
        )
    names = arguments.names or NAMES
    sections: list[Section] = []
    for name in names:
        section = measured(name, options)
        sections.append(section.replace(name=name, who=as_who()))
        _print_unless(arguments.json, sections[-1:])
    if os.geteuid() == 0 and not arguments.own_user:
        theirs = _as_nobody([name for name in names if import_module(f"bench.{name}").AS_USER], options)
        sections += theirs
        _print_unless(arguments.json, theirs)
    report |= {"load_after": load(), "sections": [section.to_dict() for section in sections]}
    if not arguments.json:
        print(f"{summary(sections)}\n{_load_in_words()}")
    _write(report, sections, Path(arguments.results), "-".join(arguments.names) or "all")
    if arguments.json:
        print(json.dumps(report, indent=1, ensure_ascii=False))
    return int(any(section.broke for section in sections))


def _as_nobody(names: list[str], options: Options) -> list[Section]:
    if not names:
        return []
    try:
        report = _user.report_of_nobody(names, options.rounds, peers=bool(options.peers))
    except _user.Impossible as why:
        return [Section("as an ordinary user", notes=(f"not measured: {why}",))]
    return [section_from_dict(section) for section in report["sections"]]


def _load_in_words() -> str:
    now = load()
    said = f"load {now['one_minute']:g} over one minute, {now['five_minutes']:g} over five (about 1 is this benchmark's own)"
    busy = now["one_minute"] > (os.cpu_count() or 1)
    return said + (
        "\nThe machine is busy: read the column quiet, or run this again when the machine is idle." if busy else ""
    )


def _print_unless(quiet: bool, sections: list[Section]) -> None:
    for section in sections:
        if not quiet:
            print(shown(section), flush=True)


def _write(report: dict[str, Any], sections: list[Section], results: Path, stem: str) -> None:
    try:
        results.mkdir(exist_ok=True)
        (results / f"{stem}.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
        text = "\n".join([*(shown(section) for section in sections), summary(sections), ""])
        (results / f"{stem}.txt").write_text(text)
    except PermissionError:
        # An ordinary user runs copies and cannot write here. The process that started this run reads the report from stdout.
        return


if __name__ == "__main__":
    sys.exit(main())
