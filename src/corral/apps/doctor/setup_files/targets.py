"""Lists the kinds of set-up that `corral doctor --emit` prints, and fills in their templates."""

from __future__ import annotations

import json
import os
import textwrap

from corral._lib.records import Record, frozen
from corral.apps.doctor.setup_files.seccomp import OPENED, docker_profile, oci_profile
from corral.containment.processes.keeper_command import LAUNCHER, launcher_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_TEMPLATES = os.path.dirname(os.path.abspath(__file__))
_UNCOVERED = (
    "--security-opt systempaths=unconfined uncovers /proc, without which the kernel mounts none for a sandbox. Docker has no "
    "narrower option. Root could change the machine by what it uncovers, so keep the other options: nobody in the container is "
    "or becomes root. On machines with AppArmor, load `corral doctor --emit apparmor` and add --security-opt apparmor=corral-container."
)


@frozen
class Target(Record):
    """A kind of set-up: its file, and how to use it. `%FILE%` in `use` stands for the name of the file."""

    text: Callable[[], str]
    use: str


def _docker() -> str:
    return json.dumps(docker_profile(), indent=1) + "\n"


def _template(name: str) -> Callable[[], str]:
    def text() -> str:
        with open(os.path.join(_TEMPLATES, name), encoding="utf-8") as file:
            return file.read().replace("%LAUNCHER%", LAUNCHER)

    return text


def _kubernetes() -> str:
    profile = textwrap.indent(json.dumps(oci_profile(), indent=1), "    ")
    calls = "\n".join(f"#   {name}: {use}" for name, use in OPENED.items())
    return _template("kubernetes.yaml")().replace("%CALLS%", calls).replace("%SECCOMP%", profile)


TARGETS = {
    "docker": Target(
        _docker,
        "docker run --security-opt seccomp=%FILE% --security-opt systempaths=unconfined --security-opt no-new-privileges "
        f"--cap-drop ALL --user 1000:1000 IMAGE\n{_UNCOVERED}",
    ),
    "podman": Target(_template("podman.sh"), "sh %FILE% IMAGE COMMAND"),
    "devcontainer": Target(
        _template("devcontainer.json"),
        "Merge it into .devcontainer/devcontainer.json, set IMAGE and USER, and write the seccomp profile: "
        "corral doctor --emit docker --output .devcontainer/corral-seccomp.json",
    ),
    "kubernetes": Target(
        _kubernetes, "Set IMAGE and RUN_AS, copy the profile to the nodes, then: kubectl apply -f %FILE%"
    ),
    "apparmor": Target(
        _template("apparmor.profile"),
        f"corral doctor --emit launcher | sudo install -D -m 755 /dev/stdin {LAUNCHER}\n"
        "sudo install -m 644 %FILE% /etc/apparmor.d/corral && sudo apparmor_parser -r /etc/apparmor.d/corral",
    ),
    "launcher": Target(launcher_text, f"sudo install -D -m 755 %FILE% {LAUNCHER}"),
    "github-actions": Target(
        _template("github-actions.yaml"), "Set CORRAL_SOURCE, and save it as .github/workflows/corral.yml"
    ),
    "gitlab": Target(_template("gitlab.yaml"), "Add the job to .gitlab-ci.yml, and prepare the runner as it says"),
}
