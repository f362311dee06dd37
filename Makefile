# Two commands: `make compare` runs the main job, `make test` passes the tests. Both set everything up by themselves.

VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

NATIVE := plugins/quasar-cpu
ifeq ($(origin CXX),default)
CXX    := $(shell command -v c++ || command -v g++ || command -v clang++ || echo c++)
endif

PRESET ?= quickstart
LIMIT  ?=
OUTPUT ?=
SET    ?=

.PHONY: compare test check format clean

compare: $(VENV)/.installed $(VENV)/.installed-native
	$(BIN)/quasar compare --preset $(PRESET) $(if $(LIMIT),--limit $(LIMIT)) $(if $(OUTPUT),--output $(OUTPUT)) \
	    $(foreach pair,$(SET),--set $(pair))

test: $(VENV)/.installed-test $(VENV)/.installed-native
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

# Optional: it needs a C++ compiler, and everything else works without it. Kernels of other sources than those that are
# there must not stay behind. Only success leaves the stamp, so the next run tries again.
$(VENV)/.installed-native: $(VENV)/.installed $(NATIVE)/setup.py $(NATIVE)/pyproject.toml $(wildcard $(NATIVE)/csrc/*)
	@rm -f $(NATIVE)/quasar_cpu/kernels_*.so
	@if ! command -v $(CXX) >/dev/null; then \
	    echo "The native CPU backend was not built: there is no C++ compiler ($(CXX)). Everything else works."; \
	    exit 0; \
	fi; \
	echo "Compiling the native CPU backend."; \
	if { $(PIP) 'setuptools>=77' && CXX='$(CXX)' $(PIP) --no-build-isolation --no-deps --editable $(NATIVE); } \
	    >$(VENV)/native.log 2>&1; then \
	    touch $@; \
	else \
	    echo "The native CPU backend was not built: $(CXX) failed, see $(VENV)/native.log. Everything else works."; \
	fi

clean:
	rm -rf $(VENV) $(NATIVE)/build $(NATIVE)/quasar_cpu/kernels_*.so build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
