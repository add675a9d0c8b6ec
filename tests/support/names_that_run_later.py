"""Makes concrete files from the table of the files that run later: one for each pattern, in each place where a tool would read it."""

from collections.abc import Iterable

from rule_tables import TABLES

from corral.guard.rules.compiler import expand_braces
from corral.guard.rules.loader import places, startup_home
from corral.integrations.hooks.registry import HOSTS

# Any of these may be the top of a workspace, or a directory that the user enters. Some have protected names of their own.
DIRECTORIES = (
    ".",
    "src/deep",
    ".github",
    ".github/workflows",
    ".config",
    ".vscode/extensions",
    "node_modules/a",
    ".local",
)


def _rows() -> dict[str, tuple[str, ...]]:
    table = TABLES["runs_later"]
    found = {
        name: tuple(path for pattern in row["paths"] for path in expand_braces(pattern))
        for name, row in table.items()
        if row["read"] != "home"
    }
    return found | {name: host.protected for name, host in HOSTS.items()}


ROWS = _rows()


def example(pattern: str) -> str:
    """Return a path that a pattern matches."""
    return pattern.replace("/**", "/an-example").replace("*", "an-example")


def examples(directory: str, rows: Iterable[str] = ROWS) -> list[str]:
    """Return a path in a directory for every pattern of the rows, but none that is the directory of another."""
    paths = [path for row in rows for path in ROWS[row]]
    plain = [path for path in paths if not any(other.startswith(f"{path}/") for other in paths)]
    return [f"{directory}/{example(path)}".removeprefix("./") for path in plain]


def home_examples() -> list[str]:
    """Return the paths that are protected only in a home directory."""
    return [example(pattern) for pattern in dict.fromkeys((*places()["secret_home"], *startup_home()))]
