"""check() against the bare tree-sitter parse of the same strings, and against another guard where it is installed."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter_ns

from corral import SandboxConfig
from corral.grammar import make_parser
from corral.machine import Machine
from corral.model import Call
from corral.rulecompiler import read_tables
from corral.vet import vet

CORPUS = Path(__file__).parents[2] / "shared" / "corpora" / "agents_benign.jsonl"
PEERS = Path(__file__).parent / ".peers" / "bin" / "python"
# Runs in the peers' own environment: times nah's classifier on the strings it is given.
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
    """Return real commands of agents where they are at hand, the rows' own examples otherwise."""
    if CORPUS.exists():
        rows = [json.loads(line) for line in CORPUS.open()]
        return [row["shell"] if "shell" in row else row["argv"][-1] for row in rows]
    _, rules = read_tables()
    return [text for row in rules.values() for text in (*row.get("deny", ()), *row.get("allow", ()))]


def measure() -> list[dict[str, object]]:
    """Time every string once with each, side by side."""
    texts = strings()
    parser = make_parser()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as root:
        config = SandboxConfig(project_root=root, profile="workspace")
        machine = Machine.of(config)
        bare: list[int] = []
        checked: list[int] = []
        plain: list[int] = []
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
    ranked = sorted(checked)
    parse_us, check_us = median(bare) / 1000, median(checked) / 1000
    rows: list[dict[str, object]] = [
        {"what": f"check, median of {len(texts)} commands", "value": check_us, "unit": "us", "bare": parse_us,
         "ratio": check_us / parse_us, "goal": "<= 15 bare parses"},
        {"what": "check, 99th percentile", "value": ranked[int(len(ranked) * 0.99)] / 1000, "unit": "us"},
        {"what": "check, worst", "value": ranked[-1] / 1000, "unit": "us"},
        {"what": "check of a plain argv", "value": median(plain) / 1000, "unit": "us"},
    ]  # fmt: skip
    if PEERS.exists():
        done = subprocess.run([PEERS, "-c", NAH], input=json.dumps(texts), capture_output=True, text=True, check=False)
        if done.returncode == 0:
            times = sorted(json.loads(done.stdout))
            nah_us = median(times) / 1000
            rows += [
                {"what": "nah on the same commands, median", "value": nah_us, "unit": "us", "bare": check_us,
                 "ratio": check_us / nah_us, "goal": "<= 0.33"},
                {"what": "nah, 99th percentile", "value": times[int(len(times) * 0.99)] / 1000, "unit": "us"},
                {"what": "nah, worst", "value": times[-1] / 1000, "unit": "us"},
            ]  # fmt: skip
        else:
            print(f"nah did not run: {done.stderr[-200:]}", file=sys.stderr)
    else:
        print("nah is not installed for comparison: make bench-peers", file=sys.stderr)
    return rows
