"""Lists the kinds of toolchain and of package cache in a home directory, and the parts of each that commands see read-only.

One table for the sandbox, which shows these paths, and for the guard, which lets commands read and run them.
"""

from __future__ import annotations

# The parts of an installation that its programs load. Not etc, var or data, which hold what a person configured.
INSTALLED = (
    *(
        "bin",
        "sbin",
        "shims",
        "condabin",
        "Scripts",
        "lib",
        "lib32",
        "lib64",
        "libexec",
        "share",
        "include",
        "man",
        "src",
    ),
    *("pyvenv.cfg", "conda-meta", "ssl", "python", "perl5", "node_modules", "gems", "specifications", "extensions"),
    *("build_info", "conf", "jars", "jmods", "jre", "legal", "release", "boot", "plugins", "modules", "packages"),
    *("pkg", "misc", "api", "VERSION", "version", "go.env", "platform"),
)
_VERSIONS = (
    "bin",
    "libexec",
    "shims",
    "versions",
    "plugins",
    "lib",
    "share",
    "version",
    "completions",
    "src",
    "pyenv.d",
    "rbenv.d",
)
# The kinds in a home directory, and the parts of each that commands see whether or not PATH leads there: a virtual environment of the project
# links to an interpreter in one, and version managers look there themselves. An empty tuple is all of it; `*` is one component or the rest of one.
KINDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((".pyenv", ".rbenv", ".nodenv", ".goenv", ".jenv", ".phpenv", ".plenv", ".luaenv", ".swiftenv"), _VERSIONS),
    **dict.fromkeys((".tfenv", ".tgenv", ".exenv", ".crenv", ".ndenv", ".kubectlenv", ".scalaenv"), _VERSIONS),
    **dict.fromkeys((".npm-global", ".npm-packages", ".npm-prefix", ".n", ".wasmedge", ".moon"), ("bin", "lib", "include", "share")),
    **dict.fromkeys((".linuxbrew", ".homebrew"), ("bin", "sbin", "lib", "libexec", "share", "include", "opt", "Cellar", "Homebrew", "etc")),
    **dict.fromkeys((".local/share/pnpm", ".local/share/fnm", ".fnm", ".juliaup", ".julia/juliaup", ".gem/ruby/*", ".local/share/gem/ruby/*"), ()),
    **dict.fromkeys((".composer/vendor", ".config/composer/vendor"), ()),
    **dict.fromkeys(("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba", ".miniconda3", ".conda/envs"), ()),
    **dict.fromkeys((".cache/pypoetry/virtualenvs", ".local/share/virtualenvs", ".virtualenvs", ".local/share/pdm/venvs", ".local/share/hatch/env"), ()),
    ".tool-versions": (),
    ".asdf": ("bin", "lib", "libexec", "shims", "installs", "plugins", "asdf.sh", "completions"),
    ".bun": ("bin", "install/global/node_modules"),
    ".cabal": ("bin", "lib", "libexec", "share", "store"),
    ".cargo": ("bin", "env"),
    ".deno": ("bin",),
    ".dotnet": ("dotnet", "host", "shared", "sdk", "sdk-manifests", "packs", "templates", "tools"),
    ".elan": ("bin", "toolchains", "settings.toml"),
    ".fzf": ("bin", "shell", "plugin", "man"),
    ".ghcup": ("bin", "ghc", "hls", "share"),
    ".gvm": ("bin", "gos", "scripts"),
    ".krew": ("bin", "store"),
    ".local": ("bin", "sbin", "lib/python*", "lib/node_modules"),
    ".local/share/pipx": ("venvs", "shared"),
    ".local/share/pypoetry": ("venv",),
    ".local/share/uv": ("python", "tools"),
    ".local/share/mise": ("bin", "shims", "installs", "plugins"),
    ".mix": ("escripts", "archives"),
    ".nvm": ("versions", "alias", "nvm.sh", "nvm-exec", "bash_completion"),
    ".pixi": ("bin", "envs"),
    ".poetry": ("bin", "lib"),
    ".proto": ("bin", "shims", "tools", "plugins"),
    ".pub-cache": ("bin", "global_packages", "hosted"),
    ".rustup": ("toolchains", "settings.toml"),
    ".rvm": ("bin", "gems", "rubies", "scripts", "lib"),
    ".rye": ("shims", "py", "tools", "self"),
    ".sdkman": ("bin", "candidates", "libexec"),
    ".stack": ("bin", "programs", "snapshots"),
    ".volta": ("bin", "tools", "layout.v4"),
    ".wasmer": ("bin", "lib", "include"),
    ".yarn": ("bin", "lib", "releases"),
    "go": ("bin", "pkg", "src", "lib", "misc", "VERSION", "go.env"),
}  # fmt: skip

# Variables that name a cache to its tool. pnpm takes a store in the project if it cannot make hard links from the usual one.
NAMED_CACHES = {"pnpm_config_store_dir": ".local/share/pnpm/store"}

# Directories of packages that were already fetched. Commands read them, and what they add stays in their own home directory. None holds a credential:
# those lie beside, such as ~/.cargo/credentials.toml, ~/.m2/settings.xml and ~/.cache/huggingface/token.
CACHES = (
    *(".cargo/registry", ".cargo/git", "go/pkg/mod", ".m2/repository", ".m2/wrapper", ".gradle/caches", ".gradle/wrapper"),
    *(".npm/_cacache", ".cache/yarn", ".yarn/berry/cache", ".local/share/pnpm/store", ".cache/pnpm", ".bun/install/cache", ".cache/deno"),
    *(".cache/pip", ".cache/uv", ".cache/pypoetry/cache", ".cache/pypoetry/artifacts", ".cache/pre-commit"),
    *(".cache/ms-playwright", ".cache/Cypress", ".cache/electron", ".cache/node-gyp", ".cache/torch/hub"),
    *(".cache/huggingface/hub", ".cache/huggingface/datasets", ".cache/huggingface/assets", ".cache/huggingface/modules", ".cache/huggingface/xet"),
    *(".ivy2/cache", ".cache/coursier", ".nuget/packages", ".cabal/packages", ".cache/composer"),
)  # fmt: skip
