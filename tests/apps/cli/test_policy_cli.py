"""`corral policy`, `corral init` and `corral rule` over policy files, through a real process."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from machines import run_corral

from corral.apps.cli.verbs.init import detect_project_types, project_text, user_text
from corral.policy.loader import load
from corral.policy.parser import parse
from corral.policy.project_types import PROJECT_TYPES
from corral.policy.rule_examples import compile_policy, judge_examples

OWNER = """\
timeout_seconds = 120
denylist = ["make"]

[effects]
history = "deny"
"""
PROJECT = """\
timeout_seconds = 60

[containment]
network = "on"

[[rule]]
command = "git push"
decision = "deny"
reason = "a person pushes"
deny = ["git push origin main"]
allow = ["git stash push"]
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    (tmp_path / "config" / "corral").mkdir(parents=True, mode=0o700)
    return tmp_path


@pytest.fixture
def files(home: Path, project: Path) -> tuple[Path, Path]:
    owner, own = home / "config" / "corral" / "policy.toml", project / "corral.toml"
    owner.write_text(OWNER)
    owner.chmod(0o600)
    own.write_text(PROJECT)
    return owner, own


def corral(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_corral(*words, cwd=cwd, NO_COLOR="1", COLUMNS="200")


def test_policy_show_names_file_and_line(files: tuple[Path, Path], project: Path) -> None:
    owner, own = files
    done = corral("policy", "show", cwd=project)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    for line in (
        f"# {owner} (owner)",
        f"# {own} (project, not trusted: it only tightens)",
        f"timeout_seconds = 60 # {own}:1",
        f'denylist = ["make"] # {owner}:2',
        'network = "off" # built-in',
        f'history = "deny" # {owner}:5',
        f"[[rule]] deny git push # {own}:6",
        "# would loosen the policy, and waits for: corral trust",
        f'# containment.network = "on" # {own}:4',
    ):
        assert line in lines
    assert (done.returncode, done.stderr) == (0, "")


def test_policy_show_as_json(files: tuple[Path, Path], project: Path) -> None:
    owner, own = files
    data = json.loads(corral("policy", "show", "--json", cwd=project).stdout)
    assert (data["schema"], data["root"]) == ("corral.policy/1", str(project))
    assert [(file["level"], file["trusted"]) for file in data["files"]] == [("owner", True), ("project", False)]
    assert data["settings"]["timeout_seconds"] == {"value": 60, "from": [{"path": str(own), "line": 1, "column": 1}]}
    assert data["settings"]["containment.network"] == {"value": "off", "from": []}
    assert data["effects"]["history"] == {"value": "deny", "from": [{"path": str(owner), "line": 5, "column": 1}]}
    assert data["waiting"] == [{"key": "containment.network", "value": "on", "path": str(own), "line": 4, "column": 1}]
    (rule,) = data["rules"]
    assert (rule["id"], rule["command"], rule["path"], rule["line"]) == (
        "policy-git-push",
        ["git", "push"],
        str(own),
        6,
    )


def test_policy_show_without_files(home: Path, project: Path) -> None:
    done = corral("policy", "show", cwd=project)
    assert done.stdout.startswith("# no policy file: ")
    assert done.returncode == 0


def test_policy_test_judges_every_example(files: tuple[Path, Path], project: Path) -> None:
    done = corral("policy", "test", cwd=project)
    assert done.stdout.splitlines() == [
        f"✓ {files[1]}:6:1 allow git stash push",
        f"✓ {files[1]}:6:1 deny  git push origin main",
    ]
    assert (done.returncode, done.stderr) == (0, "2 of 2 examples hold\n")


def test_policy_test_fails_if_an_example_does_not_hold(files: tuple[Path, Path], project: Path) -> None:
    files[1].write_text(PROJECT.replace('"git stash push"', '"git -C d push", "git status"'))
    done = corral("policy", "test", cwd=project)
    signs = [line[0] for line in done.stdout.splitlines()]
    assert (done.returncode, signs) == (1, ["✗", "✓", "✓"])
    assert "the example 'git -C d push' should give allow" in done.stdout
    (wrong, *_) = json.loads(corral("policy", "test", "--json", cwd=project).stdout)
    assert (wrong["example"], wrong["wanted"], wrong["decision"]) == ("git -C d push", "allow", "deny")
    shown = corral("policy", "show", cwd=project)
    assert (shown.returncode, shown.stdout) == (125, "")
    assert f"{files[1]}:6:1: the example" in shown.stderr


def test_invalid_policy_file_refuses_every_call(files: tuple[Path, Path], project: Path) -> None:
    files[1].write_text("[limits]\nprocesss = 1\n")
    for words in (("check", "--", "ls"), ("run", "--", "ls"), ("policy", "show"), ("policy", "test")):
        done = corral(*words, cwd=project)
        assert done.returncode == 125
        assert f"{files[1]}:2:1: limits has no 'processs'" in done.stderr


def test_policy_schema_is_printed(project: Path) -> None:
    data = json.loads(corral("policy", "schema", cwd=project).stdout)
    assert data["title"].startswith("A policy file of corral")


def test_policy_rule_has_a_page(files: tuple[Path, Path], project: Path) -> None:
    done = corral("rule", "policy-git-push", cwd=project)
    for words in ("deny git push", f"{files[1]}:6", "a person pushes"):
        assert words in done.stdout
    assert "policy-git-push" in corral("rule", cwd=project).stdout.splitlines()
    unknown = corral("rule", "policy-git-pull", cwd=project)
    assert unknown.returncode == 125
    assert "there is policy-git-push" in unknown.stderr


def test_finding_names_its_policy_rule(files: tuple[Path, Path], project: Path) -> None:
    data = json.loads(corral("check", "--json", "--", "git", "push", cwd=project).stdout)
    assert "policy-git-push" in [finding["rule"] for finding in data["findings"]]


# init


@pytest.mark.parametrize(
    ("files_there", "wanted"),
    [
        ([], []),
        (["pyproject.toml"], ["Python"]),
        (["requirements.txt"], ["Python"]),
        (["package.json"], ["Node"]),
        (["Cargo.toml"], ["Rust"]),
        (["go.mod"], ["Go"]),
        (["pom.xml"], ["Java"]),
        (["build.gradle.kts"], ["Java"]),
        (["Gemfile"], ["Ruby"]),
        (["x.gemspec"], ["Ruby"]),
        (["Makefile"], []),
        (["pyproject.toml", "Makefile"], ["Python"]),
        (["CMakeLists.txt"], ["C and C++"]),
        (["Makefile", "main.c"], ["C and C++"]),
        (["Makefile", "src/main.cpp"], ["C and C++"]),
        (["configure.ac"], ["C and C++"]),
        (["pyproject.toml", "web/package.json", "native/x.c"], ["Python", "Node", "C and C++"]),
        (["api/go.mod", "native/Cargo.toml"], ["Rust", "Go"]),
        (["node_modules/package.json", ".venv/pyproject.toml", "notes.txt"], []),
    ],
    ids=lambda value: ",".join(value) or "nothing",
)
def test_init_detects_the_project_type(home: Path, project: Path, files_there: list[str], wanted: list[str]) -> None:
    for name in files_there:
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("")
    assert [kind.name for kind in detect_project_types(str(project))] == wanted
    done = corral("init", "--json", cwd=project)
    assert json.loads(done.stdout) == {"path": f"{project}/corral.toml", "kinds": wanted}
    policy = load(str(project), os.environ)
    assert policy.waiting == ()
    assert corral("policy", "test", cwd=project).returncode == 0


MENTIONS = {
    ".env.example": "# a comment\nSMTP_HOST=mail.example\nexport STRIPE_SECRET_KEY=sk_value\nlower=1\n",
    ".envrc": "export FEATURE_FLAGS=value-of-flags\nlayout python\n",
    "compose.yaml": "services:\n  db:\n    image: postgres:${POSTGRES_TAG:-16}\n",
    "app/main.py": "import os\nos.environ['DATABASE_URL']; os.environ.get('APP_MODE'); os.getenv(\"WORKERS\"); os.environ['HOME']\n",
    "web/index.ts": "const a = process.env.API_BASE; const b = process.env['NODE_ENV'];\n",
    "cmd/main.go": 'func main() { os.Getenv("LISTEN_ADDR") }\n',
    "src/main.rs": 'let x = std::env::var("RUST_MODE");\n',
    "node_modules/x/index.js": "process.env.NOT_OURS\n",
    ".env": "REAL_VALUE=secret\n",
}


def test_init_suggests_the_variables_that_files_mention(home: Path, project: Path) -> None:
    for name, text in MENTIONS.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    (project / "linked.py").symlink_to("/etc/passwd")
    done = corral("init", "--print", cwd=project)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("# environment = ")]
    names = [
        "API_BASE",
        "APP_MODE",
        "DATABASE_URL",
        "FEATURE_FLAGS",
        "LISTEN_ADDR",
        "NODE_ENV",
        "POSTGRES_TAG",
        "RUST_MODE",
        "SMTP_HOST",
        "WORKERS",
    ]
    assert line == "# environment = [" + ", ".join(f'"{name}"' for name in names) + "]"
    assert "STRIPE_SECRET_KEY, which look" in done.stdout
    for value in ("mail.example", "sk_value", "value-of-flags", "NOT_OURS", "REAL_VALUE"):
        assert value not in done.stdout


