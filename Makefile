# A fresh clone needs Python 3.11 or later with its venv module, and a package registry; the rest happens here.
#   make test                          all but whole programs, which make programs runs; PYTEST_ARGS="-k name" for a part of both
#   make test DATABASES=both           each test that takes a database on both of them; make test-both is the same
#   make test PYTHON=python3.12        the same with another Python, in a virtual environment of its own
#   make test-lowest                   the same with the lowest versions that pyproject.toml allows, in .venv-lowest
PYTHON ?= python3
VENV ?= $(if $(filter file,$(origin PYTHON)),.venv,.venv-$(notdir $(PYTHON)))
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --disable-pip-version-check
STAMP := $(VENV)/.schedd-installed
DEMO_STAMP := $(VENV)/.schedd-demo
MESSAGES_STAMP := $(VENV)/.schedd-demo-messages
CONSTRAINTS ?=
# What is installed: dev is all that tests and checks need; quick is enough for `make quick`, a quarter of that. The SDK
# of MCP wants later versions of what else there is than schedd does, so it is left out where those are the lowest.
_MCP := ,mcp
EXTRAS ?= dev$(if $(CONSTRAINTS),,$(_MCP))
PYTEST_ARGS ?=
# Workers write compiled tests and modules, whatever the environment says: else each compiles all of them, in each run.
PYTEST := PYTHONDONTWRITEBYTECODE= $(PY) -m pytest
# both: each test that takes a database runs on both; usually those above the store run on one, which their names choose.
DATABASES ?= usual
EVERY_DATABASE := $(if $(filter both,$(DATABASES)),--every-database)
# Twice as many as there are cores: many tests wait for child processes, or for a clock.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 2)

.DEFAULT_GOAL := help
.PHONY: help setup packages emulator machine elsewhere demo-messages demo-anywhere operating pictures observability demo test programs untimed timed test-both quick django test-lowest man docs container soak faults faults-ha transports executors executors-soak kube kube-soak ray vm cases mutants golden lint ruff mypy pyright format bench bench-check release keep-release clean

help:
	@echo "make demo [PHOTO=path]   the photo workflow on a real daemon, killed in the middle"
	@echo "make demo-messages       orders from a Cloudflare queue, out as webhooks and over NATS, killed in the middle"
	@echo "make demo-anywhere       one task file in one program, a fleet, processes, Dask, Slurm and Ray, each killed in the middle"
	@echo "make test                the tests, on SQLite and on a real PostgreSQL: 7 minutes on 2 cores; with PYTEST_ARGS of make programs, too"
	@echo "make programs            those of whole programs: daemons, their faults, browsers, examples: 15 minutes on 2 cores"
	@echo "make untimed | timed     the same in two parts: the second measures time, so that nothing may run beside it"
	@echo "make test-both           the same, and the tests above the store on both databases, too: before a release"
	@echo "make quick               a part of them, on SQLite only and without faults: a minute"
	@echo "make django              Django's tasks and their contract: PYTHON=python3.12 EXTRAS=quick tries Django 6"
	@echo "make test-lowest         all tests, with the lowest versions of what schedd needs (constraints/lowest.txt)"
	@echo "make cases               which case of the guarantees is shown on which database"
	@echo "make observability       the dashboard and the alert rules, with a real Prometheus: half a minute"
	@echo "make elsewhere           the first programs, the store and the client as macOS and Windows let them; types, too"
	@echo "make soak                the tests that take minutes"
	@echo "make faults              all faults at full length; needs root, pgbouncer and 200 MB of memory for a tmpfs"
	@echo "make faults-ha           every way to fail over, with each promise of a commit, as a table: 8 minutes; needs postgresql; with patroni and etcd-server, theirs, too"
	@echo "make vm                  control groups on a real kernel, in an emulated machine; needs root, qemu-system-x86, debootstrap"
	@echo "make mutants             take away what the guarantees stand on, and show which test notices"
	@echo "make golden OUT=file      record what each command, page and method answers on a filled store, to compare two states"
	@echo "make lint | format       ruff, mypy and pyright | let ruff rewrite"
	@echo "make operating           write the outputs in docs/guides/operating.md anew"
	@echo "make pictures            take the pictures in docs/pictures anew, of a real daemon: two minutes; needs chromium"
	@echo "make man                 write the man pages and completions in share/ anew"
	@echo "make docs                the site of the documentation in build/site, with warnings as errors: a minute"
	@echo "make container ROOT=DIR  run the image's entry point without an engine, in a copy of this Debian root; needs root"
	@echo "make transports          messages over Debian's redis-server and rabbitmq-server, and over all others on PostgreSQL"
	@echo "make executors           tasks as jobs of Slurm (Debian's slurm-wlm, munge) and Ray (PyPI's, in $(RAY_VENV)); needs root; 20 minutes; WHICH=part: as in .ci/run, 7"
	@echo "make executors-soak      20,000 jobs of process and 500 of each real engine, all of them hostile, as a table"
	@echo "make kube                the executor kubernetes on a real API server and its controllers, built once from Debian 12's source: 3 to 12 minutes, then 3 to 5"
	@echo "make kube-soak           500 jobs on it, all of them hostile, while its servers and etcd are killed, as a table"
	@echo "make release             an sdist and a wheel in dist/, built twice, checked and tested as installed; uploads nothing"
	@echo "make keep-release        after a release: keep its wheel and a store of it, from which the next one is upgraded in tests"
	@echo "make bench               schedd, the bare driver and other schedulers side by side"
	@echo "make bench-check         statements and commits for 1,000 tasks against recorded bounds (part of make test)"
	@echo "make clean               remove what builds and tools left (not $(VENV))"

