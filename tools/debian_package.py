"""Makes a Debian package of the wheel in a folder: `python tools/debian_package.py FOLDER`.

It needs dpkg-deb, pip's configured registry for the locked parser, and Debian's own python3, for which it is built. The same
wheel and the same python3 give the same bytes.
"""

import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = "/usr/bin/python3"
TIME = 1580601600  # of every file, as in the wheel: hatchling's own constant
LIBRARY = "usr/lib/corral"  # a folder of its own: no other program of Debian imports these versions
MOVED = {"zsh/site-functions": "zsh/vendor-completions"}  # where Debian's zsh looks
LAUNCHER = """\
#!/usr/bin/python3 -I
import sys

sys.path.append("/usr/lib/corral")
from corral.apps.cli import main

sys.exit(main())
"""
CONTROL = """\
Package: corral
Version: {version}
Architecture: {architecture}
Maintainer: corral's maintainers <maintainers@corral.example>
Installed-Size: {size}
Depends: libc6, python3 (>= {minor}), python3 (<< {next_minor}~)
Recommends: git
Suggests: bubblewrap
Section: devel
Priority: optional
Description: run the commands of a coding agent in a sandbox
 A guard checks each command before it starts and refuses dangerous ones with
 a reason. The kernel confines the commands that run to the project.
"""
COPYRIGHT = """\
corral is licensed under the Apache License 2.0, which Debian systems have in /usr/share/common-licenses/Apache-2.0.

The package contains tree-sitter and tree-sitter-bash, both under the MIT License. The text is in the dist-info folder of each,
below /usr/lib/corral.
"""


def make_package(folder: Path) -> Path:
    """Build the package of the one wheel in a folder, into the same folder."""
    (wheel,) = folder.glob("corral-*.whl")
    version = wheel.name.split("-")[1]
    architecture = _output("dpkg", "--print-architecture")
    made = folder / f"corral_{version}_{architecture}.deb"
    with tempfile.TemporaryDirectory(prefix="corral-deb-") as place:
        tree = Path(place) / "tree"
        tree.mkdir(mode=0o755)
        _unpack(wheel, tree)
        _add_parser(tree / LIBRARY, Path(place))
        _add(tree / "usr" / "bin" / "corral", LAUNCHER.encode(), 0o755)
        _add(tree / "usr/share/doc/corral/copyright", COPYRIGHT.encode())
        changelog = gzip.compress((ROOT / "CHANGELOG.md").read_bytes(), mtime=0)
        _add(tree / "usr/share/doc/corral/changelog.gz", changelog)
        _settle(tree)
        _output(PYTHON, "-I", "-m", "compileall", "-q", "-j", "1", "-s", str(tree), "-p", "/", str(tree / LIBRARY))
        _add(tree / "DEBIAN" / "control", _control(tree, version, architecture).encode())
        _settle(tree)
        env = os.environ | {"SOURCE_DATE_EPOCH": str(TIME)}
        _output("dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(tree), str(made), env=env)
    return made


def _control(tree: Path, version: str, architecture: str) -> str:
    kilobytes = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file()) // 1024
    minor = int(_output(PYTHON, "-c", "import sys; print(sys.version_info.minor)"))
    return CONTROL.format(
        version=version,
        architecture=architecture,
        size=kilobytes,
        minor=f"3.{minor}",
        next_minor=f"3.{minor + 1}",
    )


def _unpack(wheel: Path, tree: Path) -> None:
    """Put the package below usr/lib/corral, and the manual pages and completions below usr/share."""
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            shared = re.fullmatch(r"corral-[^/]+\.data/data/(share/.+)", name)
            path = f"usr/{shared[1]}" if shared else f"{LIBRARY}/{name}"
            for before, after in MOVED.items():
                path = path.replace(f"/{before}/", f"/{after}/")
            content = archive.read(name)
            if "/man/man1/" in path:
                path, content = f"{path}.gz", gzip.compress(content, mtime=0)
            _add(tree / path, content)


def _add_parser(library: Path, place: Path) -> None:
    """Install tree-sitter and its grammar of bash, in the locked versions, for Debian's python3."""
    locked = (ROOT / "requirements" / "core.txt").read_text()
    entries = re.findall(r"^tree-sitter\S*==(?:.*\\\n)+.*\n", locked, re.MULTILINE)
    (place / "parser.txt").write_text("".join(entries))
    pip = [sys.executable, "-m", "pip", "--python", PYTHON, "--disable-pip-version-check", "--quiet", "install"]
    options = ["--no-deps", "--no-compile", "--only-binary=:all:", "--require-hashes", "--target", str(library)]
    _output(*pip, *options, "-r", str(place / "parser.txt"))
    shutil.rmtree(library / "bin", ignore_errors=True)
    for record in library.glob("*.dist-info"):
        for name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):  # dpkg keeps its own
            (record / name).unlink(missing_ok=True)


def _add(path: Path, content: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)


def _settle(tree: Path) -> None:
    """Give every file the same time and rights on every machine. The compiled files record the time."""
    for path in tree.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (TIME, TIME))


def _output(*command: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        sys.exit(f"tools/debian_package.py: {' '.join(command[:4])} …: {(done.stderr or done.stdout).strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.stdout.write(f"{make_package(Path(sys.argv[1]).resolve())}\n")
