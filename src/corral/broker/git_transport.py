"""Gives a sandbox the transport of git to granted repositories. Git itself runs inside, with its hooks, filters and objects.

Over ssh and to a repository on this machine, the stream of git-upload-pack or git-receive-pack leaves through the broker. Over https,
requests leave through the proxy. No git command runs outside in a directory of the agent's.
"""

from __future__ import annotations

import os
from threading import Lock

from corral._lib.network.push_refs import PushError, PushGrant, PushReader, parse_push_grant
from corral._lib.quoting import shell_join
from corral.broker import git_credentials, local_repository, ssh_command
from corral.broker.programs import clean_environment, find_program, run_program
from corral.broker.remotes import LOCAL_HOST, Remote, TransportGrant, destination, parse_transport
from corral.broker.ssh_command import FETCH, PUSH, TransportCall
from corral.broker.streams import RefusedError
from corral.git import config_file
from corral.model.grant import TRANSPORT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from corral.broker.server import Request, Service
    from corral.model.grant import Grant
    from corral.policy.config import SandboxConfig

TRANSPORT_SECONDS = 3600.0  # a first clone over a slow line; the call's own time limit comes before
MAX_CONFIG_BYTES = 1 << 20
GIT_CONFIG = "gitconfig"  # the file of the broker's directory that the sandbox's own git configuration includes


class _PushFilter:
    """Passes a push on as soon as all its refs are granted."""

    def __init__(self, grant: PushGrant) -> None:
        self._reader = PushReader(grant)

    def feed(self, data: bytes) -> bytes:
        try:
            return self._reader.feed(data)
        except PushError as error:
            raise RefusedError(str(error)) from None

    def end(self) -> bytes:
        try:
            return self._reader.end()
        except PushError as error:
            raise RefusedError(str(error)) from None


class GitTransport:
    """The service `ssh` of a sandbox: git's transport to granted repositories, and nothing else."""

    def __init__(
        self,
        config: SandboxConfig,
        grants: Sequence[TransportGrant],
        environ: Mapping[str, str],
        otherwise: Service | None = None,
    ) -> None:
        self._grants = grants
        self._environ = environ
        self._otherwise = otherwise
        self._writable = writable_places(config)
        # Read before the sandbox starts: in a project without a repository, a command could make one that names a program.
        self._project_command = _project_ssh_command(config.project_root)
        self._defaults: dict[str, str] = {}
        self._lock = Lock()

    def handle(self, request: Request) -> int:
        """Run the transport that git asks for. Anything else goes to `otherwise`, or is refused."""
        try:
            call = ssh_command.parse_call(request.argv)
        except RefusedError:
            if self._otherwise is None:
                raise
            return self._otherwise.handle(request)
        granted = [grant for grant in self._grants if _names(grant.remote, call)]
        if call.service == PUSH:
            granted = [grant for grant in granted if grant.is_push]
        if not granted:
            verb = "pushing to" if call.service == PUSH else "fetching from"
            place = call.path if ssh_command.is_local(call) else f"{call.host}:{call.path}"
            raise RefusedError(f"{verb} {place} is not granted")
        remote = granted[0].remote
        request.target = f"{'push' if call.service == PUSH else 'fetch'} {remote.url}"
        environ = clean_environment(self._environ, "SSH_AUTH_SOCK", "KRB5CCNAME")
        if call.sends_protocol and call.service == FETCH:
            environ["GIT_PROTOCOL"] = ssh_command.PROTOCOL_VERSION
        argv = self._local_argv(call) if remote.kind == "path" else self._ssh_argv(call)
        filters = {0: _PushFilter(self._push_grant(granted))} if call.service == PUSH else None
        return run_program(request, argv, environ, filters=filters, seconds=TRANSPORT_SECONDS)

    def _local_argv(self, call: TransportCall) -> tuple[str, ...]:
        directory = local_repository.git_directory(call.path, self._writable)
        program = find_program("git", self._writable)
        if not program:
            raise RefusedError("git is not installed in a system directory")
        strict = ("--strict",) if call.service == FETCH else ()
        return (program, call.service.removeprefix("git-"), *strict, directory)

    def _ssh_argv(self, call: TransportCall) -> tuple[str, ...]:
        program = find_program("ssh", self._writable)
        if not program:
            raise RefusedError("ssh is not installed in a system directory")
        return ssh_command.ssh_argv(program, call, self._identity())

    def _identity(self) -> tuple[str, ...]:
        """Return the options of the user's core.sshCommand. That of the project counts first, as in git."""
        home = self._environ.get("HOME", "")
        command = self._project_command
        if not command:
            words = ["config", "--global", "--includes", "--get", "core.sshCommand"]
            more = {"XDG_CONFIG_HOME": self._environ["XDG_CONFIG_HOME"]} if self._environ.get("XDG_CONFIG_HOME") else {}
            _, output = git_credentials.run_git(words, b"", self._environ, more, self._writable)
            command = output.decode("utf-8", "replace").strip()
        return ssh_command.parse_identity(command, home, self._writable) if command else ()

    def _push_grant(self, granted: Sequence[TransportGrant]) -> PushGrant:
        """Return all refs that some grant of a repository names."""
        found = PushGrant()
        for grant in granted:
            one = parse_push_grant(grant.refs)
            default = self._default_branch(grant.remote) if one.is_open else found.default
            found = PushGrant(
                (*found.updates, *one.updates), (*found.deletes, *one.deletes), found.is_open or one.is_open, default
            )
        return found

    def _default_branch(self, remote: Remote) -> str:
        with self._lock:
            if remote.url not in self._defaults:
                self._defaults[remote.url] = self._find_default_branch(remote)
            return self._defaults[remote.url]

    def _find_default_branch(self, remote: Remote) -> str:
        if remote.kind == "path":
            return local_repository.default_branch(local_repository.git_directory(remote.path, self._writable))
        call = TransportCall(FETCH, remote.host, remote.port, remote.path, sends_protocol=False)
        # Without the host and the command, which git appends.
        command = shell_join(self._ssh_argv(call)[:-3])
        # No configuration: it could replace the granted URL by another.
        more = {"GIT_SSH_COMMAND": command, "GIT_SSH_VARIANT": "ssh", "GIT_ALLOW_PROTOCOL": "ssh"}
        more |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
        return git_credentials.default_branch(_plain_url(remote), self._environ, more, self._writable)


