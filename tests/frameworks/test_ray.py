"""Tests of the Ray engine on a cluster of several local nodes, with nodes and workers that are killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corral import Containment, Sandbox, SandboxConfig, SandboxResult
from corral.apps.evals.journal import Journal, place
from corral.apps.evals.run_suite import evaluate
from corral.apps.evals.run_task import Trials
from corral.apps.evals.task import Task
from corral.apps.evals.task_loader import FIXTURES, load
from corral.integrations.ray import Ray
from corral.model.errors import CorralError

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from observe import alive, children, eventually, exist, unique_seconds

ray = pytest.importorskip("ray", reason="Ray is not installed; make test-frameworks has it")

DEADLINE_SECONDS = 200
HEAD_ROOM, NODE_ROOM = 1, 2
TASKS = int(os.environ.get("CORRAL_EVAL_TASKS", "100"))


class Cluster:
    """Ray nodes, each on its own loopback address. Tests never kill the head node."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as Nodes

        self._count = 2
        self.nodes = Nodes(initialize_head=True, head_node_args=self._about(HEAD_ROOM))
        self.others = [self.add(), self.add()]
        self.nodes.wait_for_nodes()

    def _about(self, room: int) -> dict[str, Any]:
        self._count += 1
        about = {"num_cpus": 1, "resources": {"corral": room}, "object_store_memory": 100_000_000}
        return about | {"node_ip_address": f"127.0.0.{self._count}", "include_dashboard": False}

    def add(self) -> Any:
        return self.nodes.add_node(**self._about(NODE_ROOM))

    def kill_one(self) -> None:
        self.nodes.remove_node(self.others.pop(), allow_graceful=False)

    def is_at_work(self) -> bool:
        """Return whether a command runs on the node that `kill_one` kills. Under load, nodes start at different times."""
        (raylet,) = self.others[-1].all_processes["raylet"]
        pending = [raylet.process.pid]
        while pending:
            pid = pending.pop()
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text() == "sleep\n":
                    return True
            pending += children(pid)
        return False

    @property
    def room(self) -> int:
        return HEAD_ROOM + NODE_ROOM * len(self.others)


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    # With pytest-xdist, the paths of tmp_path are too long for Ray's sockets.
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="corral-ray-") as room:
        for name, value in {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "TMPDIR": room}.items():
            patch.setenv(name, value)
        patch.setattr(tempfile, "tempdir", None)
        patch.delenv("RAY_ADDRESS", raising=False)
        cluster = Cluster()
        ray.init(address=cluster.nodes.address, log_to_driver=False)
        yield cluster
        ray.shutdown()
        cluster.nodes.shutdown()


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """A cluster with all its nodes. Waits until the test has left no actor."""
    while len(running.others) < 2:
        running.others.append(running.add())
    running.nodes.wait_for_nodes()
    eventually(lambda: ray.available_resources().get("corral") == running.room)
    yield running
    eventually(lambda: ray.available_resources().get("corral") == running.room)


@pytest.fixture
def box(project: Path) -> Iterator[Sandbox]:
    (project / "notes.txt").write_text("pears\n")
    with Sandbox(SandboxConfig(project)) as made:
        yield made


def timeless(result: SandboxResult) -> dict[str, Any]:
    return {n: getattr(result, n) for n in result._fields if n not in ("id", "started_at", "duration_ms", "usage")}


def kinds(result: SandboxResult) -> list[str]:
    return [violation.kind for violation in result.violations]


def copies() -> set[str]:
    """Return the names of the project copies on the nodes."""
    return {path.name for path in Path(tempfile.gettempdir()).glob("corral-project-*")}


def test_results_equal_local_results(cluster: Cluster, box: Sandbox, project: Path) -> None:
    calls: list[object] = [
        ["cat", "notes.txt"],
        {"shell": "echo $A | cat; exit 3", "env": {"A": "b"}},
        {"argv": ["cat"], "stdin": b"\xff\0"},
        ["rm", "-rf", "."],
        ["no-such-program"],
        {"argv": ["sleep", "60"], "timeout_seconds": 0.2},
        {"shell": "seq 100000"},
    ]
    here = list(box.map(calls, workers=2))
    there = list(box.map(calls, engine="ray"))
    assert [timeless(result) for result in there] == [timeless(result) for result in here]
    assert {result.enforcement for result in there} == {result.enforcement for result in here}


def test_project_is_copied_and_changes_stay_on_the_node(cluster: Cluster, box: Sandbox, project: Path) -> None:
    (project / "bin").mkdir()
    (project / "bin/tool").write_text("#!/bin/sh\necho tool\n")
    (project / "bin/tool").chmod(0o755)
    (project / "way").symlink_to("notes.txt")
    (first, second) = box.map([["bin/tool"], {"shell": "echo new > notes.txt; cat way"}], workers=1, engine="ray")
    assert (first.stdout, second.stdout) == (b"tool\n", b"new\n")
    assert (project / "notes.txt").read_text() == "pears\n"


