"""Configs without a guard, for self-tests and the doctor, which test the kernel and not the rules. Never for an agent's calls."""

from __future__ import annotations

import os
from contextlib import contextmanager

from corral.guard.rules.loader import Profile, effects, profile_named
from corral.model.call import Decision

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from corral.policy.config import SandboxConfig


def unguarded(config: SandboxConfig, **changes: Any) -> SandboxConfig:
    """Return a config whose guard allows everything and which accepts missing layers."""
    groups = dict.fromkeys(profile_named("strict").groups, Decision.ALLOW)
    profile = Profile("unguarded", dict.fromkeys(effects(), Decision.ALLOW), groups)
    containment = changes.pop("containment", config.containment).replace(accept_partial=True)
    return config.replace(profile=profile, denylist=(), interpreter_block=(), containment=containment, **changes)


@contextmanager
def state_dirs_in(folder: str) -> Iterator[None]:
    """Put the state and cache of all sandboxes (quarantine, scratch) below `folder` inside the block."""
    names = ("XDG_STATE_HOME", "XDG_CACHE_HOME")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: f"{folder}/{name}" for name in names})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
