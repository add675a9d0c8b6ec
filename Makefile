# One command for everything, the same here and in CI. PYTHON chooses the interpreter that makes .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RULES := src/corral/guard/rules/compiled.bin

FRAMEWORKS := .venv-frameworks
COLLECTOR := .venv-collector
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
UV := $(BIN)/uv --system-certs --no-cache --quiet
# Every extra of pyproject.toml that requirements/dev.txt does not lock.
FRAMEWORK_EXTRAS = $(shell $(BIN)/python -c "import tomllib; print(*sorted(set(tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']) - {'mcp', 'otel'}))")

# Where this is set, each of the thousands of Python processes that the tests start would compile corral again.
unexport PYTHONDONTWRITEBYTECODE

FAILED = { echo 'make: packages could not be downloaded or installed' >&2; exit 1; }

.PHONY: setup demo demo-agent test test-real test-settings test-frameworks test-collector check docs docs-site bench bench-ray bench-peers bench-all dist release-check deb sbom sign format lock clean

setup: $(VENV)/.ready $(RULES)

# corral and what it needs to run, without the tools that develop it.
$(VENV)/.core: requirements/core.txt pyproject.toml tools/system-packages
	@tools/system-packages $(PYTHON)
	@echo 'Installing corral into $(VENV) …'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --require-hashes -r requirements/core.txt || $(FAILED)
	@$(PIP) install --no-deps --no-build-isolation -e . || $(FAILED)
	@touch $@

$(VENV)/.ready: requirements/dev.txt $(VENV)/.core
	@echo 'Installing the development tools into $(VENV) …'
	@$(PIP) install --require-hashes -r requirements/dev.txt || $(FAILED)
	@touch $@

