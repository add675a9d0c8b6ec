"""Gives commands the certificate authorities that the user's variables name, such as those of a company.

Only certificates are copied: a variable could also name a file with a private key. A variable that the user has not set is not set
for commands either, since it would override the settings of the project.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_BYTES = 8 * 1024 * 1024  # of all files
CERTIFICATES_FILE = "/run/corral-certificates.pem"  # inside
VARIABLES = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "NODE_EXTRA_CA_CERTS"),
    *("CARGO_HTTP_CAINFO", "npm_config_cafile", "AWS_CA_BUNDLE"),
)
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


def certificate_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name the certificates to commands: those that name a file outside."""
    return {name: CERTIFICATES_FILE for name in VARIABLES if os.path.isfile(environ.get(name, ""))}


def certificates(environ: Mapping[str, str]) -> bytes:
    """Return the certificates of the files that the user's variables name, and nothing else of them."""
    found: dict[bytes, None] = {}
    left = MAX_BYTES
    for path in dict.fromkeys(os.path.realpath(environ[name]) for name in certificate_variables(environ)):
        try:
            with open(path, "rb") as file:
                data = file.read(left)
        except OSError:
            continue
        left -= len(data)
        for part in data.split(_BEGIN)[1:]:
            body, end, _ = part.partition(_END)
            if end:
                found[_BEGIN + body + _END + b"\n"] = None
    return b"".join(found)
