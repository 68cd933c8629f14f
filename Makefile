# make demo          the whole pipeline on data that ships with a dependency
# make quick         lint, types and the fast tests: a minute and a half on 2 cores
# make test          lint, types, tests
# make test-lowest   tests with the lowest versions that pyproject.toml allows
# make trust         every campaign of docs/trust.md but the kills (within an hour on 2 cores)
# make docs          the documentation site, in site/
# make fuzz          fuzzing of every parser, ten minutes of processor time each
# make engines       every engine gives the same, also with workers and nodes killed (ten minutes)
# make ranks         a process of several that train together killed at every moment (ten minutes)
# make kills         every way to interrupt a command, then run it again (more than an hour on 2 cores)
# All set up their environment by themselves and do it again only when pyproject.toml changes.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
QUICK := tests/lpld_labels/format tests/lpld_labels/codecs tests/lpld_labels/pool tests/lpld_labels/transforms \
	tests/lpld_labels/render tests/lpld_labels/inspect tests/cli/test_options.py tests/test_boundaries.py
LOWEST := .venv-lowest

.PHONY: demo quick test lint types unit test-lowest docs trust damage hostile faults races soak fuzz engines kills ranks clean

demo: $(VENV)/.ready-demo
	$(RUN)/python -m benchmarks.demo.run

test: lint types unit

# Tests of the library that take milliseconds; those of processes, kills, networks and training are `make unit`'s.
quick: lint types
	$(RUN)/python -m pytest -n 2 --dist worksteal -q -m "not timing and not slow" $(QUICK)

lint: $(VENV)/.ready-dev
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/lint-imports

types: $(VENV)/.ready-dev
	$(RUN)/mypy

# Tests that depend on the clock, on memory or on a race have the machine to themselves.
unit: $(VENV)/.ready-dev
	$(RUN)/python -m pytest -n 2 --dist worksteal -m "not timing"
	$(RUN)/python -m pytest -n 0 -m timing

test-lowest: $(LOWEST)/.ready
	$(LOWEST)/bin/python -m pytest -n 2 --dist worksteal -m "not timing"

# Strict: a link that leads nowhere is an error. Needs no network.
docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(RUN)/python -m mkdocs build --strict

# What befalls pools, images and label files (docs/trust.md). Seeds are fixed, and printed with the counts.
trust: $(VENV)/.ready-dev
	$(MAKE) -j 2 damage hostile faults races soak

damage: $(VENV)/.ready-dev
	OMP_NUM_THREADS=1 $(RUN)/python -m tests.trust.damage.campaign

hostile: $(VENV)/.ready-dev
	OMP_NUM_THREADS=1 $(RUN)/python -m tests.trust.hostile pools
	OMP_NUM_THREADS=1 $(RUN)/python -m tests.trust.hostile label-files
	OMP_NUM_THREADS=1 $(RUN)/python -m tests.trust.hostile images

faults: $(VENV)/.ready-dev
	OMP_NUM_THREADS=1 $(RUN)/python -m tests.trust.kills --faults --every 10 --pairs 0

races: $(VENV)/.ready-dev
	OMP_NUM_THREADS=1 $(RUN)/python -m tests.trust.races

soak: $(VENV)/.ready-dev
	OMP_NUM_THREADS=1 $(RUN)/python -m tests.trust.soak

fuzz: $(VENV)/.ready-fuzz
	$(RUN)/python -m tests.trust.fuzz

engines: $(VENV)/.ready-dev
	OMP_NUM_THREADS=1 LPLD_WHOLE_ENGINES=1 $(RUN)/python -m pytest -n 0 tests/engines

# Every file-system call of every command that writes pools, statistics, images or students: killed there,
# interrupted there, failed there, run again. And the training process killed at 20 moments instead of 4: no
# worker may outlive it.
kills: $(VENV)/.ready-dev
	$(MAKE) -j 2 kills-1 kills-2
	LPLD_KILL_MOMENTS=20 $(RUN)/python -m pytest -n 0 tests/lpld_labels/loader/test_orphans.py \
		tests/lpld_labels/io/test_kills.py

kills-%: $(VENV)/.ready-dev
	OMP_NUM_THREADS=1 $(RUN)/python -m tests.trust.kills --random 200 --part $*/2

# One of two processes that train a student killed at five moments; the run goes on with one, two and three.
ranks: $(VENV)/.ready-dev
	LPLD_RANK_MOMENTS=all $(RUN)/python -m pytest -n 0 tests/lpld_core/train/test_ranks.py

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
	rm -rf $(VENV) $(LOWEST) build dist site *.egg-info demo_output
