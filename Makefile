# make demo    train a small model on public-domain speeches, then let it speak: a few minutes
# make test    style and every test but the slow ones, in an environment of its own
# Works with GNU make 3.81 (macOS) and later. PYTHON=... chooses the interpreter.

VENV ?= .venv
EXTRAS ?= dev,torch
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

# Tests run on all cores, in processes of one thread each; PARALLEL= runs them one after another.
PARALLEL ?= --numprocesses auto --maxprocesses 4 --dist worksteal
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

DEMO ?= runs/demo
DEMO_PROMPT ?= My fellow citizens,
ifeq ($(shell uname -s),Darwin)  # a GPU: a larger run takes the same few minutes
DEMO_STEPS ?= 1500
DEMO_SEQ_LEN ?= 256
else
DEMO_STEPS ?= 240
DEMO_SEQ_LEN ?= 128
endif

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-kernels fuzz lint format bench clean

help:
	@echo 'make demo          train the 5m model for a few minutes and generate text'
	@echo 'make test          ruff and pytest'
	@echo 'make test-slow     the slow tests too'
	@echo 'make test-kernels  every Metal kernel, also under sanitizers and with faults planted'
	@echo 'make fuzz          100,000 made-up files and command lines, and properties at length'
	@echo 'make lint          ruff alone'
	@echo 'make format        let ruff rewrite the files'
	@echo 'make bench         measure; rows are added to benchmarks/results'
	@echo 'make clean         remove the environment and the caches; runs/ stays'

# A run that is there is gone on with; one that is finished is only asked to speak again.
demo: $(VENV)/.package
	@resume=; if ls $(DEMO)/step-*/complete.json >/dev/null 2>&1; then resume=--resume; \
	else rm -f $(DEMO)/log.jsonl; fi; set -x; \
	$(BIN)/mlx_pam train --scale 5m --data sample --steps $(DEMO_STEPS) \
	    --seq-len $(DEMO_SEQ_LEN) --batch-size 8 --eval-every 0 --save-every 80 \
	    --sample-every 80 --sample-prompt '$(DEMO_PROMPT)' --sample-tokens 40 --out $(DEMO) $$resume
	@set -x; \
	$(BIN)/mlx_pam generate --checkpoint $(DEMO) --prompt '$(DEMO_PROMPT)' --max-tokens 120 \
	    --temperature 0.8 --repetition-penalty 1.2 --seed 0

test: lint
	$(PYTEST) $(PARALLEL)

test-slow: lint
	$(PYTEST) $(PARALLEL) -m ''

test-kernels: $(VENV)/.extras-$(EXTRAS)
	$(BIN)/python -m pytest -m kernels

# INPUT=NUMBER tries that input alone, INPUT=FIRST+COUNT so many from there.
fuzz: $(VENV)/.extras-$(EXTRAS)
	MLX_PAM_FUZZ=$(INPUT) $(BIN)/python -m pytest -m slow -rP tests/fuzz
	$(BIN)/python -m pytest -m '' --hypothesis-profile=thorough tests/properties

lint: $(VENV)/.extras-$(EXTRAS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.extras-$(EXTRAS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.package
	$(BIN)/python -m mlx_pam.benchmarks.run

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment: made once, brought up to date when the metadata change.

$(VENV)/.package: pyproject.toml $(BIN)/python
	@echo 'installing mlx_pam and what it needs into $(VENV) ...'
	$(PIP) --editable .
	@touch $@

$(VENV)/.extras-$(EXTRAS): pyproject.toml $(BIN)/python
	@echo 'installing mlx_pam and what its tests need into $(VENV) ...'
	$(PIP) --editable '.[$(EXTRAS)]' --constraint constraints.txt
	@touch $@ $(VENV)/.package

$(BIN)/python:
	@lacking=; for python in $(PYTHON) python3 python3.13 python3.12 python3.11 python3.10; do \
	    "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || continue; \
	    if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	        lacking=$$python; continue; \
	    fi; \
	    echo "making $(VENV) with $$("$$python" --version)"; \
	    "$$python" -m venv --clear $(VENV) && exit 0; \
	    rm -rf $(VENV); exit 1; \
	done; \
	if test -n "$$lacking"; then \
	    echo "error: $$lacking cannot make environments;" \
	         "on Debian or Ubuntu: sudo apt install python3-venv" >&2; \
	else \
	    echo 'error: no Python 3.10 or later among python3, python3.13 ... python3.10;' \
	         'install one, or name it: make PYTHON=/path/to/python3.12 ...' >&2; \
	fi; exit 1
