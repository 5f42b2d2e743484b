# Everything that make sets up is in .venv/ and .cache/. It needs Python 3.11 or newer, and no compiler.

.DEFAULT_GOAL := help
.PHONY: help demo kafka jars engine wheel jobs docs test quick servers soak verdicts lint format bench lock clean
.DELETE_ON_ERROR:

PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)

BIN := .venv/bin
RUN := $(BIN)/python
INSTALL := $(RUN) -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all:
SDISTS := --no-binary pyspark # it is published only as source, which is a few scripts and Spark's jars
MAVEN := mvn --quiet --batch-mode --strict-checksums -Dstyle.color=never -Dmaven.repo.local=$(CURDIR)/.cache/maven
COMPILE := $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 pyproject.toml

export PIP_CACHE_DIR := $(CURDIR)/.cache/pip
export UV_CACHE_DIR := $(CURDIR)/.cache/uv

# With this variable, each worker of the tests, and each program that they start, would compile all our modules again.
unexport PYTHONDONTWRITEBYTECODE

CAMPAIGN ?=
ROUNDS ?= 50
KAFKA ?=
MYSQL ?=
# SPARK= leaves Spark out. If SPARK is not set, and Java is missing, the demo says that it needs Java.
NO_SPARK := $(if $(and $(filter command environment,$(firstword $(origin SPARK))),$(if $(SPARK),,empty)),--no-spark)
SPARK ?= $(if $(KAFKA),,$(shell command -v java))
SEED ?=
# Tests with servers spend half of their time waiting for them, so six workers keep two cores busy.
WORKERS ?= 6
NAME ?= *

define copy-jars
	@command -v mvn >/dev/null || { echo 'make: Maven is missing; install it (Debian: apt-get install openjdk-17-jdk-headless maven)' >&2; exit 2; }
	@echo 'fetching $1 (once)'
	@rm -rf $(@D)
	@$(MAVEN) --file $< $(if $3,--activate-profiles $3) dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$2
	@touch $@
endef

# Our part of the Debezium process: a few classes, which the wheel contains. The jars of Debezium are not in the wheel.
ENGINE := connectors/debezium/changelog-debezium.jar
ENGINE_SOURCES := $(shell find connectors/debezium/java -name '*.java') connectors/debezium/java/pom.xml

ARCHIVES := registry postgres-14 postgres-16 postgres-17 mariadb mysql mariadb-10.11 mariadb-11.8 mysql-9 redis
CONNECTORS := postgres mysql mariadb sqlserver
SERVERS := kafka streams jars spark-classes debezium-jdbc $(CONNECTORS:%=engine-%) $(ARCHIVES)
BENCH_SERVERS_kafka := kafka registry debezium
BENCH_SERVERS_mysql := kafka mysql mariadb debezium-mysql debezium-mariadb
BENCH_SERVERS_debezium := engine-postgres
BENCH_SERVERS_shim := engine-postgres
BENCH_SERVERS_views_kafka := kafka streams

help:
	@echo 'make demo    runs the demo: a booking database, its changelog, the history of one order, and a console in the browser'
	@echo '             with Java also the tables that Spark makes; make demo SPARK= leaves Spark out'
	@echo '             make demo MYSQL=1 runs it with MariaDB instead of PostgreSQL'
	@echo '             make demo KAFKA=1 runs it with a Kafka broker (needs Java 17 and Maven)'
	@echo 'make kafka   runs a Kafka broker until Ctrl-C, and then deletes its data'
	@echo 'make jars    fetches jars for Spark (Kafka, Delta Lake, PostgreSQL) into .cache/jars (needs Java 17 and Maven)'
	@echo 'make engine  builds the jar by which Python runs Debezium (needs Java 17 and Maven)'
	@echo 'make wheel   builds the packages that pip installs, in dist/: the service, and the stamps of applications'
	@echo 'make jobs    builds a wheel and a packed environment for Spark on a cluster, in dist/'
	@echo 'make docs    builds the site of the documentation: open dist/docs/index.html'
	@echo 'make test    runs all tests'
	@echo 'make quick   runs the tests that need no server, no Spark and no browser: about a minute'
	@echo 'make soak    runs a long fault campaign: CAMPAIGN=postgres ROUNDS=50 SEED=1; adds its figures to docs/measured/'
	@echo 'make verdicts   compares the compatibility rules with real decoding and a real registry: ROUNDS=1000'
	@echo 'make lint    checks style, types, import rules, lock files, schemas, reference pages and the lines of Markdown'
	@echo 'make format  applies the style'
	@echo 'make bench   runs all benchmarks, or one: NAME=postgres'
	@echo 'make lock    writes the lock files again, from pyproject.toml'
	@echo 'make clean   removes what make has set up (.venv, .cache, dist); never data'

