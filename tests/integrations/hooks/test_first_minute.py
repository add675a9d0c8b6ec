"""Replays the transcript of docs/install.md in a clean home, and compares the settings in docs/agents with what install writes."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import alone
import pytest

import corral
from corral.integrations.hooks.hosts import Host
from corral.integrations.hooks.registry import HOSTS

DOCS = Path(corral.__file__).parents[2] / "docs"
DOCUMENT = (DOCS / "install.md").read_text()
MARK = "<!-- not run: replayed, tests/integrations/hooks/test_first_minute.py -->\n"
TRANSCRIPT = re.findall(rf"{MARK}```console\n\$ ([^\n]+)\n(.*?)```", DOCUMENT, re.DOTALL)
# The paths in the documentation.
HOME, PYTHON = "/home/user", "/usr/bin/python3.12"
LIB = f"{HOME}/.local/share/pipx/venvs/corral/lib/python3.12/site-packages"


def told(text: str, home: Path) -> str:
    """Return terminal output with the paths of the documentation, without the note that corral is in a temporary directory."""
    text = re.sub(r"  note     .* is in a temporary directory\b.*\n", "", text)
    return text.replace(str(alone.lib()), LIB).replace(alone.PYTHON, PYTHON).replace(str(home), HOME)


def page_of(host: Host) -> str:
    return (DOCS / "agents" / f"{host.title.lower().replace(' ', '-')}.md").read_text()


def test_documented_first_minute_matches_the_program(tmp_path: Path) -> None:
    home = tmp_path / "home"
    work = home / "project"
    work.mkdir(parents=True)
    (work / "pyproject.toml").touch()
    shown = []
    for command, _ in TRANSCRIPT:
        verb, *rest = command.split(" ")[1:]
        if "|" in rest:
            line = f"{shlex.join(alone.command())} {verb} | {command.partition('| ')[2]}"
            run = subprocess.run(
                ["bash", "-c", line], cwd=work, env=alone.environment(home), capture_output=True, text=True, check=True
            )
            shown.append((command, told(run.stdout, home)))
        else:
            _, text = alone.at_terminal(verb, *rest, typed=b"y\n", home=home, cwd=work)
            shown.append((command, told(text, home)))
    assert shown == TRANSCRIPT
    assert [command.split(" ")[1] for command, _ in TRANSCRIPT] == ["install", "doctor", "uninstall"]


@pytest.mark.parametrize("name", HOSTS)
def test_documented_settings_match_what_install_writes(name: str) -> None:
    host = HOSTS[name]
    words = [PYTHON, "-I", "-S", f"{LIB}/corral/integrations/hooks/program.py", name, f"--HOME={HOME}"]
    section = page_of(host)
    if host.entries is None:
        assert f"const COMMAND = {json.dumps(words)}\n" in section
        return
    (block,) = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    expected = {**host.skeleton, "hooks": {event: [entry] for event, entry in host.entries(words).items()}}
    assert json.loads(block) == expected


@pytest.mark.parametrize("name", HOSTS)
def test_documentation_names_every_hosts_settings_file(name: str) -> None:
    host = HOSTS[name]
    section = page_of(host)
    assert f"~/{host.folder}/{host.file}".replace("//", "/") in section
    assert host.variable in section
