"""Tests that no file which a command wrote decides how the user's ssh runs outside. Needs ssh, but no server."""

import os
import subprocess
from pathlib import Path
from shutil import which

import pytest
from transports import transports

URL = "git@forge.example:me/app.git"
pytestmark = pytest.mark.skipif(which("ssh") is None, reason="ssh is not installed")
WRITE_CONFIG = r"""
printf 'Host *\n ProxyCommand touch %s\n' "$1" > "$2/config"
mkdir -p .git && printf '[core]\n\tsshCommand = ssh -F %s/config\n' "$3" > .git/config
"""


def test_repository_made_inside_names_no_program_for_ssh(project: Path, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    (project / "write.sh").write_text(WRITE_CONFIG)
    with transports(project, f"fetch {URL}") as opened:
        own = "awk '$5 == \"/tmp\" {print $4}' /proc/self/mountinfo | tail -1"
        opened.run(f"sh write.sh {proof} /tmp $({own}); git clone -q {URL} copy")
        assert len(opened.server.served()) == 1
    assert not proof.exists()
    # Outside, the same file runs the program.
    subprocess.run(["sh", "write.sh", str(proof), str(tmp_path), str(tmp_path)], cwd=project, check=True)
    subprocess.run(["ssh", "-F", f"{tmp_path}/config", "forge.example"], capture_output=True, check=False)
    assert proof.exists()


def test_scratch_of_a_sandbox_holds_no_configuration_of_ssh(project: Path) -> None:
    (project / ".git").mkdir()
    scratch = f"/tmp/corral-{os.getuid()}-0123456789abcdef/tmp"
    (project / ".git" / "config").write_text(f"[core]\n\tsshCommand = ssh -F {scratch}/config\n")
    with transports(project, f"fetch {URL}") as opened:
        opened.run(f"git clone -q {URL} copy")
        assert [why for why in opened.refusals() if "which commands can write" in why] == opened.refusals() != []