demo: .venv/.run $(if $(SPARK),.venv/.dev) $(if $(KAFKA),.cache/kafka/classes.jsa) $(if $(MYSQL),.cache/mariadb/.done)
	@$(RUN) -m changelog.spark_jobs.demo $(if $(MYSQL),--mysql) $(if $(KAFKA),--kafka) $(NO_SPARK)

kafka: .venv/.run .cache/kafka/classes.jsa
	@$(RUN) -m changelog.connectors.servers.kafka

jars: .cache/jars/.done
	@:

engine: $(ENGINE)
	@:

wheel: .venv/.dev $(if $(shell command -v mvn),$(ENGINE))
	@test -e $(ENGINE) || echo 'make: Maven is missing, so the wheel cannot run Debezium' >&2
	@rm -f dist/changelog_publisher-*.whl dist/changelog_stamps-*.whl
	@$(RUN) -m hatchling build --target wheel --directory dist >/dev/null
	@cd stamps && $(CURDIR)/$(RUN) -m hatchling build --target wheel --directory $(CURDIR)/dist >/dev/null
	@echo dist/changelog_publisher-*.whl dist/changelog_stamps-*.whl

# Makes a wheel, and an environment for executors, because Python cannot import compiled packages from a zip file. The
# environment does not contain Spark, which the cluster has.
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

# Compares the compatibility rules with real decoding and a real registry, in many rounds.
verdicts: .venv/.dev .cache/registry/.done
	@CHANGELOG_TEST_ROUNDS=$(ROUNDS) $(if $(SEED),CHANGELOG_TEST_SEED=$(SEED)) $(RUN) -m pytest tests/unit/schemas/test_compatibility_decoding.py tests/integration/kafka/test_registry_verdicts.py

# If a server could not be fetched, the tests that need it are skipped, and say so. With CI=true, they fail.
test: .venv/.dev
	@$(MAKE) --no-print-directory --keep-going servers || true
	@$(RUN) -m pytest -n $(WORKERS) --dist loadgroup

# tests/conftest.py marks the tests that need a server, by the fixtures that they request.
quick: .venv/.dev
	@$(RUN) -m pytest -n 2 --dist loadgroup -m 'not server'

servers: $(SERVERS:%=.cache/%/.done) .cache/kafka/classes.jsa $(ENGINE)
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

bench: .venv/.dev $(if $(filter * debezium shim,$(NAME)),$(ENGINE)) $(foreach name,$(if $(filter *,$(NAME)),kafka mysql debezium views_kafka,$(NAME)),$(BENCH_SERVERS_$(name):%=.cache/%/.done))
	@set -e; for file in bench/$(NAME).py; do $(RUN) $$file; done

lock: .venv/.dev
	@$(COMPILE) --extra console --extra embedded --extra kafka --extra mysql --extra redis --extra state --extra views --output-file requirements.lock
	@$(COMPILE) --extra console --extra embedded --extra kafka --extra mysql --extra redis --extra state --extra views --extra spark --group test --group lint --group docs --constraint requirements.lock --output-file requirements-dev.lock
	@$(RUN) .ci/check_locks.py

clean:
	rm -rf .venv .cache dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# .venv/.run is what the demo needs, .venv/.dev what a developer needs. Each is installed once, and again after its lock
# file has changed.

