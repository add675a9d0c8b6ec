"""Runs corral as on machines that lack a kernel feature: a process blocks the feature for itself and then executes corral."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import corral

# This needs no privileges and does not change the machine: it uses a seccomp filter and a namespace of the process.
PROGRAM = """
import json, os, sys
sys.path[:0] = [path for path in sys.argv[1].split(":") if path]
from corral.containment.kernel import namespaces, capabilities as privileges, seccomp
refused, limits, words = json.loads(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4:]
if limits:
    uid, gid = os.geteuid(), os.getegid()
    namespaces.unshare("user")
    namespaces.map_own_id(uid, gid)
    for name, value in limits.items():
        with open(f"/proc/sys/user/{name}", "w") as file:
            file.write(str(value))
if refused:
    code = [(0x20, 0, 0, 0)]
    for number, error in refused:
        code += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | error)]
    privileges.set_no_new_privs()
    seccomp.install([*code, (0x06, 0, 0, 0x7FFF0000)])
os.execv(sys.executable, [sys.executable, "-m", "corral", *words])
"""
X86 = os.uname().machine == "x86_64"
UNSHARE, MOUNT, SECCOMP = (272, 165, 317) if X86 else (97, 40, 277)
CREATE_RULESET = 444
IN_DOCKER = [(UNSHARE, errno.EPERM)]
RESTRICTED_BY_APPARMOR = [(MOUNT, errno.EACCES)]
LANDLOCK_NOT_STARTED = [(CREATE_RULESET, errno.EOPNOTSUPP)]
LANDLOCK_NOT_BUILT = [(CREATE_RULESET, errno.ENOSYS)]
NOTHING = [*IN_DOCKER, *RESTRICTED_BY_APPARMOR, *LANDLOCK_NOT_BUILT, (SECCOMP, errno.EINVAL)]


def import_path() -> str:
    """Return the import path for corral and its dependencies."""
    return ":".join([str(Path(corral.__file__).parents[1]), *[p for p in sys.path if "site-packages" in p]])


def environment() -> dict[str, str]:
    """Return an environment in which corral can be imported and no variable sets colours or the width."""
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    return kept | {"PYTHONPATH": import_path()}


def run_corral(*words: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run corral with all features of this machine."""
    command = [sys.executable, "-m", "corral", *words]
    return subprocess.run(
        command, cwd=cwd, env=environment() | environ, capture_output=True, text=True, encoding="utf-8", check=False
    )


def run_corral_without(
    refused: list[tuple[int, int]], *words: str, cwd: Path, limits: dict[str, int] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run corral while the kernel refuses these system calls with these errors, and with these limits on namespaces."""
    command = [sys.executable, "-c", PROGRAM, import_path(), json.dumps(refused), json.dumps(limits or {}), *words]
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, check=False)


# As the default profiles of container engines answer a process without CAP_SYS_ADMIN.
CONTAINER = """
import sys
sys.path[:0] = [path for path in sys.argv.pop(1).split(":") if path]
from corral.containment.kernel import capabilities, seccomp
from corral.containment.kernel.syscalls import MACHINE
X86 = MACHINE == "x86_64"
ALLOW, REFUSE, ABSENT = seccomp.ALLOW_ALL, (0x06, 0, 0, 0x00050000 | 1), (0x06, 0, 0, 0x00050000 | 38)
code = [(0x20, 0, 0, 0)]
for number in (272, 308, 165, 166, 155) if X86 else (97, 268, 40, 39, 41):  # unshare setns mount umount2 pivot_root
    code += [(0x15, 0, 1, number), REFUSE]
code += [(0x15, 0, 1, 435), ABSENT]  # clone3
code += [(0x15, 0, 4, 56 if X86 else 220), (0x20, 0, 0, 16), (0x45, 0, 1, 0x7E020000), REFUSE, ALLOW, ALLOW]
capabilities.set_no_new_privs()
seccomp.install(code)
"""


def run_in_container(program: str, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program where the kernel makes no namespaces and no mounts, as in a container with the default profile."""
    support = str(Path(__file__).parent)
    command = [sys.executable, "-c", CONTAINER + program, f"{support}:{import_path()}", *words]
    return subprocess.run(command, env=environment() | environ, capture_output=True, text=True, check=False)