def test_init_keeps_an_existing_file(home: Path, project: Path) -> None:
    (project / "corral.toml").write_text("# mine\n")
    done = corral("init", cwd=project)
    assert (done.returncode, (project / "corral.toml").read_text()) == (125, "# mine\n")
    assert "already exists and was not changed" in done.stderr


def test_init_does_not_follow_a_symlink(home: Path, project: Path, tmp_path: Path) -> None:
    (project / "corral.toml").symlink_to(tmp_path / "elsewhere")
    assert corral("init", cwd=project).returncode == 125
    assert not (tmp_path / "elsewhere").exists()


def test_init_print_writes_nothing(home: Path, project: Path) -> None:
    done = corral("init", "--print", cwd=project)
    assert (done.returncode, done.stdout) == (0, project_text([]))
    assert not (project / "corral.toml").exists()


def test_init_user_writes_a_loadable_file_once(home: Path, project: Path) -> None:
    (home / "config" / "corral").rmdir()
    assert corral("init", "--user", cwd=project).returncode == 0
    assert (home / "config" / "corral" / "policy.toml").read_text() == user_text()
    assert [source.level for source in load(str(project), os.environ).sources] == ["owner"]
    assert corral("init", "--user", cwd=project).returncode == 125


GRANTS = """\
[containment]
network = ["index.example:443"]

[effects]
network = "allow"

[[rule]]
command = "git push"
decision = "allow"
reason = "I push what I like"
allow = ["git push origin main"]

[[rule]]
command = "twine upload"
decision = "allow"
reason = "I publish what I like"
allow = ["twine upload dist/x.whl"]
"""


