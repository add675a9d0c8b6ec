"""Commands read the packages that the user already fetched, and what they add stays in their own home directory."""

import base64
import hashlib
import http.server
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from attempt import has_bubblewrap, must_hold

from corral import Containment, Sandbox
from corral.guard.rules.loader import places
from corral.guard.toolchain_kinds import CACHES

BESIDE = {
    ".cargo/registry": ".cargo/credentials.toml",
    ".m2/repository": ".m2/settings.xml",
    ".gradle/caches": ".gradle/gradle.properties",
    ".npm/_cacache": ".npmrc",
    ".cache/huggingface/hub": ".cache/huggingface/token",
    ".cache/uv": ".config/uv/uv.toml",
    "go/pkg/mod": ".netrc",
    ".cache/pre-commit": ".git-credentials",
}
READ = "for name in {names}; do cat ~/$name 2>/dev/null; done; true"


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home directory that is not in /tmp, which the guard treats as scratch, with a project."""
    path = Path(tempfile.mkdtemp(prefix="home-", dir="/var/tmp"))
    (path / "work" / "project").mkdir(parents=True)
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(path))
    yield path
    # Go makes its module cache read-only, and an overlay's work directory is closed.
    subprocess.run(["chmod", "-R", "u+rwX", path], check=True)
    shutil.rmtree(path)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("backend", ["auto", "bubblewrap"])
def test_fetched_packages_are_readable_without_the_credentials_beside_them(
    backend: str, home: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    if backend == "bubblewrap" and not has_bubblewrap():
        must_hold()
    for cache, secret in BESIDE.items():
        write(home / cache / "x", "package\n")
        write(home / secret, "canary\n")
    text = READ.format(names=" ".join([*BESIDE.values(), *(f"{cache}/x" for cache in BESIDE)]))
    outside = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
    assert outside.stdout == "canary\n" * len(BESIDE) + "package\n" * len(BESIDE)
    held = open_sandbox(project_root=str(home / "work/project"), containment=Containment(backend=backend))
    done = held.run(text, shell=True)
    assert (done.stdout_text, done.enforcement) == ("package\n" * len(BESIDE), "full"), done.stderr_text


CHANGES = {
    "a new file": "echo new > ~/.cargo/registry/new",
    "a changed file": "echo new > ~/.cargo/registry/x",
    "an appended file": "echo new >> ~/.cargo/registry/x",
    "a removed file": "rm ~/.cargo/registry/x",
    "a renamed file": "mv ~/.cargo/registry/x ~/.cargo/registry/y",
    "another mode": "chmod 600 ~/.cargo/registry/x",
    "a removed directory": "rm -r ~/.cargo/registry/d",
    "a hard link": "ln ~/.cargo/registry/x ~/.cargo/registry/y && echo new > ~/.cargo/registry/y",
}


def listing(folder: Path) -> dict[str, tuple[int, str]]:
    return {str(p): (p.stat().st_mode, p.read_text() if p.is_file() else "") for p in sorted(folder.rglob("*"))}


@pytest.mark.parametrize("text", CHANGES.values(), ids=CHANGES)
def test_no_change_reaches_the_users_cache(text: str, home: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    write(home / ".cargo/registry/x", "package\n")
    write(home / ".cargo/registry/d/x", "package\n")
    before = listing(home / ".cargo")
    open_sandbox(project_root=str(home / "work/project")).run(text, shell=True)
    assert listing(home / ".cargo") == before
    subprocess.run(["sh", "-c", text], check=True)
    assert listing(home / ".cargo") != before


def test_additions_stay_for_later_commands_of_the_project(home: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    write(home / ".m2/repository/x", "package\n")
    lasting = Containment(scratch="project")
    with open_sandbox(project_root=str(home / "work/project"), containment=lasting) as first:
        if first.run("echo own > ~/.m2/repository/own", shell=True).exit_code != 0:
            pytest.skip("this file system cannot be the upper layer of an overlay")
    second = open_sandbox(project_root=str(home / "work/project"), containment=lasting)
    assert second.run("cat ~/.m2/repository/x ~/.m2/repository/own", shell=True).stdout == b"package\nown\n"


def test_cache_that_another_sandbox_uses_is_read_only(home: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    write(home / ".m2/repository/x", "package\n")
    boxes = [
        open_sandbox(project_root=str(home / "work/project"), containment=Containment(scratch="project"))
        for _ in range(2)
    ]
    assert boxes[0].run("cat ~/.m2/repository/x", shell=True).stdout == b"package\n"
    done = boxes[1].run("cat ~/.m2/repository/x; echo own > ~/.m2/repository/own", shell=True)
    assert (done.stdout, done.exit_code != 0) == (b"package\n", True)


def granted() -> Containment:
    return Containment(scratch="project", network=("registry.example:443",))


@pytest.mark.parametrize("has_own", [False, True], ids=["the user has no such cache", "the user has one"])
def test_packages_of_a_granted_call_are_readable_by_later_calls(
    home: Path, open_sandbox: Callable[..., Sandbox], *, has_own: bool
) -> None:
    root = str(home / "work/project")
    if has_own:
        write(home / ".npm/_cacache/x", "package\n")
    with open_sandbox(project_root=root, containment=granted()) as networked:
        networked.run("mkdir -p ~/.npm/_cacache && echo fetched > ~/.npm/_cacache/y", shell=True)
    with open_sandbox(project_root=root, containment=Containment(scratch="project")) as later:
        done = later.run("cat ~/.npm/_cacache/y; echo planted > ~/.npm/_cacache/y; ls ~/.npm/_cacache", shell=True)
        assert done.stdout == (b"fetched\nx\ny\n" if has_own else b"fetched\ny\n")
    # Nothing goes the other way: a call with the network must not run what a call without it left.
    again = open_sandbox(project_root=root, containment=granted())
    assert again.run("cat ~/.npm/_cacache/y", shell=True).stdout == b"fetched\n"
    assert not (home / ".npm/_cacache/y").exists()


@pytest.mark.parametrize("at", [".npm", ".npm/_cacache"])
def test_link_in_a_granted_home_is_not_followed(at: str, home: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    root = str(home / "work/project")
    write(home / "private/_cacache/x", "canary\n")
    write(home / "private/x", "canary\n")
    with open_sandbox(project_root=root, containment=granted()) as networked:
        networked.run(f"mkdir -p ~/.npm; rm -rf ~/{at}; ln -s {home}/private ~/{at}", shell=True)
    (linked,) = (home / ".cache/corral/scratch").glob(f"*-net/home/{at}")
    assert linked.is_symlink()
    later = open_sandbox(project_root=root, containment=Containment(scratch="project"))
    done = later.run("cat ~/.npm/_cacache/x; ls ~/.npm", shell=True)
    assert (b"canary" in done.stdout, done.enforcement) == (False, "full")


def test_guard_lets_commands_read_fetched_packages(home: Path, sandbox: Callable[..., Sandbox]) -> None:
    write(home / ".cargo/registry/src/dep/lib.rs", "package\n")
    write(home / ".cargo/credentials.toml", "canary\n")
    held = sandbox(project_root=str(home / "work/project"), profile="workspace")
    assert held.run(["cat", f"{home}/.cargo/registry/src/dep/lib.rs"]).stdout == b"package\n"
    for text in (
        f"cat {home}/.cargo/credentials.toml",
        f"rm -rf {home}/.cargo/registry",
        f"touch {home}/.cargo/registry/x",
    ):
        assert not held.check(text, shell=True).allowed, text


def test_no_cache_is_or_contains_a_secret_place() -> None:
    secret = [name.removesuffix("/**") for name in places()["secret_home"]]
    overlapping = [(c, s) for c in CACHES for s in secret if f"{s}/".startswith(f"{c}/") or f"{c}/".startswith(f"{s}/")]
    assert overlapping == []


def tools(*names: str) -> str:
    """Return a PATH with these programs. A rustup needs the developer's home directory, so its toolchain is used directly."""
    found = []
    for name in names:
        path = shutil.which(name)
        if path is None:
            pytest.skip(f"{name} is not installed")
        if os.path.basename(os.path.realpath(path)) == "rustup":
            path = str(next(Path(path).parents[2].glob(f".rustup/toolchains/stable*/bin/{name}")))
        found.append(os.path.dirname(path))
    return ":".join(dict.fromkeys([*found, "/usr/bin", "/bin"]))


