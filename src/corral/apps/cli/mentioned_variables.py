"""Finds the environment variables that a project's files mention, for the suggestions of `corral init`. Reads names, never values."""

from __future__ import annotations

import os
import re

from corral.guard.path_zones import is_secret_variable
from corral.policy.config import DEFAULT_ENV_ALLOWLIST
from corral.policy.user_dirs import read_regular_file

MAX_FILES = 500
MAX_FILE_BYTES = 256 * 1024
MAX_NAMES = 30
_SKIPPED = ("node_modules", "vendor", "target", "build", "dist", "venv", "env", "__pycache__", "tests", "test")
_SOURCES = (
    ".py",
    ".js",
    ".mjs",
    ".cjs",
    ".ts",
    ".mts",
    ".cts",
    ".jsx",
    ".tsx",
    ".rb",
    ".go",
    ".rs",
    ".java",
    ".kt",
    ".php",
    ".ex",
    ".exs",
)
_TEMPLATES = (".env.example", ".env.sample", ".env.template", ".env.dist", ".envrc")
_COMPOSE = ("docker-compose.yml", "docker-compose.yaml", "compose.yml", "compose.yaml")
_NAME = r"([A-Z][A-Z0-9_]{2,63})"
_ASSIGNED = re.compile(rf"(?m)^[ \t]*(?:export[ \t]+)?{_NAME}=")
_EXPANDED = re.compile(rf"\$\{{{_NAME}[:?\-+}}]")
_READ = re.compile(
    rf"(?:\benviron(?:\.get\(|\[)\s*|\bgetenv\(\s*|\bGetenv\(\s*|\bLookupEnv\(\s*|\benv::var(?:_os)?\(\s*|\bENV(?:\.fetch\(|\[)\s*|\bget_env\(\s*)[\"']{_NAME}[\"']"
    rf"|\bprocess\.env(?:\.|\[[\"']){_NAME}\b"
    rf"|\bimport\.meta\.env\.{_NAME}\b"
)  # fmt: skip
# The shell, the terminal and the desktop set these, and corral passes some itself.
_ORDINARY = {
    "HOME",
    "PATH",
    "PWD",
    "USER",
    "SHELL",
    "TERM",
    "LANG",
    "TMPDIR",
    "LOGNAME",
    "HOSTNAME",
    "DISPLAY",
    "EDITOR",
    "COLUMNS",
    "LINES",
}


def mentioned_variables(root: str) -> tuple[list[str], list[str]]:
    """Return the variables that the files of a project mention: plain ones, and those whose names say that they hold a credential."""
    found: dict[str, None] = {}
    for path, name in _files(root):
        patterns = [_ASSIGNED] if name in _TEMPLATES else [_EXPANDED] if name in _COMPOSE else [_READ]
        try:
            data, _ = read_regular_file(path, MAX_FILE_BYTES)
        except (OSError, ValueError):
            continue
        text = data.decode("utf-8", "replace")
        for pattern in patterns:
            found.update((one, None) for match in pattern.finditer(text) for one in match.groups() if one)
    known = _ORDINARY | set(DEFAULT_ENV_ALLOWLIST)
    names = sorted(
        name for name in found if name not in known and not name.startswith(("LC_", "XDG_", "LD_", "PYTHON"))
    )
    secret = [name for name in names if is_secret_variable(name)]
    return [name for name in names if name not in secret][:MAX_NAMES], secret[:MAX_NAMES]


def _files(root: str) -> list[tuple[str, str]]:
    """Return paths and names of the files to read: templates and compose files first, then sources, near the top first."""
    named: list[tuple[str, str]] = []
    sources: list[tuple[str, str]] = []
    pending = [root]
    for directory in pending:
        if len(sources) >= MAX_FILES or len(pending) > MAX_FILES:
            break
        try:
            entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries[:MAX_FILES]:
            if entry.is_dir(follow_symlinks=False):
                pending += [] if entry.name.startswith(".") or entry.name in _SKIPPED else [entry.path]
            elif entry.is_file(follow_symlinks=False):
                if entry.name in (*_TEMPLATES, *_COMPOSE):
                    named.append((entry.path, entry.name))
                elif entry.name.endswith(_SOURCES):
                    sources.append((entry.path, entry.name))
    return [*named, *sources][:MAX_FILES]
