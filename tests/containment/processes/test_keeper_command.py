"""The command that starts a keeper, and the launcher that root can install for an AppArmor profile."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from machines import environment

from corral.containment.processes import keeper_command
from corral.containment.processes.keeper_command import LAUNCHER, launcher_text

# Hides /usr/local/libexec behind a directory of its own, in a mount namespace of its own.
HIDDEN = f"""
mkdir -p {os.path.dirname(LAUNCHER)} && mount -t tmpfs none {os.path.dirname(LAUNCHER)} && cat >{LAUNCHER} && "$@"
"""
RUN = """
import os, sys
from corral import Sandbox, SandboxConfig
def keepers():
    return [open(f"/proc/{pid}/cmdline", "rb").read().split(bytes(1)) for pid in os.listdir("/proc") if pid.isdigit()
            and open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1] == str(os.getpid())]
with Sandbox(SandboxConfig(".")) as box:
    result = box.run(["echo", "hello"])
    found = [[word.decode() for word in words] for words in keepers()]
print(result.stdout_text.strip(), result.enforcement, [words[1:3] for words in found])
"""


def test_installed_launcher_must_be_this_corrals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "corral-keeper"
    monkeypatch.setattr(keeper_command, "LAUNCHER", str(file))
    usual = keeper_command.keeper_command()
    assert usual[1:4] == ("-I", "-S", "-c")
    file.write_text(launcher_text())
    file.chmod(0o755)
    is_root = os.geteuid() == 0
    assert keeper_command.keeper_command() == ((str(file),) if is_root else usual)
    file.chmod(0o775)
    assert keeper_command.keeper_command() == usual
    file.chmod(0o755)
    file.write_text(launcher_text() + "import evil\n")
    assert keeper_command.keeper_command() == usual
    file.unlink()
    file.symlink_to("/bin/true")
    assert keeper_command.keeper_command() == usual
    file.unlink()
    os.mkfifo(file)
    assert keeper_command.keeper_command() == usual


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can install a launcher")
def test_sandbox_starts_by_the_launcher(project: Path) -> None:
    command = ["unshare", "--mount", "sh", "-ec", HIDDEN.replace('&& "$@"', f'&& chmod 755 {LAUNCHER} && "$@"'), "sh"]
    done = subprocess.run(
        [*command, sys.executable, "-c", RUN],
        input=launcher_text(),
        cwd=project,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"hello full [['-IS', '{LAUNCHER}']]\n", done.stderr
