# make demo   the whole pipeline on data that ships with a dependency
# make test   lint, types, tests
# make kills  every way to interrupt a command, then run it again (an hour)
# Both set up .venv by themselves and do it again only when pyproject.toml changes.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin

.PHONY: demo test lint types unit kills clean

demo: $(VENV)/.ready-demo
	$(RUN)/lpld-labels demo

test: lint types unit

lint: $(VENV)/.ready-test
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .

types: $(VENV)/.ready-test
	$(RUN)/mypy

unit: $(VENV)/.ready-test
	$(RUN)/python -m pytest -n 2 --dist worksteal

# Every file-system call of every command that writes pools: killed there, failed there, run again.
kills: $(VENV)/.ready-test
	OMP_NUM_THREADS=1 $(RUN)/python -m tests.kills

# The stamp is touched only after a complete install, so an interrupted one is taken up again.
$(VENV)/.ready-%: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --upgrade pip
	$(RUN)/python -m pip install --quiet --editable ".[$*]"
	# Benchmarks and examples import each other from the repository's root.
	$(RUN)/python -c 'import pathlib, site; \
	pathlib.Path(site.getsitepackages()[0], "lpld_repository.pth").write_text("$(CURDIR)\n")'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info demo_output
