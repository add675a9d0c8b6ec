"""Tests how corral learns the registries of package managers: from stub tools, files, a probe and the real tools."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from attempt import must_hold

from corral import Containment, Sandbox, SandboxConfig
from corral.broker.openings import SENT_BYTES, open_grants
from corral.broker.package_managers.lookup import known_hosts
from corral.broker.package_managers.registries import TimeLimits, registry_variables, resolve
from corral.model.grant import Grant
from corral.policy.config import Output

PATIENT = TimeLimits(60.0, 120.0, 60.0)  # a busy machine is no failure
HASTY = TimeLimits(0.3, 0.3, 0.3)


class World:
    """A home, a project, and a directory of stub tools on PATH."""

    def __init__(self, folder: Path) -> None:
        self.home, self.project, self.bin = (folder / name for name in ("home", "project", "tools/bin"))
        for each in (self.home, self.project, self.bin):
            each.mkdir(parents=True)
        self.environ = {
            "HOME": str(self.home),
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "XDG_CACHE_HOME": str(self.home / ".cache"),
        }
        self.config = SandboxConfig(project_root=str(self.project), containment=Containment(backend="none"))

    def tool(self, name: str, body: str) -> Path:
        """Write a stub tool that notes each of its starts."""
        path = self.bin / name
        path.write_text(f"#!/bin/sh\necho start >>{self.home}/starts\n{body}\n")
        path.chmod(0o755)
        return path

    @property
    def starts(self) -> int:
        path = self.home / "starts"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def resolve(self, tool: str, program: str = "", limits: TimeLimits = PATIENT) -> tuple[Grant, ...]:
        return resolve(tool, program, self.environ, config=self.config, limits=limits)

    def write(self, path: str, text: str) -> None:
        """Write a file of the home (`~/…`) or of the project."""
        target = self.home / path[2:] if path.startswith("~/") else self.project / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


@pytest.fixture
def world(tmp_path: Path) -> World:
    folder = tmp_path / "world"
    folder.mkdir()
    return World(folder)


def network(target: str, source: str, *, certain: bool = True) -> Grant:
    return Grant("network", target, source, certain)


NPM = network("index.example:443", "npm config get registry")


# Answers of the tool


@pytest.mark.parametrize(
    ("tool", "body", "expected"),
    [
        ("npm", "echo https://index.example/", [NPM]),
        ("npm", "echo 'notice: read https://other.example/new'; echo https://index.example/", [NPM]),
        ("npm", "echo https://index.example:8443/npm/", [NPM.replace(target="index.example:8443")]),
        ("npm", "echo http://index.example", [NPM.replace(target="index.example:80")]),
        ("npm", "echo https://user:password@index.example/", [NPM]),
        ("npx", "echo https://index.example/", [NPM]),
        ("yarn", 'test "$3" = registry && echo https://index.example', [network("index.example:443", "yarn config get registry")]),
        ("pnpm", "echo https://index.example/", [network("index.example:443", "pnpm config get registry")]),
        (
            "gem",
            "echo '*** CURRENT SOURCES ***'; echo; echo https://one.example/; echo https://two.example/",
            [network(f"{name}.example:443", "gem sources --list") for name in ("one", "two")],
        ),
        (
            "go",
            "echo 'https://proxy.example|https://second.example,direct'; echo sum.example+1234+key",
            [network(f"{name}.example:443", "go env GOPROXY GOSUMDB") for name in ("proxy", "second", "sum")],
        ),
        ("go", "echo off; echo 'sum.example https://mirror.example'", [network("mirror.example:443", "go env GOPROXY GOSUMDB")]),
        ("go", "echo direct; echo off", []),
        (
            "pip",
            """echo "global.index-url='https://index.example/simple'"; echo "global.proxy='http://proxy.example:3128'";
            echo "global.extra-index-url='https://one.example/simple file:///opt/x'" """,
            [network(f"{name}.example:443", "pip config list") for name in ("index", "one")],
        ),
        ("bundle", "echo mirror.https://a.example/=https://mirror.example/", [network("mirror.example:443", "bundle config list --parseable")]),
    ],
)  # fmt: skip
def test_tools_are_asked_for_their_registry(world: World, tool: str, body: str, expected: list[Grant]) -> None:
    world.tool("npm" if tool == "npx" else tool, body)
    assert list(world.resolve(tool)) == expected


@pytest.mark.parametrize(
    "body",
    [
        "",
        "exit 1",
        "echo https://index.example/; exit 1",
        "echo undefined",
        "printf 'https://index.example/\\033[2J'",
        "printf 'https://index.example/\\rhttps://other.example/'",
        "printf 'https://index\\000.example/'",
        "printf 'https://ind\\303\\251x.example/'",
        "echo https://index.example/; head -c 1000000 /dev/zero | tr '\\0' x",
        "yes https://index.example/",
        "for n in 1 2 3 4 5; do echo https://n$n.example/; done",
        "echo ftp://index.example/",
        "echo 'https://index.example\\\\@other.example/'",
        "echo https://0x7f.1/",
        "echo '*.example'",
    ],
    ids=[
        *("nothing", "failure", "answer and failure", "no address", "escape", "return", "NUL", "not ASCII"),
        *("a megabyte", "endless", "five hosts", "scheme", "backslash", "odd address", "pattern"),
    ],
)
def test_answers_that_are_not_an_address_are_not_taken(world: World, body: str) -> None:
    world.tool("npm", body)
    assert world.resolve("npm") == ()
    assert world.starts == 1
    # The same stub is asked and believed when it prints an address.
    world.tool("npm", "echo https://index.example/")
    assert world.resolve("npm") == (NPM,)


@pytest.mark.parametrize(
    "body",
    [
        "exec sleep 1000",
        "echo https://index.example/; exec sleep 1000",
        "sleep 1000 & echo https://index.example/",
        "trap '' TERM HUP; while :; do sleep 1000; done",
    ],
    ids=["silent", "answers and hangs", "child holds the output", "ignores signals"],
)
def test_a_tool_that_hangs_is_killed_and_not_remembered(world: World, body: str) -> None:
    world.tool("npm", body)
    assert world.resolve("npm", limits=HASTY) == ()
    assert list((world.home / ".cache" / "corral").iterdir()) == []


def test_unknown_and_missing_tools_have_no_registry(world: World) -> None:
    assert world.resolve("nothing") == ()
    world.environ["PATH"] = str(world.bin)
    assert world.resolve("npm") == ()


# The agent cannot choose the answer


def test_files_of_the_project_do_not_change_the_answer(world: World) -> None:
    program = world.tool("npm", "cat answer 2>/dev/null || echo https://index.example/")
    world.write("answer", "https://attacker.example/\n")
    canary = subprocess.run([program], cwd=world.project, capture_output=True, text=True, check=True)
    assert canary.stdout == "https://attacker.example/\n"
    assert world.resolve("npm") == (NPM,)


def test_programs_of_the_project_are_not_run(world: World) -> None:
    world.tool("npm", "echo https://index.example/")
    world.write("npm", f"#!/bin/sh\ntouch {world.home}/ran\necho https://attacker.example/\n")
    planted = world.project / "npm"
    planted.chmod(0o755)
    link = world.home / "npm"
    link.symlink_to(planted)
    assert (world.resolve("npm", str(planted)), world.resolve("npm", str(link))) == ((NPM,), (NPM,))
    world.environ["PATH"] = f"{world.project}:{world.environ['PATH']}"
    assert world.resolve("npm") == (NPM,)
    assert not (world.home / "ran").exists()
    subprocess.run([planted], check=True, capture_output=True)
    assert (world.home / "ran").exists()


def test_scripts_with_an_interpreter_in_the_project_are_not_run(world: World) -> None:
    world.write("venv/bin/python", f"#!/bin/sh\ntouch {world.home}/ran\n")
    (world.project / "venv/bin/python").chmod(0o755)
    script = world.bin / "npm"
    script.write_text(f"#!{world.project}/venv/bin/python\n")
    script.chmod(0o755)
    world.environ["PATH"] = str(world.bin)
    assert world.resolve("npm") == ()
    assert not (world.home / "ran").exists()


def test_a_variable_that_leads_into_the_project_is_not_certain(world: World) -> None:
    world.tool("npm", "echo https://index.example/")
    world.write("conf/npmrc", "@team:registry=https://team.example/\n")
    world.environ["NPM_CONFIG_USERCONFIG"] = f"{world.project}/conf/npmrc"
    found = network("team.example:443", f"{world.project}/conf/npmrc", certain=False)
    assert (world.resolve("npm"), world.starts) == ((found,), 0)


@pytest.mark.parametrize("name", ["NPM_CONFIG_PREFIX", "EXPORTED", "LD_PRELOAD", "NODE_OPTIONS"])
def test_variables_of_the_agent_do_not_reach_the_tool(world: World, name: str) -> None:
    world.tool("npm", f'test -z "${name}" && echo https://index.example/ || echo https://attacker.example/')
    world.environ[name] = f"{world.project}/.npmrc"
    world.environ["OWN"] = "kept"
    world.config = world.config.replace(output=Output(exported=("EXPORTED",)))
    assert world.resolve("npm") == (NPM,)


def test_a_variable_that_leads_into_the_project_by_a_link_is_dropped(world: World) -> None:
    world.tool("npm", 'test -z "$NPM_CONFIG_PREFIX" && echo https://index.example/ || echo https://attacker.example/')
    (world.home / "link").symlink_to(world.project)
    world.environ["NPM_CONFIG_PREFIX"] = f"{world.home}/link/x"
    assert world.resolve("npm") == (NPM,)


def test_a_configuration_that_commands_can_write_is_not_certain(world: World) -> None:
    world.tool("npm", "echo https://index.example/")
    world.write("~/.npmrc", "@team:registry=https://team.example/\n")
    team = network("team.example:443", "~/.npmrc")
    assert world.resolve("npm") == (team, NPM)
    world.config = world.config.replace(containment=Containment(backend="none", write=(str(world.home),)))
    assert world.resolve("npm", limits=HASTY) == (team.replace(certain=False),)
    # Configuration can name programs, so the tool was not started again.
    assert world.starts == 1


# Facts


def test_a_fact_is_kept_until_something_changes(world: World) -> None:
    program = world.tool("npm", "echo https://index.example/")
    assert (world.resolve("npm"), world.resolve("npm"), world.starts) == ((NPM,), (NPM,), 1)
    os.utime(program, ns=(1, 1))
    assert (world.resolve("npm"), world.starts) == ((NPM,), 2)
    world.write("~/.npmrc", "fund=false\n")
    assert (world.resolve("npm"), world.starts) == ((NPM,), 3)
    os.utime(world.home / ".npmrc", ns=(1, 1))
    assert (world.resolve("npm"), world.starts) == ((NPM,), 4)
    world.environ["NPM_CONFIG_FUND"] = "false"
    assert (world.resolve("npm"), world.starts) == ((NPM,), 5)
    world.environ["UNRELATED"] = "1"
    assert (world.resolve("npm"), world.starts) == ((NPM,), 5)


def test_damaged_facts_do_not_count(world: World) -> None:
    world.tool("npm", "echo https://index.example/")
    world.resolve("npm")
    (fact,) = (world.home / ".cache/corral/registries").iterdir()
    good = fact.read_bytes()
    for data in (b"", good[:-1], good.replace(b"index.example", b"other.example"), b"x" * 100_000):
        fact.write_bytes(data)
        assert known_hosts("npm", "", world.environ, config=world.config) == ()
    fact.write_bytes(good)
    assert known_hosts("npm", "", world.environ, config=world.config) == (NPM,)
    fact.chmod(0o666)
    assert known_hosts("npm", "", world.environ, config=world.config) == ()


def test_a_hook_reads_facts_and_starts_nothing(world: World) -> None:
    world.tool("npm", "echo https://index.example/")
    world.write(".npmrc", "registry=https://attacker.example/")
    assert known_hosts("npm", "", world.environ, config=world.config) == ()
    assert world.starts == 0
    world.resolve("npm")
    assert known_hosts("npx", "", world.environ, config=world.config) == (NPM,)
    assert world.starts == 1


def test_looking_up_facts_loads_no_slow_module() -> None:
    slow = "typing dataclasses pathlib subprocess asyncio logging json re enum tempfile ssl tomllib fnmatch"
    code = (
        "import sys; from corral.broker.package_managers.lookup import known_hosts; "
        f"print(sorted(sys.modules.keys() & set('{slow}'.split())))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"], capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout == "[]\n"


def test_passwords_are_not_stored(world: World) -> None:
    world.tool("npm", "echo https://user:hunter2@index.example/")
    world.environ["NPM_CONFIG__AUTH"] = "hunter2"
    world.resolve("npm")
    (fact,) = (world.home / ".cache/corral/registries").iterdir()
    assert b"hunter2" not in fact.read_bytes()


# Files of the user and of the project


@pytest.mark.parametrize(
    ("tool", "path", "text", "expected"),
    [
        ("pip", "~/.config/pip/pip.conf", "[global]\nindex-url = https://u:p@a.example/simple\nextra-index-url =\n  https://b.example/s\n  https://c.example:8443\n[install]\nproxy=http://no.example\n", ["a.example:443", "b.example:443", "c.example:8443"]),
        ("pip", "~/.pip/pip.conf", "[global\nindex-url", []),
        ("uv", "~/.config/uv/uv.toml", 'index-url = "https://a.example/simple"\n[[index]]\nname = "x"\nurl = "https://b.example/"\n', ["a.example:443", "b.example:443"]),
        ("npm", "~/.npmrc", "@team:registry=https://a.example/\n//a.example/:_authToken=https://no.example\nregistry=${X}\n", ["a.example:443"]),
        ("cargo", "~/.cargo/config.toml", '[source.mine]\nregistry = "sparse+https://a.example/index/"\n[registries.b]\nindex = "https://b.example"\n', ["a.example:443", "b.example:443"]),
        ("yarn", "~/.yarnrc.yml", 'npmRegistryServer: "https://a.example"\n', ["a.example:443"]),
        ("maven", "~/.m2/settings.xml", "<settings><!-- <mirror><url>https://no.example</url></mirror> --><mirrors><mirror><url> https://a.example/m </url></mirror><mirror><url>http://0.0.0.0/</url><blocked>true</blocked></mirror></mirrors></settings>", ["a.example:443"]),
    ],
)  # fmt: skip
def test_configuration_of_the_user_is_certain(
    world: World, tool: str, path: str, text: str, expected: list[str]
) -> None:
    world.environ["PATH"] = str(world.bin)
    world.write(path, text)
    assert [(grant.target, grant.source, grant.certain) for grant in world.resolve(tool)] == [
        (target, path, True) for target in expected
    ]


GIVEN = {
    "pip": ("~/.config/pip/pip.conf", "[global]\nindex-url = https://a.example/simple\n", ["PIP_INDEX_URL"]),
    # Yarn 2 and later end with an error at YARN_REGISTRY, and yarn 1 reads npm's variable.
    "yarn": ("~/.yarnrc.yml", 'npmRegistryServer: "https://a.example/simple"\n', ["YARN_NPM_REGISTRY_SERVER", "npm_config_registry"]),
}  # fmt: skip


@pytest.mark.parametrize("tool", GIVEN)
def test_tool_inside_is_told_the_registry(world: World, tool: str) -> None:
    path, text, names = GIVEN[tool]
    world.environ["PATH"] = str(world.bin)
    world.tool(tool, "exit 1")
    world.write(path, text)
    world.resolve(tool)
    config = SandboxConfig(str(world.project))
    assert registry_variables(tool, world.environ, config=config) == dict.fromkeys(names, "https://a.example/simple")


def test_variables_of_the_user_name_registries(world: World) -> None:
    world.environ |= {
        "UV_DEFAULT_INDEX": "https://u:p@a.example/simple",
        "UV_INDEX": "x=https://b.example/",
        "PATH": str(world.bin),
    }
    assert world.resolve("uv") == (
        network("a.example:443", "UV_DEFAULT_INDEX"),
        network("b.example:443", "UV_INDEX"),
    )


@pytest.mark.parametrize(
    ("tool", "path", "text"),
    [
        ("npm", ".npmrc", "registry = https://a.example/\n"),
        ("npm", ".npmrc", "@team:registry=https://a.example/\n"),
        ("npm", "package-lock.json", '{"packages": {"x": {"resolved": "https://a.example/x.tgz"}}}'),
        ("npm", "package-lock.json", '{\n "packages": {\n  "x": {\n "version": "1",\n "resolved": "https://a.example/x.tgz"\n}}}'),
        ("yarn", "yarn.lock", 'x@1:\n  version "1"\n  resolved "https://a.example/x.tgz#123"\n'),
        ("yarn", ".yarnrc.yml", "npmRegistryServer: https://a.example\n"),
        ("pnpm", "pnpm-lock.yaml", "  resolution: {integrity: x, tarball: https://a.example/x.tgz}\n"),
        ("pip", ".venv/pip.conf", "[global]\nindex-url = https://a.example/simple\n"),
        ("pip", "requirements.txt", "--extra-index-url https://a.example/simple\nx\n"),
        ("pip", "requirements.txt", "-i https://a.example/simple\nx\n"),
        ("uv", "pyproject.toml", '[[tool.uv.index]]\nname = "x"\nurl = "https://a.example/simple"\n'),
        ("uv", "uv.lock", 'source = { registry = "https://a.example/simple" }\n'),
        ("poetry", "pyproject.toml", '[[tool.poetry.source]]\nname = "x"\nurl = "https://a.example/simple"\n'),
        ("cargo", ".cargo/config.toml", '[registries.x]\nindex = "sparse+https://a.example/"\n'),
        ("cargo", "Cargo.lock", 'source = "registry+https://a.example/index"\n'),
        ("bundle", "Gemfile", "source 'https://a.example'\ngem 'x'\n"),
        ("bundle", "Gemfile.lock", "GEM\n  remote: https://a.example/\n"),
        ("maven", "pom.xml", "<project><url>https://no.example</url><repositories><repository><id>x</id><url>https://a.example/m</url></repository></repositories></project>"),
        ("gradle", "build.gradle.kts", 'repositories { maven { url = uri("https://a.example/m") } }'),
        ("gradle", "build.gradle", "repositories { maven { url 'https://a.example/m' } }"),
    ],
)  # fmt: skip
def test_hosts_in_project_files_are_not_certain(world: World, tool: str, path: str, text: str) -> None:
    world.environ["PATH"] = str(world.bin)
    world.write(path, text)
    assert world.resolve(tool) == (network("a.example:443", path, certain=False),)


def test_a_configured_host_stays_certain_when_a_lock_file_names_it(world: World) -> None:
    world.tool("npm", "echo https://index.example/")
    lines = [f'"resolved": "https://{name}.example/x.tgz"' for name in ("index", "other")]
    world.write("package-lock.json", "\n".join(lines))
    assert world.resolve("npm") == (NPM, network("other.example:443", "package-lock.json", certain=False))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("uv.lock", "\n".join(f'url = "https://h{n}.example/x"' for n in range(50))),
        ("pyproject.toml", "x = " + "[" * 100_000),
        ("pyproject.toml", 'tool.uv.index-url = "https://a.example"\n#' + "x" * (1 << 20)),
        ("pyproject.toml", 'tool.uv.index-url = "https://a.example\\\\@b.example"'),
        ("pyproject.toml", 'tool.uv.index = "https://a.example"'),
        ("pyproject.toml", "tool.uv.index-url = 7"),
        ("uv.lock", "registry " * 100_000),
    ],
    ids=["50 hosts", "nested", "long", "backslash", "another type", "number", "repeated key"],
)
def test_hostile_project_files_name_nothing(world: World, path: str, text: str) -> None:
    world.environ["PATH"] = str(world.bin)
    world.write(path, text)
    assert world.resolve("uv") == ()


def test_links_out_of_the_project_are_not_followed(world: World) -> None:
    world.environ["PATH"] = str(world.bin)
    world.write("~/secret/uv.lock", 'registry = "https://a.example"')
    (world.project / "uv.lock").symlink_to(world.home / "secret/uv.lock")
    os.mkfifo(world.project / "uv.toml")
    assert world.resolve("uv") == ()
    (world.project / "uv.lock").unlink()
    shutil.copy(world.home / "secret/uv.lock", world.project)
    assert world.resolve("uv") == (network("a.example:443", "uv.lock", certain=False),)


# The probe

_CONNECTS = """
import os, sys, urllib.request
if "download" in sys.argv:
    open("probe-was-here", "w").close()
    for host in [*{hosts!r}, *(["leak.example"] if os.path.exists({project!r} + "/requirements.txt") else [])]:
        try:
            urllib.request.urlopen(f"https://{{host}}/simple/", timeout=20)
        except OSError:
            pass
