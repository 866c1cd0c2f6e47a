# make bench, make test: all a fresh machine needs. `make help` lists the rest; README.md explains the variables.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
VENV_FLAGS ?=
WHEELHOUSE ?=
PRESET ?=
SUITE ?= router
ARGS ?=
BASE ?=
PY ?= 3.12
BIN := $(VENV)/bin

# The cuda extra goes only where there is an NVIDIA driver. NVIDIA=yes or NVIDIA=no overrides what is found.
NVIDIA ?= $(shell if [ -e /proc/driver/nvidia/version ] || nvidia-smi -L >/dev/null 2>&1 \
	|| ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then echo yes; else echo no; fi)
ifeq ($(NVIDIA),yes)
TORCH_SPEC ?= torch>=2.11
EXTRAS := cuda
FOUND := NVIDIA driver found: installing the cuda extra and $(TORCH_SPEC)
else
# The CPU-sized build, pinned: a plain range would fetch gigabytes of CUDA.
TORCH_SPEC ?= torch==2.13.0
EXTRAS :=
FOUND := no NVIDIA driver: installing for the CPU, $(TORCH_SPEC), without the cuda extra
endif

comma := ,
empty :=
space := $(empty) $(empty)
bracket = $(if $(strip $1),[$(subst $(space),$(comma),$(strip $1))])
PIP_FLAGS := $(if $(WHEELHOUSE),--no-index --find-links $(abspath $(WHEELHOUSE)))
PIP := $(BIN)/python -m pip --disable-pip-version-check install $(PIP_FLAGS)

.PHONY: help setup bench gate test lint format wheelhouse clean

help: ## list the targets
	@sed -nE 's/^([a-z]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

$(VENV)/.stamp-venv:
	@echo "==> creating $(VENV) with $(PYTHON)"
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON) here: name a Python >= 3.11 with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"needs Python >= 3.11, {sys.executable} is {v[0]}.{v[1]}: name another one with make PYTHON=...")'
	@$(PYTHON) -m venv $(VENV_FLAGS) $(VENV) || { echo "cannot create $(VENV): $(PYTHON) needs its venv module (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@touch $@

$(VENV)/.stamp-setup: pyproject.toml | $(VENV)/.stamp-venv
	@echo "==> $(FOUND)"
	@$(PIP) "$(TORCH_SPEC)"
	@$(PIP) -e ".$(call bracket,$(EXTRAS))"
	@touch $@

$(VENV)/.stamp-test: pyproject.toml $(VENV)/.stamp-setup
	@echo "==> installing what the tests need"
	@$(PIP) -e ".$(call bracket,$(EXTRAS) test)"
	@touch $@

$(VENV)/.stamp-dev: pyproject.toml $(VENV)/.stamp-test
	@echo "==> installing the lint tools"
	@$(PIP) -e ".$(call bracket,$(EXTRAS) dev)"
	@touch $@

setup: $(VENV)/.stamp-setup ## create .venv and install
	@echo "==> installed in $(VENV)"

bench: $(VENV)/.stamp-setup ## measure a suite (SUITE=router or dense) on the device found; the last line is the report's path
	@echo "==> measuring the $(SUITE) suite$(if $(PRESET), with preset $(PRESET))"
	@$(BIN)/cake-bench run --suite $(SUITE) $(if $(PRESET),--preset $(PRESET)) $(ARGS)

gate: $(VENV)/.stamp-setup ## measure against the cake of a git ref (BASE=main); fails where a row is slower
	@test -n "$(BASE)" || { echo "name the git ref to gate against: make gate BASE=main" >&2; exit 2; }
	@echo "==> gating the $(SUITE) suite against $(BASE)$(if $(PRESET), with preset $(PRESET))"
	@$(BIN)/cake-bench gate --previous "$(BASE)" --suite $(SUITE) $(if $(PRESET),--preset $(PRESET)) $(ARGS)

test: $(VENV)/.stamp-test ## run the tests (those that need a GPU are skipped where there is none)
	@echo "==> running the tests"
	@$(BIN)/python -m pytest -q -p tests.progress $(ARGS)

lint: $(VENV)/.stamp-dev ## ruff and mypy
	@echo "==> ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "==> mypy"
	@$(BIN)/mypy

format: $(VENV)/.stamp-dev ## format the code as lint wants it
	@echo "==> ruff format"
	@$(BIN)/ruff format .

wheelhouse: $(VENV)/.stamp-venv ## download wheels for a GPU node without a network (PY=3.12)
	@$(BIN)/python tools/wheelhouse.py --python $(PY) --into $(or $(WHEELHOUSE),wheelhouse) $(ARGS)

clean: ## remove .venv and all caches and builds; runs/ and wheelhouse/ stay
	@echo "==> removing $(VENV), caches and builds"
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find cake baselines bench reports tests tools -name __pycache__ -prune -exec rm -rf {} +
