"""Makes each attempt twice: contained, where it must fail, and uncontained on a victim of its own, where it must get through.

Only an attempt that got through uncontained can be held; otherwise nothing was shown.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import ExitStack
from signal import Signals

from corral._lib.records import Record, frozen
from corral.apps.selftest.attacks import all_attacks
from corral.apps.selftest.targets import PYTHON, Targets, make_outside_directory, make_project, snapshot
from corral.containment.state import unmet_requirement
from corral.policy.config import Containment, Limits
from corral.runtime.unguarded import state_dirs_in, unguarded
from corral.sandbox import Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from corral.apps.selftest.attacks import Attempt
    from corral.policy.config import SandboxConfig

HELD, NOT_HELD, NOT_SHOWN, NOT_TESTABLE = "held", "not held", "not shown", "not testable"
ATTEMPT_SECONDS = 10.0
_THROUGH = "through"


@frozen
class Outcome(Record):
    """What became of an attempt, and in which words."""

    attempt: Attempt
    result: str
    said: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return the outcome as JSON-ready data."""
        tried = self.attempt
        about: dict[str, object] = {"group": tried.group, "name": tried.name, "layers": list(tried.layers)}
        return about | {"result": self.result, "said": self.said}


@frozen
class Setting(Record):
    """The sandbox that is attacked. `refusal` is why `run` would not run in it, or nothing."""

    backend: str
    enforcement: str
    missing_layers: tuple[str, ...]
    profile: str
    refusal: str


class Selftest:
    """One battery on one config; making it starts the sandboxes, and closing it leaves nothing behind."""

    def __init__(self, config: SandboxConfig) -> None:
        self._open = ExitStack()
        try:
            self._start(config)
        except BaseException:
            self._open.close()
            raise

    def _start(self, config: SandboxConfig) -> None:
        granted = config.containment
        place = make_outside_directory((config.project_root, *granted.read, *granted.write))
        self._open.callback(shutil.rmtree, place, ignore_errors=True)
        self._open.enter_context(state_dirs_in(place))
        contained = unguarded(config, timeout_seconds=ATTEMPT_SECONDS)
        loose = unguarded(config, timeout_seconds=None, containment=Containment(backend="none"), limits=Limits())
        self._projects = (f"{place}/project", f"{place}/bare-project")
        for folder in self._projects:
            make_project(folder)
        # Inner before outer: victims end before the sandbox that runs one of them, and sandboxes before their files.
        self._held, self._held_project = (
            self._open.enter_context(Sandbox(contained.replace(project_root=root)))
            for root in (config.project_root, self._projects[0])
        )
        self._loose, self._loose_project = (
            self._open.enter_context(Sandbox(loose.replace(project_root=root)))
            for root in (config.project_root, self._projects[1])
        )
        self._victims = self._open.enter_context(Targets(place, self._loose))
        self._network = granted.network
        first = self._held.run([PYTHON, "-I", "-S", "-c", ""])
        status = (first.backend, first.enforcement, first.missing_layers)
        self.setting = Setting(*status, config.rules.name, unmet_requirement(config, *status))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def outcomes(self) -> Iterator[Outcome]:
        """Make the attempts, one after the other."""
        for attempt in all_attacks():
            lacking = next((said for need in attempt.needs if (said := _lacking(need, self._network))), "")
            yield Outcome(attempt, NOT_TESTABLE, lacking) if lacking else self._try(attempt)

    def _try(self, attempt: Attempt) -> Outcome:
        contained, bare = (
            (self._held_project, self._loose_project) if "project" in attempt.needs else (self._held, self._loose)
        )
        make_project(self._projects[1])
        # Both at once: neither touches the other's victims.
        runs = [
            _Run(contained, attempt, self._victims.fresh(), self._projects[0], is_bare=False),
            _Run(bare, attempt, self._victims.fresh(), self._projects[1], is_bare=True),
        ]
        said, canary = [run.said() for run in runs]
        if said == _THROUGH:
            return Outcome(attempt, NOT_HELD, "it got through")
        if canary != _THROUGH:
            return Outcome(attempt, NOT_SHOWN, f"uncontained it fails too: {canary.partition(' ')[2]}")
        word, _, reason = said.partition(" ")
        return Outcome(attempt, HELD if word == HELD else NOT_SHOWN, reason)


class _Run:
    """One attempt under way, on victims of its own."""

    def __init__(
        self, box: Sandbox, attempt: Attempt, facts: dict[str, object], project: str, *, is_bare: bool
    ) -> None:
        self._is_planted = "planted" in attempt.needs and not is_bare
        self._folders = (str(facts["outside"]), *((project,) if "project" in attempt.needs else ()))
        self._before = [snapshot(folder) for folder in self._folders]
        argv = [PYTHON, "-I", "-S", "-", json.dumps(facts)]
        env = {"TMPDIR": str(facts["room"])} if is_bare else None
        self._handle = box.start(argv, stdin=attempt.source, env=env, timeout_seconds=ATTEMPT_SECONDS)

    def said(self) -> str:
        """Wait for its end; return `through`, `held` and why, or `failed` and how."""
        done = self._handle.wait()
        if [snapshot(folder) for folder in self._folders] != self._before:
            return _THROUGH
        if any(violation.kind == "warden-lost" for violation in done.violations):
            return _THROUGH
        if done.signal is not None:
            return f"held ended by {Signals(done.signal).name}"
        said = done.stdout_text.strip()
        if said == _THROUGH:
            # What was planted is gone again: the project is as it was.
            return "held moved to quarantine" if self._is_planted else _THROUGH
        if done.ok and said.startswith("held "):
            return said
        return f"failed {done.stderr_text.strip().rpartition(chr(10))[2] or done.reason or done.exit_code}"


def _lacking(need: str, network: object) -> str:
    """Return why a condition is not met here, or nothing."""
    if need == "no network":
        return "the owner granted the network" if network == "on" else ""
    return _CONDITIONS[need]() if need in _CONDITIONS else ""


def _setting(name: str) -> str:
    try:
        with open(f"/proc/sys/{name}", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


_CONDITIONS: dict[str, Callable[[], str]] = {
    "root": lambda: "" if os.geteuid() == 0 else "only root can do it uncontained",
    "x86_64": lambda: "" if os.uname().machine == "x86_64" else "only x86 has such calls",
    "user namespaces": lambda: "nobody can here" if _setting("user/max_user_namespaces") == "0" else "",
    "io_uring": lambda: "the machine has it switched off" if _setting("kernel/io_uring_disabled") in ("1", "2") else "",
    "keys": lambda: "" if os.path.exists("/proc/keys") else "the kernel keeps no keys",
}
