# A fresh clone needs Python 3.11 or later with its venv module, and a package registry; the rest happens here.
#   make test                          everything; PYTEST_ARGS="-k name" for a part of it
#   make test PYTHON=python3.12        the same with another Python, in a virtual environment of its own
PYTHON ?= python3
VENV ?= $(if $(filter file,$(origin PYTHON)),.venv,.venv-$(notdir $(PYTHON)))
PY := $(VENV)/bin/python
STAMP := $(VENV)/.schedd-installed
PYTEST_ARGS ?=
# Twice as many as there are cores: many tests wait for child processes, or for a clock.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 2)

.DEFAULT_GOAL := help
.PHONY: help setup demo test soak faults vm cases mutants lint format bench bench-check clean

help:
	@echo "make demo [PHOTO=path]   the photo workflow on a real daemon, killed in the middle"
	@echo "make test                all tests, on SQLite and on a real PostgreSQL"
	@echo "make cases               which case of the guarantees is shown on which database"
	@echo "make soak                the tests that take minutes"
	@echo "make faults              all faults at full length; needs root, pgbouncer and 200 MB of memory for a tmpfs"
	@echo "make vm                  control groups on a real kernel, in an emulated machine; needs root, qemu-system-x86, debootstrap"
	@echo "make mutants             take away what the guarantees stand on, and show which test notices"
	@echo "make lint | format       ruff and mypy | let ruff rewrite"
	@echo "make bench               schedd, the bare driver and other schedulers side by side"
	@echo "make bench-check         statements and commits for 1,000 tasks against recorded bounds (part of make test)"
	@echo "make clean               remove what builds and tools left (not $(VENV))"

setup: $(STAMP)

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "schedd needs Python 3.11 or later; $(PYTHON) is missing or older. Try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments: ensurepip is missing. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Installed again when pyproject.toml changed, or when the checkout (with its environment) was moved or copied.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif
$(STAMP): pyproject.toml | $(PY)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@printf '%s\n' '$(CURDIR)' > $@

demo: setup
	$(PY) examples/demo/run.py $(if $(PHOTO),"PHOTO=$(PHOTO)")

test: setup
	$(PY) -m pytest -n $(JOBS) --dist worksteal -m "not soak" $(PYTEST_ARGS)

soak: setup
	$(PY) -m pytest -m "soak and not faults" --timeout=1800 $(PYTEST_ARGS)

faults: setup
	$(PY) -m pytest -m "soak and faults" --timeout=1800 $(PYTEST_ARGS)

cases: setup
	$(PY) -m pytest -n $(JOBS) --dist worksteal -m "case and not soak" --cases -q $(PYTEST_ARGS)

vm: setup
	PY="$(abspath $(PY))" sh tests/vm/run.sh

mutants: setup
	$(PY) tests/mutants.py

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: setup
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: setup
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	$(PY) benchmarks/bench.py $(BENCH_ARGS)

bench-check: setup
	$(PY) -m pytest -q tests/store/test_costs.py

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -path './.venv*' -prune -o -type d -name __pycache__ -exec rm -rf {} +
