"""Judges the facts of a machine, check by check: whether a layer holds, what that means, and how to fix it. Pure."""

from __future__ import annotations

from corral._lib.records import Record, frozen
from corral.apps.doctor.check import FAIL, OK, WARN, Check, Fix
from corral.apps.doctor.remedies import fixes
from corral.containment.layers import LAYERS
from corral.git.config_file import parse
from corral.guard.path_zones import inside as lies_inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.apps.doctor.facts import Facts

DOCTOR_SCHEMA = "corral.doctor/1"
NEWEST_USED_ABI = 7
FILE_CAPABILITIES = 0b11011  # CHOWN, DAC_OVERRIDE, FOWNER, FSETID: root keeps these over the files it sees
# By Landlock version: the first kernel that has it, and the state without it.
ABIS = {
    2: ("5.19", "files cannot be moved or linked from one directory to another"),
    3: ("6.2", "only read-only mounts prevent truncating files"),
    4: ("6.7", "only the network namespace and seccomp prevent TCP"),
    5: ("6.10", "only seccomp and the small /dev limit ioctls on devices"),
    6: ("6.12", "only the pid and net namespaces stop signals and abstract sockets"),
    7: ("6.15", "the kernel does not log what Landlock refused, so corral infers violations"),
}
WITHOUT_CONTROLLER = {
    "pids": "corral counts processes one by one",
    "memory": "corral reads memory use five times a second",
    "cpu": "corral adds up the CPU time of the processes it sees",
}
DELEGATE = "systemd-run --user --scope -p Delegate=yes corral run -- COMMAND"
HOLDING_ABI = 6  # later versions add logging, not rights
MEANINGS = {
    "full": "Every layer holds. The profiles workspace and strict both run commands contained.",
    "partial": "Some layers hold. The workspace profile does not run here unless your policy sets containment.accept_partial; strict runs with these layers.",
    "none": "No layer holds. The workspace profile does not run; strict runs with the guard only, and a command can do whatever you can.",
}


