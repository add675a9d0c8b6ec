"""A machine's facts judged, check by check: whether it holds, what it means, and what would fix it. Pure."""

from __future__ import annotations

from corral._lib.records import Record, frozen
from corral.apps.doctor.remedies import Fix, fixes
from corral.containment.layers import LAYERS
from corral.guard.path_zones import inside as lies_inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.apps.doctor.facts import Facts

DOCTOR_SCHEMA = "corral.doctor/1"
OK, WARN, FAIL = "ok", "warn", "fail"
NEWEST_USED_ABI = 7
FILE_CAPABILITIES = 0b11011  # CHOWN, DAC_OVERRIDE, FOWNER, FSETID: what root keeps over the files that it sees
# What a version of Landlock brought, the kernel that has it, and what is so before it.
ABIS = {
    2: ("5.19", "files cannot be moved or linked from one directory to another"),
    3: ("6.2", "truncating files is held by read-only mounts alone"),
    4: ("6.7", "TCP is held by the network namespace and seccomp alone"),
    5: ("6.10", "requests to devices are held by seccomp and by the few devices there are"),
    6: ("6.12", "signals and abstract sockets are held by the pid and net namespaces alone"),
    7: ("6.15", "the kernel keeps no record of what Landlock refused, so violations are inferred"),
}
WITHOUT_GROUP = {
    "pids": "processes are counted one by one",
    "memory": "memory is looked at five times a second",
    "cpu": "processor time is added up from the processes that are seen",
}
DELEGATE = "systemd-run --user --scope -p Delegate=yes corral run -- COMMAND"
HOLDING_ABI = 6  # from here on, what is missing is a record and no right
MEANINGS = {
    "full": "Every layer holds. workspace and strict both run commands contained.",
    "partial": "Some layers hold. workspace does not run here, unless the owner sets containment.accept_partial; strict runs with what there is.",
    "none": "Nothing holds commands here. workspace does not run; strict runs with its guard alone, and a command can do what the user can do.",
}


