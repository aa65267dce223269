VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed
TWO_RANKS := $(VENV)/bin/torchrun --standalone --nproc_per_node 2 -m mixer
LAUNCH := $(TWO_RANKS) train recipes/demo.yaml
CONTINUAL := $(TWO_RANKS) continual recipes/continual.yaml --resume never

# One thread a rank: two ranks on two cores.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM := false

.PHONY: demo demo-continual test lint format clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(PYTHON) || python3 -m venv $(VENV)
	@# torch goes first, at the pinned build: left to the resolver it would bring gigabytes for GPUs.
	$(PYTHON) -m pip install --quiet --constraint constraints.txt torch
	$(PYTHON) -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(STAMP)

demo: $(STAMP)
	$(LAUNCH) --training.output_dir runs/demo/adaptive
	$(LAUNCH) --training.output_dir runs/demo/uniform --mixing Uniform
	$(VENV)/bin/mixer compare runs/demo/adaptive runs/demo/uniform
	@echo "A page with plots of both runs:"
	@$(VENV)/bin/mixer report runs/demo/adaptive runs/demo/uniform --output runs/demo/report.html

demo-continual: $(STAMP)
	$(CONTINUAL) --training.output_dir runs/continual/without-memory --memory null
	$(CONTINUAL) --training.output_dir runs/continual/memory
	@echo "A page with the heat maps of both runs:"
	@$(VENV)/bin/mixer continual-compare runs/continual/without-memory runs/continual/memory --output runs/continual/scores.html

test: $(STAMP)
	$(PYTHON) -m pytest -n 2 --dist loadfile

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(STAMP)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
