"""Runs the attacks where the kernel makes no namespaces, as in a container with the default profile: which are stopped, undone, or work."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from attack_bodies import AS_ROOT, FILES, KERNEL, PROCESSES, SERVERS, WARDEN, WARDEN_AS_ROOT, file_facts
from attack_tiers import CROSSING, KEPT, LOST, NOT_STOPPED, ON_THE_PROJECT, REFUSED_TO_ROOT, REFUSED_TO_USERS, UNDONE
from attempt import attempt, must_hold
from machines import IN_DOCKER, run_corral_without, run_in_container

from corral import Sandbox
from corral.containment.kernel import landlock

GROUPS = {
    "files": FILES,
    "processes": PROCESSES,
    "servers": SERVERS,
    "kernel": KERNEL,
    "root": AS_ROOT,
    "warden": WARDEN,
    "warden of root": WARDEN_AS_ROOT,
}
PARTIAL = ["user", "mount", "pid", "proc", "net", "ipc", "uts", "cgroup"]
DRIVER = """
import json
from attempt import attempt
from corral import Containment, Sandbox, SandboxConfig
project, bodies, facts = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
containment = Containment(backend="warden", accept_partial=True)
outcomes = {}
with Sandbox(SandboxConfig(project, profile="workspace", containment=containment)) as box:
    first = box.run(["true"])
    for name, body in bodies.items():
        outcomes[name] = attempt(box, body, **facts)
print(json.dumps([first.enforcement, first.missing_layers, outcomes]))
"""
COMMANDS = """
import json
from corral import Containment, Sandbox, SandboxConfig
project, texts = sys.argv[1], sys.argv[2:]
containment = Containment(backend="warden", accept_partial=True)
with Sandbox(SandboxConfig(project, profile="workspace", containment=containment)) as box:
    for text in texts:
        result = box.run(text, shell=True)
        print(json.dumps([result.exit_code, result.stdout_text, result.stderr_text, [v.text for v in result.violations], result.killed]))
"""


@pytest.fixture(autouse=True)
def _with_landlock() -> None:
    if landlock.version() < 6:
        must_hold()


def attack_in_container(project: Path, bodies: dict[str, str], **facts: object) -> dict[str, str]:
    """Run attacks without namespaces, and return their outcomes."""
    done = run_in_container(DRIVER, str(project), json.dumps(bodies), json.dumps(facts))
    assert (done.returncode, done.stderr) == (0, "")
    enforcement, missing, outcomes = json.loads(done.stdout)
    assert (enforcement, missing) == ("partial", PARTIAL)
    assert set(outcomes) == set(bodies)
    return dict(outcomes)


def run_commands(project: Path, *texts: str) -> list[Any]:
    """Run shell text without namespaces, and return exit code, stdout, stderr, violations and killed processes of each."""
    done = run_in_container(COMMANDS, str(project), *texts)
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("group", GROUPS)
def test_attacks_without_namespaces(
    group: str, project: Path, outside: Path, servers: dict[str, Any], sleeper: int
) -> None:
    facts = {**file_facts(outside), **servers, "pid": sleeper}
    outcomes = attack_in_container(project, GROUPS[group], **facts)
    worked = {name for name, outcome in outcomes.items() if not outcome.startswith("held")}
    known = set(NOT_STOPPED.get(group, ()))
    assert worked - known == set()
    assert known - worked <= (REFUSED_TO_ROOT if os.geteuid() == 0 else REFUSED_TO_USERS)


@pytest.fixture
def git_project(project: Path) -> Path:
    """A project with a repository, another below it, a `.git` file, and protected files."""
    make = """
