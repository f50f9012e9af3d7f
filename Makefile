# One command each. Everything happens in .venv, which is made on first use; no root, no apt.
PYTHON ?= python3
BIN := .venv/bin
# Containers often switch byte code off: every process that a test starts would then compile the package anew.
export PYTHONDONTWRITEBYTECODE :=
COMPILE := $(BIN)/python -m compileall -q src tests bench examples
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test check lint ruff mypy import-linter journeys prove bench docs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/installed-demo ## a shop in bad weather: a naive script and Twiceproof, side by side
	$(BIN)/twiceproof demo

test: .venv/installed-test ## every test, against PostgreSQL and Valkey servers that the tests start themselves
	$(COMPILE)
	$(BIN)/python -m pytest -n auto --dist worksteal

check: lint ## the quick ones: lint, types, and the tests without servers
	$(COMPILE)
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow and not server"

lint: .venv/installed-check ## ruff, mypy --strict, import-linter; prints how many files one call passes through
	@$(MAKE) --no-print-directory --jobs --keep-going $(SYNC) ruff mypy import-linter journeys

# The parts of `lint`, at once; each shows its output when it has ended, where make can do that (from 4.0 on).
SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

ruff:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

mypy:
	$(BIN)/mypy

import-linter:
	$(BIN)/lint-imports

journeys:
	$(BIN)/python -m tools.journeys

prove: .venv/installed-test ## all faults, on real stores, with controls and planted bugs; writes docs/proof.md; SEED=n
	$(BIN)/python -m tests.faults $(if $(SEED),--seed $(SEED))

bench: .venv/installed-bench ## ratios against the raw stores and against peers, side by side in one run
	$(BIN)/python -m bench

docs: .venv/installed-check ## the site, into site/; renews what pages say of commands, settings, errors, routes and stores
	$(BIN)/python -m tools.website

clean: ## remove .venv, site and caches
	rm -rf .venv site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("twiceproof needs Python 3.11 or later; set PYTHON=python3.12 or so") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv

.venv/installed-demo: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) --editable '.[rich]'
	@touch $@

.venv/installed-check: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) --editable '.[all,test,docs,lint]'
	@touch $@

.venv/installed-test: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) --editable '.[all,test,test-integrations,docs,lint,bench]'
	@touch $@

.venv/installed-bench: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) --editable '.[all,bench]'
	@touch $@
