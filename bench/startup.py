"""Measures the import and first use of corral in a new process, compared with a bare interpreter, `python -I -S -c pass`."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import corral
from bench._place import make_project, workplace
from bench._rows import Goal, Section, at_most
from bench._turns import Options, compared, in_turns

AS_USER = False
SOURCE = str(Path(corral.__file__).parents[1])
HEAD = f"import sys; sys.path.append({SOURCE!r}); "
CHECK = "from corral.guard.evaluate import vet; from corral.model.call import Call; from corral.policy.config import SandboxConfig; "
CHECK += "vet(Call(('ls', '-la')), SandboxConfig(sys.argv[1]))"
RUN = "from corral import Sandbox, SandboxConfig; Sandbox(SandboxConfig(sys.argv[1])).run(['true'])"
CASES: dict[str, tuple[str, Goal | None]] = {
    "import corral": (HEAD + "import corral", at_most(1.1)),
    "import and check one call": (HEAD + CHECK, at_most(2.5)),
    "import Sandbox": (HEAD + "from corral import Sandbox", None),
    "import, run /bin/true, end": (HEAD + RUN, None),
}


def measure(options: Options) -> Section:
    """Return the time of each step, measured in turns with the bare interpreter."""
    with workplace() as folder:
        project = make_project(folder / "project")
        functions = {what: partial(started, code, project) for what, (code, _) in CASES.items()}
        times = in_turns(functions | {"bare": partial(started, "pass", project)}, max(options.rounds // 6, 5))
    bare = times.pop("bare")
    rows = tuple(compared(what, time, bare, CASES[what][1]) for what, time in times.items())
    return Section("a process that uses corral once, against python -I -S -c pass", rows)


def started(code: str, project: str) -> None:
    """Run a program in a new interpreter."""
    python = sys._base_executable  # type: ignore[attr-defined]  # there since 3.3
    subprocess.run([python, "-I", "-S", "-c", code, project], check=True)
