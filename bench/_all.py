"""Run every benchmark in a process of its own with a time limit, then write docs/benchmarks.json and the page.

The page names a benchmark that fails or exceeds its time limit; the others still run. `make bench-all` runs this module.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, strftime
from typing import Any

import corral
from bench import _install, _page, _user
from bench.__main__ import NAMES, machine
from bench._peers import DEBIAN, ELSEWHERE, ENGINES, NODE_PINS, PLACE, PYTHON_PINS, reason_for
from bench._report import DOCS, FILE, report_from, to_json
from bench._rows import Section, section_from_dict, summary

ROUNDS = 100  # fits the whole run into twelve minutes on two cores
SECONDS_EACH = 240  # ends a benchmark that hangs; a slow one runs fewer rounds instead
END_SECONDS = 10
# The benchmarks that other load disturbs most run first. The rest run in the order of their names.
FIRST = ("overhead", "cold", "startup", "hook")
ON_AN_ENGINE = ("scale", "evals")
TOOLS = ("git", "gcc", "bash", "/usr/bin/python3")


class Clock:
    """Prints lines that begin with the time since the start."""

    def __init__(self) -> None:
        self._begun = monotonic()

    @property
    def seconds(self) -> float:
        """Return the seconds since the start."""
        return monotonic() - self._begun

    def say(self, words: str) -> None:
        """Print a line and flush it."""
        print(f"[{int(self.seconds) // 60:2}:{int(self.seconds) % 60:02}] {words}", flush=True)


def main() -> int:
    """Install the peers, run the benchmarks, and write the report and the page."""
    parser = argparse.ArgumentParser(prog="python -m bench._all", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"run only these of {', '.join(NAMES)}, and write no page"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each comparison")
    parser.add_argument("--no-install", action="store_true", help="use the peers that are already installed")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(NAMES)):
        parser.error(f"there is no benchmark {unknown[0]}")
    # SIGTERM must raise KeyboardInterrupt: then `_section` ends its benchmark, and temporary files are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    clock = Clock()
    clock.say("installing other guards and sandboxes into bench/.peers")
    why_not = _noted() if arguments.no_install else _install.installed(lambda words: clock.say(f"  {words}"))
    facts = {**machine(), **_facts(why_not), "rounds": arguments.rounds}
    names = sorted(arguments.names or NAMES, key=lambda name: (*(name != first for first in FIRST), name))
    sections = list(_measured(names, arguments.rounds, clock))
    print(summary(sections))
    if not arguments.names:
        data = {**facts, "load_after": machine()["load"], "seconds": round(clock.seconds)}
        FILE.write_text(to_json({**data, "sections": [section.to_dict() for section in sections]}))
        _page.write(report_from(json.loads(FILE.read_text())))
        clock.say("wrote docs/benchmarks.json, docs/benchmarks.md, docs/images/bench-*.svg and the README's table")
    return int(any(section.broke for section in sections))


def _measured(names: list[str], rounds: int, clock: Clock) -> Iterator[Section]:
    """Yield each section when its benchmark is done. As root, also run some benchmarks as an ordinary user."""
    with TemporaryDirectory() as results, ExitStack() as stack:
        place: Path | None = None
        if os.geteuid() == 0:
            try:
                place = stack.enter_context(_user.shelf())
            except _user.Impossible as why:
                clock.say(f"  ✗ as an ordinary user: {why}")
        for name in names:
            words = ["--json", "--own-user", f"--rounds={rounds}", f"--results={results}", f"--peers={PLACE}", name]
            begun = clock.seconds
            section = _section(Path(results), name, [sys.executable, "-m", "bench", *words], env=_environment(name))
            yield _told(section, begun, clock)
            if place is not None and import_module(f"bench.{name}").AS_USER:
                begun = clock.seconds
                command = _user.command_of_nobody([name], rounds, peers=True, results=str(place / "home"))
                env = _user.environment_of(place)
                section = _section(place / "home", name, command, cwd=str(place / "home"), env=env)
                yield _told(section, begun, clock, "an ordinary user")


def _told(section: Section, begun: float, clock: Clock, who: str = "") -> Section:
    """Print how a benchmark went, and return its section."""
    judged = [row.met for row in section.rows if row.met is not None]
    goals = f", {sum(map(bool, judged))} of {len(judged)} goals met" if judged else ""
    said = f"✗ {section.broke}" if section.broke else f"✓ {len(section.rows)} rows{goals}"
    clock.say(f"  {section.name}{f' as {who}' if who else ''}, {clock.seconds - begun:.0f} s: {said}")
    return section


def _section(results: Path, name: str, command: list[str], **place: Any) -> Section:
    """Run one benchmark in a process of its own, and return the section that it wrote to its results file."""
    process = subprocess.Popen(
        command, **place, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _, err = process.communicate(timeout=SECONDS_EACH)
        (found,) = json.loads((results / f"{name}.json").read_text())["sections"]
    except subprocess.TimeoutExpired:
        return Section(name, broke=f"it took more than {SECONDS_EACH} seconds", name=name)
    except (OSError, ValueError):
        return Section(name, broke=f"it ended with {process.returncode}: {err[-300:].strip()}", name=name)
    finally:
        # SIGINT first, so that the benchmark removes its files. Then SIGKILL to its process group, so that no peer runs beside the next one.
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return section_from_dict(found)


def _environment(name: str) -> dict[str, str]:
    paths = [f"{PLACE}/{engine}" for engine in ENGINES] if name in ON_AN_ENGINE else []
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)} if paths else dict(os.environ)


def _noted() -> dict[str, str]:
    return {name: reason_for(str(PLACE), name) for name in (*DEBIAN, *PYTHON_PINS, *ENGINES, *NODE_PINS)}


def _facts(why_not: dict[str, str]) -> dict[str, Any]:
    versions = {"Python": platform.python_version()}
    versions |= {Path(tool).name: _said(tool) for tool in TOOLS if shutil.which(tool)}
    versions |= {name: _install.version_of(name) for name, why in why_not.items() if not why}
    return {
        "at": strftime("%Y-%m-%d %H:%M"),
        "corral": f"{corral.__version__}, commit {_commit()}",
        "processor": _processor(),
        "memory_gib": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30,
        "versions": versions,
        "not_installed": {name: why for name, why in why_not.items() if why} | ELSEWHERE,
    }


def _said(tool: str) -> str:
    done = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False)
    return next(iter(done.stdout.splitlines()), "")


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=DOCS
    )
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
