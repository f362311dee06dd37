# Two commands: `make compare` runs the main job, `make test` passes the tests. Both set everything up by themselves.

VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

PRESET ?= quickstart
LIMIT  ?=
OUTPUT ?=
SET    ?=

.PHONY: compare test check format clean

compare: $(VENV)/.installed
	$(BIN)/quasar compare --preset $(PRESET) $(if $(LIMIT),--limit $(LIMIT)) $(if $(OUTPUT),--output $(OUTPUT)) \
	    $(foreach pair,$(SET),--set $(pair))

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) --editable '.[test]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-test
	$(PIP) --editable '.[test,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
