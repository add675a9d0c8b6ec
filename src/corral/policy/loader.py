"""Loads the policy of a project: the built-in profile, the user's policy.toml and the project's corral.toml, merged into one config.

Until the user trusts its exact bytes, a project's file may only tighten. Settings that would loosen are listed, and not in force.
"""

from __future__ import annotations

import os
from errno import ELOOP

from corral._lib.records import Record, frozen
from corral.model.errors import PolicyError
from corral.policy import user_dirs
from corral.policy.config import DEFAULT_HOLD_SECONDS, Asking, Containment, SandboxConfig, checked_root
from corral.policy.settings import DEFAULT_POSTURE, DEFAULT_PROFILE, MAX_FILE_BYTES, NEEDS_BACKEND, SETTINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.policy.merge import Setting

USER_FILE = "policy.toml"
PROJECT_FILE = "corral.toml"


@frozen
class PolicyFile(Record):
    """A file of the policy."""

    level: str  # owner or project
    path: str
    digest: str
    trusted: bool


@frozen
class Policy(Record):
    """The merged config, the files it comes from, and every setting in them."""

    config: SandboxConfig
    sources: tuple[PolicyFile, ...] = ()
    settings: tuple[Setting, ...] = ()

    @property
    def waiting(self) -> tuple[Setting, ...]:
        """The settings of an untrusted project's file that would loosen the policy."""
        return tuple(setting for setting in self.settings if not setting.in_force and setting.key != "grant")

    @property
    def left_out(self) -> tuple[Setting, ...]:
        """The [[grant]] entries of a project's file, which never count: only the user's own file may have them."""
        return tuple(setting for setting in self.settings if not setting.in_force and setting.key == "grant")


def load(root: str, environ: Mapping[str, str], *, profile: str | None = None) -> Policy:
    """Return the policy of a project. `profile` is used where no trusted file names one, and otherwise may only tighten."""
    root = checked_root(root)
    paths = (("owner", user_policy_path(environ)), ("project", project_policy_path(root)))
    files = [(level, path, data) for level, path in paths if (data := read_policy_file(path, root, level)) is not None]
    if files:
        return _merged(root, environ, files, profile)
    # Most projects have no file, and import nothing more.
    config = SandboxConfig(
        root,
        profile=profile or DEFAULT_PROFILE,
        posture=default_posture(environ),
        containment=Containment(scratch="project"),
        asking=Asking(DEFAULT_HOLD_SECONDS),
    )
    return Policy(config)


def default_posture(environ: Mapping[str, str]) -> str:
    """Return the posture where no file names one. In continuous integration nobody answers, so nothing is opened."""
    return "locked" if environ.get("CI") else DEFAULT_POSTURE


def user_policy_path(environ: Mapping[str, str]) -> str:
    """Return the path of the user's policy file, which may not exist."""
    return f"{user_dirs.user_directory('config', environ)}/{USER_FILE}"


def project_policy_path(root: str) -> str:
    """Return the path of a project's policy file, which may not exist."""
    return f"{root}/{PROJECT_FILE}"


def _merged(root: str, environ: Mapping[str, str], files: list[tuple[str, str, bytes]], profile: str | None) -> Policy:
    from corral._lib.sha256 import sha256_hex  # noqa: PLC0415  where there is a file
    from corral.policy.merge import PolicyMerge  # noqa: PLC0415
    from corral.policy.policy_cache import load_compiled  # noqa: PLC0415  where there is a file
    from corral.policy.trust import is_trusted  # noqa: PLC0415

    merge = PolicyMerge(environ.get("HOME", ""), default_posture(environ))
    sources = []
    asked = profile
    for level, path, data in files:
        digest = sha256_hex(data)
        trusted = level == "owner" or is_trusted(path, digest, environ, root)
        sources.append(PolicyFile(level, path, digest, trusted))
        if not trusted and asked is not None:
            # The request comes before an untrusted file, which otherwise would be the first to set the profile.
            merge.request_profile(asked)
            asked = None
        parsed = load_compiled(data, digest, path, environ, root)
        if level == "project":
            _refuse_user_settings(parsed["settings"], path, environ)
        merge.add(parsed, path, trusted=trusted, owner=level == "owner")
    if asked is not None:
        merge.request_profile(asked)
    config = merge.config(root)
    _refuse_contradiction(config, merge.settings)
    refuse_grants(config, merge.settings, environ)
    _refuse_policy_grants(config, environ)
    return Policy(config, tuple(sources), tuple(merge.settings))


