# Everything sets itself up: the first target you run creates .venv and installs the package in it.
#
#   make demo     a Gaussian process from data to posterior samples: a table, and demo.png
#   make test     lint, documentation, tests, examples
#
# PYTHON=python3.12 chooses the interpreter, WORKERS=8 the number of test processes, ARGS="-k cg" adds pytest options.

PYTHON  = python3
WORKERS = 2
ARGS    =
EXTRAS  = test,lint,docs

VENV    = .venv
BIN     = $(VENV)/bin
STAMP   = $(VENV)/.installed
LOG     = $(VENV)/pip.log
# --no-compile: Python compiles what is imported; pip would compile 13,000 files, which takes most of a minute.
PIP     = $(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt

# One thread per process: WORKERS processes with a thread per core each would fight for the cores.
SINGLE  = OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

.PHONY: help demo test lint format docs pytest install clean

help:
	@sed -n 's/^#   //p' Makefile
	@echo "make lint | format | docs | pytest | clean"

demo: $(STAMP)
	@$(BIN)/python -m pathgp demo

test: lint docs pytest

lint: $(STAMP)
	@echo "checking style and types"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet --diff .
	@$(BIN)/mypy

format: $(STAMP)
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format .

docs: $(STAMP)
	@echo "building the documentation in site/"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

pytest: $(STAMP)
	@echo "running the tests, the doctests and the examples"
	@$(SINGLE) $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(ARGS)

install: $(STAMP)

# A half-made environment has no pip: make it anew. torch goes first, by its exact pin.
$(STAMP): pyproject.toml constraints.txt
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		echo "creating $(VENV)"; \
		$(PYTHON) -m venv --clear $(VENV); \
	fi
	@echo "installing torch"
	@$(PIP) "$$(sed -n '/^torch==/p' constraints.txt)" >$(LOG) 2>&1 || { cat $(LOG); exit 1; }
	@echo "installing pathgp with its tools"
	@$(PIP) -e ".[$(EXTRAS)]" >$(LOG) 2>&1 || { cat $(LOG); exit 1; }
	@touch $(STAMP)

clean:
	rm -rf $(VENV) site dist build demo.png .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
