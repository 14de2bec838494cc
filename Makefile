# Every target works as the first command in a fresh clone: what it needs is installed into .venv. Only the Chromium of
# the tests is not (scripts/chromium.sh).
#
#     make demo       a catalog of 20,000 tables, maintained, broken and mended (under a minute, after the installation)
#     make test       make check, then the tests
#     make test-all   the same with thousands of examples, big trees and long races
#     make test-stores    against stores that others wrote: versitygw, MinIO, Azurite, S3Mock, s3proxy (an hour, and building them)
#     make judge      random public operations against a model: MINUTES=120 SEED=7 OLDER=v0.1.0 (tests/model)
#     make check      style, density, types and layering
#     make bench      ours beside other systems, into docs/benchmarks (ten minutes; BENCH_SCALE=full takes an hour)
#     make ui         the Dagster UI on this machine
#     make docs       the pages as a site, in build/site
#     make install    .venv with everything in it
#     make proto      the protobuf code again, after a change of the .proto
#     make clean      remove what the other targets made
#
# `make test TEST_JOBS=3` runs the tests in three processes instead of four, TEST_JOBS=0 in one, one after the other.
# PYTHON=/path/to/python3.11 and JAVA_HOME choose others than the ones found.

SHELL := /bin/sh
.DEFAULT_GOAL := test
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
.SUFFIXES:

RUN := .venv/bin/
PY := .venv/bin/python
STAMP := .venv/installed
BENCH_STAMP := .venv/installed-bench
PROTO := trinitylake_core/definitions
UI_PORT ?= 3000
BENCH_SCALE ?= small
MINUTES ?= 10
SEED ?= 1
PYTEST_ARGS ?=
# Half of the time the tests wait, for Java to start or a tick to come: four processes share two cores well.
TEST_JOBS ?= 4
PYTEST = $(PY) -m pytest -n $(TEST_JOBS) --dist loadfile
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Each process that a test starts would compile our modules again, and pytest rewrite all assertions.
unexport PYTHONDONTWRITEBYTECODE

# Dagster keeps the runs of `make demo` and `make ui` here, so that the UI shows the demo.
WITH_DAGSTER := exec env DAGSTER_HOME="$$PWD/.dagster"

.PHONY: install prerequisites demo test test-all test-stores judge check style types layers collected bench ui docs proto clean

install: $(STAMP)

prerequisites:
	@scripts/prerequisites.sh >/dev/null

# An environment does not survive being moved or copied: the stamp holds the place it was made for.
ifneq ($(wildcard $(STAMP)),)
ifneq ($(shell cat $(STAMP)),$(shell pwd))
VENV_CLEAR := --clear
.PHONY: $(STAMP)
endif
endif

# pip does not compile what it installs: nobody imports most of it, and Python compiles what somebody does.
$(STAMP): pyproject.toml constraints.txt | prerequisites
	@echo "1 of 3: a Python environment in .venv"
	@"$$(scripts/prerequisites.sh)" -m venv $(VENV_CLEAR) .venv
	@echo "2 of 3: pip"
	@$(PY) -m pip install -qq --constraint constraints.txt --upgrade pip
	@echo "3 of 3: this project with Spark, Dagster and Iceberg (some 900 MB: a minute or two)"
	@$(PY) -m pip install --no-compile --progress-bar off --constraint constraints.txt --editable '.[dev]' >.venv/pip.log & \
		pip=$$!; before=; while kill -0 $$pip 2>/dev/null; do sleep 5; \
		now=$$(grep -c '^Collecting\|^Requirement already' .venv/pip.log); \
		last=$$(sed -n 's/^Collecting \([^ ]*\).*/\1/p; s/^Installing collected.*/writing all of them into .venv/p' .venv/pip.log | tail -1); \
		[ "$$now $$last" = "$$before" ] || echo "        $$now of about $$(grep -c == constraints.txt): $$last"; before="$$now $$last"; \
		done; wait $$pip
	@pwd >$@

$(BENCH_STAMP): $(STAMP)
	@echo "installing what the benchmarks compare with ..."
	@$(PY) -m pip install -qq --constraint constraints.txt --editable '.[dev,bench]'
	@touch $@

demo: $(STAMP) | prerequisites .dagster/dagster.yaml
	@$(WITH_DAGSTER) $(PY) -m examples.demo

test: check
	@scripts/chromium.sh >/dev/null
	$(PYTEST) $(PYTEST_ARGS)

test-all: check
	@scripts/chromium.sh >/dev/null
	@scripts/azurite.sh >/dev/null
	$(PYTEST) -m "" --hypothesis-profile=thorough --timeout 7200 -o faulthandler_timeout=0 $(PYTEST_ARGS)

test-stores: $(STAMP) | prerequisites
	@scripts/stores.sh
	TRINITYLAKE_STORES=1 $(PY) -m pytest -n 0 -p no:cacheprovider --timeout 7200 -o faulthandler_timeout=0 tests/stores $(PYTEST_ARGS)

judge: $(STAMP)
	$(PY) -m tests.model --minutes $(MINUTES) --seed $(SEED) --keep build/judge $(if $(OLDER),--older $(OLDER))

# Side by side: most of it is mypy, which uses one core.
check: $(STAMP) | prerequisites
	@$(MAKE) --no-print-directory -j 2 types style layers $(BESIDE)

# Python and pytest keep what they compiled. Without this each process of the tests would compile all of it, at once.
test test-all: BESIDE := collected
collected:
	@$(PY) -m pytest --collect-only -qq -n 0 >.venv/collected.log || { tail -40 .venv/collected.log; exit 1; }

style:
	$(RUN)ruff check .
	$(RUN)ruff format --check .
	$(PY) scripts/density.py

types:
	$(PY) -m mypy

layers:
	$(RUN)lint-imports

bench: $(BENCH_STAMP) | prerequisites
	@$(PY) -m benchmarks peers --scale $(BENCH_SCALE) --into docs/benchmarks

ui: $(STAMP) | prerequisites .dagster/dagster.yaml
	@echo "Dagster is starting on 127.0.0.1, port $(UI_PORT); Ctrl-C stops it"
	@$(WITH_DAGSTER) .venv/bin/dg dev --use-active-venv --host 127.0.0.1 --port $(UI_PORT)

docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet
	@echo "build/site/start/index.html"

.dagster/dagster.yaml: dagster_project/dagster.yaml
	@mkdir -p .dagster
	@cp dagster_project/dagster.yaml $@

proto: $(STAMP) | prerequisites
	$(PY) -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. $(PROTO)/*.proto

clean:
	rm -rf .venv .dagster .demo .azurite .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -rf build dist *.egg-info spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