setup: $(STAMP)

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "schedd needs Python 3.11 or later; $(PYTHON) is missing or older. Try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments: ensurepip is missing. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Making a virtual environment, $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# Installed again when pyproject.toml changed, or when the checkout (with its environment) was moved or copied.
# Compiled here, once: else all workers of the first tests compile it at the same time.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif
$(STAMP): pyproject.toml $(CONSTRAINTS) | $(PY)
	@echo "Installing schedd with PostgreSQL and what the tests need ($(EXTRAS)) into $(VENV): $(if $(filter quick,$(EXTRAS)),330 MB,1 GB)"
	@$(PIP) $(addprefix --constraint ,$(CONSTRAINTS)) --editable '.[$(EXTRAS)]'
	@$(PY) -m compileall -q scheduler tasks migrations
	@printf '%s\n' '$(CURDIR)' | tee $(DEMO_STAMP) $(MESSAGES_STAMP) > $@

# All that setup installs but schedd itself, whose build writes into the checkout: .ci/run makes several environments at once.
packages: | $(PY)
	@$(PY) tests/support/extras.py $(EXTRAS) | $(PIP) --requirement /dev/stdin

# What the demos need is less. It is there already once the rest is.
ifneq ($(shell cat $(DEMO_STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(DEMO_STAMP)
endif
$(DEMO_STAMP): pyproject.toml | $(PY)
	@echo "Installing schedd and Pillow into $(VENV): 120 MB"
	@$(PIP) --editable '.[images]'
	@printf '%s\n' '$(CURDIR)' > $@

ifneq ($(shell cat $(MESSAGES_STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(MESSAGES_STAMP)
endif
$(MESSAGES_STAMP): pyproject.toml | $(PY)
	@echo "Installing schedd with what the demo of messages needs into $(VENV): 330 MB"
	@$(PIP) --editable '.[demo]'
	@printf '%s\n' '$(CURDIR)' > $@

demo-messages: $(MESSAGES_STAMP)
	@$(EMULATOR)
	@echo "Running the demo of messages: about 20 seconds"
	@$(PY) examples/orders/run.py

demo-anywhere: setup
	@echo "Running one task file in all worlds that are here: about 90 seconds, with Ray four minutes"
	@$(PY) examples/worlds/run.py $(WORLDS)

operating: setup
	SCHEDD_WRITE_GUIDE=1 $(PY) -m pytest -q --sqlite-only tests/test_operating.py

demo: $(DEMO_STAMP)
	@echo "Running the demo: about 20 seconds"
	@$(PY) examples/demo/run.py $(if $(PHOTO),"PHOTO=$(PHOTO)")

# Cloudflare's emulator, from npm, by the Node of a wheel. Nothing is fetched while tests or demos run.
EMULATOR = PYTHONPATH=tests $(PY) -m support.miniflare || echo "Without Cloudflare's emulator its tests are left out, and the demo has a stand-in" >&2
emulator: setup
	@$(EMULATOR)

# What the tests use beside wheels: Debian's, as root, or npm's. Without it their tests are left out, and named at the end.
machine: setup
	@PY=$(PY) bash tests/machine.sh

TESTS := not soak and not transports and not executors and not kube
test: setup emulator machine
	@$(if $(PYTEST_ARGS),,echo "The tests but for those of whole programs: 7 minutes on 2 cores, less on more (this machine has $$(getconf _NPROCESSORS_ONLN)). make quick takes one.")
	$(PYTEST) -n $(JOBS) --dist worksteal -m "$(TESTS)$(if $(PYTEST_ARGS),, and not programs)" $(EVERY_DATABASE) $(PYTEST_ARGS)

# Daemons, and what ends them; browsers; examples as they stand. Many of them wait for each other. Those that measure time
# come by themselves: beside others, each of them would keep all processes waiting, first until none has a test any more.
OF_PROGRAMS = $(or $(PYTEST_ARGS),$$(PYTHONPATH=tests $(PY) -m support.session))
ALONE = $(or $(PYTEST_ARGS),$$(PYTHONPATH=tests $(PY) -m support.session alone))
programs: untimed timed
untimed: setup emulator machine
	$(PYTEST) -n $(JOBS) --dist worksteal -m "$(TESTS) and programs and not alone" $(EVERY_DATABASE) $(OF_PROGRAMS)
timed: setup emulator machine
	$(PYTEST) -m "$(TESTS) and programs and alone" $(EVERY_DATABASE) $(ALONE) $(if $(PYTEST_ARGS),|| [ $$? = 5 ])

test-both:
	$(MAKE) test programs DATABASES=both

# What breaks most things when it is wrong, from each room of the code; it has to stay under a minute on two cores.
QUICK := cli/columns cli/db cli/help cli/status cli/submit cli/tasks client/builder config/durations \
  config/example config/load engine/attempt/exception_groups engine/attempt/retry engine/cancel \
  engine/claim_lease engine/dispatch/max_concurrency engine/dispatch/one_commit engine/durable/events \
  engine/durable/sleep engine/durable/steps engine/execution/cpu_functions engine/execution/envelope \
  engine/execution/transaction engine/maintenance/schedules engine/poll model/catchup model/recurrence \
  model/recurrence_scan model/redact model/retry model/state store/admin/replay store/costs \
  store/graph/dependencies store/tasks/deadlines store/tasks/keys tasks/command tasks/files scheduler_options \
  with_block
QUICK_FILES := $(foreach name,$(QUICK),tests/$(if $(findstring /,$(name)),$(dir $(name)))test_$(notdir $(name)).py)

quick: setup
	@echo "A part of the tests, on SQLite only and without faults: a minute on 2 cores. make test runs them all."
	$(PYTEST) -n $(JOBS) --dist worksteal -m "not soak and not faults and not alone and not transports and not executors and not kube" \
	  --sqlite-only \
	  $(QUICK_FILES) $(PYTEST_ARGS)

# Django 6 needs Python 3.12, so its own framework of tasks is tried there: make django PYTHON=python3.12 EXTRAS=quick
django: setup
	$(PYTEST) -n $(JOBS) --dist worksteal $(EVERY_DATABASE) tests/frameworks/test_django.py \
	  tests/frameworks/test_conformance.py $(PYTEST_ARGS)

test-lowest:
	$(MAKE) test programs VENV=.venv-lowest CONSTRAINTS=constraints/lowest.txt

# Here, with what macOS and Windows lack taken away: see tests/support/elsewhere/. test_elsewhere.py starts programs so itself.
ELSEWHERE_FILES := tests/engine/durable/test_examples.py tests/engine/durable/test_order_example.py tests/model tests/client tests/store
elsewhere: setup
	$(PYTEST) -n $(JOBS) tests/test_elsewhere.py
	@for system in darwin win32; do echo "As on $$system"; \
	  ELSEWHERE=$$system PYTHONPATH=$(CURDIR)/tests/support/elsewhere $(PYTEST) --assert=plain -n $(JOBS) --dist worksteal --sqlite-only \
	    -m "not soak and not faults and not alone and not linux$$([ $$system = darwin ] || echo ' and not posix')" \
	    $(ELSEWHERE_FILES) $(PYTEST_ARGS) || exit 1; done
	PYTHONPATH=tests $(PY) -m support.platforms

pictures: setup
	$(PY) docs/pictures/make.py

man: setup
	$(PY) share/make.py
	$(PY) docs/make.py

# Zensical is 90 MB, so it comes when it is first used.
docs: setup
	$(PIP) --quiet --editable '.[docs]'
	$(PY) docs/build.py
	$(PY) -m pytest -q tests/test_site.py

# Without a container engine; as root, on Linux.
ROOT ?= /
container:
	sh containers/try.sh $(ROOT)

observability: setup
	@command -v promtool prometheus >/dev/null || { echo "promtool and prometheus are missing. On Debian and Ubuntu: apt-get install prometheus" >&2; exit 1; }
	$(PY) -m pytest tests/telemetry/test_observability_files.py tests/telemetry/test_compose.py tests/telemetry/test_prometheus.py $(PYTEST_ARGS)

soak: setup
	$(PYTEST) -m "soak and not faults and not executors and not kube" --every-database --timeout=1800 $(PYTEST_ARGS)

faults: setup
	$(PYTEST) -m "soak and faults and not executors" --timeout=1800 --ignore=tests/faults/test_failover_matrix.py $(PYTEST_ARGS)

# Both programs, or nothing.
PATRONI = $(shell command -v patroni >/dev/null && command -v etcd)
faults-ha: setup
	@ls /usr/lib/postgresql/*/bin/pg_rewind >/dev/null 2>&1 || { \
	  echo "Debian's PostgreSQL is missing. On Debian and Ubuntu: apt-get install postgresql" >&2; exit 1; }
	@$(if $(PATRONI),,echo "NOT tried: failovers by Patroni. On Debian and Ubuntu: apt-get install patroni etcd-server")
	$(PYTEST) -m "soak and faults" --timeout=300 tests/faults/test_failover_matrix.py $(if $(PATRONI),,-k "not patroni") $(PYTEST_ARGS)

# Those of Debian's servers that there are; the other transports' tests on PostgreSQL run in any case.
SERVERS ?= redis rabbitmq
space := $(subst ,, )
MISSING := $(filter-out $(SERVERS),redis rabbitmq)
transports: setup
	@for server in $(SERVERS); do command -v $$server-server >/dev/null || { \
	  echo "$$server-server is missing. On Debian and Ubuntu: apt-get install $$server-server" >&2; exit 1; }; done
	$(PYTEST) -n $(JOBS) --dist worksteal -m "transports and not soak" -k "$(if $(MISSING),not ($(subst $(space), or ,$(strip $(MISSING)))))" \
	  tests/transports $(PYTEST_ARGS)

# Those of the engines that there are: make executors ENGINES=ray. WHICH=part leaves out what quick executors show, too.
ENGINES ?= slurm ray
WHICH ?= all
ABSENT := $(filter-out $(ENGINES),slurm ray)
executors: setup $(filter ray,$(ENGINES))
ifneq ($(filter slurm,$(ENGINES)),)
	@for program in sbatch munge; do command -v $$program >/dev/null || { \
	  echo "$$program is missing. On Debian and Ubuntu: apt-get install slurm-wlm munge" >&2; exit 1; }; done
endif
	RAY_VENV=$(abspath $(RAY_VENV)) $(PYTEST) -n $(JOBS) --dist worksteal -m "executors and not soak$(if $(filter part,$(WHICH)), and not full)" \
	  -k "$(if $(ABSENT),not ($(subst $(space), or ,$(strip $(ABSENT)))))" $(EVERY_DATABASE) tests/executors tests/test_demo_anywhere.py $(PYTEST_ARGS)

# A daemon does not need Ray itself, so neither does its environment.
RAY_VENV ?= .venv-ray
ray: $(RAY_VENV)/.schedd-ray
$(RAY_VENV)/.schedd-ray:
	@echo "Installing Ray into $(RAY_VENV), about 390 MB"
	@$(PYTHON) -m venv $(RAY_VENV)
	@$(RAY_VENV)/bin/python -m pip install --disable-pip-version-check --quiet 'ray[default]>=2.60,<3'
	@touch $@

# PLACEMENTS=N or SECONDS=N makes it shorter, PYTEST_ARGS="-k slurm" takes one engine.
executors-soak: setup $(filter ray,$(ENGINES))
	RAY_VENV=$(abspath $(RAY_VENV)) $(PYTEST) -m "executors and soak" --timeout=7200 \
	  -k "$(if $(ABSENT),not ($(subst $(space), or ,$(strip $(ABSENT)))))" tests/executors tests/test_demo_anywhere.py $(PYTEST_ARGS)

# Debian 12 has its source: tests/kube/build.sh. etcd and Go come from Debian, too.
kube: setup
	@sh tests/kube/build.sh
	$(PYTEST) -n $(JOBS) --dist worksteal -m "kube and not soak" tests/executors $(PYTEST_ARGS)

kube-soak: setup
	@sh tests/kube/build.sh
	$(PYTEST) -m "kube and soak" --timeout=7200 tests/executors $(PYTEST_ARGS)

cases: setup
	$(PYTEST) -n $(JOBS) --dist worksteal -m "case and not soak" --every-database --cases -q $(PYTEST_ARGS)

vm: setup
	PY="$(abspath $(PY))" sh tests/vm/run.sh

mutants: setup
	$(PY) tests/mutants.py

# Before and after a rebuilding of the doors: make golden OUT=before.jsonl
OUT ?= golden.jsonl
golden: setup
	PYTHONPATH=tests $(PY) -m golden.record $(OUT)

# Side by side, as mypy and pyright take one core each; what each says stays together.
lint: setup
	@$(MAKE) --no-print-directory --output-sync -j 3 -k ruff mypy pyright
ruff:
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
mypy:
	$(PY) -m mypy
pyright:
	$(PY) tests/support/pyright.py

format: setup
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: setup
	$(PIP) --quiet --editable '.[bench]'
	$(PY) benchmarks/bench.py $(BENCH_ARGS)

bench-check: setup
	$(PYTEST) -q tests/store/test_costs.py

# It tests in environments of its own, so this one needs no more than what builds.
release: | $(PY)
	$(PIP) --quiet --editable '.[release]'
	$(PY) share/release.py $(if $(TAG),--tag $(TAG)) $(QUICK_FILES)

# After a release: the tests of the next one upgrade from it.
keep-release: | $(PY)
	$(PIP) --quiet --editable '.[release]'
	$(PY) share/keep_release.py $(or $(WHEEL),$(wildcard dist/schedd-*.whl))

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -path './.venv*' -prune -o -type d -name __pycache__ -exec rm -rf {} +
