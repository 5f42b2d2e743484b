# Everything that make sets up lives in .venv/ and .cache/. It needs Python 3.11 or newer, and no compiler.

.DEFAULT_GOAL := help
.PHONY: help demo kafka jars wheel jobs docs test quick servers soak verdicts lint format bench lock clean
.DELETE_ON_ERROR:

PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)

BIN := .venv/bin
RUN := $(BIN)/python
INSTALL := $(RUN) -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all:
SDISTS := --no-binary pyspark # published as source alone: a few scripts and Spark's own jars
MAVEN := mvn --quiet --batch-mode --strict-checksums -Dstyle.color=never -Dmaven.repo.local=$(CURDIR)/.cache/maven
COMPILE := $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 pyproject.toml

export PIP_CACHE_DIR := $(CURDIR)/.cache/pip
export UV_CACHE_DIR := $(CURDIR)/.cache/uv

CAMPAIGN ?=
ROUNDS ?= 50
KAFKA ?=
# SPARK= leaves Spark out; without a word about it, the demo asks for the Java that it lacks.
NO_SPARK := $(if $(and $(filter command environment,$(firstword $(origin SPARK))),$(if $(SPARK),,empty)),--no-spark)
SPARK ?= $(if $(KAFKA),,$(shell command -v java))
SEED ?=
# Tests that need servers wait for them half of their time: on two cores, three workers are busy.
WORKERS ?= 3
NAME ?= *

define copy-jars
	@command -v mvn >/dev/null || { echo 'make: Maven is missing; install it (Debian: apt-get install openjdk-17-jdk-headless maven)' >&2; exit 2; }
	@echo 'fetching $1 (once)'
	@rm -rf $(@D)
	@$(MAVEN) --file $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$2
	@touch $@
endef

SERVERS := kafka registry postgres-14 postgres-16 postgres-17 jars
BENCH_SERVERS := kafka registry debezium

help:
	@echo 'make demo    the whole story on this machine: a booking database, its changelog, one history, and, where'
	@echo '             Java is there, the tables that Spark makes; make demo SPARK= leaves Spark out'
	@echo '             make demo KAFKA=1 tells it over a broker (Java 17 and Maven)'
	@echo 'make kafka   a Kafka to try things out with, until Ctrl-C; it keeps nothing'
	@echo 'make jars    fetches what Spark needs for Kafka, Delta Lake and PostgreSQL into .cache/jars (Java 17 and Maven)'
	@echo 'make wheel   the package, in dist/: what pip installs'
	@echo 'make jobs    a wheel and a packed environment for Spark on a cluster, in dist/'
	@echo 'make docs    the documentation as a site, in dist/docs/: open dist/docs/index.html'
	@echo 'make test    all tests'
	@echo 'make quick   the tests that need no server, no Spark and no browser: a minute or so'
	@echo 'make soak    a fault campaign at length: CAMPAIGN=postgres ROUNDS=50 SEED=1; adds its figures to docs/measured/'
	@echo 'make verdicts   the rules of compatibility against decoding and a registry: ROUNDS=1000'
	@echo 'make lint    style, types, import rules, locks, schemas that break readers, reference pages that are out of date'
	@echo 'make format  applies the style'
	@echo 'make bench   all benchmarks, or one: NAME=postgres'
	@echo 'make lock    writes the lock files again, from pyproject.toml'
	@echo 'make clean   removes what make set up (.venv, .cache, dist); never data'

demo: .venv/.run $(if $(SPARK),.venv/.dev) $(if $(KAFKA),.cache/kafka/.done)
	@$(RUN) -m changelog.spark_jobs.demo $(if $(KAFKA),--kafka) $(NO_SPARK)

kafka: .venv/.run .cache/kafka/.done
	@$(RUN) -m changelog.connectors.servers.kafka

jars: .cache/jars/.done
	@:

wheel: .venv/.dev
	@rm -f dist/changelog_publisher-*.whl
	@$(RUN) -m hatchling build --target wheel --directory dist >/dev/null
	@echo dist/changelog_publisher-*.whl

