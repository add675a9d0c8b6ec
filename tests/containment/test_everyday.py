"""Tests that everyday work succeeds under containment: building, testing, committing, serving on loopback."""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from observe import eventually

from corral import Containment, Sandbox, SandboxConfig, SandboxResult

PYTHON = sys._base_executable


def well(result: SandboxResult) -> bytes:
    """Run a command that must succeed under full containment, and return its output."""
    assert (result.enforcement, result.exit_code, result.violations) == ("full", 0, ()), result.stderr_text
    return result.stdout


def need(name: str) -> None:
    """Skip the test if a program is not installed for this user."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")


def test_git_clone_build_and_commit_work(held: Sandbox, project: Path) -> None:
    need("git")
    done = held.run(
        "cd /tmp && git init -q a && cd a && echo 1 > f && git add f && git -c user.name=n -c user.email=e@x commit -qm one && git clone -q /tmp/a /tmp/b && git -C /tmp/b log --format=%s",
        shell=True,
    )
    assert well(done) == b"one\n"


def test_parallel_make_compiles_c(held: Sandbox, project: Path) -> None:
    need("gcc")
    need("make")
    for name in "ab":
        (project / f"{name}.c").write_text(f"int {name}(void) {{ return 1; }}\n")
    (project / "main.c").write_text(
        '#include <stdio.h>\nint a(void), b(void);\nint main(void) { printf("%d\\n", a() + b()); }\n'
    )
    (project / "Makefile").write_text("prog: a.o b.o main.o\n\t$(CC) -o $@ $^\n")
    well(held.run(["make", "-j2", "-s"], timeout_seconds=60))
    assert well(held.run(["./prog"])) == b"2\n"


SUITE = """
import http.server, multiprocessing, os, sqlite3, tempfile, threading, unittest, urllib.request

def double(number):
    return number * 2

class Test(unittest.TestCase):
    def test_server(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with urllib.request.urlopen(f"http://localhost:{server.server_port}/suite.py") as page:
            self.assertIn(b"SimpleHTTP", page.read())
        server.shutdown()
        server.server_close()
    def test_processes(self):
        with multiprocessing.Pool(2) as pool:
            self.assertEqual(pool.map(double, [1, 2]), [2, 4])
        with multiprocessing.Manager() as manager:
            self.assertEqual(list(manager.list([1])), [1])
        self.assertEqual(multiprocessing.Value("i", 3).value, 3)
    def test_database(self):
        with sqlite3.connect("data.db") as database:
            database.execute("pragma journal_mode=wal")
            database.execute("create table t (x)")
            database.execute("insert into t values (1)")
        database.close()
    def test_temporary_files(self):
        with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"x")
    def test_terminal(self):
        ours, theirs = os.openpty()
        os.write(theirs, b"x")
        self.assertEqual(os.read(ours, 1), b"x")
        self.assertTrue(os.ttyname(theirs).startswith("/dev/pts/"))

if __name__ == "__main__":
    unittest.main()
