"""Judges texts in a child process and measures each: CPU seconds, the peak of its memory, and whether the child survived."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import corral

if TYPE_CHECKING:
    from collections.abc import Iterable

# Reads lines of [profile, text], and writes one line for each: CPU seconds, peak megabytes, decision, rules.
_PROGRAM = """
import json, sys, time
from corral import SandboxConfig
from corral.guard.evaluate import vet
from corral.model.call import Call
configs = {name: SandboxConfig(project_root=sys.argv[1], profile=name) for name in ("strict", "workspace")}
for config in configs.values():
    vet(Call("cat <<E | sed s/a/b/ !(a) [a]\\nE\\n", shell=True), config)
for line in sys.stdin:
    profile, text = json.loads(line)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak of the memory begins anew
    begin = time.thread_time()
    verdict = vet(Call(text, shell=True), configs[profile])
    seconds = time.thread_time() - begin
    with open("/proc/self/status") as file:
        peak = next(int(row.split()[1]) // 1024 for row in file if row.startswith("VmHWM"))
    print(json.dumps([seconds, peak, str(verdict.decision), [found.rule for found in verdict.findings]]), flush=True)
"""


def measured(root: Path, calls: Iterable[tuple[str, str]]) -> list[tuple[float, int, str, list[str]]]:
    """Return the cost and the answer of each (profile, text). Fails if the child dies."""
    lines = "".join(json.dumps(call) + "\n" for call in calls)
    sources = [str(Path(corral.__file__).parents[1]), *(path for path in sys.path if path.endswith("site-packages"))]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sources)}
    command = [sys.executable, "-c", _PROGRAM, str(root)]
    done = subprocess.run(command, input=lines, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), f"the guard died on call {len(done.stdout.splitlines())}: {done}"
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]
