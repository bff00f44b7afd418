# Everything here works on a fresh machine: Python 3.11 or newer and make are all it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TOOLS  := $(VENV)/.ready-dev
PEERS  := $(VENV)/.ready-bench
SERVER :=

# What Python has compiled once it need not compile again, in every process that is started here.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test lint style chaos simulate mutants bench soak sqld faketime clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) $(SERVER) ## run a real mesh on this machine: no server, no account; SERVER=sqld: on a real server
	@$(BIN)/python -m tools.demo $(if $(SERVER),--server $(SERVER))

test: $(TOOLS) style sqld faketime ## check style and types, and run all tests
	@$(BIN)/python -m tools.gate

lint: style ## ruff and mypy --strict
	@$(BIN)/mypy

style: $(TOOLS)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

chaos: $(TOOLS) sqld ## real processes under faults: SECONDS=180 SEED=n STORE=file or sqld
	@$(BIN)/python -m proof.chaos --seconds $(or $(SECONDS),180) $(if $(SEED),--seed $(SEED)) --store $(or $(STORE),file)

simulate: $(TOOLS) ## many nodes in one process, every step drawn from a seed: SEEDS=1000 SLOW=20
	@$(BIN)/python -m proof.simulate --seeds $(or $(SEEDS),1000) --slow $(or $(SLOW),1)

mutants: $(TOOLS) sqld ## have every planted bug found
	@$(BIN)/python -m proof.mutants

bench: $(TOOLS) $(PEERS) sqld ## measure, beside raw limits and peers: a table for people, JSON lines in bench/results
	@$(BIN)/python -m bench

soak: $(TOOLS) sqld ## the long runs: tests at full length, an hour of chaos, 10,000 seeds, all planted bugs
	@VOX_SOAK=1 $(BIN)/python -m pytest -m soak -s
	@$(BIN)/python -m proof.chaos --seconds 1800 --rest 0.1 --store file
	@$(BIN)/python -m proof.chaos --seconds 1800 --rest 0.1 --store sqld
	@$(BIN)/python -m proof.simulate --seeds 10000
	@$(BIN)/python -m proof.simulate --seeds 1000 --slow 20
	@$(BIN)/python -m proof.mutants

sqld: $(TOOLS)
	@$(BIN)/python -m tools.install_sqld > /dev/null

faketime: $(TOOLS)
	@$(BIN)/python -m tools.install_faketime > /dev/null

clean: ## remove all that was installed, built or cached
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build bench/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(TOOLS): $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@# For the native replica, where there is a wheel; 0.1.8 is the last one that also syncs from sqld.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary libsql libsql==0.1.8 2>/dev/null || true
	@touch $@

# In a folder of their own: pybreaker loads redis where it finds it, and every command would pay for that.
$(PEERS): $(TOOLS) bench/peers/requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target $(VENV)/peers \
		--requirement bench/peers/requirements.txt && touch $@ \
		|| echo "peers could not be installed: the benchmark leaves them out" >&2