git init -q . && mkdir -p .git/hooks sub/inner module && git init -q nested && echo export A=1 | tee .envrc > sub/inner/.envrc
echo f > sub/f && echo t > top && echo 'gitdir: ../.git/modules/module' > module/.git
git add sub top && git -c user.name=A -c user.email=a@example.com commit -qm first
git config user.name A && git config user.email a@example.com
"""
    subprocess.run(["sh", "-e", "-c", make], cwd=project, check=True)
    return project


def files_of(project: Path) -> dict[str, tuple[bytes, int]]:
    """Return the files of a project with their contents, or the targets of links, and their modes."""
    found = [path for path in project.rglob("*") if path.is_symlink() or not path.is_dir()]
    return {str(path.relative_to(project)): (content_of(path), path.lstat().st_mode) for path in found}


def content_of(path: Path) -> bytes:
    """Return the content of a file, or the target of a link."""
    return os.readlink(os.fsencode(path)) if path.is_symlink() else path.read_bytes()


def test_attacks_on_the_project_are_stopped_or_undone(git_project: Path) -> None:
    before = files_of(git_project)
    for bodies, outcome in ((KEPT, "held"), (UNDONE, "succeeded")):
        # One after the other: what one leaves must not help the next.
        outcomes = attack_in_container(git_project, bodies)
        assert {name: said.partition(":")[0] for name, said in outcomes.items()} == dict.fromkeys(bodies, outcome)
        after = files_of(git_project)
        assert {name for name in {*before, *after} if before.get(name) != after.get(name)} == set()
    assert set(attack_in_container(git_project, LOST).values()) == {"succeeded"}
    changed = {name for name, it in files_of(git_project).items() if it != before.get(name)}
    assert changed == {".git/config"}
    assert files_of(git_project)[".git/config"][0] == before[".git/config"][0]


def test_attacks_on_the_project_are_stopped_with_namespaces(held: Sandbox, git_project: Path) -> None:
    def protected() -> dict[str, object]:
        # The host's git may write the rest of the git directory.
        names = (".git/config", ".git/HEAD", "nested/.git/config", "module/.git")
        found = files_of(git_project).items()
        return {name: it for name, it in found if name in names or "hooks/" in name or name.endswith("rc")}

    before = protected()
    assert {".envrc", "sub/inner/.envrc", ".git/config"} <= set(before)
    for name, body in ON_THE_PROJECT.items():
        if name not in CROSSING:
            attempt(held, body)
            assert (name, protected()) == (name, before)


@pytest.mark.real
@pytest.mark.parametrize("body", ON_THE_PROJECT.values(), ids=ON_THE_PROJECT)
def test_attacks_on_the_project_work_uncontained(loose: Sandbox, git_project: Path, body: str) -> None:
    assert attempt(loose, body) == "succeeded"


def test_changed_protected_files_are_reported(git_project: Path) -> None:
    change = "python3 -c \"open('sub/inner/.envrc', 'w')\""
    (first, second) = run_commands(git_project, change, "cat sub/inner/.envrc")
    (violation,) = first[3]
    assert violation.startswith(
        f"planted: {git_project}/sub/inner/.envrc: a command changed it, and it was restored; it was moved to "
    )
    assert (second[1], second[3]) == ("export A=1\n", [])


EDITS = """
import os
from corral import Containment, Sandbox, SandboxConfig
project = sys.argv[1]
envrc = project + "/sub/inner/.envrc"
containment = Containment(backend="warden", accept_partial=True)
def show(result):
    print(result.exit_code, result.stdout_text.strip(), [violation.kind for violation in result.violations])
def write(path, text):
    with open(path, "w") as file:
        file.write(text)
with Sandbox(SandboxConfig(project, profile="workspace", containment=containment)) as box:
    show(box.run(["cat", envrc]))
    write(envrc, "written by the user")
    show(box.run(["cat", envrc]))
    write(envrc + ".new", "renamed by the user")
    os.rename(envrc + ".new", envrc)
    show(box.run(["cat", envrc]))
    write(project + "/made", "")
    show(box.run("echo used > made && cat made", shell=True))
    write(project + "/sub/.bashrc", "")
    show(box.run(["ls", "-A", "sub"]))
    with box.start(["sleep", "600"]) as running:
        show(box.run("python3 -c \\"open('sub/inner/.envrc', 'w')\\"", shell=True))
        show(box.run(["cat", envrc]))
        running.kill()
