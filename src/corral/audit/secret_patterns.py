"""Shapes of secrets, names of variables that hold them, and a quick test whether a text may contain one. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MIN_VALUE = 6  # characters of a variable's value; shorter ones, such as `true`, appear in many texts by chance
CUT = "…"  # marks the place where a text was cut, perhaps in a secret
MIN_TOKEN = 15  # characters of the shortest known token, or of a part of it between slashes
_DIGITS = "0123456789"
_UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_HEX = _DIGITS + "abcdefABCDEF"
_WORD = _DIGITS + _UPPER + _UPPER.lower()
_WIDE = _WORD + "_-"
# Kind, prefixes, allowed characters after the prefix, their minimum number, and characters of which one must be present.
SHAPES: tuple[tuple[str, tuple[str, ...], str, int, str], ...] = (
    ("aws", ("AKIA", "ASIA", "ABIA", "ACCA"), _UPPER + _DIGITS, 16, ""),
    ("github", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"), _WORD + "_", 20, ""),
    ("gitlab", ("glpat-", "gldt-", "glrt-", "glcbt-", "glptt-", "glft-", "glimt-", "glagent-", "gloas-", "glsoat-"), _WIDE + ".", 16, ""),
    ("slack", ("xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-", "xoxc-", "xoxd-", "xoxe-", "xoxe.", "xapp-"), _WIDE + ".%", 10, ""),
    ("slack", ("hooks.slack.com/services/", "hooks.slack.com/workflows/"), _WORD + "/", 16, ""),
    ("discord", ("discord.com/api/webhooks/", "discordapp.com/api/webhooks/"), _WIDE + "/", 24, ""),
    ("api-key", ("sk-",), _WIDE, 20, _DIGITS),  # OpenAI, Anthropic and others
    ("google", ("AIza",), _WIDE, 30, ""),
    ("google", ("ya29.", "GOCSPX-", "1//0"), _WIDE + ".", 20, ""),
    ("npm", ("npm_",), _WORD, 30, ""),
    ("pypi", ("pypi-",), _WIDE, 40, ""),
    ("stripe", ("sk_live_", "sk_test_", "rk_live_", "rk_test_", "whsec_"), _WORD + "_", 16, ""),
    ("jwt", ("eyJ",), _WIDE + ".", 30, "."),
    ("sendgrid", ("SG.",), _WIDE + ".", 40, ""),
    ("huggingface", ("hf_", "api_org_"), _WORD, 30, ""),
    ("vault", ("hvs.", "hvb.", "hvr."), _WIDE, 20, ""),
    ("digitalocean", ("dop_v1_", "doo_v1_", "dor_v1_"), _HEX, 40, ""),
    ("docker", ("dckr_pat_", "dckr_oat_"), _WIDE, 20, ""),
    ("databricks", ("dapi",), _HEX, 32, ""),
    ("shopify", ("shpat_", "shpss_", "shpca_", "shppa_"), _HEX, 32, ""),
    ("age", ("AGE-SECRET-KEY-1",), _UPPER + _DIGITS, 40, ""),
    ("api-key", ("xai-", "pplx-", "gsk_", "r8_", "ntn_", "lin_api_", "sbp_", "figd_", "PMAK-", "rubygems_", "sntrys_", "glsa_"), _WIDE, 30, _DIGITS),
    ("atlassian", ("ATATT3", "ATCTT3", "ATBB"), _WIDE + "=", 20, _DIGITS),
    ("tailscale", ("tskey-",), _WIDE, 15, _DIGITS),
)  # fmt: skip
# Parts of names of secrets. Without one of these there is no named secret.
STEMS = ("pass", "pwd", "secret", "token", "credential", "key", "auth", "cookie", "_pat", "jwt", "psk")
_SIGNS = (
    *STEMS, "bearer", "://", "webhooks", "-----", "-p", "-a", "-w", "-u", "login", "sudo", "unlock", "kinit", "cryptsetup", "| su", "|su", "ssm", "signin",
    "sig=", "signature=", "code=", "hmac=", "sid=", "session=",
)  # fmt: skip
SHELL_QUOTES = {ord(char): None for char in "'\"\\"}  # a table for str.translate
_NOT_VARIABLES = ("_SOCK", "_FILE", "_PATH", "_DIR", "_ASKPASS")
_VARIABLES = (
    "TOKEN", "SECRET", "PASSW", "PASSPHRASE", "CREDENTIAL", "API_KEY", "APIKEY", "ACCESS_KEY", "PRIVATE_KEY", "_PAT", "DATABASE_URL", "_AUTH", "_PWD", "_DSN",
)  # fmt: skip


def secrets_of(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return name and value of the variables that hold credentials, longest value first."""
    found = []
    for name in environ:
        upper = name.upper()
        if not upper.endswith(_NOT_VARIABLES) and any(word in upper for word in _VARIABLES):
            value = environ.get(name, "")
            if len(value) >= MIN_VALUE:
                found.append((name, value))
    return tuple(sorted(found, key=lambda pair: -len(pair[1])))


def may_hold_secret(text: str, secrets: Iterable[tuple[str, str]]) -> bool:
    """Return whether a text may contain a secret: a telling word, a known value, or the prefix of a token."""
    lower = text.lower()
    if CUT in text or any(sign in lower for sign in _SIGNS) or any(value in text for _, value in secrets):
        return True
    bare = text.translate(SHELL_QUOTES) if secrets else text
    if bare != text and any(value.translate(SHELL_QUOTES) in bare for _, value in secrets):
        return True
    if not any(len(word) >= MIN_TOKEN for word in text.replace("/", " ").split()):
        return False
    return any(head in text for _, heads, _, _, _ in SHAPES for head in heads)
