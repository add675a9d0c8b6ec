"""Measures check() against the bare tree-sitter parse of the same strings, and against another guard if it is installed."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from time import perf_counter_ns

from bench._peers import PYTHON_PINS, reason_for
from bench._rows import Row, Section, at_most
from bench._turns import Options, timing
from bench.accuracy import cases
from corral import SandboxConfig
from corral.guard.evaluate import vet
from corral.guard.machine import Machine
from corral.guard.rules.compiler import read_tables
from corral.guard.shell.grammar import make_parser
from corral.model.call import Call

AS_USER = False
# Runs in the peers' own environment: times nah's classifier on the given strings.
NAH = """
import json, sys, time
from nah.bash import classify_command
times = []
for text in json.load(sys.stdin):
    start = time.perf_counter_ns()
    try: classify_command(text)
    except Exception: pass
    times.append(time.perf_counter_ns() - start)
print(json.dumps(times))
"""


def strings() -> list[str]:
    """Return the commands of bench/cases.toml and the examples of the rules."""
    _, rules = read_tables()
    examples = [text for row in rules.values() for text in (*row.get("deny", ()), *row.get("allow", ()))]
    return [*(case.command for case in cases()), *examples]


def measure(options: Options) -> Section:
    """Return the time that each candidate takes for every string."""
    texts = strings()
    bare, checked, plain = _samples(texts)
    ranked = sorted(checked)
    parse, check, words = timing(bare), timing(checked), timing(plain)
    rows = [
        Row(f"check of {len(texts)} commands, against their bare parse", check.ms * 1000, "us", parse.ms * 1000, check.spread, at_most(15)),
        Row("check, 99th percentile", ranked[int(len(ranked) * 0.99)] / 1000, "us"),
        Row("check, worst", ranked[-1] / 1000, "us"),
        Row("check of a plain argv", words.ms * 1000, "us", spread=words.spread),
    ]  # fmt: skip
    times, note = _nah(texts, options.peers)
    if not times:
        return Section("the guard", tuple(rows), (note,))
    ranked = sorted(times)
    nah = timing(times)
    rows += [
        Row(
            f"check, against nah {PYTHON_PINS['nah']} on the same commands",
            check.ms * 1000,
            "us",
            nah.ms * 1000,
            check.spread,
            at_most(0.33),
        ),
        Row("nah, 99th percentile", ranked[int(len(ranked) * 0.99)] / 1000, "us"),
        Row("nah, worst", ranked[-1] / 1000, "us"),
    ]
    return Section("the guard", tuple(rows))


def _samples(texts: list[str]) -> tuple[list[int], list[int], list[int]]:
    parser = make_parser()
    bare: list[int] = []
    checked: list[int] = []
    plain: list[int] = []
    with tempfile.TemporaryDirectory(dir="/var/tmp") as root:
        config = SandboxConfig(project_root=root, profile="workspace")
        machine = Machine.of(config)
        for text in texts:
            vet(Call(text, shell=True), config, machine)
        for text in texts:
            source = text.encode("utf-8", "surrogatepass")
            start = perf_counter_ns()
            parser.parse(source)
            middle = perf_counter_ns()
            vet(Call(text, shell=True), config, machine)
            checked.append(perf_counter_ns() - middle)
            bare.append(middle - start)
            start = perf_counter_ns()
            vet(Call(("grep", "-rn", "foo", "src")), config, machine)
            plain.append(perf_counter_ns() - start)
    return bare, checked, plain


def _nah(texts: list[str], peers: str) -> tuple[list[int], str]:
    if not peers or not Path(peers, "bin/python").exists():
        return [], f"nah is not compared: {reason_for(peers, 'nah') or 'it is not installed: make bench-peers'}"
    command = [f"{peers}/bin/python", "-c", NAH]
    env = {"PATH": os.environ["PATH"], "HOME": tempfile.gettempdir()}
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        return [], f"nah did not run: {done.stderr[-200:]}"
    times: list[int] = json.loads(done.stdout)
    return times, ""
