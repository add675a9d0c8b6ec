"""Tests which commands need a package registry, and which of them fetch only what a lock file pins."""

import pytest

from corral.guard.rules.compiler import RuleError, _registries
from corral.guard.rules.loader import registries
from corral.guard.rules.registries import registry_of, tool_of

PINNED = [
    "npm ci",
    "npm clean-install --no-audit --omit=dev",
    "npm ci --omit dev",
    "uv sync --locked",
    "uv sync --frozen --no-dev",
    "uv pip install --require-hashes -r requirements.txt",
    "cargo fetch --locked",
    "go mod download",
    "pip install --require-hashes -r requirements.txt",
    "/usr/bin/pip3.12 install -q --require-hashes -r=requirements.txt",
    "python3 -m pip install --require-hashes -r requirements.txt",
    "yarn install --immutable",
    "yarn install --frozen-lockfile",
    "yarn --immutable",
    "pnpm install --frozen-lockfile",
    "bundle install --frozen",
    "bundle install --deployment --jobs 4",
]
NOT_PINNED = [
    "npm install",
    "npm ci lodash",
    "npm ci --registry=https://index.example",
    "npm ci --registry https://index.example",
    "npm ci --prefix ../other",
    "npm --prefix x ci",
    "npm ci --omit",
    "npm i left-pad",
    "npx cowsay",
    "uvx ruff",
    "uv sync",
    "uv sync --locked --index https://index.example",
    "uv run --locked pytest",
    "uv pip install --require-hashes -r r.txt x",
    "cargo fetch",
    "cargo fetch --locked --config x",
    "cargo build --locked",
    "go mod download x.example/y@latest",
    "go mod tidy",
    "go get x.example/y",
    "pip install x",
    "pip install -r requirements.txt",
    "pip install --require-hashes x",
    "pip install --require-hashes -r https://index.example/r.txt",
    "pip install --require-hashes --index-url https://index.example -r r.txt",
    "pip install --require-hashes -r",
    "pip install --require-hashes -r --pre",
    "yarn install",
    "yarn add x --frozen-lockfile",
    "yarn install --immutable=false",
    "pnpm install --frozen-lockfile --no-frozen-lockfile",
    "bundle install",
    "mvn verify",
    "gradle build",
    "poetry install",
    "gem install x",
    "python -I -m pip install x",
]
WITHOUT = [
    "npm test",
    "npm run build",
    "pip list",
    "pip --version",
    "uv --version",
    "cargo fmt",
    "go version",
    "go env GOPROXY",
    "python -m pytest",
    "python -m",
    "python pip install x",
    "python -c pip",
    "ls -l",
    "bundle --version",
    "",
]


def judged(text: str) -> tuple[str, bool] | None:
    name, _, rest = text.partition(" ")
    return registry_of(name, rest.split())


@pytest.mark.parametrize("text", PINNED)
def test_pinned_shapes_are_recognised(text: str) -> None:
    found = judged(text)
    assert found is not None
    assert found[1] is True


@pytest.mark.parametrize("text", NOT_PINNED)
def test_every_other_fetch_is_not_pinned(text: str) -> None:
    found = judged(text)
    assert found is not None
    assert found[1] is False


@pytest.mark.parametrize("text", WITHOUT)
def test_commands_that_fetch_nothing_need_no_registry(text: str) -> None:
    assert judged(text) is None


@pytest.mark.parametrize(
    ("text", "tool"),
    [("npx x", "npm"), ("python3.12 -m pip install x", "pip"), ("bundler install", "bundle"), ("mvnw test", "maven")],
)
def test_programs_lead_to_their_tool(text: str, tool: str) -> None:
    found = judged(text)
    assert found is not None
    assert found[0] == tool


def test_ids_and_programs_name_the_same_tool() -> None:
    assert [tool_of(name) for name in ("npm", "npx", "/usr/bin/pip3", "maven", "mvn", "cat")] == [
        *("npm", "npm", "pip", "maven", "maven", ""),
    ]


def test_each_shape_is_pinned_in_its_plainest_form() -> None:
    plain = {
        (tool, shape): [word.partition("|")[0] + ("x" if word.endswith("=") else "") for word in shape]
        for tool, row in registries().items()
        for shape in row["locked"]
    }
    assert {key: registry_of(key[0], words) for key, words in plain.items()} == {key: (key[0], True) for key in plain}


def test_names_belong_to_one_tool() -> None:
    names = [name for row in registries().values() for name in row["names"]]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    "row",
    [
        {"names": ["x"], "fetches": ["y"], "wrong": 1},
        {"names": ["x"], "fetches": ["y"], "form": "wrong"},
        {"names": ["x"], "fetches": ["y"], "index": "wrong"},
        {"names": ["x"], "fetches": ["y"], "observe": "x get https://index.example"},
        {"names": ["x"], "fetches": ["y"], "user": [{"path": "~/.x", "form": "wrong"}]},
        {"names": ["x"], "fetches": ["y"], "user": [{"path": "~/.x", "form": "ini", "wrong": 1}]},
        {"fetches": ["y"]},
        {"names": ["x"]},
    ],
    ids=["key", "form", "index", "address", "file form", "file key", "no names", "no fetches"],
)
def test_a_row_that_does_not_fit_is_an_error(row: dict[str, object]) -> None:
    with pytest.raises(RuleError, match=r"registries\.toml: \[tool\]"):
        _registries({"tool": row})
