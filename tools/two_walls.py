"""Runs hostile programs contained but unguarded, and reports the canaries they touched: `python tools/two_walls.py FILE.jsonl…`.

A program only runs behind both walls: in a corral sandbox, inside a bubblewrap sandbox with a throwaway root, no network and its own
PID namespace. A check from inside verifies the outer wall before any program runs. Rows are `{"id", "argv": […]}` or `{"id", "shell": "…"}`.
"""

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Inside the outer wall this file runs as a script: nothing is installed there.
    sys.path.insert(0, str(Path(__file__).resolve().parent))

NEEDED = ("corral", "tree_sitter", "tree_sitter_bash")
NOBODY = 65534
OUTER_PROCESSES = 1500
OUTER_MEMORY_BYTES = 6 << 30
OUTER_ROOT_BYTES = 1 << 30
SECONDS_A_ROW = 20
SHOWN_OF_ETC = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/java",
    "/etc/perl",
)
HERE = Path(__file__).resolve().parent


def run(rows: list[dict[str, Any]], inner: str = "warden", seconds: float | None = None) -> list[dict[str, Any]]:
    """Run rows behind the outer wall, and return the result of each. `inner="none"` is only for harmless programs of a test."""
    folder = Path(tempfile.mkdtemp(prefix="corral-walls-"))
    try:
        folder.chmod(0o755)
        _fill(folder)
        brief = {
            "inner": inner,
            "rows": rows,
            "namespaces": {
                name: os.readlink(f"/proc/self/ns/{name}") for name in ("user", "mnt", "pid", "net", "ipc", "uts")
            },
            "absent": [
                str(folder),
                str(HERE),
                str(Path.home() / "."),
                "/var/log",
                "/srv",
                "/etc/hostname",
                "/etc/shadow-",
            ],
        }
        (folder / "brief.json").write_text(json.dumps(brief))
        return _behind_bubblewrap(folder, seconds or 60 + SECONDS_A_ROW * len(rows))
    finally:
        shutil.rmtree(folder)


