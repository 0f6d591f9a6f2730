# Every target works on a machine with nothing but Python >= 3.11 and make: it makes its own virtual environment.
# Another interpreter: make test PYTHON=python3.13

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PACKAGE := --editable '.[redis,django,django-redis,flask,sqlalchemy]'
PYTEST := $(BIN)/python -m pytest
# `coverage run` and not pytest's --cov: our pytest plugin imports the package before that would begin to measure. COVER=
# leaves the measuring out.
COVER ?= coverage run -m
MEASURED := $(BIN)/python -m $(COVER) pytest
OR_NONE := || [ $$? -eq 5 ]
SERVE ?= 1
ARGS ?=

# Bytecode is kept, whatever the environment asks for: each of pytest's workers would rewrite and compile every test anew,
# which is a third of `make quick`.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help quick test test-all test-none test-beside test-slow nightly nightly-beside nightly-alone coverage simulate faults mutants check dist docs demo bench clean
.NOTPARALLEL:

help:
	@echo "make quick    after each edit: what needs no server beyond Redis, in half a minute"
	@echo "make test     what needs nothing but pip: a Redis, SQLite, real processes (2 min)   ARGS='-k name' goes to pytest"
	@echo "make test-all what a change to a store has to pass, on every server that is installed (15 min)"
	@echo "make nightly  the rest: what is long, or measures"
	@echo "make coverage what the last 'make test-all' has measured, with a gate that needs every server"
	@echo "make simulate our code in a simulated world              SEEDS=2000; SEED=memory-4711 does one again"
	@echo "make faults   one fault at every step of every store      ONLY=redis/threads/free; PART=1/4; CHOICE=50 of each, SEED=1"
	@echo "make mutants  mutants of the most important files, and who survives    ARGS='engine hold'; ARGS='hold --again'"
	@echo "make check    ruff, mypy --strict, typos, the house rules (who imports whom)"
	@echo "make docs     the site in site/, strictly: a link that leads nowhere fails"
	@echo "make dist     sdist and wheel in dist/, as a package index takes them"
	@echo "make demo     a flash sale without and with the lock    SERVE=0 ends after the table"
	@echo "make bench    side by side with other lock libraries    ARGS=--quick for a first look"
	@echo "make clean    removes what the others have made"

quick: $(VENV)/.test
	$(PYTEST) --quiet -m quick -n 4 $(ARGS)

# README's second command: what needs nothing but pip. `first` is of the slow tests what shows the most (tests/conftest.py).
test: $(VENV)/.test
	$(PYTEST) -m "quick or first" -n 6 --dist worksteal $(ARGS)
	@echo "make test-all adds PostgreSQL, MariaDB, ZooKeeper, etcd, Sentinel, Cluster, Redlock, a browser and hundreds of faults."
	@echo "It skips what is not installed, and says how to install it."

# First what mostly sleeps, then what starts processes and takes long (so that who is done takes over from the others). A
# choice in ARGS may leave one of them without a test: pytest's exit code 5. The first is measured, and with it the command
# line's tests, which are processes.
test-all: test-none test-beside test-slow
test-none: $(VENV)/.test
	@$(BIN)/coverage erase
test-beside: $(VENV)/.test
	$(MEASURED) -m "(cli or not slow) and not nightly and not alone" -n 6 --dist worksteal $(ARGS) $(OR_NONE)
test-slow: $(VENV)/.test
	$(PYTEST) -m "slow and not cli and not nightly and not alone" -n 4 --dist worksteal $(ARGS) $(OR_NONE)

# What is long; and alone what measures, or loads the machine.
nightly: nightly-beside nightly-alone
nightly-beside: $(VENV)/.test
	$(PYTEST) -m "nightly and not alone" -n 4 --dist worksteal $(ARGS) $(OR_NONE)
nightly-alone: $(VENV)/.test
	$(PYTEST) -m alone $(ARGS) $(OR_NONE)

coverage: $(VENV)/.test
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

check: $(VENV)/.test $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/typos
	$(BIN)/python -m pytest --quiet tests/test_house.py

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean

dist: $(VENV)/.check
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*

demo: $(VENV)/.demo
	SERVE=$(SERVE) $(BIN)/python -m example_project.demo

simulate: $(VENV)/.test
	PYTHONHASHSEED=0 $(BIN)/python -m tests.support.simulation $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

faults: $(VENV)/.test
	$(BIN)/python -m tests.support.faults $(if $(ONLY),--only '$(ONLY)') $(if $(CHOICE),--choice $(CHOICE)) $(if $(PART),--part $(PART)) $(if $(SEED),--seed $(SEED)) $(ARGS)

# mypy finds some of them.
mutants: $(VENV)/.test $(VENV)/.check $(VENV)/.mutants
	$(BIN)/python -m tests.support.mutants $(ARGS)

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp for each group of dependencies, so that a second run starts at once.
$(VENV)/.pip:
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 found. Name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { echo "On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@$(PIP) --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.%: pyproject.toml | $(VENV)/.pip
	@echo "Installing what '$*' needs"
	@$(PIP) $(PACKAGE) --group $*
	@touch $@
