# One command each: `make` prepares .venv, then `make demo`, `make test`, `make bench`. `make help` lists the rest.
# A machine needs Python 3.11 or newer, a C++ compiler, git and make; everything else comes into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --no-input

# llama.cpp is compiled here, once, for the portable numerics class: AVX2 and no tuning to this one machine, so
# that an auditor's machine gets the provider's bits. Compiler flags of the environment would change the class, so
# they are left out. The hash in the lock file is the source archive's: a ready-made wheel, with flags of its own,
# is refused. pip's cache is left aside too, for a wheel that was once built there may have had other flags.
LLAMA_FLAGS := -DGGML_NATIVE=OFF
LLAMA_PIN   := $(shell sed -n 's/^llama-cpp-python==\([^ ]*\).*/\1/p' requirements.lock)
LLAMA_STAMP := $(VENV)/.llama-cpp-python-$(LLAMA_PIN)-portable
LOCK_STAMP  := $(VENV)/.requirements
WHEELS      := .wheels/llama-cpp-python-$(LLAMA_PIN)-portable

# One thread everywhere: the pools of numpy and OpenMP would otherwise fight over the cores with the tests.
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1

# Fast layers first. Folders that are not there are left out.
FAST_TESTS := $(wildcard tests/unit tests/property tests/conformance)
ALL_TESTS  := $(FAST_TESTS) $(wildcard tests/integration tests/adversary tests/fault)
# As many processes as there are cores, four at most. The tests of a file stay in one process and in their order.
PYTEST     := $(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := venv
.PHONY: compiler interop venv models demo test test-fast lint bench lock clean distclean help

venv: $(LOCK_STAMP)  ## prepare .venv (the first time compiles llama.cpp: about five minutes)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: Python 3.11 or newer is needed; $(PYTHON) is not. Name another: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(LLAMA_STAMP): | $(BIN)/python
	@mkdir -p $(WHEELS)
	@sed -n '/^llama-cpp-python==/,/^[^ ]*    #/{s/ *#.*//;p;}' requirements.lock > $(WHEELS)/pin.txt
	@if ! ls $(WHEELS)/*.whl >/dev/null 2>&1; then \
	  command -v "$${CXX:-c++}" >/dev/null || { \
	    echo "error: no C++ compiler. Install one (Debian: apt-get install g++) or name it in CXX." >&2; exit 1; }; \
	  $(MAKE) --no-print-directory compiler; \
	  echo "Compiling llama.cpp with $(LLAMA_FLAGS), once: about five minutes on two cores." >&2; \
	  env -u CFLAGS -u CXXFLAGS -u CPPFLAGS -u LDFLAGS CMAKE_ARGS="$(LLAMA_FLAGS)" \
	    CMAKE_BUILD_PARALLEL_LEVEL="$$(env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 2)" \
	    $(PIP) wheel --quiet --no-deps --no-cache-dir --no-binary llama-cpp-python \
	    --require-hashes -r $(WHEELS)/pin.txt -w $(WHEELS) </dev/null; \
	fi
	@$(PIP) install --quiet --no-deps --force-reinstall $(WHEELS)/*.whl
	@touch $@

# gcc 11 compiles fused attention otherwise than gcc 12, gcc 14 and clang do: its bits are a numerics class of their own.
compiler:
	@case "$$(echo __GNUC__ __clang__ | "$${CXX:-c++}" -E -P -x c++ - 2>/dev/null)" in "11 __clang__") \
	  echo "warning: what gcc 11 makes computes other bits than what other compilers make, so auditors elsewhere can't" \
	    "check it exactly. Better: install g++-12 or clang, then: make CC=gcc-12 CXX=g++-12" >&2 ;; esac

$(LOCK_STAMP): requirements.lock pyproject.toml | $(LLAMA_STAMP)
	@echo "Installing the locked requirements into $(VENV)" >&2
	@$(PIP) install --quiet --no-deps --require-hashes --no-binary llama-cpp-python -r requirements.lock </dev/null
	@$(PIP) install --quiet --no-deps --no-build-isolation -e . </dev/null
	@touch $@

models: venv  ## fetch the two small models into .models/ (351 MB)
	@$(BIN)/python -m fixtures.models >/dev/null

demo: venv  ## a provider, its clients, its auditor, and providers that cheat
	@$(BIN)/python -m fixtures.models smollm2 >/dev/null
	@$(BIN)/python -m tests.adversary.demo

test: lint models  ## everything: style, types, architecture, then all tests, fast layers first, slow ones last
	VERIFIABLE_REQUIRE_MODELS=1 $(PYTEST) --durations=20 $(ALL_TESTS)

test-fast: venv  ## the layers that need no model (under two minutes)
	$(PYTEST) $(FAST_TESTS)

interop: venv  ## other people's readers of what we sign, in an environment of their own
	@test -f out/interop/ready || { $(PYTHON) -m venv out/interop && \
	  out/interop/bin/python -m pip install --quiet --disable-pip-version-check \
	  -r tests/conformance/interop/requirements.txt </dev/null && touch out/interop/ready; }
	VERIFIABLE_INTEROP_PYTHON=$(CURDIR)/out/interop/bin/python $(BIN)/python -m pytest tests/conformance/test_interoperability.py

lint: venv  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: models  ## the measured claims, in one table and in docs/benchmarks.md
	@$(BIN)/python -m benchmarks.run --page

lock: venv  ## resolve pyproject.toml again into requirements.lock
	@$(BIN)/python -m pip install --quiet --target .wheels/uv uv
	@PYTHONPATH=.wheels/uv $(BIN)/python -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --extra dev --extra llama --extra serve --extra postgres --extra hub --extra beacon --extra fleet --custom-compile-command "make lock" \
	  $(LOCK_ARGS) pyproject.toml -o requirements.lock

clean:  ## remove what runs leave behind; .venv, the built wheel and the models stay
	rm -rf out build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find verifiable engine verifier tests fixtures benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean  ## remove .venv, the built wheel and the models as well
	rm -rf $(VENV) .wheels .models

help:  ## list these
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20
