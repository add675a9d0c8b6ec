"""Runs an attack in bash on a throwaway project, so that each test shows that the guard refuses something that works."""

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from corral import SandboxConfig
from corral.guard.evaluate import vet
from corral.model.call import Call

SECRET = b"TOPSECRET"


def assert_attack_is_refused(script: str) -> None:
    """Check that a script deletes `victim`, prints ../outside/secret.txt or writes ../outside/CANARY, and that `strict` refuses it."""
    # Not below /tmp, where a path one level up would count as scratch.
    with TemporaryDirectory(dir="/var/tmp") as folder:
        project = Path(folder) / "project"
        for name in ("project/victim", "project/src", "outside", "home"):
            (Path(folder) / name).mkdir(parents=True)
        for name in ("victim/f1", "a.txt", "src/a.c"):
            (project / name).write_text("hello\n")
        (Path(folder) / "outside" / "secret.txt").write_bytes(SECRET + b"\n")
        verdict = vet(Call(script, shell=True), SandboxConfig(project_root=str(project)))
        done = subprocess.run(
            ["/bin/bash", "--noprofile", "--norc", "-c", script],
            cwd=project,
            env={"PATH": os.defpath, "HOME": f"{folder}/home", "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            check=False,
        )
        took_effect = (
            not (project / "victim" / "f1").exists()
            or SECRET in done.stdout + done.stderr
            or (Path(folder) / "outside" / "CANARY").exists()
        )
    assert took_effect, f"bash does not do this: {script!r}: {done.stderr!r}"
    assert not verdict.allowed, f"allowed: {script!r}"
