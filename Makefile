# Two commands: `make run` reproduces a figure on this machine, `make test` runs all tests.
SHELL := /bin/bash
PYTHON ?= python3
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: run test
.DELETE_ON_ERROR:

# The commands a user would type, printed as they go.
run: .venv/installed-run
	repro submit figure-13 --cluster local --wait
	repro status
	repro collect --export csv
	repro plot figure-13

# tests/slurm brings up a real Slurm from Debian's packages, where it can; it says so in one line where it cannot. Its
# tests wait most of the time, and the others use the cores meanwhile; ranks that train need them for themselves.
# `set -m`: what runs behind would not hear Ctrl-C else, which some tests press.
test: .venv/installed-test
	ruff check .
	ruff format --check .
	mypy
	vulture
	python -m pytest tests/training tests/mpirun
	set -m; \
	  python -m pytest tests/slurm >.venv/tests-slurm.txt 2>&1 </dev/null & slurm=$$!; \
	  python -m pytest tests/unit tests/browser; unit=$$?; \
	  wait $$slurm; slurm=$$?; cat .venv/tests-slurm.txt; exit $$((unit | slurm))

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "repro needs Python 3.10 or newer; say which with: make PYTHON=python3.11" >&2; exit 2; }
	@echo "making .venv"
	@$(PYTHON) -m venv .venv || \
	  { rm -rf .venv; echo "no virtual environment; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 2; }

.venv/installed-run: .venv/bin/python pyproject.toml
	@echo "installing what training and drawing need; the first time this downloads torch"
	@pip install --quiet --disable-pip-version-check --editable '.[local,plot]'
	@touch $@

.venv/installed-test: .venv/bin/python pyproject.toml
	@echo "installing what the tests need; the first time this downloads torch"
	@pip install --quiet --disable-pip-version-check --editable '.[local,plot,test]'
	@touch $@
