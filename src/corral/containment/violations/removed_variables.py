"""Finds the environment variables that a failed command missed: the user has set them, commands do not receive them, the output names them."""

from __future__ import annotations

from corral._lib.lazy_regex import pattern
from corral.containment.violations.visibility import grantable_violation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.model.call import Violation
    from corral.policy.config import SandboxConfig

MAX_NAMED = 3  # variables in one result
# A message about a missing variable says so in the same line. Without this, every program that prints PWD would get a violation.
_COMPLAINT = pattern(
    r"(?i)keyerror|not (been )?(set|defined|found|provided|configured|exist)|unset|undefined|missing|require|unbound|must (be|have)|is empty|no such|environ"
)
_NAME = pattern(r"[A-Z][A-Z0-9_]{2,}")


def missed_variables(said: bytes, config: SandboxConfig, environ: Mapping[str, str]) -> list[Violation]:
    """Return a violation for each variable that the last lines of the output complain about."""
    names = [name for name in environ if len(name) > 2 and name.encode("utf-8", "surrogateescape") in said]
    removed = {name for name in names if not _is_passed(name, config)}
    found: dict[str, Violation] = {}
    for line in said.decode("utf-8", "replace").splitlines() if removed else ():
        if len(found) >= MAX_NAMED:
            break
        if _COMPLAINT.search(line):
            for match in _NAME.finditer(line):
                if match[0] in removed:
                    found.setdefault(match[0], _violation(match[0]))
    return list(found.values())


def _is_passed(name: str, config: SandboxConfig) -> bool:
    prefixes = tuple(entry[:-1] for entry in config.env_allowlist if entry.endswith("*"))
    return (
        name in config.env_allowlist or name in config.output.exported or bool(prefixes and name.startswith(prefixes))
    )


def _violation(name: str) -> Violation:
    detail = "this variable is set outside, and commands do not receive it"
    instead = "Set it in the command, or work without it"
    return grantable_violation("environment", name, detail, instead, f'environment = ["{name}"]', inferred=True)