"""


def test_changes_of_the_user_are_kept_without_namespaces(git_project: Path) -> None:
    done = run_in_container(EDITS, str(git_project))
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "0 export A=1 []",
        "0 written by the user []",
        "0 renamed by the user []",
        "0 used []",
        "0 .bashrc",
        "f",
        "inner []",
        "0  ['planted']",
        "0 renamed by the user []",
    ]


def test_ordinary_work_without_namespaces(git_project: Path) -> None:
    work = "import os, tempfile\nopen(os.path.expanduser('~/t'), 'w').close()\nprint(os.path.exists(tempfile.mkdtemp()), os.path.exists(os.environ['HOME'] + '/t'))\n"
    (git_project / "work.py").write_text(work)
    works = (
        "echo new > sub/made && cat sub/made && rm sub/made",
        "echo changed > top && git status --short --untracked-files=no && git diff --stat && git log --oneline | wc -l",
        "python3 work.py",
        "setsid sleep 100 & echo started",
        "head -1 /etc/hosts > sub/hosts && ls /etc > sub/listed && wc -l < sub/hosts",
    )
    done = run_commands(git_project, *works)
    assert [(code, stderr, violations) for code, _, stderr, violations, _ in done] == [(0, "", [])] * len(works)
    assert [stdout for _, stdout, *_ in done] == [
        "new\n",
        " M top\n top | 2 +-\n 1 file changed, 1 insertion(+), 1 deletion(-)\n1\n",
        "True True\n",
        "started\n",
        "1\n",
    ]
    assert done[3][4] == 1


REFUSED = {
    "echo x > made": "no name can be made, renamed or removed",
    "mv sub other": "no name can be made, renamed or removed",
    "git add top": "commands have no copy of a git directory",
    "cat {outside}/secret": "commands may not open it",
}


def test_refusals_without_namespaces_say_why(git_project: Path, outside: Path) -> None:
    done = run_commands(git_project, *[text.format(outside=outside) for text in REFUSED])
    assert all(code != 0 for code, *_ in done)
    assert [
        why in "".join(violations) for why, (_, _, _, violations, _) in zip(REFUSED.values(), done, strict=True)
    ] == [True] * len(REFUSED)


@pytest.fixture
def accepting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy of the user that accepts fewer layers."""
    folder = tmp_path / "config" / "corral"
    folder.mkdir(parents=True)
    (folder / "policy.toml").write_text("[containment]\naccept_partial = true\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_refusal_names_the_setting_in_one_line(project: Path) -> None:
    done = run_corral_without(IN_DOCKER, "run", "--backend", "warden", "--", "true", cwd=project)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (125, "", 1)
    assert "Set containment.accept_partial = true in your own policy" in done.stderr


def test_project_cannot_accept_fewer_layers(project: Path) -> None:
    (project / "corral.toml").write_text("[containment]\naccept_partial = true\n")
    done = run_corral_without(IN_DOCKER, "run", "--", "true", cwd=project)
    assert (done.returncode, done.stdout) == (125, "")
    assert "profile workspace needs the kernel" in done.stderr


@pytest.mark.usefixtures("accepting")
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("session", "start"), "a session needs the layer mount"),
        (("run", "--background", "--", "sleep", "1"), "a session needs the layer mount"),
        (("try", "--", "touch", "x"), "a transaction needs the layer mount"),
    ],
    ids=["session", "background", "transaction"],
)
def test_what_needs_mounts_is_refused(project: Path, words: tuple[str, ...], why: str) -> None:
    # Not by a filter: corral takes a process with one that cannot gain privileges for a command of its own.
    done = run_corral_without([], *words, cwd=project, limits={"max_user_namespaces": 0})
    assert (done.returncode, done.stdout) == (125, "")
    assert why in done.stderr
    assert list(project.iterdir()) == []


@pytest.mark.usefixtures("accepting")
def test_accepted_tier_runs_commands(project: Path) -> None:
    done = run_corral_without(IN_DOCKER, "run", "--json", "--", "touch", "made", cwd=project)
    result = json.loads(done.stdout)
    assert (result["enforcement"], result["missing_layers"], result["exit_code"]) == ("partial", PARTIAL, 0)
    assert (project / "made").exists()