# A wheel, and an environment for executors: compiled packages are not imported from a zip. Spark itself is the cluster's.
jobs: wheel
	@rm -rf .cache/jobs dist/jobs.tar.gz
	@$(PYTHON) -m venv --without-pip .cache/jobs
	@$(BIN)/uv pip install --quiet --python .cache/jobs/bin/python --no-build --constraint requirements-dev.lock \
		"$$(echo dist/changelog_publisher-*.whl)[kafka]" pandas
	@tar -czf dist/jobs.tar.gz -C .cache/jobs .
	@rm -rf .cache/jobs
	@echo dist/jobs.tar.gz

docs: .venv/.dev
	@$(RUN) docs/generated.py
	@$(RUN) -m sphinx --fail-on-warning --keep-going --nitpicky --quiet -d .cache/docs docs dist/docs
	@echo dist/docs/index.html

# The compatibility rules against real decoding and a real registry, at length.
verdicts: .venv/.dev .cache/registry/.done
	@CHANGELOG_TEST_ROUNDS=$(ROUNDS) $(if $(SEED),CHANGELOG_TEST_SEED=$(SEED)) $(RUN) -m pytest tests/unit/schemas/test_compatibility_decoding.py tests/integration/kafka/test_registry_verdicts.py

# Tests that need a server which could not be fetched say so: they are skipped, and fail where CI=true.
test: .venv/.dev
	@$(MAKE) --no-print-directory --keep-going servers || true
	@$(RUN) -m pytest -n $(WORKERS) --dist loadgroup

# Which tests those are is found out at collection, by the fixtures that they request: tests/conftest.py.
quick: .venv/.dev
	@$(RUN) -m pytest -n 2 --dist loadgroup -m 'not server'

servers: $(SERVERS:%=.cache/%/.done)
	@:

soak: .venv/.dev
	@test -n "$(CAMPAIGN)" || { echo 'make soak: which campaign? say CAMPAIGN=NAME, NAME one of:'; $(RUN) -m tests.campaigns --list; exit 2; }
	@$(RUN) -m tests.campaigns $(CAMPAIGN) --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

lint: .venv/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --cache-dir .cache/import-linter
	@$(RUN) .ci/check_executors.py
	@$(RUN) .ci/check_locks.py
	@$(RUN) .ci/check_schemas.py
	@$(RUN) docs/generated.py --check
	@$(RUN) .ci/check_lines.py

format: .venv/.dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: .venv/.dev $(if $(filter * kafka,$(NAME)),$(BENCH_SERVERS:%=.cache/%/.done))
	@set -e; for file in bench/$(NAME).py; do $(RUN) $$file; done

lock: .venv/.dev
	@$(COMPILE) --extra embedded --extra kafka --output-file requirements.lock
	@$(COMPILE) --extra embedded --extra kafka --extra spark --group test --group lint --group docs --constraint requirements.lock --output-file requirements-dev.lock
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
	@echo 'installing what the demo needs (once)'
	@$(INSTALL) -r requirements.lock
	@touch $@

.venv/.dev: requirements-dev.lock pyproject.toml | .venv/bin/pip
	@echo 'installing Spark and what the tests need, 400 MB (once)'
	@$(INSTALL) $(SDISTS) -r requirements-dev.lock
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch .venv/.run $@

# Servers for tests and benchmarks, each fetched once, and again when what names its version changes.

.cache/kafka/.done .cache/debezium/.done: .cache/%/.done: tests/servers/%/pom.xml
	$(call copy-jars,$*,$(@D)/lib)

.cache/jars/.done: tests/servers/spark/pom.xml
	$(call copy-jars,jars,$(@D))

.cache/registry/.done .cache/postgres-14/.done .cache/postgres-16/.done .cache/postgres-17/.done: .cache/%/.done: tests/servers/fetch.py | .venv/bin/pip
	@echo 'fetching $* (once)'
	@$(RUN) $< $* $(@D)
	@touch $@