def archive(name: str, files: dict[str, str]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return made.getvalue()


def rust(home: Path, mirror: Path) -> tuple[str, str, str, str]:
    manifest = '[package]\nname = "corral-dep"\nversion = "1.0.0"\nedition = "2018"\n'
    crate = archive(
        "corral-dep-1.0.0", {"Cargo.toml": manifest, "src/lib.rs": 'pub fn name() -> &\'static str { "dep" }\n'}
    )
    (mirror / "corral-dep-1.0.0.crate").write_bytes(crate)
    row = {
        "name": "corral-dep",
        "vers": "1.0.0",
        "deps": [],
        "cksum": hashlib.sha256(crate).hexdigest(),
        "features": {},
        "yanked": False,
    }
    write(mirror / "index/config.json", json.dumps({"dl": f"file://{mirror}/{{crate}}-{{version}}.crate"}))
    write(mirror / "index/co/rr/corral-dep", json.dumps(row) + "\n")
    git = ["git", "-C", str(mirror / "index"), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "index"]):
        subprocess.run([*git, *words], check=True)
    project = home / "work/project"
    text = f'[source.crates-io]\nreplace-with = "mirror"\n[source.mirror]\nregistry = "file://{mirror}/index"\n'
    write(project / ".cargo/config.toml", text)
    write(
        project / "Cargo.toml",
        '[package]\nname = "app"\nversion = "0.1.0"\nedition = "2018"\n[dependencies]\ncorral-dep = "1"\n',
    )
    write(project / "src/main.rs", 'fn main() { println!("{}", corral_dep::name()); }\n')
    return tools("cargo"), "cargo fetch -q", "cargo run -q --offline", "dep\n"


