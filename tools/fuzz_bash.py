"""Looks for scripts that `strict` allows and whose payload takes effect in real bash: `python tools/fuzz_bash.py --count 200000`.

Random scripts come from the grammar in tools/bash_fuzzing/grammar. Those that the guard allows run in bash, in a namespace without
network whose only writable directory is a throwaway project. A hole is an allowed script that deleted the victim, read the secret
beside the project, or wrote there. It is reduced to a few tokens and printed.

The exit code is 0 without a hole, 1 with one, and 2 if `strict` allowed less than a fifth of the scripts, which proves too little.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import IO, Any

from bash_fuzzing.arena import Arena, bound_processes, enter_namespaces
from bash_fuzzing.grammar import Generator, rules
from bash_fuzzing.reduction import reduced
from corral.containment.kernel.syscalls import prctl

MIN_ALLOWED = 0.2
ALLOWED, REFUSED = b"ar"
FAILED, NO_NAMESPACES = 3, 4  # further exit codes
_PR_SET_PDEATHSIG = 1
SAMPLED = 20  # one of so many refused scripts runs, to show how often the payload would have worked
MAX_REDUCED = 60  # holes that one worker reduces; the rest are only counted


def generate(seed: int, number: int) -> tuple[str, list[str], str]:
    """Return family, pieces and joint of a numbered script."""
    return Generator(f"{seed}:{number}").script()


def corpus(path: str) -> list[dict[str, Any]]:
    """Read the holes that were found once."""
    holes: list[dict[str, Any]] = tomllib.loads(Path(path).read_text())["hole"]
    return holes


class Worker:
    """Judges and runs one share of the scripts, and reports by lines of JSON."""

    def __init__(self, arena: Arena, options: argparse.Namespace, report: IO[str]) -> None:
        self.arena = arena
        self.options = options
        self.report = report
        self.counts: Counter[str] = Counter()
        self.families: dict[str, Counter[str]] = {}
        self.reductions = 0
        self.refused = Path(options.refused_in).read_bytes() if options.refused_in else b""
        self.verdicts = bytearray(options.count if options.write_verdicts else 0)

    def replay(self) -> None:
        """Report what `strict` says about each script of a corpus, and what its payload does."""
        for hole in corpus(self.options.replay):
            script = hole["script"]
            self.say(replayed={**hole, "allowed": self.arena.allows(script), "effect": self.arena.effect(script)})

    def work(self, index: int) -> None:
        """Take every script whose number belongs to this worker."""
        options = self.options
        if options.replay:
            self.replay()
            return
        wanted = set(options.family or rules()["script"])
        for number in range(options.start + index, options.start + options.count, options.workers):
            family, pieces, joint = generate(options.seed, number)
            if family in wanted:
                self.one(number, family, pieces, joint)
            if options.max_holes and self.counts["holes"] >= options.max_holes:
                break
        if self.verdicts:
            self.say(verdicts=bytes(self.verdicts).hex())
        self.say(counts=self.counts, families=self.families)

    def one(self, number: int, family: str, pieces: list[str], joint: str) -> None:
        """Judge one script, and run it if it is allowed or belongs to the sample."""
        counts = self.families.setdefault(family, Counter())
        text = joint.join(pieces)
        self._count(counts, "scripts")
        if self.refused and self.refused[number - self.options.start] == ALLOWED:
            return
        allowed = self.arena.allows(text)
        if self.verdicts:
            self.verdicts[number - self.options.start] = ALLOWED if allowed else REFUSED
            return
        if not allowed:
            if self.refused:
                return
            if number % SAMPLED == 0:
                self._count(counts, "sampled")
                if self.arena.effect(text):
                    self._count(counts, "sampled with effect")
            return
        self._count(counts, "allowed")
        effect = self.arena.effect(text)
        if not effect:
            return
        self._count(counts, "holes")
        short = text
        if self.reductions < MAX_REDUCED and not self.options.no_reduction:
            self.reductions += 1
            short = reduced(pieces, joint, self.is_hole)
        self.say(hole={"number": number, "family": family, "effect": effect, "script": text, "reduced": short})

    def _count(self, counts: Counter[str], what: str) -> None:
        self.counts[what] += 1
        counts[what] += 1

    def is_hole(self, text: str) -> bool:
        """Say whether `strict` allows a script whose payload takes effect."""
        return self.arena.allows(text) and bool(self.arena.effect(text))

    def say(self, **what: Any) -> None:
        """Send one line to the parent."""
        self.report.write(json.dumps(what) + "\n")
        self.report.flush()


def start_worker(index: int, options: argparse.Namespace) -> tuple[int, int, str]:
    """Start a worker in its namespaces; return its process id, the pipe it reports to, and its directory."""
    place = tempfile.mkdtemp(prefix="corral-fuzz-", dir="/var/tmp")
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading, place
    code = 1
    try:
        os.close(reading)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        try:
            enter_namespaces(place)
        except OSError as error:
            print(f"no namespaces here: {error}", file=sys.stderr)
            os._exit(NO_NAMESPACES)
        first = os.fork()
        if first:
            code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
        else:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            bound_processes()
            with os.fdopen(writing, "w") as report:
                Worker(Arena(place), options, report).work(index)
            code = 0
    except BaseException:  # noqa: BLE001  a fork must never return into its parent's code
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


class Summary:
    """Adds up what the workers report."""

    def __init__(self, keep: str | None) -> None:
        self.counts: Counter[str] = Counter()
        self.families: dict[str, Counter[str]] = {}
        self.holes: dict[str, dict[str, Any]] = {}
        self.keep = Path(keep) if keep else None
        self.verdicts = b""

    def add(self, line: str) -> None:
        """Take one line of a worker."""
        said = json.loads(line)
        if "hole" in said:
            hole = said["hole"]
            if hole["reduced"] not in self.holes:
                self.holes[hole["reduced"]] = hole
                print(f"--- hole {hole['number']} ({hole['family']}, {hole['effect']})\n{hole['reduced']}", flush=True)
                if self.keep:
                    self.keep.mkdir(parents=True, exist_ok=True)
                    (self.keep / f"{hole['family']}-{hole['number']}.sh").write_text(hole["reduced"] + "\n")
            return
        if "replayed" in said:
            hole = said["replayed"]
            self.counts["scripts"] += 1
            self.counts["allowed"] += hole["allowed"]
            self.counts["holes"] += hole["allowed"] and bool(hole["effect"])
            self.counts["without effect"] += not hole["effect"]
            if hole["allowed"] or not hole["effect"]:
                verdict = "allowed" if hole["allowed"] else "refused"
                print(
                    f"--- {hole['cause']}: {verdict}, effect: {hole['effect'] or 'none'}\n{hole['script']}", flush=True
                )
            return
        if "verdicts" in said:
            made = bytes.fromhex(said["verdicts"])
            self.verdicts = bytes(max(pair) for pair in zip(self.verdicts or bytes(len(made)), made, strict=True))
            return
        self.counts.update(said["counts"])
        for family, counts in said["families"].items():
            self.families.setdefault(family, Counter()).update(counts)

    def show(self, seconds: float, *, families: bool) -> int:
        """Print the totals; return the exit code."""
        counts = self.counts
        if families:
            print(f"{'family':14} {'scripts':>8} {'allowed':>8} {'effect if refused':>18} {'holes':>6}")
            for name, c in sorted(self.families.items()):
                strength = c["sampled with effect"] / max(1, c["sampled"])
                print(
                    f"{name:14} {c['scripts']:8} {c['allowed'] / max(1, c['scripts']):8.1%} {strength:18.1%} {c['holes']:6}"
                )
        total = max(1, counts["scripts"])
        share = counts["allowed"] / total
        strength = counts["sampled with effect"] / max(1, counts["sampled"])
        print(
            f"{counts['scripts']} scripts in {seconds:.0f} s; strict allowed {share:.1%}; the payload of {strength:.1%} of the refused"
            f" ones works ({counts['sampled']} tried); {counts['holes']} holes, {len(self.holes)} after reduction"
        )
        if counts["holes"]:
            return 1
        if share < MIN_ALLOWED:
            print(f"strict allowed less than {MIN_ALLOWED:.0%} of the scripts: the run does not count")
            return 2
        return 0


def run(options: argparse.Namespace) -> int:
    """Start the workers, collect what they find, and print it."""
    begun = time.monotonic()
    workers = [start_worker(index, options) for index in range(options.workers)]
    summary = Summary(options.keep)
    failed = 0
    streams = [os.fdopen(reading) for _, reading, _ in workers]
    import selectors

    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                line = key.fileobj.readline()  # type: ignore[union-attr]
                if line:
                    summary.add(line)
                else:
                    selector.unregister(key.fileobj)
    for (pid, _, place), stream in zip(workers, streams, strict=True):
        stream.close()
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        failed = NO_NAMESPACES if ended == NO_NAMESPACES else FAILED if ended else failed
        shutil.rmtree(place, ignore_errors=True)
    if options.write_verdicts:
        Path(options.write_verdicts).write_bytes(summary.verdicts)
        return failed
    if options.replay:
        counts = summary.counts
        print(f"{counts['scripts']} scripts, {counts['allowed']} allowed, {counts['without effect']} without an effect")
        return failed or int(bool(counts["allowed"] or counts["without effect"]))
    code = summary.show(time.monotonic() - begun, families=options.families)
    return failed or code


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--count", type=int, default=20_000, help="scripts to make")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--start", type=int, default=0, help="number of the first script")
    made.add_argument("--workers", type=int, default=1)
    made.add_argument("--keep", metavar="DIR", help="write each reduced hole to a file there")
    made.add_argument("--family", action="append", help="only scripts of this family; may be given again")
    made.add_argument("--families", action="store_true", help="show the numbers of each family")
    made.add_argument("--max-holes", type=int, default=0, help="stop a worker after so many")
    made.add_argument("--no-reduction", action="store_true")
    made.add_argument("--write-verdicts", metavar="FILE", help="judge only, and write which scripts strict allows")
    made.add_argument(
        "--refused-in",
        metavar="FILE",
        type=os.path.abspath,
        help="only scripts that were refused when FILE was written",
    )
    made.add_argument("--mutations", metavar="FILE", help="undo each fix of a table and show that a run finds the hole")
    made.add_argument("--mutation", action="append", default=[], help="only this one; may be given again")
    made.add_argument("--replay", metavar="FILE", type=os.path.abspath, help="judge and run the scripts of a corpus")
    made.add_argument("--show", type=int, metavar="NUMBER", help="print one script and stop")
    return made


def main() -> int:
    """Run what the command line asks for."""
    options = parser().parse_args()
    if options.show is not None:
        family, pieces, joint = generate(options.seed, options.show)
        print(f"# {family}\n{joint.join(pieces)}")
        return 0
    if options.mutations:
        from bash_fuzzing.mutations import run_mutations

        return run_mutations(options.mutations, options.count, options.seed, options.mutation)
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
