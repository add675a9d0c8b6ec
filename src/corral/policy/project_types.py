"""Lists the types of projects: their marker files, publishing commands, package indexes and caches. Data only."""

from __future__ import annotations

from corral._lib.records import Record, frozen


@frozen
class Publishing(Record):
    """A command that publishes, an example that is refused, and a similar command that is allowed."""

    command: str
    refused: str
    allowed: str


@frozen
class ProjectType(Record):
    """A type of project."""

    name: str
    marks: tuple[str, ...]  # names, or `*.suffix`
    publishing: tuple[Publishing, ...] = ()
    caches: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    seconds: int = 600  # for a build or a full test run
    index: str = ""  # a placeholder for the host of packages; each site has its own
    index_found_by: str = ""  # the command or file that tells the user which host that is


PROJECT_TYPES = (
    ProjectType(
        "Python",
        ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "Pipfile", "tox.ini", "uv.lock", "poetry.lock"),
        (
            Publishing("twine upload", "twine upload dist/*", "twine check dist/x.whl"),
            Publishing("uv publish", "uv publish", "uv run pytest"),
            Publishing("poetry publish", "poetry publish --build", "poetry run pytest"),
        ),
        ("~/.cache/pip", "~/.cache/uv"),
        ("VIRTUAL_ENV",),
        index="index.example",
        index_found_by="pip config list",
    ),
    ProjectType(
        "Node",
        ("package.json",),
        (
            Publishing("npm publish", "npm publish --access public", "npm run build"),
            Publishing("yarn npm publish", "yarn npm publish", "yarn test"),
            Publishing("pnpm publish", "pnpm publish", "pnpm test"),
        ),
        ("~/.npm", "~/.cache/yarn", "~/.local/share/pnpm"),
        ("NODE_ENV",),
        index="registry.example",
        index_found_by="npm config get registry",
    ),
    ProjectType(
        "Rust",
        ("Cargo.toml",),
        (Publishing("cargo publish", "cargo publish", "cargo test"),),
        ("~/.cargo/registry", "~/.cargo/git"),
        ("RUST_BACKTRACE", "RUST_LOG"),
        1800,
        index="crates.example",
        index_found_by="~/.cargo/config.toml",
    ),
    ProjectType(
        "Go",
        ("go.mod", "go.work"),
        (),
        ("~/go/pkg/mod", "~/.cache/go-build"),
        ("GOFLAGS",),
        index="modules.example",
        index_found_by="go env GOPROXY",
    ),
    ProjectType(
        "Java",
        ("pom.xml", "build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"),
        (
            Publishing("mvn deploy", "mvn clean deploy", "mvn -q test"),
            Publishing("mvnw deploy", "./mvnw clean deploy", "./mvnw test"),
            Publishing("gradle publish", "gradle publish", "gradle test"),
            Publishing("gradlew publish", "./gradlew build publish", "./gradlew test"),
        ),
        ("~/.m2/repository", "~/.gradle/caches"),
        (),
        1800,
        index="repository.example",
        index_found_by="~/.m2/settings.xml, or the build file,",
    ),
    ProjectType(
        "Ruby",
        ("Gemfile", "Rakefile", "*.gemspec"),
        (Publishing("gem push", "gem push x-1.0.gem", "gem list"),),
        ("~/.gem", "~/.bundle"),
        ("RAILS_ENV", "RACK_ENV"),
        index="gems.example",
        index_found_by="gem sources",
    ),
    ProjectType(
        "C and C++",
        ("CMakeLists.txt", "meson.build", "configure", "configure.ac", "*.c", "*.cc", "*.cpp", "*.cxx"),
        (),
        ("~/.cache/ccache",),
        ("CFLAGS", "CXXFLAGS", "LDFLAGS"),
        1800,
    ),
)  # fmt: skip
