# Every target works on a machine with nothing but Python >= 3.11 and make: it makes its own virtual environment.
# Another interpreter: make test PYTHON=python3.13

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PACKAGE := --editable '.[redis,django,django-redis,flask,sqlalchemy]'
SERVE ?= 1
ARGS ?=

.PHONY: help quick test coverage check demo bench clean

help:
	@echo "make quick    after each edit: what needs no server beyond Redis, in about a minute"
	@echo "make test     the whole suite, on real servers          ARGS='-k name' goes to pytest"
	@echo "make coverage the tests that are not slow, and the command line's, measured: it has a gate"
	@echo "make check    ruff, mypy --strict, typos, the house rules (who imports whom)"
	@echo "make demo     a flash sale without and with the lock    SERVE=0 ends after the table"
	@echo "make bench    side by side with other lock libraries    ARGS=--quick for a first look"
	@echo "make clean    removes what the others have made"

quick: $(VENV)/.test
	$(BIN)/python -m pytest --quiet -m quick -n 4 $(ARGS)

# `coverage run` and not pytest's --cov: our pytest plugin imports the package before that would begin to measure. The
# command line is tested by processes, which are slow.
coverage: $(VENV)/.test
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest --quiet -m "not slow and not alone" -n 4 $(ARGS) $(OR_ALONE)
	$(BIN)/coverage run -m pytest --quiet -m slow -n 2 tests/cli $(ARGS) $(OR_ALONE)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# Side by side what mostly sleeps, in pairs what starts processes, and alone what measures. A choice in ARGS may leave
# one of them without a test, which is pytest's exit code 5. What fails beside others is run once more, alone: the
# machine may have been too busy for a test whose leases really end.
PYTEST := $(BIN)/python -m pytest
OR_ALONE = || [ $$? -eq 5 ] || $(PYTEST) --last-failed --last-failed-no-failures none $(ARGS)
test: $(VENV)/.test
	$(PYTEST) -m "not slow and not alone" -n 4 $(ARGS) $(OR_ALONE)
	$(PYTEST) -m "slow and not alone" -n 2 $(ARGS) $(OR_ALONE)
	$(PYTEST) -m alone $(ARGS) || [ $$? -eq 5 ]

check: $(VENV)/.test $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/typos
	$(BIN)/python -m pytest --quiet tests/test_house.py

demo: $(VENV)/.demo
	SERVE=$(SERVE) $(BIN)/python -m example_project.demo

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
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