@frozen
class Report(Record):
    """The checks of a machine, and the enforcement they add up to."""

    facts: Facts
    checks: tuple[Check, ...]

    @property
    def enforcement(self) -> str:
        """The enforcement of a command here: `full`, `partial` or `none`."""
        return self.facts.inside.enforcement

    @property
    def missing(self) -> tuple[str, ...]:
        """The layers that the sandbox lacks, or that could not be entered if no sandbox started."""
        if self.facts.inside.failure:
            return tuple(name for name, refusal in self.facts.refusals.items() if refusal is not None)
        return self.facts.inside.missing_layers

    @property
    def means(self) -> str:
        """The meaning of that enforcement."""
        failure = self.facts.inside.failure
        return f"No sandbox could be started: {failure}" if failure else MEANINGS[self.enforcement]

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON-ready data."""
        facts = self.facts
        about = ("corral", "kernel", "machine", "python", "uid", "container")
        return {
            "schema": DOCTOR_SCHEMA,
            **{name: getattr(facts, name) for name in about},
            "backend": facts.inside.backend,
            "enforcement": self.enforcement,
            "missing_layers": list(self.missing),
            "means": self.means,
            "checks": [check.to_dict() for check in self.checks],
        }


def examine(facts: Facts) -> Report:
    """Judge every layer, the limits and the surroundings."""
    return Report(facts, (*_layers(facts), *_bounds(facts), *_surroundings(facts)))


def _layers(facts: Facts) -> Iterator[Check]:
    inside = facts.inside
    ran_held = not inside.failure and inside.enforcement != "none"
    for name, layer in LAYERS.items():
        refusal = facts.refusals[name]
        if name not in inside.missing_layers and (refusal is None or ran_held):
            other = f"; {_instead(inside.backend)} could not: {refusal.words}" if refusal else ""
            judge = {"landlock": _landlock, "privileges": _privileges, "seccomp": _seccomp}.get(name)
            held = f"{layer.keeps}{other}"
            yield judge(held, facts) if judge else Check("layers", name, OK, held)
            continue
        gone = [other for other in layer.needs if facts.refusals[other] is not None]
        if gone:
            found = f"needs {' and '.join(gone)}, which {'is' if len(gone) == 1 else 'are'} missing"
            yield Check("layers", name, FAIL, found, layer.without)
        elif refusal is None:
            yield Check("layers", name, FAIL, "held when it was tried, but not in the sandbox", layer.without)
        else:
            yield Check("layers", name, FAIL, refusal.words, layer.without, fixes(name, refusal, facts))


def _instead(backend: str) -> str:
    return (
        "by the launcher, because this process" if backend == "warden" else f"by {backend}, because corral's own warden"
    )


def _landlock(keeps: str, facts: Facts) -> Check:
    abi = facts.landlock_abi
    lacking = [f"{state} (before Linux {kernel})" for version, (kernel, state) in ABIS.items() if abi < version]
    found = f"{keeps}; version {abi}"
    if not lacking:
        return Check("layers", "landlock", OK, found)
    wanted = ABIS[HOLDING_ABI if abi < HOLDING_ABI else NEWEST_USED_ABI][0]
    newer = Fix(
        f"A newer kernel has more rights: boot Linux {wanted} or later. This shows the running one:", "uname -r"
    )
    means = f"It holds, without {len(lacking)} features that corral uses: {'; '.join(lacking)}."
    return Check("layers", "landlock", OK if abi >= HOLDING_ABI else WARN, found, means, (newer,))


def _privileges(keeps: str, facts: Facts) -> Check:
    status = facts.inside.status
    if not status:
        return Check(
            "layers", "privileges", WARN, "no command ran that could be inspected", LAYERS["privileges"].without
        )
    kept = int(status["CapEff"], 16) | int(status["CapBnd"], 16) & int(status["CapPrm"], 16)
    if status["NoNewPrivs"] != "1" or kept & ~FILE_CAPABILITIES:
        found = f"a command has NoNewPrivs {status['NoNewPrivs']} and the capabilities {kept:#x}"
        return Check("layers", "privileges", FAIL, found, LAYERS["privileges"].without)
    four = "; root keeps four over the files it sees" if kept else ""
    return Check("layers", "privileges", OK, f"{keeps}{four}")


def _seccomp(keeps: str, facts: Facts) -> Check:
    status = facts.inside.status
    if status and status["Seccomp"] != "2":
        return Check("layers", "seccomp", FAIL, f"a command has Seccomp {status['Seccomp']}", LAYERS["seccomp"].without)
    return Check("layers", "seccomp", OK, f"{keeps}; architecture {facts.machine}")


def _bounds(facts: Facts) -> Iterator[Check]:
    lacking = {name: instead for name, instead in WITHOUT_CONTROLLER.items() if name not in facts.groups}
    if not lacking:
        places = ", ".join(sorted(set(facts.groups.values())))
        yield Check("bounds", "cgroups", OK, f"processes, memory and CPU time are limited by cgroups in {places}")
    else:
        fix = Fix("A delegated cgroup allows corral to create more.", DELEGATE)
        found = f"corral cannot create a cgroup here for {', '.join(lacking)}"
        yield Check(
            "bounds", "cgroups", WARN, found, f"Limits hold, but less exactly: {'; '.join(lacking.values())}.", (fix,)
        )
    if facts.inside.can_dump_core:
        yield Check(
            "bounds", "rlimits", FAIL, "a command can dump core", "The kernel may pass a core to a program outside."
        )
    else:
        yield Check("bounds", "rlimits", OK, "limits the open files and the file size of each process; no core dumps")


def _surroundings(facts: Facts) -> Iterator[Check]:
    yield _project(facts)
    yield _quarantine(facts)
    yield from (_scratch(facts), _own(facts), _identity(facts), _git_settings(facts), _shared_files(facts))
    if facts.bash:
        yield Check("around", "bash", OK, f"{facts.bash} runs shell strings")
    else:
        means = "corral refuses shell strings (--shell, shell=True); lists of arguments run."
        fix = Fix("Install it in a system directory.", "sudo apt install bash")
        yield Check("around", "bash", FAIL, "there is no bash in a system directory", means, (fix,))
    if facts.bubblewrap:
        yield Check("around", "bubblewrap", OK, facts.bubblewrap)
    else:
        means = "You need it only if you choose it instead of corral's own warden."
        yield Check("around", "bubblewrap", WARN, "not installed", means, (Fix("", "sudo apt install bubblewrap"),))


def _project(facts: Facts) -> Check:
    if not facts.unusable:
        return Check("around", "project", OK, facts.project)
    means = "No command runs in such a project. All other checks used an empty one."
    return Check("around", "project", FAIL, facts.unusable, means, (Fix("Name another.", "corral doctor --root DIR"),))


def _quarantine(facts: Facts) -> Check:
    place = facts.quarantine
    if not facts.can_quarantine:
        means = "corral moves planted files to its cache directory, or gives them random names where they are."
        fix = Fix("Choose a writable directory outside the project.", "export XDG_STATE_HOME=DIR")
        return Check("around", "quarantine", WARN, f"{place} is not writable or is in the project", means, (fix,))
    if "mount" in facts.inside.missing_layers or facts.inside.backend == "none":
        return Check(
            "around",
            "quarantine",
            FAIL,
            "corral looks for planted files only with the mount layer",
            LAYERS["mount"].without,
        )
    return Check("around", "quarantine", OK, f"corral moves planted files to {place}")


def _shared_files(facts: Facts) -> Check:
    left = facts.still_shared
    if not facts.shared.files:
        return Check("around", "hard links", OK, "no file of the project has another name outside")
    where = ", ".join(path[len(facts.project) + 1 :] for path in (left if left.files else facts.shared).trees[:3])
    if not left.files:
        found = f"{facts.shared.files} files in {where} had other names outside, as in a package store; corral made copies for the project"
        return Check("around", "hard links", OK, found)
    found = f"{left.files} files in {where} have other names outside ({left.size >> 20} MiB), as in a package store"
    means = (
        "Writing such a file would change other projects. corral has not copied them, because they are too many, "
        "too large, or cannot be read: commands can only read these directories."
    )
    fixes = (
        Fix("Let uv install copies.", "UV_LINK_MODE=copy uv sync --reinstall"),
        Fix("Let pnpm install copies.", "pnpm install --force --package-import-method=copy"),
    )
    return Check("around", "hard links", WARN, found, means, fixes)


def _scratch(facts: Facts) -> Check:
    if facts.inside.backend == "none" or facts.inside.enforcement == "none":
        found = "commands use your own HOME and temporary directory"
        return Check("around", "scratch", FAIL, found, "They can read and change your files there.")
    if len(facts.inside.scratch) < 2:
        fix = Fix("Choose a writable directory.", "export TMPDIR=DIR")
        return Check(
            "around",
            "scratch",
            FAIL,
            "a command could not write its own HOME or temporary directory",
            "Many programs fail.",
            (fix,),
        )
    kept = f"kept for this project in {facts.scratch}" if facts.scratch else "kept for this project after its first run"
    return Check("around", "scratch", OK, f"commands have their own HOME and temporary directory, {kept}")


def _own(facts: Facts) -> Check:
    written = facts.inside.writable_own
    if facts.inside.failure:
        return Check("around", "own files", WARN, "no command ran that could have tried to write them")
    if written:
        means = "A command could change programs that run outside the sandbox."
        is_inside = any(lies_inside(path, facts.project) for path in written)
        fix = Fix("Install corral outside the project, from a clone.", "pipx install .")
        found = f"a command can write {', '.join(written)}"
        return Check("around", "own files", FAIL, found, means, (fix,) if is_inside else ())
    return Check("around", "own files", OK, "commands cannot write corral, its interpreter or its library")


def _identity(facts: Facts) -> Check:
    known = parse(facts.inside.git)
    name, email = (known.get(("user", "", each), ("",))[-1] for each in ("name", "email"))
    if name and email:
        return Check("around", "git", OK, f"commits are made by {name} <{email}>")
    means = "`git commit` fails in the sandbox, as it does outside."
    command = 'git config --global user.name "NAME" && git config --global user.email "ADDRESS"'
    return Check("around", "git", WARN, "git has no name or e-mail for commits", means, (Fix("", command),))


def _git_settings(facts: Facts) -> Check:
    if not facts.git_left_out:
        return Check("around", "git config", OK, "commands use yours")
    means = (
        "They name programs, files or addresses, or are aliases that the guard cannot judge. "
        "Git in the sandbox works without them."
    )
    fix = Fix("Set one in the repository, if commands need it there.", "git config KEY VALUE")
    return Check("around", "git config", WARN, f"commands do not get {', '.join(facts.git_left_out)}", means, (fix,))