"""


def probing_tool(world: World, monkeypatch: pytest.MonkeyPatch, hosts: list[str]) -> None:
    program = world.bin / "pip"
    program.write_text(f"#!{sys.executable}\n{_CONNECTS.format(hosts=hosts, project=str(world.project))}")
    program.chmod(0o755)
    # The sandbox shows the programs on the PATH of this process.
    monkeypatch.setenv("PATH", f"{world.bin}:{os.environ['PATH']}")
    world.config = SandboxConfig(project_root=str(world.project))


def test_a_silent_tool_is_watched_in_a_sandbox(world: World, held: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    probing_tool(world, monkeypatch, ["one.example", "two.example:8443"])
    world.write("requirements.txt", "-i https://three.example\n")
    assert world.resolve("pip") == (
        network("one.example:443", "seen when pip ran"),
        network("two.example:8443", "seen when pip ran"),
        network("three.example:443", "requirements.txt", certain=False),
    )
    assert [path.name for path in world.project.iterdir()] == ["requirements.txt"]


def test_programs_of_the_project_do_not_run_in_the_probe(
    world: World, held: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    probing_tool(world, monkeypatch, ["one.example"])
    # The tool looks its interpreter up on PATH, where the project comes first.
    tool = world.bin / "pip"
    (world.bin / "chosen").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    tool.write_text(tool.read_text().replace(f"#!{sys.executable}", "#!/usr/bin/env chosen"))
    attack = _CONNECTS.format(hosts=["attacker.example"], project="/nowhere")
    world.write("bin/chosen", f"#!{sys.executable}\n{attack}")
    for path in (world.bin / "chosen", world.project / "bin" / "chosen"):
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{world.project}/bin:{os.environ['PATH']}")
    world.environ["PATH"] = os.environ["PATH"]
    assert world.resolve("pip") == (network("one.example:443", "seen when pip ran"),)
    # The same directory on PATH is used where it is not in the project.
    elsewhere = world.project.parent / "elsewhere"
    elsewhere.mkdir()
    world.config = SandboxConfig(project_root=str(elsewhere))
    assert world.resolve("pip") == (network("attacker.example:443", "seen when pip ran"),)


def test_a_tool_that_tries_many_hosts_is_not_believed(
    world: World, held: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    probing_tool(world, monkeypatch, [f"h{n}.example" for n in range(5)])
    assert world.resolve("pip") == ()


def test_a_configured_tool_is_not_watched(world: World, held: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    probing_tool(world, monkeypatch, ["one.example"])
    world.write("~/.config/pip/pip.conf", "[global]\nindex-url = https://own.example/simple\n")
    assert world.resolve("pip") == (network("own.example:443", "~/.config/pip/pip.conf"),)


# The tools themselves

REAL_TOOLS = ["pip", "npm", "go", "cargo", "uv", "gem", "mvn"]


def works(tool: str) -> bool:
    found = shutil.which(tool)
    return found is not None and subprocess.run([found, "--version" if tool != "go" else "version"], capture_output=True, check=False).returncode == 0  # fmt: skip


@pytest.mark.real
def test_real_tools_have_a_configured_host(project: Path, open_sandbox: Callable[..., Sandbox]) -> None:
    if open_sandbox().run(["true"]).enforcement != "full":
        must_hold()
    config = SandboxConfig(project_root=str(project))
    installed = [tool for tool in REAL_TOOLS if works(tool)]
    assert {"pip", "npm"} <= set(installed)
    found = {tool: resolve(tool, "", os.environ, config=config, limits=PATIENT) for tool in installed}
    outcomes = {tool: {(grant.target.endswith(":443"), grant.certain) for grant in found[tool]} for tool in installed}
    assert outcomes == {tool: {(True, True)} for tool in installed}


INDEX = "index.example"


def test_call_with_a_package_index_may_send_little(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.tool("gem", f"echo 'https://{INDEX}/'")
    world.write("~/.gemrc", f":sources:\n- https://{INDEX}/\n")
    for name, value in world.environ.items():
        monkeypatch.setenv(name, value)
    config = world.config.replace(containment=Containment())
    registry, other = Grant("registry", "gem", "in the call"), Grant("network", "api.example:443", "in the call")
    opened = [open_grants(config, grants).config.containment for grants in ((registry,), (registry, other), (other,))]
    assert [each.sent_bytes for each in opened] == [SENT_BYTES, None, None]
    assert f"{INDEX}:443" in opened[0].destinations
    granted = config.replace(containment=Containment(network=("own.example:443",)))
    assert open_grants(granted, (registry,)).config.containment.sent_bytes is None
