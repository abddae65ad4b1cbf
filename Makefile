# Everything that a contributor or a newcomer runs; `make help` lists it.
SHELL := /bin/bash
PYTHON ?= python3
TASK ?= go2_walk_flat
ARGS ?=
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help venv train test check clean

help:  ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' | awk -F'|' '{printf "  make %-8s %s\n", $$1, $$2}'
	@echo "  TASK and ARGS change what is trained: make train TASK=cartpole_swingup ARGS='--seed 3 --time-budget 120'"

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

venv: $(STAMP)  ## install the package and its tools into .venv

train: $(STAMP)  ## train TASK on this machine and leave a folder under runs/
	$(BIN)/tickgraph train $(TASK) $(ARGS)

test: $(STAMP)  ## run the tests, in WORKERS processes
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile $(ARGS)

check: $(STAMP)  ## lint, format and types
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy src/tickgraph/core

clean:  ## remove the virtual environment and caches; runs/ stays
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache build
