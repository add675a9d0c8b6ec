"""The owner's choices: built-in profile, the owner's policy.toml, the project's corral.toml, merged into one config.

A project's file may only tighten until the owner trusts its exact bytes; what it would loosen is named, and not in force.
"""

from __future__ import annotations

import os
from errno import ELOOP

from corral._lib.records import Record, frozen
from corral.model.errors import PolicyError
from corral.policy import user_dirs
from corral.policy.config import Containment, SandboxConfig, checked_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.policy.merge import Setting

OWNER_FILE = "policy.toml"
PROJECT_FILE = "corral.toml"
DEFAULT_PROFILE = "workspace"
MAX_FILE_BYTES = 256 * 1024


@frozen
class PolicyFile(Record):
    """One file of the policy."""

    level: str  # owner or project
    path: str
    digest: str
    trusted: bool


@frozen
class Policy(Record):
    """The merged choices, and how they came about."""

    config: SandboxConfig
    sources: tuple[PolicyFile, ...] = ()
    settings: tuple[Setting, ...] = ()

    @property
    def waiting(self) -> tuple[Setting, ...]:
        """What an untrusted project's file would loosen."""
        return tuple(setting for setting in self.settings if not setting.in_force)


def load(root: str, environ: Mapping[str, str], *, profile: str | None = None) -> Policy:
    """Return the policy of a project; `profile` holds where no trusted file names one, and may else only tighten."""
    root = checked_root(root)
    owners = user_policy_path(environ)
    found = [
        (level, path, read_policy_file(path, root, level))
        for level, path in (("owner", owners), ("project", project_policy_path(root)))
    ]
    if not any(data is not None for _, _, data in found):
        # Most projects; nothing of what follows is imported for them.
        return Policy(
            SandboxConfig(root, profile=profile or DEFAULT_PROFILE, containment=Containment(scratch="project"))
        )
    return _merged(root, environ, [(level, path, data) for level, path, data in found if data is not None], profile)


def user_policy_path(environ: Mapping[str, str]) -> str:
    """Return where the owner's policy lies, if there is one."""
    return f"{user_dirs.user_directory('config', environ)}/{OWNER_FILE}"


def project_policy_path(root: str) -> str:
    """Return where a project's policy lies, if there is one."""
    return f"{root}/{PROJECT_FILE}"


def _merged(root: str, environ: Mapping[str, str], files: list[tuple[str, str, bytes]], profile: str | None) -> Policy:
    from corral._lib.sha256 import sha256_hex  # noqa: PLC0415  where there is a file
    from corral.policy.merge import PolicyMerge  # noqa: PLC0415
    from corral.policy.policy_cache import load_compiled  # noqa: PLC0415  where there is a file
    from corral.policy.trust import is_trusted  # noqa: PLC0415

    merge = PolicyMerge(environ.get("HOME", ""))
    sources = []
    asked = profile
    for level, path, data in files:
        digest = sha256_hex(data)
        trusted = level == "owner" or is_trusted(path, digest, environ, root)
        sources.append(PolicyFile(level, path, digest, trusted))
        if not trusted and asked is not None:
            # Before what is not trusted: else that would be the first to speak of the profile.
            merge.request_profile(asked)
            asked = None
        parsed = load_compiled(data, digest, path, environ, root)
        if level == "project":
            _refuse_owners_keys(parsed["settings"], path, environ)
        merge.add(parsed, path, trusted=trusted)
    if asked is not None:
        merge.request_profile(asked)
    config = merge.config(root)
    _refuse_contradiction(config, merge.settings)
    _refuse_grants(config, merge.settings, environ)
    return Policy(config, tuple(sources), tuple(merge.settings))


def _refuse_owners_keys(settings: list[tuple[str, object, int, int]], path: str, environ: Mapping[str, str]) -> None:
    from corral.policy.settings import SETTINGS  # noqa: PLC0415  where there is a file

    for key, _, line, column in settings:
        if key in SETTINGS and SETTINGS[key].tighter == "owner":
            where = user_policy_path(environ)
            raise PolicyError(
                f"{path}:{line}:{column}: {key} is only allowed in the user's own policy ({where}). Remove it from this file"
            )


def read_policy_file(path: str, root: str, level: str) -> bytes | None:
    """Return the bytes of a policy file, or None where there is none; PolicyError where they are not for us to believe."""
    try:
        # The owner may keep their file elsewhere and link it. A project's link could lead to what its messages would show.
        data, found = user_dirs.read_regular_file(path, MAX_FILE_BYTES, follows=level == "owner")
    except FileNotFoundError:
        if os.path.islink(path):
            raise PolicyError(f"{path} is a link that leads nowhere") from None
        return None
    except OSError as error:
        # Not to be read is not the same as not there: it might have tightened.
        why = "it is a link" if error.errno == ELOOP else error.strerror
        raise PolicyError(f"{path} cannot be read: {why}") from None
    if level == "owner":
        user_dirs.refuse_inside_project(os.path.realpath(path), root)
        user_dirs.refuse_status_writable_by_others(path, found)
    if len(data) > MAX_FILE_BYTES:
        raise PolicyError(f"{path}:1:1: longer than {MAX_FILE_BYTES} bytes")
    return data


def _refuse_contradiction(config: SandboxConfig, settings: list[Setting]) -> None:
    if config.containment.backend != "none" or not config.rules.needs_containment:
        return
    where = next(s for s in reversed(settings) if s.key == "containment.backend" and s.in_force)
    raise PolicyError(
        f"{where.path}:{where.line}:{where.column}: profile {config.rules.name} runs nothing that is not contained, "
        "and backend is 'none'; set profile = 'strict', or another backend"
    )


def _refuse_grants(config: SandboxConfig, settings: list[Setting], environ: Mapping[str, str]) -> None:
    """Raise where a file grants what would open credentials, corral itself or what is protected, whether it is trusted or not."""
    granting = [s for s in settings if s.key in ("containment.read", "containment.write") and s.value]
    if not granting:
        return
    from corral.guard.path_zones import protected  # noqa: PLC0415  most policies grant nothing
    from corral.policy import installation, path_grants  # noqa: PLC0415  as above

    home = os.path.realpath(environ.get("HOME") or installation.DEFAULT_HOME)
    kept = [user_dirs.user_directory(kind, environ) for kind in ("config", "state", "cache")]
    own = (*installation.installation_paths(), *installation.installation_links(), *kept)
    for setting in granting:
        verb = setting.key.partition(".")[2]
        for path in setting.value:  # type: ignore[attr-defined]  # a list of texts: the parser saw to it
            real = os.path.realpath(f"{home}{path[1:]}" if path.startswith("~/") else path)
            try:
                if setting.in_force and not os.path.exists(real):
                    raise PolicyError(f"{setting.key} names {path!r}, which does not exist")
                if verb == "read":
                    path_grants.refuse_read_grant(real, home)
                else:
                    path_grants.refuse_write_grant(real, home, config.project_root, own)
                    if protected(real, ""):
                        raise PolicyError(
                            f"{setting.key} names {path!r}, which is protected: it runs later outside the sandbox"
                        )
            except PolicyError as error:
                raise PolicyError(f"{setting.path}:{setting.line}:{setting.column}: {error}") from None
