"""`corral distrust`: a project's policy file loosens nothing any longer. It only tightens, so anybody may."""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import printable
from corral.audit.audit_log import Log
from corral.model.errors import AuditError
from corral.model.render_result import json_text
from corral.policy.config import checked_root
from corral.policy.loader import project_policy_path
from corral.policy.trust import distrust

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def main(options: argparse.Namespace) -> int:
    """Forget that the project's file was trusted; the project need not exist any longer."""
    root = os.path.realpath(options.root)
    path = project_policy_path(checked_root(root) if os.path.isdir(root) else root)
    was = distrust(path, os.environ, root)
    if was:
        _note(path)
    if options.json:
        print(json_text({"path": path, "state": "untrusted", "was_trusted": was}))
    else:
        text = f"{path} is no longer trusted." if was else f"{path} was not trusted."
        print(printable(text), file=sys.stderr)
    return 0


def _note(path: str) -> None:
    try:
        Log(event="trust").note({"files": [path], "decision": "deny", "reason": "no longer trusted"})
    except AuditError as error:
        # Nothing is loosened by it.
        print(f"corral: {printable(str(error))}", file=sys.stderr)
