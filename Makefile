# Everything that make sets up lives in .venv/ and .cache/. It needs Python 3.11 or newer, and no compiler.

.DEFAULT_GOAL := help
.PHONY: help demo test soak lint format bench lock clean
.DELETE_ON_ERROR:

PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)

BIN := .venv/bin
RUN := $(BIN)/python
INSTALL := $(RUN) -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all:
COMPILE := $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 pyproject.toml

export PIP_CACHE_DIR := $(CURDIR)/.cache/pip
export UV_CACHE_DIR := $(CURDIR)/.cache/uv

CAMPAIGN ?=
ROUNDS ?= 50
SEED ?=
NAME ?= *

help:
	@echo 'make demo    the whole story on this machine: a booking database, its changelog, one history'
	@echo 'make test    all tests'
	@echo 'make soak    a fault campaign at length: CAMPAIGN=postgres ROUNDS=50 SEED=1'
	@echo 'make lint    style, types, import rules, and whether the locks are in step'
	@echo 'make format  applies the style'
	@echo 'make bench   all benchmarks, or one: NAME=postgres'
	@echo 'make lock    pins the dependencies anew'
	@echo 'make clean   removes what make set up (.venv, .cache, dist); never data'

demo: .venv/.run
	@$(RUN) -m connectors demo

test: .venv/.dev
	@$(RUN) -m pytest -n 2

soak: .venv/.dev
	@test -n "$(CAMPAIGN)" || { echo 'make soak: which campaign? say CAMPAIGN=NAME, NAME one of:'; $(RUN) -m tests.campaigns --list; exit 2; }
	@$(RUN) -m tests.campaigns $(CAMPAIGN) --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

lint: .venv/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --cache-dir .cache/import-linter
	@$(RUN) .ci/check_locks.py

format: .venv/.dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: .venv/.dev
	@set -e; for file in bench/$(NAME).py; do $(RUN) $$file; done

lock: .venv/.dev
	@$(COMPILE) --extra embedded --output-file requirements.lock
	@$(COMPILE) --extra embedded --group test --group lint --constraint requirements.lock --output-file requirements-dev.lock
	@$(RUN) .ci/check_locks.py

clean:
	rm -rf .venv .cache dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What the demo needs, then what a developer needs: each is installed once, and again when its lock changes.

.venv/bin/pip:
	@test -n "$(PYTHON)" || { echo 'make: Python 3.11 or newer is missing; install it (Debian: apt-get install python3 python3-venv) or say make PYTHON=/path/to/python3' >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo 'make: $(PYTHON) cannot make virtual environments; install them (Debian: apt-get install python3-venv)' >&2; exit 2; }
	@echo 'setting up .venv (once)'
	@$(PYTHON) -m venv .venv

.venv/.run: requirements.lock | .venv/bin/pip
	@$(INSTALL) -r requirements.lock
	@touch $@

.venv/.dev: requirements-dev.lock pyproject.toml | .venv/bin/pip
	@$(INSTALL) -r requirements-dev.lock
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch .venv/.run $@
