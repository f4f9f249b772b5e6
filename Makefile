# Everything runs from .venv in this folder; `make` alone lists what there is.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
TORCH := $(shell grep '^torch==' constraints.txt)
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

.PHONY: help setup train fast test check docs bench learn gpu soak clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' Makefile

setup: $(READY)  ## make .venv with every pinned package; quick when nothing changed

# torch goes first and by exact version: left to the resolver it may fetch gigabytes of other builds.
# pip's build environment reads PIP_CONSTRAINT, not -c, so hatchling is pinned by both.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "make: $(PYTHON) is missing or older than 3.11; try: make setup PYTHON=python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "make: $(PYTHON) has no venv module; on Debian: apt-get install python3-venv" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(PIP_INSTALL) $(TORCH)
	PIP_CONSTRAINT=constraints.txt $(PIP_INSTALL) -e '.[dev]'
	@touch $@

train: setup  ## CartPole on this machine until it is solved
	$(BIN)/headrace train cartpole

# One thread each: workers with two threads each wait for one another on two cores.
fast: setup  ## the tests that start no process, within a minute
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --fast -q

# More at a time than there are cores: tests of processes wait for leases and connections. What
# measures time, or needs the whole machine, after that and alone. Bytecode is kept, whatever the
# environment says: hundreds of interpreters start here.
test: export PYTHONDONTWRITEBYTECODE =
test: setup  ## every test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 4 --dist worksteal -m "not alone"; beside=$$?; \
		$(BIN)/python -m pytest -m alone && exit $$beside

check: setup  ## lint, format and types, nothing is changed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: setup  ## the documentation as a site: site/index.html
	$(BIN)/mkdocs build --strict

bench: setup  ## every benchmark
	$(BIN)/headrace bench all

learn: setup  ## every learning gate: each algorithm, core and action space, three seeds each; long
	$(BIN)/headrace bench learn

# No set-up: a machine with a GPU has a torch that fits its driver, and this is for that one.
gpu: export PYTHONPATH := $(CURDIR):$(PYTHONPATH)
gpu:  ## the learner's kernels and graphs on this GPU, by the Python that has torch for it: gpu.json
	$(PYTHON) -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null \
	  || { echo "make: $(PYTHON) has no torch that sees a GPU; try: make gpu PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m pytest -q -W default -p no:cacheprovider tests/learner/models/kernels tests/learner/step \
	  tests/actors/acting/central/test_calls.py
	$(PYTHON) -m headrace.launch.cli bench learner > gpu.txt
	$(PYTHON) -m headrace.launch.cli bench acting resnet 64 8 >> gpu.txt
	@cat gpu.txt; grep '^{"bench"' gpu.txt > gpu.json

soak: setup  ## every fault and attack for as long as docs/reliability.md asks; some four hours, root for some
	HEADRACE_SOAK=1 $(BIN)/python -m pytest tests/fuzz tests/grafana tests/system

clean:  ## remove .venv, caches and built files; runs are kept
	rm -rf .venv dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find actors broker learner launch tests -name __pycache__ -type d -prune -exec rm -rf {} +