@frozen
class Check(Record):
    """One thing looked at: `ok`, `warn` where something is less than it could be, `fail` where it is missing."""

    group: str
    name: str
    status: str
    found: str
    means: str = ""
    fixes: tuple[Fix, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return the check as JSON-ready data."""
        data: dict[str, object] = {name: getattr(self, name) for name in self._fields}
        return data | {"fixes": [{"why": fix.why, "command": fix.command} for fix in self.fixes]}


@frozen
class Report(Record):
    """All checks of a machine, and what they come to."""

    facts: Facts
    checks: tuple[Check, ...]

    @property
    def enforcement(self) -> str:
        """What holds a command here: `full`, `partial` or `none`."""
        return self.facts.inside.enforcement

    @property
    def missing(self) -> tuple[str, ...]:
        """The layers that do not hold: those of the sandbox, or where there was none, of the trial."""
        if self.facts.inside.failure:
            return tuple(name for name, refusal in self.facts.refusals.items() if refusal is not None)
        return self.facts.inside.missing_layers

    @property
    def means(self) -> str:
        """What that comes to, in words."""
        failure = self.facts.inside.failure
        return f"No sandbox could be used: {failure}" if failure else MEANINGS[self.enforcement]

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
    """Judge every layer, and what stands around them."""
    return Report(facts, (*_layers(facts), *_bounds(facts), *_surroundings(facts)))


def _layers(facts: Facts) -> Iterator[Check]:
    inside = facts.inside
    ran_held = not inside.failure and inside.enforcement != "none"
    for name, layer in LAYERS.items():
        refusal = facts.refusals[name]
        if name not in inside.missing_layers and (refusal is None or ran_held):
            other = f"; by {inside.backend}, since corral's own warden could not: {refusal.words}" if refusal else ""
            yield _held(name, f"{layer.keeps}{other}", facts)
            continue
        gone = [other for other in layer.needs if facts.refusals[other] is not None]
        if gone:
            found = f"it stands on {' and '.join(gone)}, which {'is' if len(gone) == 1 else 'are'} missing"
            yield Check("layers", name, FAIL, found, layer.without)
        elif refusal is None:
            yield Check("layers", name, FAIL, "it held when it was tried, and not in the sandbox", layer.without)
        else:
            yield Check("layers", name, FAIL, refusal.words, layer.without, fixes(name, refusal, facts))


def _held(name: str, keeps: str, facts: Facts) -> Check:
    if name == "landlock":
        return _landlock(keeps, facts)
    if name == "privileges":
        return _privileges(keeps, facts)
    if name == "seccomp":
        return _filter(keeps, facts)
    return Check("layers", name, OK, keeps)


def _landlock(keeps: str, facts: Facts) -> Check:
    abi = facts.landlock_abi
    lacking = [f"{said} (until Linux {kernel})" for version, (kernel, said) in ABIS.items() if abi < version]
    found = f"{keeps}; version {abi}"
    if not lacking:
        return Check("layers", "landlock", OK, found)
    wanted = ABIS[HOLDING_ABI if abi < HOLDING_ABI else NEWEST_USED_ABI][0]
    newer = Fix(
        f"A newer kernel knows more rights: boot Linux {wanted} or later. This shows which one runs:", "uname -r"
    )
    means = f"It holds, and lacks {len(lacking)} of what corral uses: {'; '.join(lacking)}."
    return Check("layers", "landlock", OK if abi >= HOLDING_ABI else WARN, found, means, (newer,))


def _privileges(keeps: str, facts: Facts) -> Check:
    status = facts.inside.status
    if not status:
        return Check(
            "layers", "privileges", WARN, "no command ran that could have been looked at", LAYERS["privileges"].without
        )
    kept = int(status["CapEff"], 16) | int(status["CapBnd"], 16) & int(status["CapPrm"], 16)
    if status["NoNewPrivs"] != "1" or kept & ~FILE_CAPABILITIES:
        found = f"a command has NoNewPrivs {status['NoNewPrivs']} and the capabilities {kept:#x}"
        return Check("layers", "privileges", FAIL, found, LAYERS["privileges"].without)
    four = "; root keeps four over the files that it sees" if kept else ""
    return Check("layers", "privileges", OK, f"{keeps}{four}")


def _filter(keeps: str, facts: Facts) -> Check:
    status = facts.inside.status
    if status and status["Seccomp"] != "2":
        return Check("layers", "seccomp", FAIL, f"a command has Seccomp {status['Seccomp']}", LAYERS["seccomp"].without)
    return Check("layers", "seccomp", OK, f"{keeps}; architecture {facts.machine}")


def _bounds(facts: Facts) -> Iterator[Check]:
    lacking = {name: said for name, said in WITHOUT_GROUP.items() if name not in facts.groups}
    if not lacking:
        places = ", ".join(sorted(set(facts.groups.values())))
        yield Check("bounds", "cgroups", OK, f"processes, memory and processor time are bounded by groups in {places}")
    else:
        fix = Fix("A delegated group gives the right to make more.", DELEGATE)
        found = f"no control group can be made here for {', '.join(lacking)}"
        yield Check(
            "bounds", "cgroups", WARN, found, f"Limits hold, and less exactly: {'; '.join(lacking.values())}.", (fix,)
        )
    if facts.inside.can_dump_core:
        yield Check(
            "bounds", "rlimits", FAIL, "a command can leave core dumps", "A core may be handed to a program outside."
        )
    else:
        yield Check("bounds", "rlimits", OK, "open files and file size of each process; no core dumps")


def _surroundings(facts: Facts) -> Iterator[Check]:
    yield _project(facts)
    yield _quarantine(facts)
    yield from (_scratch(facts), _own(facts), _identity(facts))
    if facts.bash:
        yield Check("around", "bash", OK, f"shell strings are run by {facts.bash}")
    else:
        means = "Shell strings (--shell, shell=True) are refused; lists of arguments run."
        fix = Fix("Install it in a system directory.", "sudo apt install bash")
        yield Check("around", "bash", FAIL, "there is none in a system directory", means, (fix,))
    if facts.bubblewrap:
        yield Check("around", "bubblewrap", OK, facts.bubblewrap)
    else:
        means = "It is needed only for those who choose it instead of corral's own warden."
        yield Check("around", "bubblewrap", WARN, "not installed", means, (Fix("", "sudo apt install bubblewrap"),))


def _project(facts: Facts) -> Check:
    if not facts.unusable:
        return Check("around", "project", OK, facts.project)
    means = "No command runs with such a project; all else here was tried in an empty one."
    return Check("around", "project", FAIL, facts.unusable, means, (Fix("Name another.", "corral doctor --root DIR"),))


def _quarantine(facts: Facts) -> Check:
    place = facts.quarantine
    if not facts.can_quarantine or facts.is_quarantine_apart:
        why = "in the project or on another file system" if facts.can_quarantine else "not writable"
        means = "Planted files are moved to corral-quarantine/ in the project itself."
        fix = Fix("Choose a directory beside the project, on its file system.", "export XDG_STATE_HOME=DIR")
        return Check("around", "quarantine", WARN, f"{place} is {why}", means, (fix,))
    if "mount" in facts.inside.missing_layers or facts.inside.backend == "none":
        return Check(
            "around",
            "quarantine",
            FAIL,
            "planted files are looked for only where there is the layer mount",
            LAYERS["mount"].without,
        )
    return Check("around", "quarantine", OK, f"planted files are moved to {place}")


def _scratch(facts: Facts) -> Check:
    if facts.inside.backend == "none" or facts.inside.enforcement == "none":
        found = "commands have the user's own HOME and temporary directory"
        return Check("around", "scratch", FAIL, found, "They read and change what lies there.")
    if len(facts.inside.scratch) < 2:
        fix = Fix("The directory for it must be writable.", "export TMPDIR=DIR")
        return Check(
            "around",
            "scratch",
            FAIL,
            "a command could not write its own HOME or temporary directory",
            "Many programs fail.",
            (fix,),
        )
    kept = (
        f"kept for this project in {facts.scratch}" if facts.scratch else "kept for the project from its first run on"
    )
    return Check("around", "scratch", OK, f"commands have their own HOME and temporary directory, {kept}")


def _own(facts: Facts) -> Check:
    written = facts.inside.writable_own
    if facts.inside.failure:
        return Check("around", "own files", WARN, "no command ran that could have tried to write them")
    if written:
        means = "A command could change what runs outside the sandbox."
        is_inside = any(lies_inside(path, facts.project) for path in written)
        fix = Fix("Install corral outside of the project, from a clone of it.", "pipx install .")
        found = f"a command can write {', '.join(written)}"
        return Check("around", "own files", FAIL, found, means, (fix,) if is_inside else ())
    return Check("around", "own files", OK, "commands cannot write corral, its interpreter or its library")


def _identity(facts: Facts) -> Check:
    lines = [line.strip() for line in facts.inside.git.splitlines()]
    known = {name.strip(): value.strip(' "') for name, sep, value in (line.partition("=") for line in lines) if sep}
    if known.get("name") and known.get("email"):
        return Check("around", "git", OK, f"commits are by {known['name']} <{known['email']}>")
    means = "git commit fails in the sandbox: nothing else of the owner's git configuration is carried over."
    command = 'git config --global user.name "NAME" && git config --global user.email "ADDRESS"'
    return Check("around", "git", WARN, "there is no name or e-mail for commits", means, (Fix("", command),))
