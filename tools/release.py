"""Makes a release: `python tools/release.py prepare VERSION | notes VERSION | sign | verify SIGNERS`.

`prepare` dates the changelog and sets the version. `notes` prints the part of the changelog. `sign` writes the digests of
`dist/` and signs them by the SSH key in CORRAL_RELEASE_KEY. `verify` checks them against a file of allowed signers.
"""

import argparse
import datetime
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")
NAMESPACE = "corral-release"  # so that a signature for another purpose is never taken for one of a release
SUMS = "SHA256SUMS"


class ReleaseError(Exception):
    """Raised with a message for the person who makes the release."""


def prepare(root: Path, version: str, date: str) -> None:
    """Give the unreleased part of the changelog its version and date, and write the version into the package."""
    changelog, package = root / "CHANGELOG.md", root / "src" / "corral" / "__init__.py"
    text, code = changelog.read_text(encoding="utf-8"), package.read_text(encoding="utf-8")
    current = re.findall(r'^__version__ = "([^"]+)"', code, re.MULTILINE)[0]
    if not VERSION.fullmatch(version):
        raise ReleaseError(f"{version!r} is no version: three numbers with dots, such as 1.2.0")
    if f"\n## [{version}]" in text:
        raise ReleaseError(f"CHANGELOG.md has a part for {version} already")
    if _numbers(version) < _numbers(current):
        raise ReleaseError(f"{version} is older than the current version, {current}")
    if not notes(root, "Unreleased"):
        raise ReleaseError("CHANGELOG.md has nothing under [Unreleased]")
    dated = text.replace("## [Unreleased]\n", f"## [Unreleased]\n\n## [{version}] - {date}\n", 1)
    changelog.write_text(dated, encoding="utf-8")
    package.write_text(code.replace(f'__version__ = "{current}"', f'__version__ = "{version}"'), encoding="utf-8")


def notes(root: Path, version: str) -> str:
    """Return the part of the changelog for one version, without its heading."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    parts = re.split(r"^## \[([^\]]+)\].*\n", text, flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    if version not in found:
        raise ReleaseError(f"CHANGELOG.md has no part for {version}, only for: {', '.join(found)}")
    return found[version].strip()


def sign(folder: Path, key: str) -> None:
    """Write the digests of all files in a folder, and their signature. The key is never in a file that others can read."""
    (folder / SUMS).unlink(missing_ok=True)
    (folder / f"{SUMS}.sig").unlink(missing_ok=True)
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    if not files:
        raise ReleaseError(f"there is nothing to sign in {folder}: make dist first")
    (folder / SUMS).write_text("".join(f"{_digest(path)}  {path.name}\n" for path in files))
    with tempfile.TemporaryDirectory(prefix="corral-release-") as place:
        private = Path(place) / "key"
        private.touch(mode=0o600)
        private.write_text(f"{key.strip()}\n")
        try:
            _ssh_keygen("-Y", "sign", "-q", "-f", str(private), "-n", NAMESPACE, str(folder / SUMS))
        except ReleaseError as error:
            (folder / SUMS).unlink()  # digests without a signature are worth nothing
            raise ReleaseError(f"CORRAL_RELEASE_KEY holds no private SSH key that can sign: {error}") from None


def verify(folder: Path, signers: Path) -> list[str]:
    """Check the signature and every file of a folder. Return the names of the files."""
    for needed in (folder / SUMS, folder / f"{SUMS}.sig", signers):
        if not needed.is_file():
            raise ReleaseError(f"{needed} is missing")
    found = _ssh_keygen("-Y", "find-principals", "-s", str(folder / f"{SUMS}.sig"), "-f", str(signers))
    who = found.splitlines()[0]
    _ssh_keygen(
        "-Y", "verify", "-f", str(signers), "-I", who, "-n", NAMESPACE, "-s", str(folder / f"{SUMS}.sig"),
        given=(folder / SUMS).read_bytes(),
    )  # fmt: skip
    lines = (line.partition("  ") for line in (folder / SUMS).read_text().splitlines())
    listed = {name: digest for digest, _, name in lines}
    present = {path.name for path in folder.iterdir()} - {SUMS, f"{SUMS}.sig"}
    if present != set(listed):
        raise ReleaseError(f"not the files that were signed: {', '.join(sorted(present ^ set(listed)))}")
    if changed := sorted(name for name in listed if _digest(folder / name) != listed[name]):
        raise ReleaseError(f"changed since they were signed: {', '.join(changed)}")
    return sorted(listed)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", version))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _ssh_keygen(*arguments: str, given: bytes = b"") -> str:
    try:
        done = subprocess.run(["ssh-keygen", *arguments], input=given, capture_output=True, check=False)
    except FileNotFoundError:
        raise ReleaseError("ssh-keygen is not installed; Debian's package is openssh-client") from None
    if done.returncode:
        raise ReleaseError((done.stderr + done.stdout).decode(errors="replace").strip())
    return done.stdout.decode(errors="replace")


def main(arguments: list[str]) -> None:
    """Do one step of a release."""
    parser = argparse.ArgumentParser(description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    for name in ("prepare", "notes"):
        steps.add_parser(name).add_argument("version")
    steps.add_parser("sign")
    steps.add_parser("verify").add_argument("signers", type=Path)
    given = parser.parse_args(arguments)
    if given.step == "prepare":
        prepare(ROOT, given.version, datetime.datetime.now(datetime.UTC).date().isoformat())
    elif given.step == "notes":
        sys.stdout.write(f"{notes(ROOT, given.version)}\n")
    elif given.step == "sign":
        key = os.environ.pop("CORRAL_RELEASE_KEY", "")
        if not key.strip():
            raise ReleaseError("CORRAL_RELEASE_KEY is not set: it holds the text of the private SSH key that signs")
        sign(ROOT / "dist", key)
    else:
        sys.stdout.write("".join(f"signed  {name}\n" for name in verify(ROOT / "dist", given.signers)))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ReleaseError as error:
        sys.exit(f"tools/release.py: {error}")