def test_work_is_sent_once_for_all_workers(cluster: Cluster) -> None:
    class Counted(Trials):
        sent = 0

        def __reduce__(self) -> Any:
            Counted.sent += 1
            return super().__reduce__()

    hired = Ray().hire(Counted("/nowhere"), None)
    for worker in hired:
        worker.ready()
    assert (Counted.sent, len(hired)) == (1, cluster.room)
    for worker in hired:
        worker.close()


def test_nodes_run_at_most_their_capacity_at_a_time(cluster: Cluster, box: Sandbox) -> None:
    with box.map([["true"]] * 200, workers=50, engine="ray") as results:
        next(results)
        eventually(lambda: ray.available_resources().get("corral", 0) == 0)
        assert len(results._stream._workers) == cluster.room  # type: ignore[attr-defined]
        assert sum(result.ok for result in results) == 199


def test_results_come_in_call_order_or_completion_order(cluster: Cluster, box: Sandbox) -> None:
    calls = [["echo", str(n)] for n in range(100)]
    assert [r.stdout for r in box.map(calls, engine="ray")] == [f"{n}\n".encode() for n in range(100)]
    found = dict(box.map(calls, engine="ray", ordered=False).numbered())
    assert {number: result.stdout for number, result in found.items()} == {n: f"{n}\n".encode() for n in range(100)}


def test_result_does_not_wait_for_the_next_call(cluster: Cluster, box: Sandbox) -> None:
    gate = threading.Semaphore(0)

    def calls() -> Iterator[list[str]]:
        for number in range(40):
            gate.acquire()
            yield ["echo", str(number)]

    with box.map(calls(), workers=1, engine="ray") as results:
        for number in range(40):
            gate.release()
            assert next(results).stdout_text == f"{number}\n"


def test_close_kills_running_commands(cluster: Cluster, box: Sandbox) -> None:
    seconds = unique_seconds()
    before = copies()
    results = box.map([{"argv": ["sleep", seconds], "timeout_seconds": 300}] * 20, engine="ray")
    eventually(lambda: len(alive(seconds)) == cluster.room)
    assert len(copies() - before) == cluster.room
    results.close()
    assert (alive(seconds), copies() - before) == ([], set())


def test_killed_worker_ends_its_commands_and_is_replaced(cluster: Cluster, box: Sandbox) -> None:
    seconds = unique_seconds()
    calls: list[object] = [
        {"argv": ["sleep", seconds], "timeout_seconds": 300},
        *[["echo", str(n)] for n in range(20)],
    ]
    results = box.map(calls, workers=1, engine="ray")
    stream = results._stream
    post = stream._worker  # type: ignore[attr-defined]
    victim = post._got(post._ask("begin"))
    killer = threading.Thread(target=lambda: (eventually(lambda: alive(seconds)), os.kill(victim, signal.SIGKILL)))
    killer.start()
    first = next(results)
    killer.join()
    assert (first.exit_code, kinds(first)) == (137, ["worker-lost"])
    eventually(lambda: alive(seconds) == [])
    assert [result.stdout for result in results] == [f"{n}\n".encode() for n in range(20)]


def test_killed_node_loses_only_its_own_commands(cluster: Cluster, box: Sandbox) -> None:
    # Slower than one chunk of calls, and long enough to keep one node busy until the other starts.
    calls = [{"shell": f"sleep 1; echo {n}"} for n in range(40)]
    results = box.map(calls, engine="ray")
    found = [next(results)]
    eventually(cluster.is_at_work)
    cluster.kill_one()
    found += results
    lost = [number for number, result in enumerate(found) if kinds(result) == ["worker-lost"]]
    kept = [n for n in range(40) if n not in lost]
    assert [found[n].stdout for n in kept] == [f"{n}\n".encode() for n in kept]
    assert (len(found), 1 <= len(lost) <= NODE_ROOM) == (40, True)


def test_repeatable_calls_survive_a_killed_node(cluster: Cluster, box: Sandbox) -> None:
    calls = [{"shell": f"sleep 0.1; echo {n}"} for n in range(80)]
    results = box.map(calls, engine="ray", idempotent=True)
    found = [next(results)]
    cluster.kill_one()
    found += results
    assert [result.stdout for result in found] == [f"{n}\n".encode() for n in range(80)]