.venv/bin/pip:
	@test -n "$(PYTHON)" || { echo 'make: Python 3.11 or newer is missing; install it (Debian: apt-get install python3 python3-venv) or say make PYTHON=/path/to/python3' >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo 'make: $(PYTHON) cannot make virtual environments; install them (Debian: apt-get install python3-venv)' >&2; exit 2; }
	@echo 'setting up .venv (once)'
	@$(PYTHON) -m venv .venv

.venv/.run: requirements.lock | .venv/bin/pip
	@echo 'installing what the demo needs (once)'
	@$(INSTALL) -r requirements.lock
	@touch $@

.venv/.dev: requirements-dev.lock pyproject.toml stamps/pyproject.toml | .venv/bin/pip
	@echo 'installing Spark and what the tests need, 400 MB (once)'
	@$(INSTALL) $(SDISTS) -r requirements-dev.lock
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable stamps
	@touch .venv/.run $@

# Servers for tests and benchmarks. Each is fetched once, and again after the file with its version has changed.

.cache/kafka/.done: tests/servers/kafka/pom.xml
	$(call copy-jars,kafka,$(@D)/lib)

.cache/kafka/classes.jsa: tests/servers/kafka_classes.py .cache/kafka/.done | .venv/.run
	@echo 'writing an archive of the classes of Kafka (once)'
	@$(RUN) -m tests.servers.kafka_classes $(@D)/lib

# Each of Debezium's connectors is a profile of one pom.xml.
.cache/debezium/.done: tests/servers/debezium/pom.xml
	$(call copy-jars,debezium,$(@D)/lib,postgres)

DEBEZIUM := mysql mariadb jdbc avro
$(DEBEZIUM:%=.cache/debezium-%/.done): .cache/debezium-%/.done: tests/servers/debezium/pom.xml
	$(call copy-jars,debezium-$*,$(@D)/lib,$*)

$(ENGINE): $(ENGINE_SOURCES)
	@command -v mvn >/dev/null || { echo 'make: Maven is missing; install it (Debian: apt-get install openjdk-17-jdk-headless maven)' >&2; exit 2; }
	@echo 'building $@'
	@$(MAVEN) --file connectors/debezium/java/pom.xml -Dengine.build=$(CURDIR)/.cache/engine package
	@cp .cache/engine/changelog-debezium.jar $@

# Connectors for the embedded engine, as users install them.
$(CONNECTORS:%=.cache/engine-%/.done): .cache/engine-%/.done: connectors/debezium/jars.py connectors/java/jars.py | .venv/.dev
	@echo 'fetching Debezium for $* (once)'
	@MAVEN_OPTS='-Dmaven.repo.local=$(CURDIR)/.cache/maven' $(RUN) -m changelog debezium install $* --to $(CURDIR)/$(@D) >/dev/null
	@touch $@

# Kafka Streams for the views over topics, as users install it.
.cache/streams/.done: connectors/views/streams/jars.py connectors/java/jars.py | .venv/.dev
	@echo 'fetching Kafka Streams (once)'
	@MAVEN_OPTS='-Dmaven.repo.local=$(CURDIR)/.cache/maven' $(RUN) -m changelog views install --to $(CURDIR)/$(@D) >/dev/null
	@touch $@

.cache/jars/.done: tests/servers/spark/pom.xml
	$(call copy-jars,jars,$(@D))

.cache/spark-classes/.done: tests/servers/spark_classes.py requirements-dev.lock | .venv/.dev
	@command -v java >/dev/null || { echo 'make: Java is missing; install it (Debian: apt-get install openjdk-17-jdk-headless)' >&2; exit 2; }
	@echo 'writing an archive of the classes of Spark (once)'
	@rm -rf $(@D)
	@mkdir -p $(@D)
	@$(RUN) -m tests.servers.spark_classes $(@D)/classes.jsa >$(@D)/log 2>&1 || { tail -n 3 $(@D)/log >&2; exit 2; }
	@touch $@

$(ARCHIVES:%=.cache/%/.done): .cache/%/.done: tests/servers/fetch.py | .venv/bin/pip
	@echo 'fetching $* (once)'
	@$(RUN) $< $* $(@D)
	@touch $@
