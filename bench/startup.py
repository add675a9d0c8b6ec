"""What a process pays before corral does anything, in the unit of a bare interpreter: `python -I -S -c pass`."""

import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import corral
from bench.overhead import median

ROUNDS = 40
SOURCE = str(Path(corral.__file__).parents[1])
HEAD = f"import sys; sys.path.append({SOURCE!r}); "
CHECK = "from corral.vet import vet; from corral.model import Call; from corral.config import SandboxConfig; "
CHECK += "vet(Call(('ls', '-la')), SandboxConfig(sys.argv[1]))"
RUN = "from corral import Sandbox, SandboxConfig; Sandbox(SandboxConfig(sys.argv[1])).run(['true'])"
CASES = {
    "import corral": (HEAD + "import corral", "<= 1.1"),
    "import and check one call": (HEAD + CHECK, "<= 2.5"),
    "import Sandbox": (HEAD + "from corral import Sandbox", ""),
    "import, run /bin/true, end": (HEAD + RUN, ""),
}


def milliseconds(code: str, root: str) -> float:
    """Return how long a bare interpreter takes for some code."""
    begun = perf_counter()
    subprocess.run([sys._base_executable, "-I", "-S", "-c", code, root], check=True)
    return (perf_counter() - begun) * 1000


def measure() -> list[dict[str, object]]:
    """Return what each step costs, interleaved with the bare interpreter."""
    samples: dict[str, list[float]] = {what: [] for what in ("bare", *CASES)}
    with tempfile.TemporaryDirectory() as root:
        for _ in range(ROUNDS):
            samples["bare"].append(milliseconds("pass", root))
            for what, (code, _) in CASES.items():
                samples[what].append(milliseconds(code, root))
    bare = median(samples["bare"])
    return [
        {
            "what": what,
            "value": (ours := median(samples[what])),
            "unit": "ms",
            "bare": bare,
            "ratio": ours / bare,
            "goal": goal,
        }
        for what, (_, goal) in CASES.items()
    ]
