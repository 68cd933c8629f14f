# make demo   the whole pipeline on data that ships with a dependency
# make test   lint, types, tests
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

# The training process is killed at 20 moments instead of 4; no worker may outlive it.
kills: $(VENV)/.ready-test
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

clean:
	rm -rf $(VENV) build *.egg-info demo_output
