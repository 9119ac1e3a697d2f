# Everything happens in .venv, and in .venv-protoc for the generated code. A stamp file in each
# says what is installed, so that a second run installs nothing.

PYTHON ?= python3
DEMO_FLAGS ?=
LOCK_FLAGS ?=
PYTEST_FLAGS ?=
SAME_FLAGS ?=

BIN := .venv/bin
CORE := .venv/.core-installed
DEV := .venv/.dev-installed
FLEET := .venv-fleet/.installed
PROTOC_PYTHON := .venv-protoc/bin/python
PROTOC := .venv-protoc/.installed

# This protoc writes code that runs on protobuf 6 and 7; a newer one would demand 7.
# Pinned to the patch, since its version stands in the generated code.
GRPC_TOOLS := grpcio-tools==1.72.2

PROTO_FILES := $(sort $(wildcard protos/monitor/v1/*.proto))
SERVICE_FILES = $(shell grep -l '^service ' $(PROTO_FILES))

# pip says itself what it fetches.
SAY_INSTALLING = @echo "Installing into $(@D), once; that takes one to three minutes."
MAKE_VENV = test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
INSTALL = $(@D)/bin/python -m pip install --disable-pip-version-check

PYTEST := $(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile

GRAFANA_TYPES := deploy/grafana/typed

# The tests compare our filter with that of each of these versions.
FILTERPY := .filterpy/1.4.5 .filterpy/2.0.0

.PHONY: kernels demo test test-all test-fleet test-image components lint types same protos dashboards lock benchmark benchmark-stages release clean

demo: $(CORE) kernels
	$(BIN)/calibration-monitor demo $(DEMO_FLAGS)

# pytest comes last, so that its summary closes the output. Needs Python, make and git alone.
test: lint types kernels $(PROTOC)
	$(PYTEST) -m 'not components and not campaign and not fleet' $(PYTEST_FLAGS)

# Everything, nothing twice: what `make test` runs, then the laws with fifteen times the examples, and
# the tests that run real components or take long.
test-all: components test $(GRAFANA_TYPES)/node_modules/.installed $(FILTERPY)
	$(PYTEST) -m 'components or campaign or hypothesis' --hypothesis-profile thorough $(PYTEST_FLAGS)

# The same bytes on Apache Beam and PySpark, in an environment of its own; Spark needs Java 17. Not in CI.
test-fleet: $(FLEET)
	.venv-fleet/bin/python -m pip check
	.venv-fleet/bin/python -m pytest -m fleet tests/fleet/engines $(PYTEST_FLAGS)

# Comes first: who lacks a program learns it before minutes have gone by.
components:
	@$(PYTHON) tests/components.py

# Compiles monitor/native/kernels.c anew if it has changed. Without a compiler it says so, and NumPy does
# the same work. An editable installation has done it before.
kernels: | $(CORE)
	@$(BIN)/python hatch_build.py

# The wheels of each architecture, and the source distribution, into dist/.
release: | $(CORE)
	deploy/release

# Builds the image on a stand-in for its base, and runs it: as root, with buildah and debootstrap.
test-image: $(DEV)
	$(BIN)/pytest tests/image $(PYTEST_FLAGS)

# Does the work tree behave as another commit, byte for byte? SAME_FLAGS=--prove shows that it can say no.
BASE ?= HEAD
same: $(DEV) kernels
	$(BIN)/python -m tests.same --base $(BASE) $(SAME_FLAGS)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/buf lint

types: $(DEV)
	$(BIN)/mypy monitor tests $(wildcard benchmarks)

protos: $(PROTOC)
	rm -f monitor/v1/*_pb2.py monitor/v1/*_pb2.pyi monitor/v1/*_pb2_grpc.py
	$(PROTOC_PYTHON) -m grpc_tools.protoc -Iprotos --python_out=. --pyi_out=. $(PROTO_FILES)
	$(PROTOC_PYTHON) -m grpc_tools.protoc -Iprotos --grpc_python_out=. $(SERVICE_FILES)

# The JSON of the dashboards, from deploy/grafana.
dashboards: $(DEV)
	$(BIN)/python -m deploy.grafana

# The lock files of the image, from pyproject.toml: LOCK_FLAGS=--upgrade for newer versions.
lock: $(DEV)
	deploy/image/lock $(LOCK_FLAGS)

# BENCHMARK=name for one of benchmarks/: each says what it measures in its first lines.
BENCHMARK ?= loopback
BENCHMARK_FLAGS ?=
benchmark: $(DEV) kernels
	$(BIN)/python -m benchmarks.$(BENCHMARK) $(BENCHMARK_FLAGS)

# CPU of each stage of a frame, checked against what the system accounts.
benchmark-stages: $(DEV) kernels
	$(BIN)/python -m benchmarks.stages $(BENCHMARK_FLAGS)

clean:
	rm -f monitor/native/*.so
	rm -rf $(GRAFANA_TYPES)/node_modules .venv .venv-protoc .venv-fleet .filterpy build dist .coverage *.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(CORE): pyproject.toml
	$(SAY_INSTALLING)
	$(MAKE_VENV)
	$(INSTALL) --editable .
	touch $@

$(DEV): pyproject.toml
	$(SAY_INSTALLING)
	$(MAKE_VENV)
	$(INSTALL) --editable '.[dev]'
	touch $@ $(CORE)

# Beam first: its pins are the narrower ones, and we go by them.
$(FLEET): pyproject.toml Makefile
	$(SAY_INSTALLING)
	$(MAKE_VENV)
	$(INSTALL) $(shell sed -n 's/^ *"\(apache-beam[^"]*\)",$$/"\1"/p' pyproject.toml)
	$(INSTALL) --editable '.[dev,beam]' 'pyspark >= 4.0, < 5'
	touch $@

$(PROTOC): Makefile
	$(SAY_INSTALLING)
	$(MAKE_VENV)
	$(INSTALL) '$(GRPC_TOOLS)'
	touch $@

.filterpy/%: | $(DEV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ filterpy==$*

$(GRAFANA_TYPES)/node_modules/.installed: $(GRAFANA_TYPES)/package-lock.json
	npm --prefix $(GRAFANA_TYPES) ci --ignore-scripts --no-audit --no-fund --silent
	touch $@
