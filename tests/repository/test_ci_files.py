"""The files for other people's CI: they parse, their scripts are shell, and inputs never become part of a script."""

import subprocess
from pathlib import Path

import yaml

from corral.apps.cli.arguments import parse
from corral.containment.processes.keeper_command import LAUNCHER

CI = Path(__file__).parents[2] / "ci"


def test_action_passes_inputs_as_variables() -> None:
    action = yaml.safe_load((CI / "action.yml").read_text())
    scripts = [step["run"] for step in action["runs"]["steps"]]
    assert [script for script in scripts if "${{" in script] == []
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script.encode(), check=True)
    assert any(LAUNCHER in script for script in scripts)


def test_gitlab_template_reports_what_the_evaluation_writes() -> None:
    jobs = yaml.safe_load((CI / "gitlab.yml").read_text())
    assert jobs[".corral-eval"]["artifacts"]["reports"] == {"junit": "corral-eval/junit.xml"}
    (line,) = jobs[".corral-eval"]["script"]
    options = parse(line.replace('"$CORRAL_TASKS"', "tasks/").split()[1:])
    assert (options.verb, options.out, options.tasks) == ("eval", "corral-eval", ["tasks/"])


def test_files_name_no_image_and_no_host() -> None:
    for path in CI.iterdir():
        assert not {"docker.io", "ghcr.io", "quay.io", "pypi.org"} & set(path.read_text().replace("/", " ").split()), (
            path
        )
    assert "FROM ${BASE}" in (CI / "Containerfile").read_text()
