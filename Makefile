# make demo          the whole pipeline on data that ships with a dependency
# make quick         lint, types and the fast tests of the library: a minute and a half on 2 cores
# make test          lint, types and all tests but those marked `thorough`
# make test-all      `make test` with the thorough tests, `make engines` and `make ranks`
# make test-lowest   tests with the lowest versions that pyproject.toml allows
# make trust         every campaign of docs/trust.md but the kills (within an hour on 2 cores)
# make docs          the documentation site, in site/
# make fuzz          fuzzing of every parser, ten minutes of processor time each
# make engines       same results from every engine, also with workers and nodes killed (ten minutes)
# make ranks         distributed training, killed at every step that matters and resumed (ten minutes)
# make kills         every way to interrupt a command, then run it again (more than an hour on 2 cores)
# Each target sets up its environment, and again only when pyproject.toml changes.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
QUICK := tests/lpld_labels/format tests/lpld_labels/codecs tests/lpld_labels/pool tests/lpld_labels/transforms \
	tests/lpld_labels/render tests/lpld_labels/inspect tests/cli/test_options.py tests/test_boundaries.py
SPREAD := -n 2 --dist worksteal
LOWEST := .venv-lowest

.PHONY: demo quick test test-all lint types unit test-lowest docs trust damage hostile faults races soak fuzz engines kills ranks clean

demo: $(VENV)/.ready-demo
	$(RUN)/python -m benchmarks.demo

test: lint types unit

test-all: lint types
	$(RUN)/python -m pytest $(SPREAD) -m "not timing" --ignore tests/engines
	$(RUN)/python -m pytest -n 0 -m timing --ignore tests/engines
	$(MAKE) engines ranks

# No processes, kills, networks or training.
quick: lint types
	$(RUN)/python -m pytest $(SPREAD) -q -m "not timing and not slow and not thorough" $(QUICK)

lint: $(VENV)/.ready-dev
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/lint-imports

types: $(VENV)/.ready-dev
	$(RUN)/mypy

# Tests that depend on the clock, on memory or on a race run alone, after the others.
unit: $(VENV)/.ready-dev
	$(RUN)/python -m pytest $(SPREAD) -m "not timing and not thorough"
	$(RUN)/python -m pytest -n 0 -m "timing and not thorough"

test-lowest: $(LOWEST)/.ready
	$(LOWEST)/bin/python -m pytest $(SPREAD) -m "not timing and not thorough"

# Strict: a link that leads nowhere is an error. Needs no network.
docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(RUN)/python -m mkdocs build --strict

# Damaged, hostile and failing inputs (docs/trust.md). Seeds are fixed and printed with the counts.
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

# Kill, interrupt and fail every command at each of its file-system calls, then run it again. Then kill a training
# process at 20 moments instead of 2: no worker may outlive it.
kills: $(VENV)/.ready-dev
	$(MAKE) -j 2 kills-1 kills-2
	LPLD_KILL_MOMENTS=20 $(RUN)/python -m pytest -n 0 tests/lpld_labels/loader/test_workers.py::test_no_process_outlives_a_killed_trainer \
		tests/lpld_labels/io/test_kills.py

kills-%: $(VENV)/.ready-dev
	OMP_NUM_THREADS=1 $(RUN)/python -m tests.trust.kills --random 200 --part $*/2

# Kill one of two training processes at five moments; resume with one, two and three.
ranks: $(VENV)/.ready-dev
	LPLD_RANK_MOMENTS=all $(RUN)/python -m pytest -n 0 tests/lpld_core/train/test_ranks.py

# The stamp is touched only after a complete install, so an interrupted one is repeated.
$(VENV)/.ready-%: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --upgrade pip
	$(RUN)/python -m pip install --quiet --editable ".[$*]"
	# Benchmarks and examples import each other from the repository's root.
	$(RUN)/python -c 'import pathlib, site; \
	pathlib.Path(site.getsitepackages()[0], "lpld_repository.pth").write_text("$(CURDIR)\n")'
	touch $@

# The package's dependencies in their lowest versions; test tools in any.
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
