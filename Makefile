# Four commands: `make run` reproduces a figure on this machine, `make check` runs the linters and the fast unit
# tests, which need no other software, `make test` runs all tests, `make docs` builds the documentation site.
SHELL := /bin/bash
PYTHON ?= python3
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# With this variable, each start of Python in a test would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run check test docs
.DELETE_ON_ERROR:

# The commands that a user would type. make prints each one.
run: .venv/installed-run
	repro submit figure-13 --cluster local --wait
	repro collect figure-13 -o figure-13.csv --force
	repro plot figure-13

# If torch is not installed, mypy does not know its types.
mypy_without_torch := --no-warn-unused-ignores --no-warn-return-any --allow-subclassing-any --allow-untyped-decorators
check: .venv/installed-check
	ruff check .
	ruff format --check .
	mypy $(if $(wildcard .venv/lib/*/site-packages/torch),,$(mypy_without_torch))
	vulture
	python -m pytest tests/unit -n auto --maxprocesses 8 --dist worksteal -m "not slow and not torch and not postgresql"

# --install: tests install missing Debian packages, for example a real Slurm. The tests on Slurm mostly wait, so they
# run beside the linters and all other tests, each worker on its own cluster. The tests of torch and Chromium run in one
# process, which starts them once. The unit tests are collected twice: the first time compiles all modules, which each
# worker would otherwise do for itself.
pytest := python -m pytest --install --hypothesis-profile=full
# Temporary files are in memory, if there is enough: after many deletions ext4 searches long for a free inode. Those of
# the tests on Slurm are not, because an image has its own /tmp.
in_memory := $(shell findmnt -bno AVAIL,OPTIONS /dev/shm | awk '$$1 >= 4e9 && !/noexec/ { print "TMPDIR=/dev/shm"; exit }')
test: .venv/installed-test
	@mkdir -p .venv/logs
	$(pytest) tests/slurm -n 4 --dist loadfile --no-loadscope-reorder >.venv/logs/slurm 2>&1 </dev/null & \
	  slurm=$$!; \
	  $(in_memory) $(pytest) tests/training tests/mpirun tests/browser >.venv/logs/training 2>&1 </dev/null & \
	  training=$$!; \
	  (ruff check . && ruff format --check . && mypy && vulture) >.venv/logs/linters 2>&1 & \
	  linters=$$!; \
	  $(pytest) tests/unit --collect-only >/dev/null 2>&1; \
	  $(in_memory) $(pytest) tests/unit -n 2 --dist worksteal; code=$$?; \
	  for job in $$linters $$training $$slurm; do wait $$job || code=1; done; \
	  cat .venv/logs/linters .venv/logs/training .venv/logs/slurm; exit $$code

# The site works without a server and without a network. A warning is an error. tests/browser build it with this recipe.
docs: .venv/installed-docs
	python -m sphinx -q -W --keep-going -c docs/site -d build/doctrees . build/docs
	@echo "open build/docs/index.html"

# pip would compile each module of torch; Python compiles the modules that are imported.
pip_install := pip install --quiet --disable-pip-version-check --no-compile

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "repro needs Python 3.10 or newer. Hint: make PYTHON=python3.11" >&2; exit 2; }
	@echo "creating .venv"
	@$(PYTHON) -m venv .venv || \
	  { rm -rf .venv; echo "cannot create .venv. Hint: on Debian or Ubuntu, apt-get install python3-venv" >&2; exit 2; }

.venv/installed-run: .venv/bin/python pyproject.toml
	@echo "installing the packages for training and plots; the first time this downloads torch"
	@$(pip_install) --editable '.[local,plot]'
	@touch $@

.venv/installed-check: .venv/bin/python pyproject.toml
	@echo "installing the packages for unit tests and linters"
	@$(pip_install) --editable '.[plot,test,docs]'
	@touch $@

.venv/installed-test: .venv/bin/python pyproject.toml
	@echo "installing the packages for tests; the first time this downloads torch"
	@$(pip_install) --editable '.[local,plot,test,docs]'
	@touch $@

.venv/installed-docs: .venv/bin/python pyproject.toml
	@echo "installing the packages for the documentation site"
	@$(pip_install) --editable '.[docs]'
	@touch $@