$(RULES): $(wildcard src/corral/guard/rules/*.toml) src/corral/guard/rules/compiler.py | $(VENV)/.core
	@$(BIN)/python -m corral.guard.rules.compiler

demo: $(VENV)/.core $(RULES)
	@$(BIN)/corral demo

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/docs.py --check

# Two more than there are cores: many tests wait for a limit to be reached, or for a process to end. ARGS: what pytest takes.
PYTEST := $(BIN)/python -m pytest -n 4 --dist worksteal

# Collecting compiles the tests, once for all workers and beside the checks, which keep one core busy.
test: setup
	@$(BIN)/python -m pytest --collect-only -qq -m "not real" $(ARGS) >/dev/null 2>&1 & $(MAKE) --no-print-directory check; status=$$?; wait; exit $$status
	$(PYTEST) -m "not real" $(ARGS)

# The long tests, and those that need further system packages, which root installs here on Debian. A skip is a failure.
test-real: setup
	@tools/system-packages $(PYTHON) bwrap:bubblewrap zsh fish chromium chromedriver:chromium-driver npm cargo go:golang-go mvn:maven git-lfs sshd:openssh-server gh kubectl:kubernetes-client docker:docker.io /usr/bin/aws:awscli dockerd:docker.io podman runc apparmor_parser:apparmor gpg-agent:gnupg redis-server pg_createcluster:postgresql openssl groff keytool:default-jre-headless /usr/lib/python3/dist-packages/grpc:python3-grpcio
	CORRAL_MUST_RUN=1 CORRAL_MUST_CONTAIN=1 $(PYTEST) -m real $(ARGS)

# `make test` in the settings that people run it in: users, places, terminals, limits, load. ARGS: --only NAME, -- what pytest takes.
test-settings: setup
	$(BIN)/python tools/test_settings.py $(ARGS)

# The leaves against the frameworks themselves, and the demo's agent, in an environment of their own. ARGS: what pytest takes.
test-frameworks: $(FRAMEWORKS)/.ready $(RULES)
	$(FRAMEWORKS)/bin/python -m pytest -c tests/frameworks/pytest.ini -n 3 --dist loadfile tests/frameworks $(ARGS)

# Spans by OTLP to a real collector, Arize Phoenix, in an environment of its own of 900 MB.
test-collector: $(COLLECTOR)/.ready setup
	$(BIN)/python -m pytest tests/collector $(ARGS)

$(COLLECTOR)/.ready: requirements/collector.txt | $(VENV)/.ready
	$(UV) venv --clear --python $(BIN)/python $(COLLECTOR)
	$(UV) pip install --python $(COLLECTOR)/bin/python --require-hashes -r requirements/collector.txt || $(FAILED)
	@touch $@

demo-agent: $(FRAMEWORKS)/.ready $(RULES)
	@$(FRAMEWORKS)/bin/corral demo agent

# Claude's SDK from source: its wheel brings a program of 349 MB that no test runs. SWE-ReX's source for its tests, which its wheel has not.
# By uv, which takes a quarter of pip's time.
$(FRAMEWORKS)/.ready: requirements/frameworks.txt pyproject.toml | $(VENV)/.ready
	$(UV) venv --clear --python $(BIN)/python $(FRAMEWORKS)
	$(UV) pip install --python $(FRAMEWORKS)/bin/python --require-hashes --no-binary claude-agent-sdk -r requirements/frameworks.txt || $(FAILED)
	sed -n '/^swe-rex==/,/# via/p' requirements/frameworks.txt >$(FRAMEWORKS)/swe-rex.txt
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --no-binary swe-rex -d $(FRAMEWORKS)/swe-rex -r $(FRAMEWORKS)/swe-rex.txt || $(FAILED)
	tar -xzf $(FRAMEWORKS)/swe-rex/swe_rex-*.tar.gz -C $(FRAMEWORKS)/swe-rex --strip-components=1
	$(UV) pip install --python $(FRAMEWORKS)/bin/python --no-deps --no-build-isolation -e . || $(FAILED)
	@touch $@

# The pages that are made from the code.
docs: setup
	$(BIN)/python tools/docs.py

# The site, in build/site. A broken link, a page nobody leads to and any other warning is an error.
docs-site: docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# ARGS: names of benchmarks, --rounds N, --json, --own-user, --no-peers.
bench: setup
	$(BIN)/python -m bench $(ARGS)

# The same where Ray is: `make bench-ray ARGS="scale evals"`.
bench-ray: $(FRAMEWORKS)/.ready $(RULES)
	$(FRAMEWORKS)/bin/python -m bench $(ARGS)

# Other guards and sandboxes to measure against, in bench/.peers; Debian's packages only as root.
bench-peers: setup
	$(BIN)/python -m bench._install

# Peers, every benchmark, and docs/benchmarks.md from what they found; about ten minutes. ARGS: names, --rounds N, --no-install.
bench-all: setup
	$(BIN)/python -m bench._all $(ARGS)

# Wheel and sdist in dist/, built from what is committed or not: look at git status first.
dist: setup
	rm -f dist/*
	$(BIN)/python -m build --outdir dist

# What is in dist/, installed from the registry into empty environments, with each extra. ARGS: names of extras.
release-check: dist
	$(BIN)/python tools/release_check.py $(ARGS)

# A Debian package of the wheel in dist/, for the python3 of this Debian.
deb: dist
	$(BIN)/python tools/debian_package.py dist

# The digests of all files in dist/, signed by the SSH key in CORRAL_RELEASE_KEY.
sign: setup
	$(BIN)/python tools/release.py sign

# A bill of materials in dist/.
sbom: setup
	$(BIN)/python tools/sbom.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Pins every development dependency by version and hash, for all platforms.
lock: setup
	$(UV) pip compile --universal --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --extra mcp --extra otel --group dev --group docs pyproject.toml -o requirements/dev.txt
	$(UV) pip compile --universal --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --group build --constraints requirements/dev.txt pyproject.toml -o requirements/core.txt
	$(UV) pip compile --universal --generate-hashes --no-emit-index-url --no-emit-find-links --no-header $(FRAMEWORK_EXTRAS:%=--extra %) --group frameworks pyproject.toml -o requirements/frameworks.txt
	$(UV) pip compile --universal --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --group collector -o requirements/collector.txt

clean:
	rm -rf $(VENV) $(FRAMEWORKS) $(COLLECTOR) dist build bench/results $(RULES)