def _fill(folder: Path) -> None:
    """Copy the packages and scripts for the inside to a folder that an ordinary user can read."""
    for name in NEEDED:
        spec = find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit(f"{name} is not installed")
        source = next(iter(spec.submodule_search_locations))
        shutil.copytree(source, folder / "lib" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("two_walls.py", "canaries.py"):
        shutil.copy(HERE / name, folder)


def _python() -> str:
    """Return the system's interpreter of this version."""
    path = f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    if not os.path.exists(path):
        raise SystemExit(f"there is no {path}: only the system's programs are available inside")
    return path


def _behind_bubblewrap(folder: Path, seconds: float) -> list[dict[str, Any]]:
    become = [] if os.geteuid() else ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    words = [
        "bwrap",
        "--unshare-all",
        "--die-with-parent",
        "--new-session",
        "--clearenv",
        "--uid",
        "1000",
        "--gid",
        "1000",
    ]
    words += ["--size", str(OUTER_ROOT_BYTES), "--tmpfs", "/", "--ro-bind", "/usr", "/usr"]
    for path in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            words += ["--ro-bind", path, path]
    words += ["--dir", "/etc"]
    for path in SHOWN_OF_ETC:
        words += ["--ro-bind-try", path, path]
    words += [
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--perms",
        "1777",
        "--tmpfs",
        "/tmp",
        "--ro-bind",
        str(folder),
        "/walls",
    ]
    words += ["--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--setenv", "HOME", "/home/owner", "--chdir", "/"]
    words += [_python(), "-B", "/walls/two_walls.py", "--inside"]
    with (
        _bounded() as bounds,
        subprocess.Popen(
            [*bounds, *become, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        ) as outer,
    ):
        try:
            told, _ = outer.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            outer.kill()
            raise SystemExit(f"the outer wall was taken down after {seconds:g} seconds") from None
    if outer.returncode:
        raise SystemExit(f"the inside ended with {outer.returncode}: {told[-500:]}")
    return [json.loads(line) for line in told.splitlines()]


@contextmanager
def _bounded() -> Iterator[list[str]]:
    """Limit memory and processes behind the outer wall. Yield a command prefix that enters the limits and then runs the rest."""
    bounds = {"memory": ("memory.limit_in_bytes", OUTER_MEMORY_BYTES), "pids": ("pids.max", OUTER_PROCESSES)}
    groups = []
    for name, (file, bound) in bounds.items():
        group = Path(f"/sys/fs/cgroup/{name}/corral-walls-{os.getpid()}")
        try:
            group.mkdir()
            (group / file).write_text(str(bound))
        except OSError:
            # This user may not make a control group. `ulimit -u` still limits the number of processes.
            continue
        groups.append(group)
    enter = "".join(f"echo $$ > {group}/cgroup.procs && " for group in groups)
    text = f'{enter}ulimit -u {OUTER_PROCESSES} && ulimit -c 0 && exec "$@"'
    try:
        yield ["bash", "-c", text, "bash"]
    finally:
        until = time.monotonic() + 5
        for group in groups:
            # A process can be dead and still be in the group for a moment.
            while group.is_dir() and time.monotonic() < until:
                try:
                    group.rmdir()
                except OSError:
                    time.sleep(0.01)


def verify(brief: dict[str, Any]) -> None:
    """Exit with an error unless the outer wall is complete."""
    faults = list(_faults(brief))
    if faults:
        sys.exit("the outer wall is incomplete, nothing was run: " + "; ".join(faults))


def _faults(brief: dict[str, Any]) -> Iterator[str]:
    for name, outside in brief["namespaces"].items():
        if os.readlink(f"/proc/self/ns/{name}") == outside:
            yield f"the {name} namespace is the launcher's"
    interfaces = [line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    if interfaces != ["lo"] or len(Path("/proc/net/route").read_text().splitlines()) > 1:
        yield f"there is a network: {interfaces}"
    kinds = {words[1]: words[2] for line in Path("/proc/mounts").read_text().splitlines() if (words := line.split())}
    if kinds["/"] != "tmpfs":
        yield f"the root is {kinds['/']}"
    for path in brief["absent"]:
        if os.path.exists(path):
            yield f"{path} is visible"
    processes = [name for name in os.listdir("/proc") if name.isdigit()]
    if len(processes) > 2:
        yield f"there are {len(processes)} processes"
    for path in ("/usr/bin/true", "/walls/two_walls.py"):
        if os.access(path, os.W_OK):
            yield f"{path} can be written"


def _inside() -> None:
    brief = json.loads(Path("/walls/brief.json").read_text())
    verify(brief)
    sys.path.insert(0, "/walls/lib")
    from canaries import Grounds  # exists only behind the wall

    grounds = Grounds(brief["rows"], brief["inner"], secrets.token_hex(8))
    for row in brief["rows"]:
        print(json.dumps(grounds.run(row)), flush=True)


def main() -> int:
    """Run the programs of the named files. With `--inside`, be the process behind the outer wall."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("files", nargs="*", type=Path)
    options.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--limit", type=int, help="run only this many rows of each file")
    given = options.parse_args()
    if given.inside:
        _inside()
        return 0
    breaches = 0
    for file in given.files:
        rows = [json.loads(line) for line in file.read_text().splitlines()][: given.limit]
        told = run(rows)
        ended = Counter(one["ended"] for one in told)
        bad = [one for one in told if one["breaches"]]
        print(
            f"{file.name}: {len(told)} of {len(rows)} programs ran, {len(bad)} with a breach; {dict(ended)}; python {sysconfig.get_python_version()}"
        )
        for one in bad:
            print(f"  {one['id']}: {'; '.join(one['breaches'])}")
        breaches += len(bad) + (len(told) != len(rows))
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
