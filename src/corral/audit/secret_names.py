"""Decides whether a name is that of a secret, and whether a value can be one. Pure."""

from __future__ import annotations

# Endings and parts of names of secrets, without - and _, and last words of names with several words.
_ENDS = (
    "password", "passwd", "passphrase", "secret", "secrets", "token", "credential", "credentials", "apikey", "accesskey", "secretkey", "privatekey",
    "signingkey", "encryptionkey", "accountkey", "authkey", "masterkey", "passcode", "storepass", "keypass", "dbpass", "userpass", "rootpass", "jwt",
    "secretstring", "secretvalue", "oauth2bearer",
)  # fmt: skip
_HOLDS = ("password", "passwd", "passphrase", "secret", "token", "credential", "apikey", "accesskey", "privatekey")
_LAST = ("pass", "pwd", "pat", "auth", "psk", "pw")
_ABOUT = (  # endings of names that do not hold the secret itself: PASSWORD_FILE, --token-url, tokenizer, max_tokens
    "file", "path", "dir", "stdin", "sock", "name", "names", "url", "uri", "endpoint", "len", "length", "count", "limit", "type", "ttl", "expiry", "expires",
    "env", "policy", "helper", "prompt", "manager", "store", "ring", "id", "version", "size", "budget", "usage", "tokens", "izer", "ize", "ized", "izers",
)  # fmt: skip
_NOTHING = ("", "none", "null", "nil", "true", "false", "xxx", "***", "...")


def names_secret(name: str, *, exactly: bool) -> bool:
    """Return whether a lower-case name is that of a secret. Unless `exactly`, further words may follow."""
    *above, last = name.strip("-.").replace("-", "_").replace(".", "_").split("_")
    joined = "".join((*above, last))
    if last == "pass" or (above and last in _LAST and not (exactly and last == "auth")) or joined.endswith(_ENDS):
        return True
    return not exactly and not joined.endswith(_ABOUT) and any(word in joined for word in _HOLDS)


def says_nothing(value: str) -> bool:
    """Return whether a value is no secret: empty, a variable, a substitution, a placeholder, or already removed."""
    plain = value.strip("\\\"'").lower()
    if plain in _NOTHING or plain.startswith(("[redacted", "<", "{", "%", "`")):
        return True
    if not plain.startswith("$"):
        return False
    name = plain[1:].strip("{}")
    return not name or name[0] == "(" or name.replace("_", "a").isalnum()


def is_unlike_prose(value: str) -> bool:
    """Return whether a value is long or has digits, as few words of prose are and have."""
    return len(value) >= 16 or (len(value) >= 6 and any(c.isdigit() for c in value))