@pytest.mark.parametrize(
    "mark", ["notes.txt", "pyproject.toml", "package.json", "Cargo.toml", "go.mod", "pom.xml", "Gemfile", "main.c"]
)
def test_new_project_file_removes_no_grant(home: Path, project: Path, mark: str) -> None:
    (home / "config" / "corral" / "policy.toml").write_text(GRANTS)
    (project / mark).write_text("")
    before = load(str(project), os.environ).config
    assert corral("init", cwd=project).returncode == 0
    policy = load(str(project), os.environ)
    assert (policy.config, len(policy.sources)) == (before, 2)


def uncommented(text: str) -> str:
    """Return a policy file with every suggestion in force except the profile: comments that are TOML, not sentences."""
    lines = text.splitlines()
    return "\n".join(line[2:] if re.match(r"# (\[\[|(?!profile)[a-z_]+ = )", line) else line for line in lines)


@pytest.mark.parametrize("text", [*(project_text([kind]) for kind in PROJECT_TYPES), project_text([]), user_text()])
def test_every_suggestion_is_valid_when_uncommented(text: str) -> None:
    parsed = parse(uncommented(text).encode(), "F")
    assert {"timeout_seconds", "environment", "containment.network"} <= {key for key, *_ in parsed["settings"]}
    compile_policy(parsed, "F")
    assert judge_examples(parsed)
    assert all(not outcome.wrong for outcome in judge_examples(parsed))


def test_suggested_hosts_are_example_domains() -> None:
    hosts = {kind.name: re.findall(r'"([^"]+):443"', project_text([kind])) for kind in PROJECT_TYPES}
    assert all(host.endswith(".example") for found in hosts.values() for host in found)
    assert hosts["C and C++"] != hosts["Node"] != hosts["Python"]
    assert "npm config get registry" in project_text([kind for kind in PROJECT_TYPES if kind.name == "Node"])


ALLOWING = {
    "a rule": '[[rule]]\ncommand = "git push"\ndecision = "allow"\nallow = ["git push origin fix"]\n',
    "an effect": '[effects]\nnetwork = "allow"\n',
}


@pytest.mark.parametrize("name", ALLOWING)
def test_check_warns_of_a_yes_that_the_kernel_does_not_know(name: str, files: tuple[Path, Path], project: Path) -> None:
    files[0].write_text(ALLOWING[name])
    files[0].chmod(0o600)
    files[1].unlink(missing_ok=True)
    done = corral("check", "--", "git", "push", "origin", "fix", cwd=project)
    assert (done.returncode, "the sandbox will stop it" in done.stderr) == (0, True)
    files[0].write_text(ALLOWING[name] + '[containment]\nnetwork = "on"\n')
    done = corral("check", "--", "git", "push", "origin", "fix", cwd=project)
    assert (done.returncode, "the sandbox will stop it" in done.stderr) == (0, False)


def test_policy_test_warns_of_an_example_that_the_kernel_stops(files: tuple[Path, Path], project: Path) -> None:
    files[0].write_text(ALLOWING["a rule"])
    files[0].chmod(0o600)
    files[1].unlink(missing_ok=True)
    done = corral("policy", "test", cwd=project)
    assert (done.returncode, "`git push origin fix`: the policy allows this, but" in done.stderr) == (0, True)
