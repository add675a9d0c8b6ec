"""Runs a program in a tmux of its own, and reads its screen as a person sees it."""

import os
import shutil
import subprocess
from pathlib import Path

from observe import eventually

TMUX = shutil.which("tmux")


class Tmux:
    """A program in a terminal of 120 columns. `socket` is a path that no other server uses."""

    def __init__(self, command: list[str], socket: Path) -> None:
        assert TMUX is not None
        self._socket = socket
        self._tmux(*("new-session", "-d", "-x", "120", "-y", "60"), *command)

    def _tmux(self, *words: str) -> str:
        command = [str(TMUX), "-u", "-S", str(self._socket), "-f", "/dev/null", *words]
        environ = {"PATH": os.environ["PATH"], "HOME": str(self._socket.parent), "LANG": "C.UTF-8"}
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout

    @property
    def screen(self) -> str:
        """The text on the screen now."""
        return self._tmux("capture-pane", "-p")

    def until(self, text: str) -> str:
        """Wait until the screen shows a text, and return the screen."""
        shown = ""

        def is_shown() -> bool:
            nonlocal shown
            shown = self.screen
            return text in shown

        try:
            eventually(is_shown)
        except AssertionError:
            raise AssertionError(f"{text!r} never came, but\n{shown}") from None
        return shown

    def type(self, *keys: str) -> None:
        """Press keys, by tmux's names for them."""
        self._tmux("send-keys", *keys)

    def close(self) -> None:
        """End the program and the server."""
        server = int(self._tmux("display-message", "-p", "#{pid}"))
        self._tmux("kill-server")
        eventually(lambda: not os.path.exists(f"/proc/{server}"))