def entries(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the journal entries by task, without times."""
    found = {}
    for line in Path(place(str(folder), os.environ)).read_text().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            # A kill can leave an incomplete last line.
            continue
        if entry["event"] == "task":
            assert entry["id"] not in found
            calls = [{k: v for k, v in call.items() if k != "duration_ms"} for call in entry["calls"]]
            found[entry["id"]] = entry | {"duration_ms": 0, "calls": calls}
    return found


def journalled(folder: Path, tasks: list[Task], engine: str) -> dict[str, dict[str, Any]]:
    with Journal(str(folder)) as journal:
        for _ in evaluate(tasks, journal, engine=engine):
            pass
    return entries(folder)


def test_eval_journal_equals_the_local_journal(cluster: Cluster, tmp_path: Path) -> None:
    tasks = load([FIXTURES])
    here = journalled(tmp_path / "here", tasks, "local")
    there = journalled(tmp_path / "there", tasks, "ray")
    assert there == here
    assert {entry["status"] for entry in there.values()} == {"passed"}


def test_killed_node_neither_loses_nor_repeats_a_task(cluster: Cluster, tmp_path: Path) -> None:
    tasks = [
        Task(f"t{n}", {"id": f"t{n}", "shell": f"sleep 0.05; echo {n}", "expect": {"stdout": f"{n}\n"}})
        for n in range(TASKS)
    ]
    with Journal(str(tmp_path)) as journal:
        outcomes = evaluate(tasks, journal, engine="ray")
        done = [next(outcomes).id for _ in range(TASKS // 3)]
        cluster.kill_one()
        done += [outcome.id for outcome in outcomes]
    assert sorted(done) == sorted(task.id for task in tasks)
    assert {entry["status"] for entry in entries(tmp_path).values()} == {"passed"}


def test_worker_start_error_is_reported(cluster: Cluster, project: Path) -> None:
    grant = project.parent / "grant"
    grant.mkdir()
    with Sandbox(SandboxConfig(project, containment=Containment(read=(str(grant),)))) as box:
        # The same happens on a node without this directory.
        grant.rmdir()
        with pytest.raises(CorralError, match=str(grant)):
            list(box.map([["ls"]], engine="ray"))


def in_the_cluster(cluster: Cluster, folder: Path, *words: str) -> dict[str, Any]:
    """Return the arguments of subprocess.run that run `corral` on the cluster."""
    args = [sys.executable, "-m", "corral", *words, "--engine", "ray"]
    return {"args": args, "cwd": folder, "env": dict(os.environ) | {"RAY_ADDRESS": cluster.nodes.address}}


def test_batch_lines_run_on_the_cluster_and_are_logged_locally(cluster: Cluster, box: Sandbox, project: Path) -> None:
    lines = [{"id": n, "argv": ["cat", "notes.txt"]} for n in range(20)]
    text = "".join(json.dumps(line) + "\n" for line in (*lines, {"id": "x"}, {"id": "y", "argv": ["sudo", "ls"]}))
    done = subprocess.run(
        **in_the_cluster(cluster, project, "batch"),
        input=text,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["id"] for answer in answers] == [*range(20), "x", "y"], done.stderr
    assert {answer["result"]["stdout"] for answer in answers[:20]} == {"pears\n"}
    assert {answer["result"]["cwd"] for answer in answers[:20]} == {str(project)}
    assert (answers[20]["error"], answers[21]["result"]["denied"]) == ("argv or shell is missing", True)
    logged = subprocess.run(
        [sys.executable, "-m", "corral", "log", "--json"], cwd=project, capture_output=True, text=True, check=True
    )
    assert logged.stdout.count('"notes.txt"') >= 20


def test_command_line_resumes_on_the_cluster_after_a_kill(cluster: Cluster, tmp_path: Path) -> None:
    tasks = [{"id": f"t{n}", "shell": f"sleep 0.05; echo {n}", "expect": {"stdout": f"{n}\n"}} for n in range(60)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    journal = Path(place(str(tmp_path / "corral-eval"), os.environ))
    with subprocess.Popen(
        **in_the_cluster(cluster, tmp_path, "eval", "tasks.jsonl"), stderr=subprocess.PIPE
    ) as process:
        while not journal.exists() or journal.read_bytes().count(b"\n") <= 30:
            assert process.poll() is None
        process.kill()
    first = entries(tmp_path / "corral-eval")
    # Its processes end with it.
    eventually(lambda: ray.available_resources().get("corral") == cluster.room)
    done = subprocess.run(
        **in_the_cluster(cluster, tmp_path, "eval", "tasks.jsonl"),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("✓ 60 passed  of 60")
    assert f"{len(first)} of 60 tasks are done" in done.stderr
    assert {*entries(tmp_path / "corral-eval")} == {task["id"] for task in tasks}


OWN = """
import sys
from corral import Sandbox, SandboxConfig

with Sandbox(SandboxConfig(sys.argv[1])) as box, box.map([["echo", "x"]] * 3, engine="ray") as results:
    print(next(results).stdout_text, end="", flush=True)
    sys.stdin.read()
    print(sum(result.ok for result in results))
"""


def below(process: int) -> set[int]:
    """Return the pids of all descendants of a process."""
    started = {*children(process)}
    return started.union(*map(below, started))


def listening(processes: set[int]) -> set[str]:
    """Return the addresses on which processes listen, in the format of /proc/net/tcp."""
    inodes = set()
    for process in processes:
        links: list[Path] = []
        # The process may have exited.
        with contextlib.suppress(FileNotFoundError):
            links += Path(f"/proc/{process}/fd").iterdir()
        for link in links:
            with contextlib.suppress(FileNotFoundError):
                inodes.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


def test_own_cluster_listens_on_loopback_and_ends_with_it(project: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with subprocess.Popen(
        [sys.executable, "-c", OWN, str(project)], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "x\n"
        started = below(process.pid)
        assert listening(started) == {"0100007F", "0000000000000000FFFF00000100007F"}
        assert process.communicate("", DEADLINE_SECONDS) == ("2\n", None)
    eventually(lambda: not exist(*started))
