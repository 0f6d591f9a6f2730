# Every target works on a machine with nothing but Python >= 3.11 and make: it makes its own virtual environment.
# Another interpreter: make test PYTHON=python3.13

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PACKAGE := --editable '.[redis,django,django-redis,flask]'
SERVE ?= 1
ARGS ?=

.PHONY: help test check demo bench clean

help:
	@echo "make test     the whole suite, on real servers        ARGS='-k name' goes to pytest"
	@echo "make check    ruff, mypy --strict, import direction"
	@echo "make demo     a flash sale without and with the lock  SERVE=0 ends after the table"
	@echo "make bench    side by side with other lock libraries"
	@echo "make clean    removes what the others have made"

test: $(VENV)/.test
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.test $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --quiet tests/test_house.py

demo: $(VENV)/.demo
	SERVE=$(SERVE) $(BIN)/python -m example_project.demo

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
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
