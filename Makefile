# make demo          the whole pipeline on data that ships with a dependency
# make test          lint, types, tests
# make test-lowest   tests with the lowest versions that pyproject.toml allows
# make kills         every way to interrupt a command, then run it again (an hour)
# All set up their environment by themselves and do it again only when pyproject.toml changes.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
LOWEST := .venv-lowest

.PHONY: demo test lint types unit test-lowest kills clean

demo: $(VENV)/.ready-demo
	$(RUN)/lpld-labels demo

test: lint types unit

lint: $(VENV)/.ready-test
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .

types: $(VENV)/.ready-test
	$(RUN)/mypy

# Tests that depend on the clock, on memory or on a race have the machine to themselves.
unit: $(VENV)/.ready-test
	$(RUN)/python -m pytest -n 2 --dist worksteal -m "not timing"
	$(RUN)/python -m pytest -n 0 -m timing

test-lowest: $(LOWEST)/.ready
	$(LOWEST)/bin/python -m pytest -n 2 --dist worksteal -m "not timing"

# Every file-system call of every command that writes pools, statistics, images or students: killed there,
# interrupted there, failed there, run again. And the training process killed at 20 moments instead of 4: no
# worker may outlive it.
kills: $(VENV)/.ready-test
	OMP_NUM_THREADS=1 $(RUN)/python -m tests.kills
	LPLD_KILL_MOMENTS=20 $(RUN)/python -m pytest -n 0 tests/lpld_labels/loader/test_orphans.py

# The stamp is touched only after a complete install, so an interrupted one is taken up again.
$(VENV)/.ready-%: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --upgrade pip
	$(RUN)/python -m pip install --quiet --editable ".[$*]"
	# Benchmarks and examples import each other from the repository's root.
	$(RUN)/python -c 'import pathlib, site; \
	pathlib.Path(site.getsitepackages()[0], "lpld_repository.pth").write_text("$(CURDIR)\n")'
	touch $@

# What runs the tests may be new; what the package itself depends on is as old as it says.
$(LOWEST)/.ready: pyproject.toml
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet uv
	$(LOWEST)/bin/uv pip compile --quiet --python $(LOWEST)/bin/python --no-deps --resolution lowest-direct \
		--extra torch pyproject.toml --output-file $(LOWEST)/floors.txt
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --constraint $(LOWEST)/floors.txt \
		--editable ".[test]"
	$(LOWEST)/bin/python -c 'import pathlib, site; \
	pathlib.Path(site.getsitepackages()[0], "lpld_repository.pth").write_text("$(CURDIR)\n")'
	touch $@

clean:
	rm -rf $(VENV) $(LOWEST) build *.egg-info demo_output
