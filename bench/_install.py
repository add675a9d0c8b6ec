"""Put other guards and sandboxes into bench/.peers, pinned. What cannot be installed is said with its reason, and is no failure."""

import json
import os
import shutil
import subprocess
from venv import create

from bench._peers import DEBIAN, NODE_PINS, PLACE, PYTHON_PINS, REASONS

SECONDS = 900


def tried(command: list[str]) -> str:
    """Run an installer; return why it failed, or nothing."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    told = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
    errors = [line for line in told if "error" in line.lower() and "debug log" not in line] or told
    return errors[0].strip() if done.returncode else ""


def with_pip() -> dict[str, str]:
    """Install what PyPI has, one by one, so that one failure leaves the others."""
    create(PLACE, with_pip=True)
    pip = [f"{PLACE}/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return {name: tried([*pip, f"{name}=={version}"]) for name, version in PYTHON_PINS.items()}


def with_npm() -> dict[str, str]:
    """Install what npm has; no package's own install script runs."""
    if shutil.which("npm") is None:
        return dict.fromkeys(NODE_PINS, "there is no npm here")
    npm = ["npm", "install", "--prefix", str(PLACE), "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    return {name: tried([*npm, f"{name}@{version}"]) for name, version in NODE_PINS.items()}


def with_apt() -> dict[str, str]:
    """Install what Debian has and is not there yet."""
    wanted = [name for name in DEBIAN if not _is_installed(name)]
    if not wanted:
        return dict.fromkeys(DEBIAN, "")
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        why = "only root may install Debian's packages" if shutil.which("apt-get") else "there is no apt-get here"
        return dict.fromkeys(wanted, why)
    tried(["apt-get", "update", "-q"])
    apt = ["apt-get", "install", "-y", "-q", "--no-install-recommends"]
    return dict.fromkeys(DEBIAN, "") | {name: tried([*apt, name]) for name in wanted}


def _is_installed(name: str) -> bool:
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Status}", name], capture_output=True, text=True, check=False)
    return done.stdout.endswith(" installed")


def main() -> None:
    """Install everything, and note what is not there."""
    debian = with_apt() if shutil.which("dpkg-query") else dict.fromkeys(DEBIAN, "this is not Debian")
    reasons = {**debian, **with_pip(), **with_npm()}
    for name, why in reasons.items():
        version = {**PYTHON_PINS, **NODE_PINS}.get(name, "of this release of Debian")
        print(f"✗ {name}: could not be installed: {why}" if why else f"✓ {name} {version}")
    (PLACE / REASONS).write_text(json.dumps({name: why for name, why in reasons.items() if why}, indent=1) + "\n")


if __name__ == "__main__":
    main()
