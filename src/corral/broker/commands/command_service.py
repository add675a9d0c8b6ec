"""Runs commands such as `gh pr view 3` outside for a sandbox: those whose shape is in broker.toml and was granted to the call.

The program gets words that were checked, copies of the files that they name, and an empty directory. It gets no variable, path or
descriptor from inside.
"""

from __future__ import annotations

import os
import stat

from corral._lib.lazy_regex import pattern
from corral.broker.commands.box import Box, launcher
from corral.broker.commands.box_network import Reach, find_reach
from corral.broker.commands.credential_filter import CredentialFilter, credential_values
from corral.broker.commands.remote_slug import Remote, project_remote
from corral.broker.programs import SYSTEM_DIRECTORIES, clean_environment, find_program, run_program
from corral.broker.streams import RefusedError
from corral.guard.broker_shapes import SLUG, Mismatch, granted_target, match_shape
from corral.guard.path_zones import inside
from corral.guard.rules.loader import broker_programs
from corral.guard.toolchains import is_system
from corral.model.grant import BROKER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from corral.broker.server import Request
    from corral.guard.broker_shapes import Match
    from corral.model.grant import Grant
    from corral.policy.config import SandboxConfig

MAX_NAME = 64  # characters of a copied file's name
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "AWS_CA_BUNDLE")  # of a user behind a company's proxy
_UNSAFE = pattern(r"[^A-Za-z0-9._-]")


def command_services(
    config: SandboxConfig, grants: Iterable[Grant], environ: Mapping[str, str]
) -> dict[str, CommandService]:
    """Return the service of each program that the grants of a call name."""
    targets = [grant.target for grant in grants if grant.kind == BROKER]
    programs = dict.fromkeys(target.partition("/")[0] for target in targets)
    remote = project_remote(config.project_root, environ) if "gh" in programs else None
    return {
        program: CommandService(config, program, targets, remote, environ)
        for program in programs
        if program in broker_programs()
    }


class CommandService:
    """Runs the granted commands of one program."""

    def __init__(
        self,
        config: SandboxConfig,
        program: str,
        targets: Iterable[str],
        remote: Remote | None,
        environ: Mapping[str, str],
        *,
        directories: Sequence[str] = SYSTEM_DIRECTORIES,
    ) -> None:
        self._config = config
        self._program = program
        self._targets = frozenset(targets)
        self._remote = remote or Remote()
        self._environ = dict(environ)
        self._directories = directories
        self._row: dict[str, Any] = broker_programs()[program]

    def handle(self, request: Request) -> int:
        """Run a command for a stub, and return its exit status."""
        match = match_shape(self._program, request.argv, self._remote.slug)
        if isinstance(match, Mismatch):
            raise RefusedError(f"{match.reason} Instead: {match.instead}" if match.instead else match.reason)
        # The guard grants what changes something for its very words. A program on top of the library can grant a whole shape.
        if self._targets.isdisjoint((match.target, granted_target(match, request.argv))):
            raise RefusedError(
                f"{match.target} was not granted to this call, or not with these words. Run the command alone, so that the user is asked."
            )
        if any(SLUG in word for word in match.argv):
            raise RefusedError("the project has no remote on a forge, so the repository is not known.")
        path = find_program(self._program, self._writable(), self._directories)
        if not path:
            raise RefusedError(f"it is not installed in {', '.join(self._directories)}.")
        directory = request.directory()
        words = _with_copies(request, match, directory)
        if match.packs:
            request.pack(match.packs)
        credentials = self._present(self._row["box"]["read"] if self._row["box"] else ())
        environ = self._environment()
        box, watched = self._box(path, directory, credentials, environ)
        request.target = match.target
        values = credential_values((*watched, *self._present(self._row["watch"])))
        return run_program(
            request,
            launcher((path, *words), environ, box),
            environ,
            directory=directory,
            takes_stdin=match.takes_stdin,
            filters={number: CredentialFilter(values) for number in (1, 2)} if values else None,
        )

    def _box(
        self, path: str, directory: str, credentials: tuple[str, ...], environ: dict[str, str]
    ) -> tuple[Box | None, tuple[str, ...]]:
        """Return the box of the program, or None for one that runs without; and the files whose values may not be printed."""
        box = self._row["box"]
        if box is None:
            return None, ()
        reach: Reach = find_reach(box["network"], credentials, self._remote.host)
        if reach.missing:
            raise RefusedError(f"{reach.missing}.")
        shown = [*credentials, *reach.files, *(environ[name] for name in _CERTIFICATES if name in environ)]
        if box["keyring"] and "DBUS_SESSION_BUS_ADDRESS" in environ:
            shown.append(environ["DBUS_SESSION_BUS_ADDRESS"].removeprefix("unix:path="))
        if not is_system(path):
            shown.append(path)
        for each in shown:
            if self._can_be_written(each):
                raise RefusedError(f"{each} is in a place that commands can write.")
        containment = self._config.containment
        made = Box(
            directory,
            tuple(dict.fromkeys(shown)),
            reach.network,
            tuple(containment.hosts),
            containment.backend,
            containment.accept_partial,
        )
        return made, (*credentials, *reach.files)

    def _environment(self) -> dict[str, str]:
        """Return the program's variables: who the user is, and what the row sets. Nothing comes from inside, and no token."""
        own = clean_environment(self._environ)
        own |= {str(name): str(value) for name, value in self._row["sets"].items()}
        if self._program == "gh" and self._remote.host:
            own["GH_HOST"] = self._remote.host
        for name in self._row["passes"]:
            value = self._environ.get(name, "")
            path = value.removeprefix("unix://")
            if path.startswith("/") and not self._can_be_written(path):
                own[name] = value
        box = self._row["box"]
        if box is not None:
            own |= {n: v for n in _CERTIFICATES if os.path.isabs(v := self._environ.get(n, "")) and os.path.exists(v)}
            if box["keyring"]:
                bus = f"{self._environ.get('XDG_RUNTIME_DIR', '')}/bus"
                # Only a socket at the usual place: an address can also name a program to start.
                if os.path.isabs(bus) and os.path.exists(bus) and stat.S_ISSOCK(os.stat(bus).st_mode):
                    own["DBUS_SESSION_BUS_ADDRESS"] = f"unix:path={bus}"
        return own

    def _present(self, names: Iterable[str]) -> tuple[str, ...]:
        home = os.path.realpath(self._environ.get("HOME") or "/nonexistent")
        paths = [f"{home}/{name.removeprefix('~/')}" for name in names]
        return tuple(path for path in paths if os.path.exists(path))

    def _writable(self) -> tuple[str, ...]:
        containment = self._config.containment
        return (self._config.project_root, *map(os.path.realpath, (*containment.write, *containment.settings)))

    def _can_be_written(self, path: str) -> bool:
        return any(inside(os.path.realpath(path), root) or inside(path, root) for root in self._writable())


def _with_copies(request: Request, match: Match, directory: str) -> tuple[str, ...]:
    """Return the program's words, in which files are copies in its directory. No path of the agent's is opened outside."""
    words = list(match.argv)
    for number, (at, head) in enumerate(match.files):
        path = words[at].removeprefix(head)
        name = f"{number}-{_UNSAFE.sub('_', path.rpartition('/')[2])[-MAX_NAME:]}"
        data = request.read_file(path)
        descriptor = os.open(f"{directory}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
        with open(descriptor, "wb") as file:
            file.write(data)
        words[at] = head + name
    return tuple(words)
