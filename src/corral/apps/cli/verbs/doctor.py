"""`corral doctor`: checks what this machine offers to contain commands. The exit code says how much that is."""

from __future__ import annotations

import os
import sys
import tempfile

from corral._lib.terminal import message, printable, terminal_of
from corral.apps.cli.arguments import BACKEND, ROOT
from corral.apps.cli.verb import Options, UsageError, Verb, argument
from corral.apps.doctor.checks import examine
from corral.apps.doctor.facts import Facts, gather_facts
from corral.apps.doctor.hook_checks import hook_checks
from corral.apps.doctor.quick_checks import log_check, paused_checks
from corral.apps.doctor.report import report_text
from corral.apps.doctor.setup_files.targets import TARGETS
from corral.apps.output_files import OutputDirectory
from corral.containment.filesystem.temp_dirs import process_temp_dir
from corral.model.errors import CorralError, PolicyError
from corral.model.render_result import json_text
from corral.policy.config import Containment, SandboxConfig
from corral.policy.loader import load

STATUS = {"full": 0, "partial": 1, "none": 2}
VERB = Verb(
    "machine",
    "Check how well this machine can contain commands, and show how to add a missing layer.",
    examples="""\
corral doctor
corral doctor --json | jq -r '.checks[] | select(.status != "ok") | .name'
corral doctor --emit docker --output corral-seccomp.json
""",
    notes="""\
A throwaway process enters every layer, and a command inspects a sandbox started for it. corral reads the machine's
settings only to explain a layer that does not hold.

--emit checks nothing. It prints the least set-up with which a container or a CI job has all layers: a seccomp or AppArmor
profile, a pod, a job. The file says what it opens and why; how to use it is on stderr.
""",
    exit_codes="0 every layer holds (full), 1 some hold (partial), or a hook or the log fails, 2 none holds, 125 corral itself failed",
    arguments=(
        ROOT,
        BACKEND,
        argument(
            "--emit TARGET",
            f"Print the set-up for {', '.join(TARGETS)}, and end.",
            choices=tuple(TARGETS),
            completes=tuple(TARGETS),
        ),
        argument("--output FILE", "Write it to this file instead of stdout."),
    ),
)


def check_arguments(options: Options, _: list[str]) -> None:
    """Require a set-up for --output, and nothing else beside --emit."""
    if options.output and not options.emit:
        raise UsageError("--output needs --emit")
    if options.emit and options.json:
        raise UsageError("--emit prints a file, and --json the checks; give only one of them")


def main(options: Options) -> int:
    """Examine the machine, the log and the hooks. Returns 0, 1 or 2 by enforcement, and at least 1 if a hook or the log fails."""
    if options.emit:
        return _emit(options.emit, options.output)
    report = examine(_facts(options))
    try:
        config = load(options.root, os.environ).config
    except PolicyError:
        config = None
    root = os.path.realpath(options.root)
    checks = (*paused_checks(root, os.environ), log_check(config), *hook_checks(os.environ, root))
    report = report.replace(checks=(*report.checks, *checks))
    if options.json:
        print(json_text(report.to_dict()))
    else:
        print(report_text(report, terminal_of(sys.stdout, os.environ)))
    return max(STATUS[report.enforcement], any(check.status == "fail" for check in checks))


def _facts(options: Options) -> Facts:
    containment = Containment(backend=options.backend, scratch="project")
    try:
        config = SandboxConfig(options.root, containment=containment)
    except PolicyError as error:
        # The directory cannot be a project, as `/` in a container cannot. The machine can still be examined.
        with tempfile.TemporaryDirectory(prefix="corral-doctor-", dir=process_temp_dir()) as place:
            return gather_facts(SandboxConfig(place, containment=containment), str(error))
    return gather_facts(config)


def _emit(name: str, path: str | None) -> int:
    target = TARGETS[name]
    try:
        text = target.text()
        if path:
            above, _, file = path.rpartition("/")
            with OutputDirectory(above or ("/" if path.startswith("/") else ".")) as directory:
                directory.write(file, (text,))
    except (OSError, ValueError) as error:
        raise CorralError(f"cannot write {path or name}: {getattr(error, 'strerror', None) or error}") from None
    if not path:
        sys.stdout.write(text)
    use = target.use.replace("%FILE%", path or "FILE")
    for line in use.split("\n"):
        print(message(f"corral: {printable(line)}", sys.stderr, os.environ), file=sys.stderr)
    return 0
