"""The whole path of a grant through each host's hook: refused with a line for the user, allowed in a terminal, rewritten, run.

The envelopes are in golden/HOST.json, in the cases whose names begin with "grant".
"""

import http.server
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from granting import LINE, PUSH, GrantingUser, granting_user
from hosting import answering

from corral.integrations.hooks.registry import HOSTS

REWRITING = [name for name in HOSTS if name != "cursor"]
GOLDEN = Path(__file__).parent / "golden"
ENVELOPES = {host: json.loads((GOLDEN / f"{host}.json").read_text())["cases"] for host in HOSTS}


@pytest.fixture
def user() -> Iterator[GrantingUser]:
    with granting_user() as made:
        yield made


@pytest.mark.parametrize("host", REWRITING)
def test_push_is_refused_allowed_retried_and_pushed_once(host: str, user: GrantingUser) -> None:
    text, status = user.allow(user.refused(PUSH, host))
    assert (str(user.remote) in text.replace("\n", ""), status) == (True, 0)
    reply = user.ask(host, PUSH)
    assert (reply.decision, user.pushed()) == ("allow", False)
    done = user.run(reply.command)
    assert (done.returncode, user.pushed()) == (0, True), done
    user.refused(PUSH, host)  # once is once


def test_cursor_cannot_rewrite_so_nothing_is_offered(user: GrantingUser) -> None:
    reply = user.ask("cursor", PUSH)
    assert (reply.decision, LINE.search(reply.reason)) == ("deny", None)


def test_another_text_is_not_what_was_allowed(user: GrantingUser) -> None:
    assert user.allow(user.refused(PUSH))[1] == 0
    user.refused(f"{PUSH} ")
    assert user.ask("claude", PUSH).decision == "allow"


def test_destination_is_allowed_for_other_texts(user: GrantingUser) -> None:
    assert user.allow(user.refused("git push"), b"d\r")[1] == 0
    user.git("-C", str(user.root), "add", "-A")
    user.git("-C", str(user.root), "commit", "-qm", "x")
    done = user.run(user.ask("claude", "git push origin fix").command)
    assert (done.returncode, user.pushed()) == (0, True), done
    user.refused("git push origin fix:refs/heads/other")
    # What runs beside it can push the same branch to the same place, and nothing else.
    user.refused("git push; curl https://index.example/")


def test_default_branch_needs_the_word(user: GrantingUser) -> None:
    assert user.allow(user.refused("git push origin fix:main"), b"o\r")[1] == 1
    user.run(user.corral_text("grants", "revoke", "--all"))
    assert user.allow(user.refused("git push origin fix:main"), b"push\r")[1] == 0


def test_fetch_from_a_configured_remote_is_not_asked_about(user: GrantingUser) -> None:
    other = user.home / "other"
    user.git("clone", "-q", str(user.remote), str(other))
    user.git("-C", str(other), "commit", "-qm", "second", "--allow-empty")
    user.git("-C", str(other), "push", "-q")
    done = user.run(user.ask("claude", "git fetch && git log -1 --format=%s origin/main").command)
    assert (done.returncode, done.stdout) == (0, "second\n"), done


def test_request_reaches_the_allowed_host_and_no_other(user: GrantingUser) -> None:
    user.policy('[containment]\nhosts = ["own.example=127.0.0.1", "other.example=127.0.0.1"]\n')
    with answering() as port:
        url = f"http://own.example:{port}/x"
        text = f"curl -sS {url}; curl -sS -m 5 {url.replace('own', 'other')}"
        assert user.allow(user.refused(f"curl -sS {url}"))[1] == 0
        done = user.run(user.ask("claude", f"curl -sS {url}").command)
        assert (done.returncode, done.stdout) == (0, "answered"), done
        question, _ = user.allow(user.refused(text), b"\r")
        assert f"own.example:{port}" in question
        assert f"other.example:{port}" in question


def test_sibling_directory_is_readable_for_one_call(user: GrantingUser) -> None:
    (user.home / "sibling").mkdir()
    for name in ("x", "y"):
        (user.home / "sibling" / name).write_text(f"text of {name}\n")
    text = "cat ../sibling/x; cat ../sib*/y"
    assert user.ask("claude", text).decision == "deny"
    assert user.allow(user.refused("cat ../sibling/x"))[1] == 0
    done = user.run(user.ask("claude", "cat ../sibling/x").command)
    assert (done.returncode, done.stdout) == (0, "text of x\n"), done
    user.refused("cat ../sibling/x")


@contextmanager
def package_index() -> Iterator[int]:
    """Run an index of one Python package on loopback, and yield its port."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as wheel:
        wheel.writestr("tiny.py", "X = 1\n")
        wheel.writestr("tiny-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n")
        wheel.writestr("tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.dist-info/RECORD", "")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = b'<a href="/files/tiny-1-py3-none-any.whl">tiny-1</a>'
            body = data.getvalue() if self.path.endswith(".whl") else page
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def test_install_uses_the_index_of_the_users_configuration(user: GrantingUser) -> None:
    """The sandbox does not show ~/.config/pip/pip.conf, so corral tells pip the address."""
    user.policy('[containment]\nhosts = ["index.example=127.0.0.1"]\n')
    text = "pip install --target deps tiny"
    with package_index() as port:
        settings = user.home / ".config" / "pip" / "pip.conf"
        settings.parent.mkdir(parents=True)
        settings.write_text(f"[global]\nindex-url = http://index.example:{port}/simple\ntrusted-host = index.example\n")
        question, status = user.allow(user.refused(text))
        assert (f"index.example:{port}" in question, status) == (True, 0)
        done = user.run(user.ask("claude", text).command)
    assert (done.returncode, (user.root / "deps" / "tiny.py").exists()) == (0, True), done


def test_pinned_install_is_not_asked_about(user: GrantingUser) -> None:
    assert user.ask("claude", "npm ci").decision == "allow"
    user.refused("npm install left-pad")


def asked(host: str) -> dict[str, str]:
    """Return the golden decision of each case with a grant."""
    found = {}
    for name, case in ENVELOPES[host].items():
        if name.startswith("grant"):
            body = case["stdout"] or {}
            body = body.get("hookSpecificOutput", body)
            keys = ("permissionDecision", "decision", "permission")
            found[name] = next((body[key] for key in keys if key in body), "allow")
    return found


@pytest.mark.parametrize("host", HOSTS)
def test_host_asks_about_grants_only_where_its_user_agreed(host: str) -> None:
    expected = {
        "claude": {"grant, opted in", "grant, opted in, acceptEdits", "grant, opted in, plan"},
        "copilot": {"grant, opted in"},
    }
    assert {name for name, said in asked(host).items() if said == "ask"} == expected.get(host, set())


@pytest.mark.parametrize("host", HOSTS)
def test_refused_grant_names_its_line_where_a_yes_can_work(host: str) -> None:
    lines = {name for name, case in ENVELOPES[host].items() if "corral allow ID" in case["stderr"]}
    denied = {name for name, said in asked(host).items() if said == "deny" and name != "grant, locked"}
    assert {name for name in lines if name.startswith("grant")} == (denied if host in REWRITING else set())


def test_yes_in_the_hosts_prompt_pushes_once(user: GrantingUser) -> None:
    user.policy('host_questions = ["claude"]\n')
    reply = user.ask("claude", PUSH, permission_mode="default")
    assert reply.decision == "ask"
    assert user.run(reply.command).returncode == 0
    assert user.pushed()
    (user.root / "more.txt").write_text("x")
    # A host's own "always allow" repeats the rewritten text, which is good for one run.
    assert user.run(reply.command).returncode == 125
