"""Whether a text may hold a secret at all, and which variables do. Pure, and small: `redact` is loaded only where it may."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MIN_VALUE = 6  # characters of a variable's value: a shorter one, such as `true`, stands in many texts by chance
MIN_TOKEN = 15  # characters, at least, of a token that is known by its shape, or of a part of it between slashes
# Words in the names of secrets. `redact` looks for these, so what has none of them has no value beside a name.
STEMS = ("pass", "pwd", "secret", "token", "credential", "key", "auth", "cookie", "_pat")
_SIGNS = (*STEMS, "bearer", "://", "webhooks", "-----", "-p", "-a", "-w", "-u")
_NOT_VARIABLES = ("_SOCK", "_FILE", "_PATH", "_DIR", "_ASKPASS")
_VARIABLES = (
    "TOKEN", "SECRET", "PASSW", "PASSPHRASE", "CREDENTIAL", "API_KEY", "APIKEY", "ACCESS_KEY", "PRIVATE_KEY", "_PAT", "DATABASE_URL", "_AUTH", "_PWD", "_DSN",
)  # fmt: skip


def secrets_of(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return name and value of the variables that hold credentials, the longest value first."""
    found = []
    for name in environ:
        upper = name.upper()
        if not upper.endswith(_NOT_VARIABLES) and any(word in upper for word in _VARIABLES):
            value = environ.get(name, "")
            if len(value) >= MIN_VALUE:
                found.append((name, value))
    return tuple(sorted(found, key=lambda pair: -len(pair[1])))


def may_hold_secret(text: str, secrets: Iterable[tuple[str, str]]) -> bool:
    """Say whether a text must be looked at: it has a sign of a secret, a long name, or a known value."""
    lower = text.lower()
    return (
        any(sign in lower for sign in _SIGNS)
        or any(len(word) >= MIN_TOKEN for word in text.replace("/", " ").split())
        or any(value in text for _, value in secrets)
    )
