"""`corral trust`: shows a project's policy file and the settings it would loosen, asks the user, and stores the file's digest."""

from __future__ import annotations

import os
import sys

from corral._lib.sha256 import sha256_hex
from corral._lib.terminal import Terminal, printable, terminal_of
from corral.apps.cli.arguments import ROOT
from corral.apps.cli.questions.terminal_prompt import YES, TerminalPrompt, why_not_owner
from corral.apps.cli.verb import Options, Verb, argument
from corral.audit.audit_log import Log
from corral.model.errors import PolicyError
from corral.model.render_result import json_text
from corral.policy.config import checked_root
from corral.policy.loader import load, project_policy_path, read_policy_file
from corral.policy.render_policy import setting_text
from corral.policy.trust import is_trusted, trust, trusted_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.policy.merge import Setting

DECLINED_STATUS = 1
VERB = Verb(
    "policy",
    "Let this project's policy file loosen your policy, until the file changes.",
    examples="""\
corral trust                 show corral.toml and what it would loosen, then ask
corral trust --list          list the trusted files
""",
    notes="""\
A policy file that is not trusted can only tighten. Trust holds for the exact bytes: when the file changes, it is no
longer trusted. Only a person at a terminal can trust a file; a pipe, a hook, an agent or a sandbox cannot.
""",
    exit_codes="0 trusted or needs no trust, 1 you said no, 125 corral could not ask or failed itself",
    arguments=(ROOT, argument("--list", "List the trusted files.")),
)


def main(options: Options) -> int:
    """Trust the project's file if the user agrees. Returns 0 if it is trusted or needs no trust, 1 if the user says no."""
    if options.list:
        return _list(options)
    root = checked_root(options.root)
    path = project_policy_path(root)
    data = read_policy_file(path, root, "project")
    if data is None:
        raise PolicyError(f"there is no {path}; corral init writes one")
    digest = sha256_hex(data)

    def report(state: str, text: str) -> None:
        if options.json:
            print(json_text({"path": path, "digest": digest, "state": state}))
        else:
            print(printable(text), file=sys.stderr)

    if is_trusted(path, digest, os.environ, root):
        report("trusted", f"{path} is already trusted.")
        return 0
    policy = load(root, os.environ)
    if policy.sources[-1].digest != digest:
        raise PolicyError(f"{path} has just changed; try again")
    if not policy.waiting:
        report("untrusted", f"{path} only tightens, which needs no trust.")
        return 0
    if why := why_not_owner(os.environ):
        raise PolicyError(f"only a person at a terminal can trust a file, and {why}")
    if not _agreed(path, data, digest, policy.waiting):
        report("untrusted", "Nothing was changed.")
        return DECLINED_STATUS
    # Logged first: if the log cannot be written, nothing is loosened.
    Log(policy.config, event="trust").note(
        {"files": [path], "decision": "allow", "reason": f"trusted, sha256 {digest}"}
    )
    # The digest of the bytes that the user saw; the file may have changed since.
    trust(path, digest, os.environ, root)
    report("trusted", f"Trusted until the file changes. To undo this: corral distrust --root {root}")
    return 0


def _agreed(path: str, data: bytes, digest: str, waiting: tuple[Setting, ...]) -> bool:
    with TerminalPrompt() as prompt:
        terminal = terminal_of(prompt, os.environ)
        prompt.write("\n".join(_question(path, data, digest, waiting, terminal)))
        question = terminal.paint("head", "Trust exactly these bytes, until they change? [y]es, [N]o")
        return prompt.ask(f"{question} > ") in YES
    return False  # interrupted


def _question(path: str, data: bytes, digest: str, waiting: tuple[Setting, ...], terminal: Terminal) -> list[str]:
    bar = terminal.paint("dim", f"  {terminal.sign('bar')}")
    lines = ["", terminal.paint("head", printable(path)), ""]
    lines += [f"{bar}{printable(line)}" for line in data.decode().split("\n")]
    lines += ["", terminal.paint("ask", "If you trust this file, it loosens your policy:"), ""]
    lines += [f"  line {setting.line}: {setting_text(setting)}" for setting in waiting]
    return [*lines, "", terminal.paint("dim", f"sha256 {digest}"), "", ""]


def _list(options: Options) -> int:
    entries = trusted_files(os.environ)
    if options.json:
        print(json_text([{"path": path, "digest": digest} for digest, path in entries]))
    for digest, path in [] if options.json else entries:
        print(f"{digest[:12]}  {printable(path)}")
    return 0
