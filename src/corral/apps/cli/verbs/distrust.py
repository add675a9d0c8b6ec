"""`corral distrust`: stops trusting a project's policy file. This only tightens, so anyone may do it, agents included."""

from __future__ import annotations

import os
import sys

from corral._lib.terminal import printable
from corral.apps.cli.arguments import ROOT
from corral.apps.cli.verb import Options, Verb
from corral.audit.audit_log import Log
from corral.model.errors import AuditError
from corral.model.render_result import json_text
from corral.policy.config import checked_root
from corral.policy.loader import project_policy_path
from corral.policy.trust import distrust

TYPE_CHECKING = False


VERB = Verb(
    "policy",
    "Stop trusting this project's policy file: from now on it can only tighten.",
    examples="""\
corral distrust
corral distrust --root ../other
""",
    exit_codes="0; 125 corral itself failed",
    arguments=(ROOT,),
)


def main(options: Options) -> int:
    """Remove the trust in the project's file. The project need not exist any longer."""
    root = os.path.realpath(options.root)
    path = project_policy_path(checked_root(root) if os.path.isdir(root) else root)
    was_trusted = distrust(path, os.environ, root)
    if was_trusted:
        try:
            Log(event="trust").note({"files": [path], "decision": "deny", "reason": "no longer trusted"})
        except AuditError as error:
            # This loosens nothing, so a log that cannot be written is only reported.
            print(f"corral: {printable(str(error))}", file=sys.stderr)
    if options.json:
        print(json_text({"path": path, "state": "untrusted", "was_trusted": was_trusted}))
    else:
        text = f"{path} is no longer trusted." if was_trusted else f"{path} was not trusted."
        print(printable(text), file=sys.stderr)
    return 0
