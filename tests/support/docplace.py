"""Makes a throwaway home with a project, in which the commands of pages and examples run. corral is installed outside of any project."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import alone
import docblocks

SHOWN_HOME = "/home/user"
FILES = {
    "notes.txt": "pears\napples\nquinces\n",
    "src/main.py": "print('The answer is', 6 * 7)\n",
    "src/leak.py": """\
import os, socket, sys

for attempt in (
    lambda: open(os.path.expanduser("~/.ssh/id_rsa")),
    lambda: socket.create_connection(("192.0.2.7", 443)),
):
    try:
        attempt()
    except OSError as error:
        print(error.strerror, file=sys.stderr)
""",
}


class Place:
    """A home with a project and the files that the pages mention. Not in /tmp, which the guard treats as scratch."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.project = home / "project"
        for path, text in FILES.items():
            self.write(path, text)
        self.write("~/.ssh/id_rsa", "a key\n")
        self.write("~/.local/bin/corral", f'#!/bin/sh\nexec {shlex.join(alone.command())} "$@"\n')
        (home / ".local/bin/corral").chmod(0o755)
        self.env = {
            "PATH": f"{home}/.local/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / ".config"),
            "XDG_CACHE_HOME": str(home / ".cache"),
            "XDG_STATE_HOME": str(home / ".local/state"),
            "LANG": "C.UTF-8",
            # The home has a longer name than in the page, so widen the terminal: lines must wrap where the page's lines do.
            "COLUMNS": str(100 + len(str(home)) - len(SHOWN_HOME)),
            "GIT_CONFIG_NOSYSTEM": "1",
        }

    def write(self, title: str, text: str) -> None:
        path = self.home / title[2:] if title.startswith("~/") else self.project / title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, cwd=self.project, env=self.env, capture_output=True, text=True, check=False, timeout=100, stdin=subprocess.DEVNULL
        )  # fmt: skip

    def console(self, text: str) -> Iterator[tuple[str, str, str, int]]:
        """Run the commands of a block in one shell. Yield each with the shown output, the real output, and its exit status."""
        todo = list(docblocks.commands(text))
        mark = "\x1e"
        script = "".join(f"{command}\nprintf '\\n{mark}%s\\n' $?\n" for command, _ in todo)
        done = self.run("bash", "-c", f"exec 2>&1\n{script}")
        told = re.split(rf"\n{mark}(\d+)\n", done.stdout)
        for number, (command, shown) in enumerate(todo):
            printed = told[2 * number].replace(str(self.home), SHOWN_HOME)
            yield command.strip(), shown, printed, int(told[2 * number + 1])
