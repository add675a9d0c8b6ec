"""What a host's own tools read and write, which no kernel of ours holds: the places are judged by the policy's own words."""

from __future__ import annotations

import os

from corral._lib.terminal import printable
from corral.guard.axes.paths import path_effects
from corral.guard.machine import Machine
from corral.guard.path_zones import inside, is_credential_file
from corral.guard.rules.loader import effects, places
from corral.integrations.hooks.protocol import GLOB_CHARACTERS, WRITE, Answer, ToolCall
from corral.model.call import Decision
from corral.policy import user_dirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.policy.config import SandboxConfig

# What hosts keep for themselves in a home directory, and read again; not what lets one log in, or decides what is allowed.
_OWN = (".claude/", ".codex/", ".gemini/", ".cursor/", ".copilot/", ".config/opencode/", ".local/share/opencode/")
_OWN_SECRETS = frozenset(
    {".credentials.json", "auth.json", "oauth_creds.json", "mcp-oauth-tokens.json", "config.toml", "config.json"}
)
MAX_SHOWN = 200  # characters of a path that a reason repeats
# Reading elsewhere is left to the host's own rules.
_READS_JUDGED = frozenset({"read-secret", "read-env", "read-device"})


def judge_files(asked: ToolCall, config: SandboxConfig, environ: Mapping[str, str]) -> Answer:
    """Return the strictest answer to any of the paths."""
    machine = Machine.of(config)
    for path in asked.paths if asked.are_patterns else ():
        if _leaves(path, asked.cwd, machine):
            why = f"{_shown(path)} is a pattern that reaches outside the project, where it could match credentials."
            return Answer("deny", f"corral refuses this: {why} Name the files themselves.")
    answer = Answer("allow")
    for path in (meant for given in asked.paths for meant in _meant(given, asked.cwd, machine.home)):
        one = _judge(path, asked, config, machine, environ)
        if one.decision == "deny":
            return one
        answer = one if one.decision == "ask" else answer
    return answer


def _meant(path: str, cwd: str, home: str) -> list[str]:
    """Return all that a tool may take a path for: some expand `~`, and some cut `..` out of the text before a link is followed."""
    found = [path]
    if path.startswith("~"):
        head, slash, rest = path.partition("/")
        found.append((home if head == "~" else f"/home/{head[1:]}") + slash + rest)
    if ".." in path:
        found += [os.path.normpath(os.path.join(cwd, one)) for one in found]
    return found


def _leaves(pattern: str, cwd: str, machine: Machine) -> bool:
    """Say whether a pattern may match what lies neither in the project nor in what the owner lets be read."""
    parts = pattern.split("/")
    plain = next((n for n, part in enumerate(parts) if any(sign in part for sign in GLOB_CHARACTERS)), len(parts))
    rest = "/".join(parts[plain:])
    if ".." in rest or any(f"{sign}/" in rest for sign in "{,(|"):  # alternatives may lead anywhere
        return True
    above = "/".join(parts[:plain]) or ("/" if pattern.startswith("/") else ".")
    places = [os.path.realpath(os.path.join(cwd, one)) for one in _meant(above, cwd, machine.home)]
    return bool(rest) and not all(
        inside(place, machine.root) or (machine.readable and machine.granted("reads", place)) for place in places
    )


def _judge(path: str, asked: ToolCall, config: SandboxConfig, machine: Machine, environ: Mapping[str, str]) -> Answer:
    if "\0" in path:
        return Answer("deny", "corral refuses this: a path with a NUL byte is none.")
    real = os.path.realpath(os.path.join(asked.cwd, path))
    writes = asked.kind == WRITE
    kept = [user_dirs.user_directory(kind, environ) for kind in ("config", "state", "cache")]
    if any(inside(real, folder) or inside(folder, real.rstrip("/")) for folder in kept):
        return Answer(
            "deny", f"corral refuses this: {_shown(path)} holds what corral keeps for the owner. Ask the owner."
        )
    if not writes and _holds_credentials(real, machine):
        why = f"{_shown(path)} is a directory that holds credentials, which a search would read."
        return Answer("deny", f"corral refuses this: {why} Name the files themselves. [path-read-secret]")
    if writes and any(inside(real, own) for own in _own_program()):
        why = f"{_shown(path)} is a part of corral, or of what it runs on."
        return Answer("deny", f"corral refuses this: {why} Ask the owner.")
    if writes and config.containment.project == "read-only" and inside(real, config.project_root):
        return Answer("deny", "corral refuses this: the policy says containment.project = 'read-only'.")
    if not writes and _is_own(real, machine.home):
        return Answer("allow")
    decisions = config.rules.effects
    keys = path_effects("writes" if writes else "reads", path, asked.cwd, machine)
    judged = [key for key in keys if (writes or key in _READS_JUDGED) and decisions[key] is not Decision.ALLOW]
    if not judged:
        return Answer("allow")
    key = max(judged, key=decisions.__getitem__)
    data = effects()[key]
    why = f"{data['reason'].format(name='The tool', text=_shown(path), detail='')} {data['instead']} [path-{key}]"
    if decisions[key] is Decision.ASK:
        from corral.integrations.hooks.host_questions import is_answered, why_not_asked  # noqa: PLC0415  seldom asked about

        if is_answered(asked, config):
            return Answer("ask", f"corral asks about this: {why}")
        why = f"{why}\n{why_not_asked(asked, environ)} The user can allow it in the policy: effects.{key}."
    return Answer("deny", f"corral refuses this: {why}")


def _shown(path: str) -> str:
    """Return a path as a person may be shown it, who is asked: it forges no line, and drives no terminal."""
    return printable(path if len(path) <= MAX_SHOWN else f"{path[:MAX_SHOWN]}…")


def _holds_credentials(real: str, machine: Machine) -> bool:
    """Say whether a directory outside the project has credentials below it, or the environments of processes."""
    if inside(real, machine.root) or not os.path.isdir(real):
        return False
    above = real.rstrip("/")  # of "/" nothing is left, below which everything lies
    known = (f"{machine.home}/{pattern.partition('*')[0].rstrip('/')}" for pattern in places()["secret_home"])
    return (
        inside(real, "/proc")
        or inside("/proc", above)
        or inside(machine.home, above)
        or any(inside(path, above) and os.path.lexists(path) for path in known)
    )


def _own_program() -> list[str]:
    """Return where corral, its interpreter and its dependencies lie, which is the next hook's code."""
    from corral.policy.installation import installation_paths  # noqa: PLC0415  reading does not need it

    return installation_paths()


def _is_own(path: str, home: str) -> bool:
    """Say whether a path is one of the host's own notes, and holds no credentials."""
    name = path.rpartition("/")[2]
    below = path[len(home) + 1 :] if inside(path, home) else ""
    return below.startswith(_OWN) and name not in _OWN_SECRETS and not is_credential_file(name)