def _refuse_user_settings(settings: list[tuple[str, object, int, int]], path: str, environ: Mapping[str, str]) -> None:
    for key, _, line, column in settings:
        if key in SETTINGS and SETTINGS[key].tighter == "owner":
            where = user_policy_path(environ)
            raise PolicyError(
                f"{path}:{line}:{column}: {key} is only allowed in the user's own policy ({where}). Remove it from this file"
            )


def read_policy_file(path: str, root: str, level: str) -> bytes | None:
    """Return the bytes of a policy file, or None where it does not exist. Raise PolicyError where it is unsafe or unreadable."""
    try:
        # The user may link their own file. A project's link could lead to a secret, which error messages would quote.
        data, found = user_dirs.read_regular_file(path, MAX_FILE_BYTES, follows=level == "owner")
    except FileNotFoundError:
        if os.path.islink(path):
            raise PolicyError(f"{path} is a dangling symbolic link") from None
        return None
    except OSError as error:
        # An unreadable file is not treated as missing: it might tighten the policy.
        why = "it is a symbolic link" if error.errno == ELOOP else error.strerror
        raise PolicyError(f"{path} cannot be read: {why}") from None
    if level == "owner":
        user_dirs.refuse_inside_project(os.path.realpath(path), root)
        user_dirs.refuse_status_writable_by_others(path, found)
    if len(data) > MAX_FILE_BYTES:
        raise PolicyError(f"{path}:1:1: the file is longer than {MAX_FILE_BYTES} bytes")
    return data


def _refuse_contradiction(config: SandboxConfig, settings: list[Setting]) -> None:
    if config.containment.backend != "none" or not config.rules.needs_containment:
        return
    where = next(s for s in reversed(settings) if s.key == "containment.backend" and s.in_force)
    raise PolicyError(f"{where.path}:{where.line}:{where.column}: profile {config.rules.name} {NEEDS_BACKEND}")


def _refuse_policy_grants(config: SandboxConfig, environ: Mapping[str, str]) -> None:
    """Raise where a [[grant]] of the user's file names a path that is never opened."""
    for grant in config.policy_grants:
        for kind, path in grant.openings:
            if kind in ("read", "write"):
                from corral.policy.path_grants import refuse_path  # noqa: PLC0415  most policies grant no path

                try:
                    refuse_path(kind, path, config.project_root, environ)
                except PolicyError as error:
                    raise PolicyError(f"{grant.source}:1: {error}") from None


def refuse_grants(config: SandboxConfig, settings: list[Setting], environ: Mapping[str, str]) -> None:
    """Raise where a file, trusted or not, grants credentials, corral's own files or a protected path."""
    granting = [s for s in settings if s.key in ("containment.read", "containment.write") and s.value]
    if not granting:
        return
    from corral.policy import path_grants  # noqa: PLC0415  most policies grant no path

    home = path_grants.home_directory(environ)
    for setting in granting:
        verb = setting.key.partition(".")[2]
        for path in setting.value:  # type: ignore[attr-defined]  # the parser has checked that it is a list of texts
            try:
                real = os.path.realpath(f"{home}{path[1:]}" if path.startswith("~/") else path)
                if setting.in_force and not os.path.exists(real):
                    raise PolicyError(f"{setting.key} names {path!r}, which does not exist")
                path_grants.refuse_path(verb, real, config.project_root, environ)
            except PolicyError as error:
                raise PolicyError(f"{setting.path}:{setting.line}:{setting.column}: {error}") from None