def _names(remote: Remote, call: TransportCall) -> bool:
    return remote.kind != "https" and (remote.host, remote.port, remote.path) == (call.host, call.port, call.path)


def _plain_url(remote: Remote) -> str:
    port = f":{remote.port}" if remote.port else ""
    slash = "" if remote.path.startswith("/") else "/"
    # Without a port, the short form keeps a path that is relative to a home directory.
    return f"ssh://{remote.host}{port}{slash}{remote.path}" if port else f"{remote.host}:{remote.path}"


def _project_ssh_command(project: str) -> str:
    """Return core.sshCommand of the project's own configuration, which commands cannot write; or ""."""
    try:
        with open(f"{project}/.git/config", encoding="utf-8", errors="surrogateescape") as file:
            found = config_file.parse(file.read(MAX_CONFIG_BYTES))
    except (OSError, ValueError):
        return ""
    return (found.get(("core", "", "sshcommand")) or ("",))[-1]


def writable_places(config: SandboxConfig) -> tuple[str, ...]:
    """Return the real paths of the project and of everything else that commands can write."""
    containment = config.containment
    paths = (config.project_root, *containment.write, *containment.settings)
    return tuple(os.path.realpath(path) for path in paths)


def transport_grants(grants: Iterable[Grant]) -> list[TransportGrant]:
    """Return the transports among grants. Raise RefusedError for one that corral cannot serve."""
    return [parse_transport(grant.target) for grant in grants if grant.kind == TRANSPORT]


def services_for(
    config: SandboxConfig, grants: Iterable[Grant], environ: Mapping[str, str], otherwise: Service | None = None
) -> dict[str, Service]:
    """Return the service `ssh`, if there is a transport. Calls of ssh that are no transport of git go to `otherwise`."""
    found = transport_grants(grants)
    if not found:
        return {} if otherwise is None else {"ssh": otherwise}
    return {"ssh": GitTransport(config, found, environ, otherwise)}


def config_for(config: SandboxConfig, grants: Iterable[Grant], environ: Mapping[str, str]) -> SandboxConfig:
    """Return the config with the requests of granted https remotes, and the user's credential for them.

    Asks credential helpers, and for a push without refs the server, so it takes a moment. Call it only after the user's yes.
    """
    writable = writable_places(config)
    requests: list[str] = []
    inject: list[str] = []
    for grant in transport_grants(grants):
        if grant.remote.kind != "https":
            continue
        header = git_credentials.credential_header(grant.remote, environ, writable)
        default = ""
        if grant.is_push and not grant.refs:
            default = git_credentials.default_branch(grant.remote.url, environ, {}, writable)
        requests += git_credentials.request_grants(
            grant.remote, is_push=grant.is_push, refs=grant.refs, default=default
        )
        inject += git_credentials.injections(grant.remote, header, is_push=grant.is_push) if header else []
    if not requests:
        return config
    containment = config.containment
    return config.replace(
        containment=containment.replace(
            requests=(*containment.requests, *requests), inject=(*containment.inject, *inject)
        )
    )


def git_config_for(config: SandboxConfig, grants: Iterable[Grant]) -> str:
    """Return the git configuration by which git inside finds the transports: the stub, and other names of the remotes."""
    lines = ["[core]", "\tsshCommand = /run/corral/bin/ssh", "[ssh]", "\tvariant = ssh"]
    for remote in dict.fromkeys(grant.remote for grant in transport_grants(grants)):
        lines += _instead_of(remote, config.project_root)
    return "\n".join(lines) + "\n"


def _instead_of(remote: Remote, project: str) -> list[str]:
    if remote.kind == "path":
        # A remote may be named relative to the project.
        relative = os.path.relpath(remote.path, project)
        names = [remote.path, f"file://{remote.path}", *([relative] if relative.strip("./") else [])]
        return [f'[url "ssh://{LOCAL_HOST}{remote.path}"]', *(f'\tinsteadOf = "{name}"' for name in names)]
    if remote.kind == "https":
        base = remote.path.removesuffix(".git")
        place = remote.url.partition("://")[2].partition("/")[0]
        names = [*dict.fromkeys([f"https://{place}{base}", f"https://{remote.host}{base}"])]
        # To the proxy in plain text, on the sandbox's own loopback. The proxy adds TLS and the credential.
        plain = f"http://{destination(remote)}{base}"
        return [f'[url "{plain}"]', *(f'\tinsteadOf = "{name}"' for name in names)]
    return []
