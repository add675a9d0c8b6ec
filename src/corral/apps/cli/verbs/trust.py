"""`corral trust`: shows a project's policy file and what it would loosen, asks the person at the terminal, and pins the bytes shown."""

from __future__ import annotations

import os
import stat
import sys

from corral._lib.sha256 import sha256_hex
from corral._lib.terminal import printable, terminal_of
from corral.apps.cli.terminal_prompt import TerminalPrompt, why_nobody
from corral.audit.audit_log import Log
from corral.model.errors import PolicyError
from corral.model.render_result import json_text
from corral.policy.config import checked_root
from corral.policy.loader import load, project_policy_path, read_policy_file
from corral.policy.render_policy import setting_text
from corral.policy.trust import is_trusted, trust, trusted_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from corral._lib.terminal import Terminal
    from corral.policy.merge import Setting

DECLINED_STATUS = 1
YES = ("y", "yes")


def main(options: argparse.Namespace) -> int:
    """Trust the project's file, if a person says so; 0 where it is trusted or needs no trust, 1 where they said no."""
    if options.list:
        return _list(options)
    root = checked_root(options.root)
    path = project_policy_path(root)
    data = read_policy_file(path, root, "project")
    if data is None:
        raise PolicyError(f"there is no {path}; corral init writes one")
    digest = sha256_hex(data)
    if is_trusted(path, digest, os.environ, root):
        return _said(options, path, digest, "trusted", f"{path} is trusted already, as it is.")
    policy = load(root, os.environ)
    if policy.sources[-1].digest != digest:
        raise PolicyError(f"{path} has just changed; try again")
    if not policy.waiting:
        return _said(options, path, digest, "untrusted", f"{path} only tightens, which needs no trust.")
    why = why_not(os.environ)
    if why:
        raise PolicyError(f"only a person at a terminal can trust a file, and {why}")
    if not _agreed(path, data, digest, policy.waiting):
        return _said(options, path, digest, "untrusted", "Nothing was changed.") or DECLINED_STATUS
    # Before it holds: what loosens is in the owner's log, or it does not.
    Log(policy.config, event="trust").note(
        {"files": [path], "decision": "allow", "reason": f"trusted, sha256 {digest}"}
    )
    # What was shown, not what lies there by now.
    trust(path, digest, os.environ, root)
    return _said(
        options, path, digest, "trusted", f"Trusted until it changes. To take it back: corral distrust --root {root}"
    )


def why_not(environ: Mapping[str, str]) -> str:
    """Return why no person can be asked here, or nothing: all of input, output and the controlling terminal must be one."""
    why = why_nobody(environ)
    if why:
        return why
    if _has_given_up_privileges():
        return "this is inside a sandbox"
    terminal = _controlling_terminal()
    for number, name in ((0, "standard input"), (1, "standard output")):
        try:
            found = os.fstat(number)
        except OSError:
            return f"{name} is closed"
        if not stat.S_ISCHR(found.st_mode) or found.st_rdev != terminal:
            return f"{name} is not the terminal"
    return ""


def _has_given_up_privileges() -> bool:
    # Whatever else a sandbox lacks on some machine, this comes first, and nothing inside can take it back.
    try:
        with open("/proc/self/status", "rb") as file:
            return b"\nNoNewPrivs:\t0\n" not in file.read()
    except OSError:
        return True


def _controlling_terminal() -> int:
    try:
        with open("/proc/self/stat", "rb") as file:
            number = int(file.read().rpartition(b")")[2].split()[4])
    except (OSError, ValueError, IndexError):
        return -1
    return os.makedev((number >> 8) & 0xFFF, (number & 0xFF) | ((number >> 12) & 0xFFF00)) if number else -1


def _agreed(path: str, data: bytes, digest: str, waiting: tuple[Setting, ...]) -> bool:
    with TerminalPrompt() as person:
        terminal = terminal_of(person, os.environ)
        person.tell("\n".join(_shown(path, data, digest, waiting, terminal)))
        question = terminal.paint("head", "Trust exactly these bytes, until they change? [y]es, [N]o")
        return person.answer(f"{question} > ") in YES
    return False  # an interrupt is no answer


def _shown(path: str, data: bytes, digest: str, waiting: tuple[Setting, ...], terminal: Terminal) -> list[str]:
    bar = terminal.paint("dim", f"  {terminal.sign('bar')}")
    lines = ["", terminal.paint("head", printable(path)), ""]
    lines += [f"{bar}{printable(line)}" for line in data.decode().split("\n")]
    lines += ["", terminal.paint("ask", "Trusted, it would loosen what holds here:"), ""]
    lines += [f"  line {setting.line}: {setting_text(setting)}" for setting in waiting]
    return [*lines, "", terminal.paint("dim", f"sha256 {digest}"), "", ""]


def _said(options: argparse.Namespace, path: str, digest: str, state: str, text: str) -> int:
    if options.json:
        print(json_text({"path": path, "digest": digest, "state": state}))
    else:
        print(printable(text), file=sys.stderr)
    return 0


def _list(options: argparse.Namespace) -> int:
    entries = trusted_files(os.environ)
    if options.json:
        print(json_text([{"path": path, "digest": digest} for digest, path in entries]))
    for digest, path in [] if options.json else entries:
        print(f"{digest[:12]}  {printable(path)}")
    return 0
