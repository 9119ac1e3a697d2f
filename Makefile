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
PROTOC_PYTHON := .venv-protoc/bin/python
PROTOC := .venv-protoc/.installed

# This protoc writes code that runs on protobuf 6 and 7; a newer one would demand 7.
# Pinned to the patch, since its version stands in the generated code.
GRPC_TOOLS := grpcio-tools==1.72.2

PROTO_FILES := $(sort $(wildcard protos/monitor/v1/*.proto))
SERVICE_FILES = $(shell grep -l '^service ' $(PROTO_FILES))

SAY_INSTALLING = @echo "installing into $(@D): this takes some minutes"
MAKE_VENV = test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
INSTALL = $(@D)/bin/python -m pip install --quiet --disable-pip-version-check

PYTEST := $(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile

GRAFANA_TYPES := deploy/grafana/typed

# The tests compare our filter with that of each of these versions.
FILTERPY := .filterpy/1.4.5 .filterpy/2.0.0

.PHONY: demo test test-all test-image same components lint types protos dashboards dashboard-types lock picture benchmark benchmark-statistics benchmark-tracking \
	benchmark-recalibrators benchmark-fit benchmark-promotion benchmark-promotion-tails benchmark-drift \
	benchmark-killed benchmark-fuzz benchmark-faults benchmark-panels benchmark-soak clean

demo: $(CORE)
	$(BIN)/calibration-monitor demo $(DEMO_FLAGS)

# pytest comes last, so that its summary closes the output. Needs Python, make and git alone.
test: lint types $(PROTOC)
	$(PYTEST) -m 'not components and not campaign' $(PYTEST_FLAGS)

# Everything, nothing twice: what `make test` runs, then the rest of the tests.
test-all: components test dashboard-types $(FILTERPY)
	$(PYTEST) -m 'components or campaign' $(PYTEST_FLAGS)

# Comes first: who lacks a program learns it before minutes have gone by.
components:
	@$(PYTHON) tests/components.py

# Builds the image on a stand-in for its base, and runs it: as root, with buildah and debootstrap.
test-image: $(DEV)
	$(BIN)/pytest tests/image $(PYTEST_FLAGS)

# Does the work tree behave as another commit, byte for byte? SAME_FLAGS=--prove shows that it can say no.
BASE ?= HEAD
same: $(DEV)
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

# What the JSON is held against: Grafana's own types, and a compiler.
dashboard-types: $(GRAFANA_TYPES)/node_modules/.installed

# The lock files of the image, from pyproject.toml: LOCK_FLAGS=--upgrade for newer versions.
lock: $(DEV)
	deploy/image/lock $(LOCK_FLAGS)

# That of the README, from a run of the demo.
picture: $(CORE)
	$(BIN)/python -m benchmarks.picture

benchmark: $(CORE)
	$(BIN)/python benchmarks/loopback.py

benchmark-statistics: $(CORE)
	$(BIN)/python benchmarks/streaming.py

benchmark-tracking: $(CORE)
	$(BIN)/python benchmarks/tracking.py

benchmark-recalibrators: $(DEV)
	$(BIN)/python benchmarks/recalibrators.py

benchmark-fit: $(CORE)
	$(BIN)/python benchmarks/fit_beside.py

benchmark-promotion: $(CORE)
	$(BIN)/python benchmarks/promotion.py

benchmark-promotion-tails: $(CORE)
	$(BIN)/python benchmarks/promotion_tails.py

# Beside the detectors of River where it is installed: pip install '.[drift-benchmark]'.
benchmark-drift: $(CORE)
	$(BIN)/python -m benchmarks.drift

# 50 rounds of some minutes in all: kill -9 under load, started again, compared.
benchmark-killed: $(DEV)
	$(BIN)/python -m benchmarks.killed

# A million messages that went wrong, and a hundred thousand to a sidecar that serves.
benchmark-fuzz: $(DEV)
	$(BIN)/python -m benchmarks.fuzz

# What clients and trackers that fail cost the others; some eight minutes.
benchmark-faults: $(DEV)
	$(BIN)/python -m benchmarks.faults

# Every panel of the dashboards while the demo's fault is on, as numbers; beside a real Prometheus.
benchmark-panels: $(DEV)
	$(BIN)/python -m benchmarks.panels

SOAK_FLAGS ?= --minutes 30

# Does anything grow? Fails where a bound is broken.
benchmark-soak: $(CORE)
	$(BIN)/python -m benchmarks.soak $(SOAK_FLAGS)

clean:
	rm -rf $(GRAFANA_TYPES)/node_modules .venv .venv-protoc .filterpy build dist .coverage *.egg-info
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

$(PROTOC): Makefile
	$(MAKE_VENV)
	$(INSTALL) '$(GRPC_TOOLS)'
	touch $@

.filterpy/%: | $(DEV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ filterpy==$*

$(GRAFANA_TYPES)/node_modules/.installed: $(GRAFANA_TYPES)/package-lock.json
	npm --prefix $(GRAFANA_TYPES) ci --ignore-scripts --no-audit --no-fund --silent
	touch $@