"""


def test_suite_with_server_processes_and_database_passes(held: Sandbox, project: Path) -> None:
    (project / "suite.py").write_text(SUITE)
    result = held.run([PYTHON, "suite.py"], timeout_seconds=60)
    assert (result.exit_code, result.stderr.rstrip().rpartition(b"\n")[2]) == (0, b"OK"), result.stderr_text


def test_pytest_runs(held: Sandbox, project: Path) -> None:
    if subprocess.run([sys.executable, "-c", "import pytest"], check=False, env={}, capture_output=True).returncode:
        pytest.skip("pytest is only on this process's own path")
    (project / "test_it.py").write_text("def test_it(tmp_path):\n    (tmp_path / 'x').write_text('')\n")
    assert b"1 passed" in well(held.run([sys.executable, "-m", "pytest", "-q"], timeout_seconds=60))


def test_local_wheel_is_installed_into_a_venv(held: Sandbox, project: Path) -> None:
    if subprocess.run([PYTHON, "-c", "import ensurepip, pip"], check=False, capture_output=True).returncode:
        pytest.skip("this interpreter has no pip")
    with zipfile.ZipFile(project / "given-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("given.py", "print('installed')\n")
        about = "given-1.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: given\nVersion: 1\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    made = held.run([PYTHON, "-m", "venv", "--without-pip", "env"], timeout_seconds=60)
    well(made)
    install = [
        PYTHON,
        "-m",
        "pip",
        "--python",
        "env/bin/python",
        "install",
        "--no-index",
        "-q",
        "given-1-py3-none-any.whl",
    ]
    done = held.run(install, timeout_seconds=100)
    assert done.exit_code == 0, done.stderr_text
    assert well(held.run(["env/bin/python", "-m", "given"])) == b"installed\n"


def test_npm_test_runs(held: Sandbox, project: Path) -> None:
    need("npm")
    (project / "package.json").write_text('{"name": "x", "version": "1.0.0", "scripts": {"test": "node t.js"}}')
    (project / "t.js").write_text(
        "const {Worker, isMainThread} = require('worker_threads');\nif (isMainThread) new Worker(__filename).on('exit', c => console.log('tested', c));\n"
    )
    assert b"tested 0" in well(held.run(["npm", "test", "--silent"], timeout_seconds=60))


def test_debugger_traces_its_child(held: Sandbox) -> None:
    need("strace")
    assert b"execve" in held.run(["strace", "-f", "true"]).stderr


def test_background_server_lasts_until_the_sandbox_ends(held: Sandbox, project: Path) -> None:
    (project / "page").write_text("served")
    server = held.start([PYTHON, "-m", "http.server", "8000", "--bind", "127.0.0.1"], timeout_seconds=60)
    fetch = "import urllib.request\nprint(urllib.request.urlopen('http://127.0.0.1:8000/page').read().decode())\n"
    (project / "fetch.py").write_text(fetch)
    eventually(lambda: held.run([PYTHON, "fetch.py"]).stdout == b"served\n")
    held.close()
    assert server.wait().exit_code == 137


def test_program_on_a_terminal_can_be_used(held: Sandbox) -> None:
    session = held.start([PYTHON, "-i", "-q"], pty=True, env={"TERM": "dumb"}, timeout_seconds=60)
    said = b""
    for _, data in session:
        said += data
        if said.endswith(b">>> ") and b"6 * 7" not in said:
            session.write_stdin(b"6 * 7\n")
        elif said.endswith(b"42\r\n>>> "):
            session.close_stdin()
    assert well(session.wait()).replace(b"\r", b"").startswith(b">>> 6 * 7\n42\n>>> ")


def test_parallel_commands_share_scratch_but_not_processes(held: Sandbox) -> None:
    # In a new directory, since the interpreter may lie below /tmp and be shown there.
    assert well(held.run(["mkdir", "/tmp/shared"])) == b""
    text = "echo {0} > /tmp/shared/n{0}; ls /proc > /tmp/shared/list{0}; grep -c '^[0-9]' /tmp/shared/list{0}"
    started = [held.start(text.format(n), shell=True) for n in range(8)]
    # The shell and `ls`.
    assert {handle.wait().stdout for handle in started} == {b"2\n"}
    assert well(held.run("cat /tmp/shared/n*", shell=True)).split() == [str(n).encode() for n in range(8)]


def test_network_of_the_host_is_there_when_granted(
    open_sandbox: Callable[..., Sandbox], servers: dict[str, int], project: Path
) -> None:

    (project / "connect.py").write_text(
        f"import socket\nsocket.create_connection(('127.0.0.1', {servers['tcp']}), 20)\nprint('connected')\n"
    )
    held = open_sandbox(containment=Containment(network="on"))
    done = held.run([PYTHON, "connect.py"])
    assert well(done) == b"connected\n"
    assert (done.enforcement, done.missing_layers, done.network) == ("full", (), "on")


@pytest.mark.parametrize(("network", "word"), [("off", "off"), (["index.example:443"], "named"), ("on", "on")])
def test_result_says_which_network_was_granted(
    open_sandbox: Callable[..., Sandbox], network: str | list[str], word: str
) -> None:
    held = open_sandbox(containment=Containment(network=network))
    calls = (["true"], ["sudo", "true"], ["no-such-program"])
    assert [held.run(call).to_dict()["network"] for call in calls] == [word] * 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs projects of other users")
def test_root_works_in_a_project_of_another_user(held: Sandbox, project: Path) -> None:
    (project / "theirs").mkdir(mode=0o700)
    (project / "theirs" / "file").write_text("1")
    for path in (project / "theirs" / "file", project / "theirs"):
        os.chown(path, 1234, 1234)
    assert well(held.run("cat theirs/file && echo 2 > theirs/new && chown 1234 theirs/new", shell=True)) == b"1"
    assert (project / "theirs" / "new").stat().st_uid == 1234


@pytest.mark.parametrize("place", ["/var/tmp", "/tmp", "/opt"])
def test_project_can_lie_anywhere(place: str) -> None:
    try:
        root = tempfile.mkdtemp(dir=place)
    except OSError:
        pytest.skip(f"{place} cannot be written")
    try:
        with Sandbox(SandboxConfig(root, profile="workspace")) as box:
            assert well(box.run("echo x > f && cat f && pwd", shell=True)) == f"x\n{root}\n".encode()
    finally:
        shutil.rmtree(root)


def test_project_in_shared_memory_is_not_cleaned_up(open_sandbox: Callable[..., Sandbox]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        (Path(folder) / "kept").write_text("1")
        held = open_sandbox(project_root=folder)
        for _ in range(2):
            assert well(held.run("cat kept; mkdir -p /dev/shm/a/b; chmod 0 /dev/shm/a", shell=True)) == b"1"
        assert [path.name for path in Path(folder).iterdir()] == ["kept"]
