"""Installs pinned versions of other guards and sandboxes into bench/.peers. A failed install is reported with its reason and is no error."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from venv import create

from bench._peers import DEBIAN, ENGINES, NODE_PINS, PLACE, PYTHON_PINS, REASONS, packaged_version

SECONDS = 240  # for one package; the registry may not answer


def tried(command: list[str]) -> str:
    """Run an installer. Return why it failed, or an empty text."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    told = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
    errors = [line for line in told if "error" in line.lower() and "debug log" not in line] or told
    return errors[0].strip() if done.returncode else ""


def with_pip() -> dict[str, str]:
    """Install the packages from PyPI one by one, so that one failure does not stop the others."""
    create(PLACE, with_pip=True)
    pip = [f"{PLACE}/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--retries=2"]
    found = {name: tried([*pip, f"{name}=={version}"]) for name, version in PYTHON_PINS.items()}
    for name, version in ENGINES.items():
        # In a directory of its own: corral itself is measured with it, and must not import any peer's packages.
        there = os.path.isdir(f"{PLACE}/{name}/{name}-{version}.dist-info")
        found[name] = "" if there else tried([*pip, "--upgrade", f"--target={PLACE}/{name}", f"{name}=={version}"])
    return found


def with_npm() -> dict[str, str]:
    """Install the packages from npm without running their install scripts."""
    if shutil.which("npm") is None:
        return dict.fromkeys(NODE_PINS, "there is no npm here")
    npm = ["npm", "install", "--prefix", str(PLACE), "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    npm += ["--fetch-retries=2", "--fetch-timeout=30000"]
    return {name: tried([*npm, f"{name}@{version}"]) for name, version in NODE_PINS.items()}


def with_apt() -> dict[str, str]:
    """Install the Debian packages that are missing."""
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


def installed(say: Callable[[str], None]) -> dict[str, str]:
    """Install everything and print the outcome. Return for each name why it is not installed, or an empty text."""
    debian = with_apt if shutil.which("dpkg-query") else lambda: dict.fromkeys(DEBIAN, "this is not Debian")
    reasons: dict[str, str] = {}
    for installer in (debian, with_pip, with_npm):
        for name, why in installer().items():
            reasons[name] = why
            say(f"✗ {name}: could not be installed: {why}" if why else f"✓ {name} {version_of(name)}")
    (PLACE / REASONS).write_text(json.dumps({name: why for name, why in reasons.items() if why}, indent=1) + "\n")
    return reasons


def version_of(package: str) -> str:
    """Return the pinned version, or the version of the installed Debian package."""
    return {**PYTHON_PINS, **NODE_PINS, **ENGINES}.get(package) or packaged_version(package)


if __name__ == "__main__":
    installed(print)
