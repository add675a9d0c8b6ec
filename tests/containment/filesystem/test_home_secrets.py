"""Commands run the tools of a full home directory, and read no credential in it, whatever way a path came to be shown."""

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from attempt import has_bubblewrap, must_hold
from sampling import sampled

from corral import Containment, PolicyError, Sandbox
from corral.guard import toolchains
from corral.guard.rules.loader import places

# A tool's program, and the files with credentials that it keeps in the same home directory. The directory of the program is on PATH.
TOOLS = {
    "fly": (".fly/bin/flyctl", [".fly/config.yml", ".fly/state.yml"]),
    "pulumi": (".pulumi/bin/pulumi", [".pulumi/credentials.json", ".pulumi/backups/stack.json"]),
    "azure": (".azure/bin/bicep", [".azure/msal_token_cache.json", ".azure/azureProfile.json"]),
    "wasmer": (".wasmer/bin/wasmer", [".wasmer/wasmer.toml"]),
    "cabal": (".cabal/bin/hlint", [".cabal/config"]),
    "foundry": (".foundry/bin/forge", [".foundry/keystores/k", ".foundry/foundry.toml"]),
    "codex": (".codex/bin/codex", [".codex/auth.json", ".codex/history.jsonl"]),
    "claude": (".claude/bin/helper", [".claude/.credentials.json", ".claude.json"]),
    "gemini": (".gemini/bin/gemini", [".gemini/oauth_creds.json"]),
    "cursor": (".cursor/bin/cursor-agent", [".cursor/mcp.json"]),
    "opencode": (".opencode/bin/opencode", [".local/share/opencode/auth.json"]),
    "docker": (".docker/bin/docker-credential", [".docker/config.json"]),
    "krew": (".krew/bin/kubectl-x", [".kube/config", ".krew/receipts/token"]),
    "cargo": (".cargo/bin/cargo-audit", [".cargo/credentials.toml", ".cargo/credentials"]),
    "pyenv": (".pyenv/shims/python3.99", [".pyenv/.env", ".pypirc"]),
    "rbenv": (".rbenv/shims/ruby", [".rbenv/credentials", ".gem/credentials"]),
    "gem": (".gem/ruby/3.2.0/bin/rake", [".bundle/config"]),
    "npm": (".npm-global/bin/prettier", [".npmrc", ".npm-global/etc/npmrc"]),
    "yarn": (".yarn/bin/yarn", [".yarnrc.yml", ".yarn/berry/credentials"]),
    "pnpm": (".local/share/pnpm/pnpm", [".config/pnpm/rc", ".local/share/pnpm/.npmrc"]),
    "bun": (".bun/bin/bun", [".bunfig.toml", ".bun/auth"]),
    "deno": (".deno/bin/deno", [".deno/config.json"]),
    "volta": (".volta/bin/node-shim", [".volta/hooks.json"]),
    "nvm": (".nvm/versions/node/v20.0.0/bin/node20", [".nvm/.npmrc"]),
    "fnm": (".local/share/fnm/fnm", [".local/share/keyrings/login.keyring"]),
    "asdf": (".asdf/shims/elixir", [".asdf/.secrets"]),
    "mise": (".local/share/mise/shims/terraform", [".config/mise/age.txt", ".terraform.d/credentials.tfrc.json"]),
    "sdkman": (".sdkman/candidates/maven/current/bin/mvn", [".m2/settings.xml", ".sdkman/etc/config"]),
    "go": ("go/bin/gopls", ["go/.netrc", ".netrc"]),
    "ghcup": (".ghcup/bin/ghc", [".ghcup/config.yaml", ".stack/config.yaml"]),
    "opam": (".opam/default/bin/ocaml", [".opam/config", ".opam/repo/token"]),
    "rustup": (".rustup/toolchains/stable/bin/rustc", [".rustup/update-token"]),
    "conda": ("miniconda3/bin/conda", [".condarc", "miniconda3/.env"]),
    "pipx": (".local/share/pipx/venvs/black/bin/black", [".local/share/pipx/.env", ".config/pip/pip.conf"]),
    "uv": (".local/share/uv/tools/ruff/bin/ruff-uv", [".local/share/uv/credentials/index.toml"]),
    "poetry": (".local/share/pypoetry/venv/bin/poetry", [".config/pypoetry/auth.toml"]),
    "composer": (".config/composer/vendor/bin/phpunit", [".config/composer/auth.json"]),
    "dotnet": (".dotnet/tools/dotnet-ef", [".nuget/NuGet/NuGet.Config", ".dotnet/user-token"]),
    "dart": (".pub-cache/bin/melos", [".pub-cache/credentials.json", ".config/dart/pub-credentials.json"]),
    "juliaup": (".juliaup/bin/julia", [".julia/servers/auth.toml"]),
    "linuxbrew": (".linuxbrew/bin/brew-jq", [".linuxbrew/var/token"]),
    "local": (".local/bin/aws", [".aws/credentials", ".local/share/secret", ".aws/sso/cache/x.json"]),
    "ops": ("ops/bin/deploy", ["ops/.env", "ops/secrets/prod.txt", "ops/terraform.tfvars", "ops/vault.yml"]),
    "plain": ("bin/hello", ["notes", ".ssh/id_ed25519", ".gnupg/private-keys-v1.d/k", ".config/gh/hosts.yml"]),
    "config": (".config/acme/acme", [".config/acme/session"]),
    "user library": (".local/sbin/lib-user", [".local/lib/acme/token"]),
    "beside": (".toolbox/toolbox", [".toolbox/token", ".toolbox/db/state"]),
    "nested": (".tools/thing/bin/thing", [".tools/thing/config.json", ".tools/login"]),
    "library": ("tools/lib-tool/bin/lib-tool", ["tools/lib-tool/lib/.env", "tools/lib-tool/lib/server.key"]),
    "scripts": ("scripts/run-me", ["scripts/.env.production", "scripts/deploy_key", "scripts/id_rsa"]),
}  # fmt: skip
# Links in ~/bin: the program behind each, and what lies beside that.
LINKS = {
    "linked": ("work/infra/linked.sh", ["work/infra/inventory", "work/infra/.env"]),
    "wrapped": ("vendor/wrapped/wrapped.sh", ["vendor/wrapped/token"]),
    "foreign": (".acme/bin/foreign", [".acme/config", ".acme/bin/other-token"]),
}
SECRET_LINKS = {"keyed": ".ssh/keyed.sh", "logged": ".config/gcloud/logged.sh"}
READ = 'grep -RahoE "canary-[A-Za-z0-9._/-]+" "$1" 2>/dev/null; while read -r path; do cat "$1/$path" 2>/dev/null && echo; done < list; true'
SCRIPT = "#!/bin/sh\necho ran {}\n"


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Home:
    """A home directory with tools, whose credentials each hold a text of their own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.secrets: dict[str, str] = {}
        self.programs: list[str] = []
        for name, (tool, secrets) in TOOLS.items():
            program(path / tool.replace("/current/", "/3.9/"), SCRIPT.format(name))
            self.keep(secrets)
            self.programs.append(str(path / os.path.dirname(tool)))
        (path / ".sdkman/candidates/maven/current").symlink_to("3.9")
        for name, (target, secrets) in LINKS.items():
            program(path / target, SCRIPT.format(name))
            (path / "bin" / name).symlink_to(path / target)
            self.keep(secrets)
        for name, target in SECRET_LINKS.items():
            program(path / target, "#!/bin/sh\n# canary-" + target)
            (path / "bin" / name).symlink_to(path / target)
            self.secrets[target] = f"canary-{target}"

    def keep(self, names: list[str]) -> None:
        for name in names:
            file = self.path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"canary-{name}\n")
            self.secrets[name] = f"canary-{name}"


@pytest.fixture
def home(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home directory with all tools on PATH, and the list of its credentials in the project."""
    made = Home(tmp_path / "home")
    (project / "list").write_text("".join(f"{name}\n" for name in made.secrets))
    monkeypatch.setenv("HOME", str(made.path))
    monkeypatch.setenv("PATH", ":".join([*made.programs, "/usr/local/bin", "/usr/bin", "/bin"]))
    return made


