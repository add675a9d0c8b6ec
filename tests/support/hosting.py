"""Plays a coding agent to the hook: makes a home and a project, and runs the hook as the host does."""

import http.server
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import corral
from corral.integrations.hooks.registry import HOSTS as RECORDS

PACKAGE = Path(corral.__file__).parent
PROGRAM = PACKAGE / "integrations" / "hooks" / "program.py"
HOSTS = tuple(RECORDS)
# The interpreter's real path, which an installed hook uses too.
PYTHON = sys._base_executable  # type: ignore[attr-defined]  # there since 3.3
DEADLINE_SECONDS = 60


def dependencies() -> list[str]:
    """Return the directory of tree-sitter if it is not installed beside corral."""
    spec = find_spec("tree_sitter")
    assert spec is not None
    assert spec.origin is not None
    folder = str(Path(spec.origin).parents[1])
    return [] if folder == str(PACKAGE.parent) else [folder]


class Owner:
    """A user's home directory with a project, made for a test."""

    def __init__(self, above: Path) -> None:
        self.home = above / "home"
        self.root = self.home / "project"
        (self.root / ".git" / "hooks").mkdir(parents=True)
        self.state = self.home / ".local" / "state" / "corral"
        (self.home / ".ssh").mkdir()
        (self.home / ".ssh" / "id_rsa").write_text("a key")
        self.environ = {
            "HOME": str(self.home),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "CLAUDE_PROJECT_DIR": str(self.root),
            "GEMINI_PROJECT_DIR": str(self.root),
        }

    def hook(self, host: str, payload: bytes, *words: str, **environ: str) -> "subprocess.CompletedProcess[bytes]":
        """Run the hook on one payload, as the host does."""
        command = [PYTHON, "-I", "-S", str(PROGRAM), host, *dependencies(), *words]
        return subprocess.run(
            command,
            input=payload,
            env=self.environ | environ,
            cwd=self.root,
            capture_output=True,
            check=False,
            timeout=DEADLINE_SECONDS,
        )

    def policy(self, text: str) -> None:
        """Write the user's policy."""
        folder = self.home / ".config" / "corral"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "policy.toml").write_text(text)

    def placed(self, text: str) -> str:
        """Return text of a golden file with ROOT and HOME replaced by this user's directories."""
        return text.replace("ROOT", str(self.root)).replace("HOME", str(self.home))

    def displaced(self, text: str) -> str:
        """Return the text as a golden file has it: paths, times and other values of this machine are replaced."""
        words = {
            str(PACKAGE / "__main__.py"): "CORRAL",
            PYTHON: "PYTHON",
            str(self.root): "ROOT",
            str(self.home): "HOME",
        }
        for folder in dependencies():
            text = text.replace(f" {shlex.quote(f'--path={folder}')}", "")
        for real, word in words.items():
            text = text.replace(shlex.quote(real), word).replace(real, word)
        text = re.sub(r"corral allow [0-9a-f]{4,32}\b", "corral allow ID", text)
        text = re.sub(r"\bgo [0-9a-f]{4,32}\b", "go ID", text)
        text = re.sub(r"pending/[0-9a-f]{4,32}\.sh", "pending/ID.sh", text)
        return re.sub(r"\b[0-9a-f]{32}\b", "ID", text)


def payload(host: str, owner: Owner, command: str = "ls", **given: object) -> bytes:
    """Return a call of the host's shell tool."""
    record = RECORDS[host]
    return json.dumps(record.payload(record.event, {"command": command, **given}, str(owner.root))).encode()


def refuses(done: "subprocess.CompletedProcess[bytes]", *words: str) -> bool:
    """Return True if the hook refused the call with this text, as JSON and on stderr."""
    said = json.dumps(json.loads(done.stdout))
    return done.returncode == 2 and '"deny"' in said and all(w.encode() in done.stderr and w in said for w in words)


@contextmanager
def answering() -> Iterator[int]:
    """Run a server on loopback that answers every client, and yield its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"answered")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def outside_of(environ: dict[str, str]) -> dict[str, str]:
    """Return this process's environment with some variables changed."""
    return {**os.environ, **environ}