def go(home: Path, mirror: Path) -> tuple[str, str, str, str]:
    at = mirror / "example.org/dep/@v"
    write(at / "list", "v1.0.0\n")
    write(at / "v1.0.0.info", '{"Version": "v1.0.0"}')
    write(at / "v1.0.0.mod", "module example.org/dep\n")
    with zipfile.ZipFile(at / "v1.0.0.zip", "w") as made:
        made.writestr("example.org/dep@v1.0.0/go.mod", "module example.org/dep\n")
        made.writestr("example.org/dep@v1.0.0/dep.go", 'package dep\n\nfunc Name() string { return "dep" }\n')
    project = home / "work/project"
    write(project / "go.mod", "module app\n\ngo 1.19\n\nrequire example.org/dep v1.0.0\n")
    write(project / "main.go", 'package main\n\nimport "example.org/dep"\n\nfunc main() { println(dep.Name()) }\n')
    fetch = f"GOPROXY=file://{mirror} GONOSUMDB=* GOFLAGS=-mod=mod go mod download && GOPROXY=file://{mirror} GONOSUMDB=* go mod tidy"
    return tools("go"), fetch, "go run . 2>&1", "dep\n"


def maven(home: Path, mirror: Path) -> tuple[str, str, str, str]:
    top = "<project><modelVersion>4.0.0</modelVersion>"
    of = "<groupId>org.example</groupId><artifactId>parent</artifactId><version>1</version>"
    write(mirror / "org/example/parent/1/parent-1.pom", f"{top}{of}<packaging>pom</packaging></project>")
    source = f"<repositories><repository><id>mirror</id><url>file://{mirror}</url></repository></repositories>"
    text = f"{top}<parent>{of}<relativePath/></parent><artifactId>app</artifactId><packaging>pom</packaging>{source}</project>"
    write(home / "work/project/pom.xml", text)
    # Java takes the home directory from the list of users.
    write(home / "work/project/build.sh", f'exec mvn -B -q -Dmaven.repo.local={home}/.m2/repository "$@" validate\n')
    return tools("mvn"), "sh build.sh", "sh build.sh -o >&2 && echo built", "built\n"


BUILDS = {"Rust": rust, "Go": go, "Java": maven}