def read_by(output: str) -> set[str]:
    return {line for line in output.split() if line.startswith("canary-")}


@pytest.mark.parametrize("backend", ["warden", "bubblewrap"])
def test_commands_read_no_credential_of_forty_tools(
    backend: str, home: Home, project: Path, open_sandbox: Callable[..., Sandbox]
) -> None:
    if backend == "bubblewrap" and not has_bubblewrap():
        must_hold()
    words = ["sh", "-c", READ, "sh", str(home.path)]
    bare = subprocess.run(words, cwd=project, capture_output=True, text=True, check=True)
    assert read_by(bare.stdout) == set(home.secrets.values())
    held = open_sandbox(containment=Containment(backend=backend))
    done = held.run(words)
    assert (read_by(done.stdout_text), done.enforcement) == (set(), "full"), done.stderr_text


@pytest.mark.parametrize("backend", ["warden", "bubblewrap"])
def test_tools_of_a_full_home_run(backend: str, home: Home, open_sandbox: Callable[..., Sandbox]) -> None:
    if backend == "bubblewrap" and not has_bubblewrap():
        must_hold()
    tools = {os.path.basename(tool): name for name, (tool, _) in TOOLS.items()} | {name: name for name in LINKS}
    held = open_sandbox(containment=Containment(backend=backend))
    done = held.run(f"for tool in {' '.join(tools)}; do $tool; done", shell=True)
    assert done.stdout_text.splitlines() == [f"ran {name}" for name in tools.values()], done.stderr_text


