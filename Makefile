# Everything here sets itself up: a fresh machine needs Python 3.11 or newer, git and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made

.PHONY: setup demo test check completions bench-cli bench-fetch bench-gateway bench-verdict soak chaos steady clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("llmgw needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[llamacpp,dev]'
	@touch $@

demo: setup
	$(BIN)/python -m tests.demo

# Most of what the tests do is to wait for processes: two at a time take half as long.
test: setup
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

completions: setup
	$(BIN)/python -m llmgw_ctl.completion_files

bench-cli: setup
	$(BIN)/python bench/cli_start.py

bench-fetch: setup
	$(BIN)/python -m bench.fetch

bench-gateway: setup
	$(BIN)/python -m bench.gateway

bench-verdict: setup
	$(BIN)/python -m bench.verdict null --scenario "at every limit" --trials 250
	$(BIN)/python -m bench.verdict null --scenario identical --trials 60 --baselines
	$(BIN)/python -m bench.verdict null --scenario ttft --trials 100
	$(BIN)/python -m bench.verdict bad --trials 100 --baselines
	$(BIN)/python -m bench.verdict odd --trials 30 --bare
	$(BIN)/python -m bench.verdict slow --trials 30
	$(BIN)/python -m bench.verdict.floor
	$(BIN)/python -m bench.verdict.speed

# A good canary promoted by itself under real traffic on real weights; takes about a quarter of an hour.
soak: setup
	$(BIN)/python -m tests.demo --soak

# Kills daemon, gateway workers and replicas at every point of every job while clients ask; takes about ten minutes.
chaos: setup
	$(BIN)/python -m tests.chaos

# 10,000 requests at 50 a second through every verb, reloads and restarts, of which none may fail; takes four minutes.
steady: setup
	$(BIN)/python -m tests.chaos --steady

clean:
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
