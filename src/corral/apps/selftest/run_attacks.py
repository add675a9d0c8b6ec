"""Runs each attack twice: contained, where it must fail, and uncontained on a target of its own, where it must get through.

An attack that fails uncontained too proves nothing.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import ExitStack
from signal import Signals

from corral._lib.records import Record, frozen
from corral.apps.selftest.attacks import Attempt, all_attacks
from corral.apps.selftest.targets import PYTHON, Targets, make_outside_directory, make_project, snapshot
from corral.apps.unguarded import state_dirs_in, unguarded
from corral.containment.layers import unmet_requirement
from corral.policy.config import Containment, Limits, SandboxConfig
from corral.sandbox import Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self


HELD, NOT_HELD, NOT_SHOWN, NOT_TESTABLE = "held", "not held", "not shown", "not testable"
ATTEMPT_SECONDS = 10.0
_THROUGH = "through"


@frozen
class Outcome(Record):
    """The result of an attack, and its reason."""

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
    """The sandbox under attack. `refusal` says why `corral run` would not use it, or is empty."""

    backend: str
    enforcement: str
    missing_layers: tuple[str, ...]
    profile: str
    refusal: str


class Selftest:
    """The attacks on one config. The constructor starts the sandboxes; closing leaves nothing behind."""

    def __init__(self, config: SandboxConfig) -> None:
        granted = config.containment
        with ExitStack() as stack:
            place = make_outside_directory((config.project_root, *granted.read, *granted.write))
            stack.callback(shutil.rmtree, place, ignore_errors=True)
            stack.enter_context(state_dirs_in(place))
            contained = unguarded(config, timeout_seconds=ATTEMPT_SECONDS)
            bare = unguarded(config, timeout_seconds=None, containment=Containment(backend="none"), limits=Limits())
            self._projects = (f"{place}/project", f"{place}/bare-project")
            for folder in self._projects:
                make_project(folder)
            # The stack closes in reverse: the targets before the sandbox that runs one of them, and sandboxes before files.
            self._contained, self._contained_project = (
                stack.enter_context(Sandbox(contained.replace(project_root=root)))
                for root in (config.project_root, self._projects[0])
            )
            self._bare, self._bare_project = (
                stack.enter_context(Sandbox(bare.replace(project_root=root)))
                for root in (config.project_root, self._projects[1])
            )
            self._targets = stack.enter_context(Targets(place, self._bare))
            self._network = granted.network
            first = self._contained.run([PYTHON, "-I", "-S", "-c", ""])
            status = (first.backend, first.enforcement, first.missing_layers)
            self.setting = Setting(*status, config.rules.name, unmet_requirement(config, *status))
            self._open = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def outcomes(self) -> Iterator[Outcome]:
        """Run the attacks one after the other."""
        for attempt in all_attacks():
            lacking = next((why for need in attempt.needs if (why := _lacking(need, self._network))), "")
            yield Outcome(attempt, NOT_TESTABLE, lacking) if lacking else self._try(attempt)

    def _try(self, attempt: Attempt) -> Outcome:
        contained, bare = (
            (self._contained_project, self._bare_project)
            if "project" in attempt.needs
            else (self._contained, self._bare)
        )
        make_project(self._projects[1])
        # Both run at once, on targets of their own.
        runs = [
            _Run(contained, attempt, self._targets.fresh(), self._projects[0], is_bare=False),
            _Run(bare, attempt, self._targets.fresh(), self._projects[1], is_bare=True),
        ]
        answer, canary = [run.answer() for run in runs]
        if answer == _THROUGH:
            return Outcome(attempt, NOT_HELD, "it got through")
        if canary != _THROUGH:
            return Outcome(attempt, NOT_SHOWN, f"uncontained it fails too: {canary.partition(' ')[2]}")
        word, _, reason = answer.partition(" ")
        return Outcome(attempt, HELD if word == HELD else NOT_SHOWN, reason)


class _Run:
    """A running attack, on targets of its own."""

    def __init__(
        self, box: Sandbox, attempt: Attempt, facts: dict[str, object], project: str, *, is_bare: bool
    ) -> None:
        self._is_planted = "planted" in attempt.needs and not is_bare
        self._folders = (str(facts["outside"]), *((project,) if "project" in attempt.needs else ()))
        self._before = [snapshot(folder) for folder in self._folders]
        argv = [PYTHON, "-I", "-S", "-", json.dumps(facts)]
        env = {"TMPDIR": str(facts["room"])} if is_bare else None
        self._handle = box.start(argv, stdin=attempt.source, env=env, timeout_seconds=ATTEMPT_SECONDS)

    def answer(self) -> str:
        """Wait for the end and return `through`, `held` and a reason, or `failed` and a reason."""
        done = self._handle.wait()
        if [snapshot(folder) for folder in self._folders] != self._before:
            return _THROUGH
        if any(violation.kind == "warden-lost" for violation in done.violations):
            return _THROUGH
        if done.signal is not None:
            return f"held ended by {Signals(done.signal).name}"
        answer = done.stdout_text.strip()
        if answer == _THROUGH:
            # The snapshots are equal, so the planted file is gone from the project.
            return "held moved to quarantine" if self._is_planted else _THROUGH
        if done.ok and answer.startswith("held "):
            return answer
        return f"failed {done.stderr_text.strip().rpartition(chr(10))[2] or done.reason or done.exit_code}"


def _lacking(need: str, network: object) -> str:
    """Return why a condition is not met here, or ""."""
    if need == "no network":
        return "the policy grants the network" if network == "on" else ""
    return _CONDITIONS[need]() if need in _CONDITIONS else ""


def _setting(name: str) -> str:
    try:
        with open(f"/proc/sys/{name}", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


_CONDITIONS: dict[str, Callable[[], str]] = {
    "root": lambda: "" if os.geteuid() == 0 else "only root can do it uncontained",
    "x86_64": lambda: "" if os.uname().machine == "x86_64" else "only x86_64 has these system calls",
    "user namespaces": lambda: "this machine allows none" if _setting("user/max_user_namespaces") == "0" else "",
    "io_uring": lambda: "this machine disables it" if _setting("kernel/io_uring_disabled") in ("1", "2") else "",
    "keys": lambda: "" if os.path.exists("/proc/keys") else "this kernel has no keys",
}
