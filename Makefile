# Each target needs nothing else before it: what it lacks, it makes. `make` alone lists them.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
# A checkout that was moved, or a folder that was emptied, is set up anew.
ifneq ($(shell cat $(VENV)/.made-at 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

# Two processes that compile 700 files each time would be half of the fast tests.
unexport PYTHONDONTWRITEBYTECODE

# Several processes share the cores: threads of their own would only wait for each other, at full speed.
test test-fast: export OMP_NUM_THREADS := 1

# More words for pytest: make test PYTEST_ARGS="-k ladder -x"
PYTEST_ARGS ?=
PACKAGES := platform workers supervisor tuning

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast lint bench format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## build .venv with everything pinned (PYTHON=... chooses the interpreter)

$(STAMP): pyproject.toml constraints.txt .ci/setup
	@PYTHON='$(PYTHON)' .ci/setup

demo: $(STAMP) ## train a small model, break it three times, and watch it heal
	@$(BIN)/stormsail train examples/quickstart.yaml --fresh

test: $(STAMP) ## the whole test suite: two processes begin with a cluster each, a third one with what needs none
	@$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-fast: $(STAMP) ## what starts no Ray, server, engine or compiler and needs no GPU: under a minute on two cores
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not cluster and not gpu and not slow" --hypothesis-profile fast $(PYTEST_ARGS)

lint: $(STAMP) ## style, types, import directions, spelling, dependencies, layout
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/deptry $(PACKAGES)
	$(BIN)/python -m pytest -q tests/layout

bench: $(STAMP) ## the benchmarks in their small forms, some minutes each (CURVES=FOLDER: labelled curves too); fails where a bar is missed
	@missed=0; \
	$(BIN)/python benchmarks/detectors.py --small $(if $(CURVES),--curves '$(CURVES)') || missed=1; \
	for name in diagnosis overhead checkpoint sweeps; do $(BIN)/python benchmarks/$$name.py --small || missed=1; done; \
	exit $$missed

format: $(STAMP) ## let ruff repair what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv and every cache (runs live in ~/.stormsail and stay)
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
