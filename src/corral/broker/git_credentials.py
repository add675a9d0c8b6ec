"""Asks the user's git for the credential of an https remote, and grants the requests of that repository alone.

Git runs outside, in /, so that no configuration of a project counts. The credential stays in memory: in the config of this call,
from which the proxy gets it. Nothing here tells a credential helper that a credential was wrong, whatever the server says.
"""

from __future__ import annotations

from corral.broker.programs import clean_environment, find_program
from corral.broker.remotes import HTTPS_PORT, Remote, destination
from corral.broker.streams import RefusedError
from corral.runtime.processes import run_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

CREDENTIAL_SECONDS = 20.0  # for helpers, which may ask a keyring
REMOTE_SECONDS = 30.0  # for a server's answer
_NO_QUESTIONS = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "", "SSH_ASKPASS": "", "SSH_ASKPASS_REQUIRE": "never"}
_FETCH, _PUSH = "git-upload-pack", "git-receive-pack"


def run_git(
    words: Sequence[str],
    data: bytes,
    environ: Mapping[str, str],
    more: Mapping[str, str],
    writable: Iterable[str],
    *,
    seconds: float | None = None,
) -> tuple[int, bytes]:
    """Run the user's git in /, without questions, and return its exit code and output. Raise RefusedError if it hangs."""
    program = find_program("git", writable)
    if not program:
        raise RefusedError("git is not installed in a system directory")
    variables = clean_environment(environ, "SSH_AUTH_SOCK", "KRB5CCNAME", "DBUS_SESSION_BUS_ADDRESS", "SSL_CERT_FILE")
    limit = CREDENTIAL_SECONDS if seconds is None else seconds
    try:
        code, output, _ = run_program(
            [program, "-C", "/", "-c", "core.askPass=", *words], data, {**variables, **_NO_QUESTIONS, **more}, limit
        )
    except TimeoutError:
        raise RefusedError(f"git {words[0]} did not answer within {limit:g} seconds") from None
    except OSError as error:
        raise RefusedError(f"git cannot be started: {error.strerror}") from None
    return code, output


def credential_header(remote: Remote, environ: Mapping[str, str], writable: Iterable[str]) -> str:
    """Return the header with the user's credential for a remote, or "" if the user has none."""
    from base64 import b64encode  # noqa: PLC0415  only https remotes have one

    host = remote.host if remote.port == str(HTTPS_PORT) else destination(remote)
    user = remote.url.partition("://")[2].partition("/")[0].rpartition("@")[0]
    asked = {"protocol": "https", "host": host, "path": remote.path.lstrip("/"), "username": user}
    data = "".join(f"{name}={value}\n" for name, value in asked.items() if value) + "\n"
    code, output = run_git(["credential", "fill"], data.encode(), environ, {}, writable)
    lines = output.decode("utf-8", "replace").splitlines()
    found = {name: value for name, _, value in (line.partition("=") for line in lines)}
    if code or not found.get("password"):
        return ""
    pair = f"{found.get('username', '')}:{found['password']}"
    return f"Authorization: Basic {b64encode(pair.encode()).decode()}"


def targets(remote: Remote, *, is_push: bool) -> list[tuple[str, str]]:
    """Return the requests that git makes for a repository: methods and targets."""
    base = remote.path.removesuffix(".git")
    found = []
    for path in (base, f"{base}.git"):
        found += [("GET", f"{path}/info/refs?service={_FETCH}"), ("POST", f"{path}/{_FETCH}")]
        found += [("GET", f"{path}/info/lfs/*"), ("POST", f"{path}/info/lfs/objects/batch")]
        if is_push:
            found += [("GET", f"{path}/info/refs?service={_PUSH}"), ("POST", f"{path}/{_PUSH}")]
            # Locks too, which a fetch neither makes nor breaks.
            found += [(method, f"{path}/info/lfs/*") for method in ("POST", "PUT")]
    return found


def request_grants(remote: Remote, *, is_push: bool, refs: Sequence[str], default: str) -> list[str]:
    """Return the grants of a repository's requests, for `containment.requests`. That of a push names the refs."""
    place = destination(remote)
    pushed = " ".join(["push", default or "-", *refs])
    return [
        f"{place} {method} {target}" + (f" {pushed}" if target.endswith(f"/{_PUSH}") else "")
        for method, target in targets(remote, is_push=is_push)
    ]


def injections(remote: Remote, header: str, *, is_push: bool) -> list[str]:
    """Return the headers of a repository's requests, for `containment.inject`."""
    place = destination(remote)
    return [f"{place}{target} {header}" for target in dict.fromkeys(t for _, t in targets(remote, is_push=is_push))]


def default_branch(url: str, environ: Mapping[str, str], more: Mapping[str, str], writable: Iterable[str]) -> str:
    """Return the default branch of a remote in full, or "" if the server does not say. `more` are variables of git."""
    words = ["ls-remote", "--symref", "--", url, "HEAD"]
    code, output = run_git(words, b"", environ, more, writable, seconds=REMOTE_SECONDS)
    for line in output.decode("utf-8", "replace").splitlines():
        name, _, what = line.partition("\t")
        if not code and what == "HEAD" and name.startswith("ref: refs/heads/"):
            return name.removeprefix("ref: ")
    return ""
