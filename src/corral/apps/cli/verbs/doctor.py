"""`corral doctor`: what this machine gives to hold commands with. The exit code says how much that is."""

from __future__ import annotations

import os
import sys
import tempfile

from corral._lib.terminal import terminal_of
from corral.apps.doctor.checks import Check, examine
from corral.apps.doctor.facts import gather_facts
from corral.apps.doctor.hook_checks import hook_checks
from corral.apps.doctor.report import report_text
from corral.audit.audit_log import Log, directory
from corral.containment.filesystem.temp_dirs import process_temp_dir
from corral.model.errors import PolicyError
from corral.model.render_result import json_text
from corral.policy.config import Containment, SandboxConfig
from corral.policy.loader import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from corral.apps.doctor.facts import Facts

STATUS = {"full": 0, "partial": 1, "none": 2}


def main(options: argparse.Namespace) -> int:
    """Examine the machine and the hooks; 0 where every layer holds, 1 where some do or a hook or the log fails, 2 where none does."""
    report = examine(_facts(options))
    checks = (_log_check(options.root), *hook_checks(os.environ, os.path.realpath(options.root)))
    report = report.replace(checks=(*report.checks, *checks))
    if options.json:
        print(json_text(report.to_dict()))
    else:
        print(report_text(report, terminal_of(sys.stdout, os.environ)))
    return max(STATUS[report.enforcement], any(check.status == "fail" for check in checks))


def _log_check(root: str) -> Check:
    try:
        config = load(root, os.environ).config
        is_needed = config.audit.required
    except PolicyError:
        config, is_needed = None, True
    why = Log(config).obstacle()
    if not why:
        return Check("around", "log", "ok", f"what is tried is written to {directory(os.environ)}")
    means = "Nothing runs without it." if is_needed else "The policy runs commands without it."
    return Check("around", "log", "fail" if is_needed else "warn", why, means)


def _facts(options: argparse.Namespace) -> Facts:
    containment = Containment(backend=options.backend, scratch="project")
    try:
        config = SandboxConfig(options.root, containment=containment)
    except PolicyError as error:
        # As in a container that starts in the root directory: the machine can be examined anyway.
        with tempfile.TemporaryDirectory(prefix="corral-doctor-", dir=process_temp_dir()) as place:
            return gather_facts(SandboxConfig(place, containment=containment), str(error))
    return gather_facts(config)
