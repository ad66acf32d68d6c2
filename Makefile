# Everything a newcomer or a checker runs. `make` alone lists the targets.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.complete
VLLM_BIN := .venv-vllm/bin
VLLM_STAMP := .venv-vllm/.complete

.PHONY: help demo up test test-vllm lint env env-vllm bench

help:
	@echo "make demo       run the example work on a local stack and show every job's times"
	@echo "make up         run the local stack until Ctrl-C"
	@echo "make test       formatting, lint, types, import contracts and all tests"
	@echo "make test-vllm  the tests on real vLLM's CPU build, in .venv-vllm"
	@echo "make lint       the same without the tests"
	@echo "make bench      measure the pipeline and the engine"
	@echo "make env        only make the environment in .venv"

demo: env
	@$(BIN)/trilane demo

up: env
	@$(BIN)/trilane up

bench: env
	@$(BIN)/trilane bench pipeline
	@$(BIN)/trilane bench engine

test: lint
	@$(BIN)/python -m pytest -n 2 --dist loadfile

test-vllm: env-vllm
	@$(VLLM_BIN)/python -m pytest tests/vllm

lint: env
	@$(BIN)/ruff format --check --quiet . || { echo "Run $(BIN)/ruff format . to put this right."; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports > .venv/lint-imports.log || { cat .venv/lint-imports.log; exit 1; }

env: $(STAMP)
	@:

# requirements.txt is the whole closure, so nothing is resolved; the project itself is installed in place.
$(STAMP): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Trilane needs Python 3.11 or newer, and $(PYTHON) is not: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Installing the packages into .venv (once, a minute or so) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r requirements.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

env-vllm: $(VLLM_STAMP)
	@:

$(VLLM_STAMP): requirements-vllm.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || { \
		echo "vLLM needs Python 3.11 to 3.14, and $(PYTHON) is not: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Installing the packages and vLLM into .venv-vllm (once, some minutes and 3 GB) ..."
	@$(PYTHON) -m venv .venv-vllm
	@$(VLLM_BIN)/pip install --quiet --disable-pip-version-check --no-deps -r requirements-vllm.txt || { \
		echo "requirements-vllm.txt could not be installed; torch's +cpu builds lie on PyTorch's own index:"; \
		echo "name it in PIP_EXTRA_INDEX_URL, and try again"; exit 1; }
	@$(VLLM_BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@