# Programs that need other files of their installation, and the files that they read.
WRAPPERS = {
    "a shim": (".pyenv/shims/tool", ".pyenv/versions/3/bin/tool-real"),
    "a shim of mise": (".local/share/mise/shims/tool", ".local/share/mise/installs/tool/1/bin/tool-real"),
    "a prefix of npm": (".npm-global/bin/tool", ".npm-global/lib/node_modules/tool/cli.js"),
    "user packages": (".local/bin/tool", ".local/lib/python3.11/site-packages/tool/main"),
    "a version of node": (".nvm/versions/node/v1/bin/tool", ".nvm/versions/node/v1/lib/node_modules/tool/cli.js"),
    "a java": (".sdkman/candidates/java/17/bin/tool", ".sdkman/candidates/java/17/conf/security/java.security"),
    "a compiler": (".ghcup/bin/tool", ".ghcup/ghc/9/lib/tool"),
    "a virtual environment": (".venv/bin/tool", ".venv/lib/python3.11/site-packages/x"),
    "conda": ("miniconda/bin/tool", "miniconda/etc/conda/x"),
    "an unpacked archive": ("apps/node-v1/bin/tool", "apps/node-v1/lib/x"),
    "gems": (".gem/ruby/3/bin/tool", ".gem/ruby/3/gems/tool/exe/tool"),
    "brew": (".linuxbrew/bin/tool", ".linuxbrew/Cellar/tool/1/libexec/x"),
    "a directory without bin": ("flat/tool", "flat/data/x"),
    "a certificate": (".local/bin/tool", ".local/lib/python3.11/site-packages/certifi/cacert.pem"),
    "a key of a test suite": (".pyenv/shims/tool", ".pyenv/versions/3/lib/python3.11/test/ssl_key.pem"),
    "code about credentials": (".local/bin/tool", ".local/lib/node_modules/aws/credentials.js"),
}


