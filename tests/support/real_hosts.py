"""Runs the released programs of the hosts with a scripted model, in a network namespace of the test.

The programs come from CORRAL_HOSTS, a directory such as node_modules/.bin, and from PATH. A host of an unknown version is
skipped, because its protocol may differ. CORRAL_MUST_HOSTS=1 turns a skip into a failure.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import alone
import pytest

SCRIPTED = Path(alone.__file__).with_name("scripted.py")
SECONDS = 300  # OpenCode first waits for a registry that it cannot reach
Call = dict[str, Any]


class Driven(NamedTuple):
    """The settings that make a host follow the script, and the names of its tools."""

    command: list[str]
    env: dict[str, str]
    shell: Callable[[str], Call]
    write: Callable[[str], Call]
    settings: dict[str, str] = {}  # noqa: RUF012  files in the home directory that exist before corral is installed
    configured: dict[str, str] = {}  # noqa: RUF012  the same, with the model's address
    keeps_directory: bool = False


CODEX = """\
model = "gpt-5.5"
model_provider = "scripted"
[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "SCRIPTED_KEY"
supports_websockets = false
"""
OPENCODE = {
    "provider": {
        "scripted": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "{url}/v1", "apiKey": "x"},
            "models": {"scripted": {"name": "scripted"}},
        }
    },
    "permission": {"bash": "allow", "edit": "allow", "external_directory": "allow"},
}
PI = {
    "providers": {
        "scripted": {
            "baseUrl": "{url}/v1",
            "api": "openai-completions",
            "apiKey": "SCRIPTED_KEY",
            "models": [{"id": "scripted"}],
        }
    }
}
PATCH = "*** Begin Patch\n*** Add File: {}\n+planted\n*** End Patch"
HOSTS = {
    "claude": Driven(
        ["claude", "-p", "go", "--dangerously-skip-permissions"],
        {
            "ANTHROPIC_BASE_URL": "{url}",
            "ANTHROPIC_API_KEY": "x",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",  # otherwise root may not use that option
        },
        lambda text: {"tool": "Bash", "input": {"command": text, "description": "a step"}},
        lambda path: {"tool": "Write", "input": {"file_path": path, "content": "planted\n"}},
        keeps_directory=True,
    ),
    "codex": Driven(
        # corral confines its commands here, not its own sandbox. A user trusts a hook by hand in a terminal.
        ["codex", "exec", "--dangerously-bypass-hook-trust", "--dangerously-bypass-approvals-and-sandbox", "go"],
        {"SCRIPTED_KEY": "x"},
        lambda text: {"tool": "exec_command", "input": {"cmd": text}},
        lambda path: {"tool": "apply_patch", "text": PATCH.format(os.path.basename(path))},
        configured={".codex/config.toml": CODEX},
    ),
    "gemini": Driven(
        ["gemini", "-p", "go", "--approval-mode", "yolo", "-m", "gemini-2.5-pro"],
        {"GOOGLE_GEMINI_BASE_URL": "{url}", "GEMINI_API_KEY": "x", "GEMINI_CLI_TRUST_WORKSPACE": "true"},
        lambda text: {"tool": "run_shell_command", "input": {"command": text, "description": "a step"}},
        lambda path: {"tool": "write_file", "input": {"file_path": path, "content": "planted\n"}},
        settings={".gemini/settings.json": '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'},
    ),
    "opencode": Driven(
        ["opencode", "run", "--model", "scripted/scripted", "go"],
        {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
        lambda text: {"tool": "bash", "input": {"command": text, "description": "a step"}},
        lambda path: {"tool": "write", "input": {"filePath": path, "content": "planted\n"}},
        configured={".config/opencode/opencode.json": json.dumps(OPENCODE)},
    ),
    "copilot": Driven(
        ["copilot", "-p", "go", "--allow-all-tools", "--allow-all-paths", "--no-auto-update"],
        {
            "COPILOT_PROVIDER_BASE_URL": "{url}/v1",
            "COPILOT_PROVIDER_API_KEY": "x",
            "COPILOT_MODEL": "claude-sonnet-4.5",
            "COPILOT_OFFLINE": "true",
        },
        lambda text: {"tool": "bash", "input": {"command": text, "description": "a step", "initial_wait": 30}},
        lambda path: {"tool": "create", "input": {"path": path, "file_text": "planted\n"}},
    ),
}
HOSTS["pi"] = Driven(
    ["pi", "-p", "--model", "scripted/scripted", "go"],
    {"SCRIPTED_KEY": "x", "PI_OFFLINE": "1", "PI_TELEMETRY": "0"},
    lambda text: {"tool": "bash", "input": {"command": text}},
    lambda path: {"tool": "write", "input": {"path": path, "content": "planted\n"}},
    configured={".pi/agent/models.json": json.dumps(PI)},
)
VERSIONS = {
    "claude": ("2.1.327", "2.1.325", "2.1.197"),
    "codex": ("0.169.0", "0.166.0"),
    "gemini": ("0.61.0",),
    "opencode": ("1.18.33",),
    "copilot": ("1.0.102",),
    "pi": ("0.73.1",),
}


def missing(why: str) -> None:
    if os.environ.get("CORRAL_MUST_HOSTS") == "1":
        pytest.fail(why)
    pytest.skip(why)


@cache
def version_of(path: str) -> str:
    """Return the version that a host's program prints, in an empty home directory."""
    with tempfile.TemporaryDirectory() as home:
        environ = {"HOME": home, "PATH": os.environ["PATH"], "COPILOT_OFFLINE": "true", "DISABLE_AUTOUPDATER": "1"}
        done = subprocess.run([path, "--version"], env=environ, capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+\.\d+", done.stdout + done.stderr)
    return found[0] if found else f"unknown ({done.stderr.strip()[-200:]})"


def program(name: str) -> str:
    path = os.pathsep.join(filter(None, [os.environ.get("CORRAL_HOSTS"), os.environ["PATH"]]))
    found = shutil.which(name, path=path)
    if found is None:
        missing(
            f"{name} is not installed: npm install it into a directory, and name its node_modules/.bin in CORRAL_HOSTS"
        )
    if (version := version_of(str(found))) not in VERSIONS[name]:
        missing(f"{found} is version {version}; these tests were made with {' and '.join(VERSIONS[name])}")
    return str(found)


def unshared(plan: Mapping[str, object], place: Path) -> tuple[list[str], Path]:
    """Return the command that runs a host with a script in its own network namespace, and the file of its report."""
    unshare = ["unshare", "--net", *(() if os.geteuid() == 0 else ("--map-current-user", "--keep-caps"))]
    file, report = place / "plan.json", place / "report.json"
    file.write_text(json.dumps({"files": {}, "servers": [], "on_terminal": False, "seconds": SECONDS, **plan}))
    report.unlink(missing_ok=True)
    return [*unshare, sys.executable, str(SCRIPTED), str(file), str(report)], report


def driven(plan: Mapping[str, object], place: Path) -> dict[str, Any]:
    """Run a host with a script in its own network namespace; return the output of both."""
    command, report = unshared(plan, place)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        missing(f"no network namespace to drive it in: {done.stderr.strip()}")
    told: dict[str, Any] = json.loads(report.read_text())
    return told


class Session:
    """A host with its own home directory and project."""

    def __init__(self, name: str, place: Path) -> None:
        self.name, self.driven = name, HOSTS[name]
        self.program = program(name)
        self.place, self.home, self.work = place, place / "home", place / "work"
        self.home.mkdir()
        self.work.mkdir()
        (self.home / ".bashrc").write_text("# mine\n")
        subprocess.run(["git", "init", "-q", self.work], check=True)
        for file, text in self.driven.settings.items():
            (self.home / file).parent.mkdir(parents=True)
            (self.home / file).write_text(text)

    def install(self) -> None:
        done = alone.run("install", self.name, "--yes", home=self.home, cwd=self.work)
        assert done.returncode == 0, done.stderr

    def plan(self, *calls: Call, **more: object) -> dict[str, object]:
        """Return the plan in which the host follows the script."""
        own = {"TERM": "xterm-256color", **self.driven.env}
        for file in self.driven.configured:
            (self.home / file).parent.mkdir(parents=True, exist_ok=True)
        return {
            "command": [self.program, *self.driven.command[1:]],
            "env": {**alone.environment(self.home), **own},
            "files": {str(self.home / file): text for file, text in self.driven.configured.items()},
            "calls": calls,
            "cwd": str(self.work),
            **more,
        }

    def drive(self, *calls: Call) -> list[str]:
        """Run the host with the script; return the result of each call as the model got it."""
        told = driven(self.plan(*calls), self.place)
        assert len(told["results"]) == len(calls), told
        results: list[str] = told["results"]
        return results

    @property
    def bashrc(self) -> str:
        return (self.home / ".bashrc").read_text()