@pytest.mark.real
@pytest.mark.parametrize("make", BUILDS.values(), ids=BUILDS)
def test_project_with_fetched_dependencies_builds_offline(
    make: Callable[[Path, Path], tuple[str, str, str, str]],
    home: Path,
    sandbox: Callable[..., Sandbox],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mirror = home / "mirror"
    mirror.mkdir()
    path, fetch, build, output = make(home, mirror)
    monkeypatch.setenv("PATH", path)
    project = home / "work/project"
    subprocess.run(["sh", "-c", fetch], cwd=project, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(mirror)
    held = sandbox(project_root=str(project), profile="workspace", timeout_seconds=300)
    done = held.run(build, shell=True)
    assert (done.verdict.findings, done.exit_code, done.stdout_text) == ((), 0, output), done.stderr_text


class Registry(http.server.BaseHTTPRequestHandler):
    """Serves a package to npm and to installers of Python, on loopback."""

    files: ClassVar[dict[str, tuple[str, bytes]]] = {}

    def do_GET(self) -> None:
        kind, body = self.files.get(self.path, ("", b""))
        self.send_response(200 if kind else 404)
        self.send_header("Content-Type", kind or "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def registry() -> Iterator[str]:
    """The address of a registry with the npm package `corral-dep` and the wheel `corral_dep`."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    address = f"http://127.0.0.1:{server.server_address[1]}"
    package = {"name": "corral-dep", "version": "1.0.0", "main": "i.js"}
    made = archive("package", {"package.json": json.dumps(package), "i.js": "module.exports = 'dep'\n"})
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(made).digest()).decode()
    dist = {"tarball": f"{address}/corral-dep/-/corral-dep-1.0.0.tgz", "integrity": integrity}
    packument = {
        "name": "corral-dep",
        "dist-tags": {"latest": "1.0.0"},
        "versions": {"1.0.0": package | {"dist": dist}},
    }
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as zipped:
        zipped.writestr("corral_dep.py", "name = 'dep'\n")
        zipped.writestr(
            "corral_dep-1.0.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: corral-dep\nVersion: 1.0.0\n"
        )
        zipped.writestr(
            "corral_dep-1.0.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        zipped.writestr("corral_dep-1.0.0.dist-info/RECORD", "")
    name = "corral_dep-1.0.0-py3-none-any.whl"
    page = f'<!DOCTYPE html><html><body><a href="{address}/{name}">{name}</a></body></html>'
    Registry.files = {
        "/corral-dep": ("application/json", json.dumps(packument).encode()),
        "/corral-dep/-/corral-dep-1.0.0.tgz": ("application/octet-stream", made),
        "/simple/corral-dep/": ("text/html", page.encode()),
        f"/{name}": ("application/octet-stream", wheel.getvalue()),
    }
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield address
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.real
def test_node_project_installs_offline(
    home: Path, registry: str, sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", tools("npm", "node"))
    project = home / "work/project"
    write(project / "package.json", '{"name": "app", "version": "1.0.0"}')
    write(project / ".npmrc", f"registry={registry}/\n")
    subprocess.run(["npm", "install", "-q", "corral-dep"], cwd=project, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(project / "node_modules")
    held = sandbox(project_root=str(project), profile="workspace", timeout_seconds=300)
    assert held.run(["npm", "ci", "--offline"]).exit_code == 0
    assert held.run(["node", "-e", "console.log(require('corral-dep'))"]).stdout == b"dep\n"


AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
YARN = """\
npmRegistryServer: "{0}"
unsafeHttpWhitelist: ["127.0.0.1"]
nodeLinker: node-modules
enableGlobalCache: true
enableTelemetry: false
"""
# The settings of the project, and the commands that fetch and that install offline.
MANAGERS = {
    "pnpm": (".npmrc", "registry={0}/\n", ["add", "corral-dep"], ["install", "--offline"]),
    "yarn": (".yarnrc.yml", YARN, ["add", "corral-dep"], ["install", "--immutable"]),
}


@pytest.mark.real
@pytest.mark.parametrize("manager", MANAGERS)
def test_node_project_of_another_manager_installs_offline(
    manager: str, home: Path, registry: str, sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, text, fetch, install = MANAGERS[manager]
    for name in [name for name in os.environ if name.lower().startswith(("npm_config", "yarn_", "pnpm_"))]:
        monkeypatch.delenv(name)
    own = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", home / "tools", manager]
    # Node has a list of authorities of its own, which may lack one of this machine.
    subprocess.run(own, check=True, env=os.environ | {"NODE_EXTRA_CA_CERTS": AUTHORITIES})
    monkeypatch.setenv("PATH", f"{home}/tools/node_modules/.bin:{tools('node')}")
    project = home / "work/project"
    write(project / "package.json", '{"name": "app", "version": "1.0.0"}')
    write(project / settings, text.format(registry))
    write(project / "yarn.lock", "")
    subprocess.run([manager, *fetch], cwd=project, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(project / "node_modules")
    held = sandbox(project_root=str(project), profile="workspace", timeout_seconds=300)
    done = held.run([manager, *install])
    assert done.exit_code == 0, (done.stdout_text, done.stderr_text)
    assert held.run(["node", "-e", "console.log(require('corral-dep'))"]).stdout == b"dep\n"


@pytest.mark.real
def test_python_project_syncs_offline(
    home: Path, registry: str, sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys._base_executable, "-m", "venv", home / "tools"], check=True)
    subprocess.run([home / "tools/bin/pip", "install", "-q", "--no-cache-dir", "uv"], check=True)
    monkeypatch.setenv("PATH", f"{home}/tools/bin:/usr/bin:/bin")
    for name in [name for name in os.environ if name.startswith(("UV_", "PIP_"))]:
        monkeypatch.delenv(name)
    project = home / "work/project"
    text = '[project]\nname = "app"\nversion = "1"\nrequires-python = ">=3.9"\ndependencies = ["corral-dep"]\n[tool.uv]\npackage = false\n'
    write(project / "pyproject.toml", text + f'[[tool.uv.index]]\nurl = "{registry}/simple"\ndefault = true\n')
    write(project / "a.py", "import corral_dep\n\nprint(corral_dep.name)\n")
    subprocess.run(["uv", "sync", "-q", "--python", sys._base_executable], cwd=project, check=True)
    shutil.rmtree(project / ".venv")
    held = sandbox(project_root=str(project), profile="workspace", timeout_seconds=300)
    done = held.run(f"uv sync -q --offline --python {sys._base_executable} && uv run -q --offline a.py", shell=True)
    assert (done.exit_code, done.stdout_text) == (0, "dep\n"), done.stderr_text
