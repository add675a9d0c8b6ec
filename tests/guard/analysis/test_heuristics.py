"""Arguments of programs without a row: which count as a command, and which only name something."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from corral import Decision, SandboxConfig
from corral.guard.evaluate import vet
from corral.model.call import Call

if TYPE_CHECKING:
    from pathlib import Path

ROOT = "/usr/share"  # neither a scratch directory nor a home on any machine
STRICT = SandboxConfig(project_root=ROOT)
WORKSPACE = SandboxConfig(project_root=ROOT, profile="workspace")

ONLY_WORDS = [
    "newtool baseline init",
    "newtool init 6",
    "newtool db init --force",
    "newtool init -h",
    "newtool shutdown",
    "newtool vm shutdown web1",
    "newtool server reboot --wait",
    "newtool cache rm key",
    "newtool user passwd bob",
    "newtool --name=alpine",
    "newtool --name=ubuntu",
    "newtool --shell=bash",
    "newtool --shell bash",
    "newtool completion zsh",
    "newtool ingest --provider codex",
    "newtool run --provider gemini --model x",
    "newtool start --runtime docker",
    "newtool --browser chrome --headless",
    "newtool note 'docker support'",
    "newtool -m 'rm old things'",
    "newtool -m 'init the thing'",
    "./newtool --image=alpine",
    "./newtool --name alpine start",
    "newtool --mode batch run",
    "newtool issue 'crash on start'",
    "newtool --message 'rm old things'",
    "newtool --title='docker support'",
    "newtool install codex gemini",
    "newtool find users --active",
    "newtool sort by name",
    "newtool -m 'find all users'",
    "newtool 'make it faster'",
    "echo x > out.xml; newtool --junitfile out.xml",
]
COMMANDS = {
    "newtool sudo ls": "name-sudo",
    "newtool --quiet sudo -n ls": "name-sudo",
    "newtool -v sudo ls": "name-sudo",
    "newtool --quiet sudo ls": "name-sudo",
    "newtool -v rm x": "name-rm",
    "newtool rm -rf x": "name-rm",
    "newtool --quiet rm -rf x": "name-rm",
    "newtool run -- docker compose down": "name-docker",
    "newtool run -- reboot": "name-reboot",
    "newtool --exec reboot": "name-reboot",
    "newtool --exec=reboot": "name-reboot",
    "newtool --command 'shutdown now'": "name-shutdown",
    "newtool /sbin/reboot": "name-reboot",
    "newtool shutdown -h now": "name-shutdown",
    "newtool bash -c id": "argv-bash-code",
    "newtool --verbose bash -c id": "argv-bash-code",
    "newtool -c 'shutdown now'": "name-shutdown",
    "newtool 'rm -rf x'": "name-rm",
    "newtool 'mount /dev/sda1 x'": "name-mount",
    "newtool 'sudo reboot'": "name-sudo",
    "newtool 'sudo id'": "name-sudo",
    "newtool start 'doas id'": "name-doas",
    "newtool -e 'sudo id'": "name-sudo",
    "newtool -m 'sudo id'": "name-sudo",
    "newtool --then 'su -'": "name-su",
    "newtool --then 'su'": "name-su",
    "newtool --x='sudo id'": "name-sudo",
    "newtool --x=sudo id": "name-sudo",
    "newtool --on-change 'rm x'": "name-rm",
    "newtool -x 'docker support'": "name-docker",
    "newtool -- 'init 6'": "name-init",
    "newtool -e reboot": "name-reboot",
    "newtool --then reboot": "name-reboot",
    "newtool --on-exit=reboot": "name-reboot",
    "newtool 'shutdown now'": "name-shutdown",
    "newtool -m 'shutdown now'": "name-shutdown",
    "newtool --yes shutdown now": "name-shutdown",
    "newtool 'curl evil'": "name-curl",
    "newtool --yes curl evil": "name-curl",
    "newtool --yes rm x": "name-rm",
    "newtool 'rm x'": "name-rm",
    "newtool nohup x": "name-nohup",
    "newtool rm a/b": "name-rm",
    "newtool find x -delete": "path-delete-inside",
    "newtool --flag find x -delete": "path-delete-inside",
    "newtool newtool env find x -delete": "path-delete-inside",
    "newtool /usr/bin/find x -delete": "path-delete-inside",
    "newtool 'find x -delete'": "path-delete-inside",
    "newtool tar cf a.tar --remove-files x": "path-delete-inside",
    "newtool sed '1e id' a": "argv-sed-code-option",
    "newtool git clean -fdx": "argv-git-discard",
    "newtool split --filter=id a": "argv-split-code-option",
    "echo id > x; newtool ./x": "argv-unknown-run-written",
    "echo id > d/x; newtool --flag ./d/x": "argv-unknown-run-written",
    "echo id > d/x; newtool d/x": "argv-unknown-run-written",
}


@pytest.mark.parametrize("command", ONLY_WORDS)
@pytest.mark.parametrize("config", [STRICT, WORKSPACE], ids=["strict", "workspace"])
def test_word_that_only_names_something_is_allowed(command: str, config: SandboxConfig) -> None:
    assert vet(Call(command, shell=True), config).findings == ()


@pytest.mark.parametrize(("command", "rule"), COMMANDS.items(), ids=list(COMMANDS))
def test_word_with_arguments_of_a_command_is_judged(command: str, rule: str) -> None:
    assert rule in {f.rule for f in vet(Call(command, shell=True), STRICT).findings}


def test_many_command_names_in_one_call_are_denied() -> None:
    names = " ".join(["sudo"] * 100)
    assert vet(Call(f"newtool {names} ls", shell=True), STRICT).decision is Decision.DENY


@pytest.fixture
def project(tmp_path: Path) -> SandboxConfig:
    for folder in ("support", "bin", ".venv/bin", "node_modules/.bin"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "mkdocs").write_text("#!/bin/sh\n")
    (tmp_path / "mkdocs").write_text("#!/bin/sh\n")
    (tmp_path / "gradlew").write_text("#!/bin/sh\n")
    for name in ("docker", "terraform", "rm"):
        (tmp_path / "support" / name).write_text("#!/bin/sh\n")
    (tmp_path / "alias").symlink_to("support")
    (tmp_path / "support" / "git").symlink_to("/usr/bin/git")
    return SandboxConfig(project_root=str(tmp_path), profile="workspace")


@pytest.mark.parametrize(
    "command",
    ["support/mkdocs gh-deploy", "./support/mkdocs gh-deploy", "./mkdocs gh-deploy", "support/terraform plan"],
)
def test_project_program_is_not_the_known_program(project: SandboxConfig, command: str) -> None:
    assert vet(Call(command, shell=True), project).findings == ()


@pytest.mark.parametrize(
    ("command", "rule"),
    {
        "mkdocs gh-deploy": "argv-mkdocs-network",
        ".venv/bin/mkdocs gh-deploy": "argv-mkdocs-network",
        "bin/mkdocs gh-deploy": "argv-mkdocs-network",
        "node_modules/.bin/mkdocs gh-deploy": "argv-mkdocs-network",
        "./gradlew publish": "argv-gradle-network",
        "support/docker ps": "name-docker",
        "support/rm -rf .": "path-delete-root",
        "terraform plan": "argv-terraform-network",
        "support/git push": "argv-git-network",
    }.items(),
)
def test_installed_or_refused_program_is_judged_by_name(project: SandboxConfig, command: str, rule: str) -> None:
    assert rule in {f.rule for f in vet(Call(command, shell=True), project).findings}


def test_project_program_with_a_refused_name_is_denied(project: SandboxConfig) -> None:
    strict = SandboxConfig(project_root=project.project_root)
    assert {f.rule for f in vet(Call("support/terraform plan", shell=True), strict).findings} == {"name-terraform"}


# Each copies or links a known program into the project and then runs it.
MADE = [
    "cp /usr/bin/git support/g && support/g reset --hard",
    "ln -s /usr/bin/git support/g2 && support/g2 reset --hard",
    "cp /usr/bin/git support/mkdocs && support/mkdocs reset --hard",
    "cp /usr/bin/git ./g && ./g push --force",
    "cp /usr/bin/find support/f && support/f . -delete",
    "ln -s /usr/bin/tar support/t && support/t xf a.tar -C /etc",
    "ln -s /usr/bin/sed support/s && support/s -i s/a/b/ /etc/x",
    "ln -s /usr/bin/npm support/n && support/n publish",
    "ln -s /usr/bin support/b && support/b/git reset --hard",
    "cp -r /usr/lib/git-core/. support && support/mkdocs gh-deploy",
    "cp -r /usr/lib/git-core/. alias && support/mkdocs gh-deploy",
    "cp -r /usr/bin support && support/git reset --hard",
]


@pytest.mark.parametrize("command", MADE)
def test_copy_made_in_the_same_call_counts_as_the_original(project: SandboxConfig, command: str) -> None:
    made = command.partition(" && ")[0]
    assert vet(Call(made, shell=True), project).decision is Decision.ALLOW
    assert vet(Call(command, shell=True), project).decision is not Decision.ALLOW


@pytest.mark.parametrize("command", ["nowhere/git reset --hard", "./nowhere/corral trust", "support/npm publish"])
def test_missing_program_is_judged_by_name(project: SandboxConfig, command: str) -> None:
    for config in (project, SandboxConfig(project_root=project.project_root)):
        assert vet(Call(command, shell=True), config).decision is not Decision.ALLOW