@pytest.mark.parametrize(("tool", "needed"), sampled(WRAPPERS.values(), every=4), ids=WRAPPERS)
def test_wrapper_finds_the_rest_of_its_installation(
    tool: str, needed: str, tmp_path: Path, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    program(home / tool, f'#!/bin/sh\nexec cat "{home}/{needed}"\n')
    (home / needed).parent.mkdir(parents=True, exist_ok=True)
    (home / needed).write_text("needed")
    for mark in (".venv/pyvenv.cfg", "miniconda/conda-meta/history"):
        (home / mark).parent.mkdir(parents=True, exist_ok=True)
        (home / mark).touch()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{home / os.path.dirname(tool)}:/usr/bin:/bin")
    assert open_sandbox().run(["tool"]).stdout == b"needed"


def test_part_of_an_installation_may_be_a_link(
    tmp_path: Path, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As `python -m venv` makes lib64.
    home = tmp_path / "home"
    program(home / "tools" / "bin" / "tool", f"#!/bin/sh\nexec cat {home}/tools/lib64/needed\n")
    (home / "tools" / "lib").mkdir()
    (home / "tools" / "lib" / "needed").write_text("needed")
    (home / "tools" / "lib64").symlink_to("lib")
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id").write_text("canary")
    (home / "tools" / "share").symlink_to(home / ".ssh")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{home}/tools/bin:/usr/bin:/bin")
    done = open_sandbox().run(f"tool; cat {home}/tools/share/id {home}/.ssh/id", shell=True)
    assert (done.stdout, done.enforcement) == (b"needed", "full")


def test_links_between_a_program_and_its_target_are_followed(
    tmp_path: Path, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    program(home / "apps" / "v2" / "run.sh", SCRIPT.format("v2"))
    (home / "apps" / "current").symlink_to("v2")
    (home / "bin").mkdir()
    (home / "bin" / "first").symlink_to("second")
    (home / "bin" / "second").symlink_to(home / "apps" / "current" / "run.sh")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{home}/bin:/usr/bin:/bin")
    assert open_sandbox().run(["first"]).stdout == b"ran v2\n"


@pytest.mark.parametrize("access", ["read", "write"])
def test_grant_hides_the_credentials_below_it(
    access: str, tmp_path: Path, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    for name in (".m2/settings.xml", ".m2/repository/a.pom", ".config/gh/hosts.yml", ".config/app/conf"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(f"canary-{name}\n")
    monkeypatch.setenv("HOME", str(home))
    held = open_sandbox(containment=Containment(**{access: (f"{home}/.m2", f"{home}/.config")}))  # type: ignore[arg-type]
    done = held.run(["sh", "-c", READ, "sh", str(home)])
    assert read_by(done.stdout_text) == {"canary-.m2/repository/a.pom", "canary-.config/app/conf"}
    assert held.read_bytes(f"{home}/.m2/repository/a.pom").startswith(b"canary")
    with pytest.raises(PermissionError):
        held.read_bytes(f"{home}/.m2/settings.xml")


@pytest.mark.parametrize("profile", ["strict", "workspace"])
def test_guard_refuses_the_credentials_in_a_grant(
    profile: str, tmp_path: Path, sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (".m2/settings.xml", ".m2/.env", ".m2/a.pom"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    judged = sandbox(profile=profile, containment=Containment(read=(f"{tmp_path}/.m2",)))
    found = {
        name: [one.rule for one in judged.check(["cat", f"{tmp_path}/.m2/{name}"]).findings]
        for name in ("a.pom", ".env", "settings.xml")
    }
    assert found == {"a.pom": [], ".env": ["path-read-secret"], "settings.xml": ["path-read-secret"]}


def test_read_grant_hides_credential_names_but_not_a_named_file(
    tmp_path: Path, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    for name in ("other/.env", "other/src/deploy_key", "other/src/code", "third/.env", "third/x"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(f"canary-{name}\n")
    monkeypatch.setenv("HOME", str(home))
    held = open_sandbox(containment=Containment(read=(f"{home}/other", f"{home}/third/.env")))
    done = held.run(["sh", "-c", READ, "sh", str(home)])
    assert read_by(done.stdout_text) == {"canary-other/src/code", "canary-third/.env"}
    with pytest.raises(PermissionError):
        held.read_bytes(f"{home}/other/.env")


@pytest.mark.parametrize("name", [".cargo/credentials.toml", ".m2/settings.xml", ".config/gh"])
def test_grant_that_names_a_credential_is_an_error(
    name: str, tmp_path: Path, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(PolicyError, match="would open"):
        open_sandbox(containment=Containment(read=(str(tmp_path / name),))).run(["true"])


def test_installation_in_the_home_is_shown_in_parts(tmp_path: Path) -> None:
    # The home directory itself may be a virtual environment.
    for name in ("bin", "lib/python3.11", ".ssh"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "pyvenv.cfg").touch()
    found = toolchains.find([str(tmp_path / "bin")], str(tmp_path), str(tmp_path / "project"))
    assert all(path.startswith(f"{tmp_path}/") for path in found.shown)
    assert not any(".ssh" in path for path in found.shown)


def test_secret_places_are_paths_that_the_sandbox_can_hide() -> None:
    names = places()["secret_home"]
    assert [name for name in names if "*" in name.removesuffix("/**") or name.startswith("/")] == []
    assert len(names) == len(set(names))


def test_no_kind_shows_a_secret_place_whole() -> None:
    secret = {name.removesuffix("/**") for name in places()["secret_home"]}
    for kind, parts in toolchains.KINDS.items():
        assert not secret & {kind, *(f"{kind}/{part}" for part in parts)}, kind


def test_program_named_like_a_key_stays(
    tmp_path: Path, open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "home" / "bin" / "gen-key", SCRIPT.format("gen"))
    (tmp_path / "home" / "bin" / "old-key").write_text("canary")
    assert not (tmp_path / "home" / "bin" / "old-key").stat().st_mode & stat.S_IXUSR
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path}/home/bin:/usr/bin:/bin")
    assert open_sandbox().run("gen-key; cat ~/bin/old-key", shell=True).stdout == b"ran gen\n"
