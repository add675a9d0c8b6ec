"""A command that fails for lack of an environment variable says which one was removed."""

from collections.abc import Callable

import pytest

from corral import Sandbox, SandboxConfig
from corral.containment.violations.removed_variables import missed_variables
from golden import check

SET = {
    "DATABASE_URL": "postgres://u:secret@h/d",
    "NODE_ENV": "test",
    "PWD": "/x",
    "PATH": "/bin",
    "MY_TOKEN": "t",
    "HOME": "/x",
}
COMPLAINTS = {
    "python": ("KeyError: 'DATABASE_URL'", ["DATABASE_URL"]),
    "a message of the program": ("error: NODE_ENV must be set", ["NODE_ENV"]),
    "bash": ("a.sh: line 1: NODE_ENV: unbound variable", ["NODE_ENV"]),
    "rust": ("called `Result::unwrap()`: environment variable not found: DATABASE_URL", ["DATABASE_URL"]),
    "two in a line": ("missing: DATABASE_URL, MY_TOKEN", ["DATABASE_URL", "MY_TOKEN"]),
    "a variable that is passed": ("HOME is not set", []),
    "a variable that is not set outside": ("KeyError: 'OTHER_URL'", []),
    "no complaint": ("cd $PWD: wrote DATABASE_URL", []),
    "part of a longer name": ("TEST_DATABASE_URL is not set", []),
    "another line": ("DATABASE_URL\nnot set", []),
    "nothing": ("", []),
}


@pytest.mark.parametrize(("said", "names"), COMPLAINTS.values(), ids=COMPLAINTS)
def test_complaint_names_the_removed_variable(said: str, names: list[str], tmp_path: object) -> None:
    found = missed_variables(said.encode(), SandboxConfig(str(tmp_path)), SET)
    assert [(one.kind, one.target, one.inferred) for one in found] == [("environment", name, True) for name in names]


def test_failed_command_names_what_was_removed(
    open_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://u:secret@h/d")
    text = "import os; os.environ['DATABASE_URL']"
    done = open_sandbox().run(["python3", "-c", text])
    (violation,) = done.violations
    assert (violation.grant, "secret" in violation.text) == ('environment = ["DATABASE_URL"]', False)
    check("violations", "a variable that commands do not receive", violation.text)
    passed = open_sandbox(env_allowlist={"PATH", "DATABASE_URL"}).run(["python3", "-c", text])
    assert (passed.exit_code, passed.violations) == (0, ())
