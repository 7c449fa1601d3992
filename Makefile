# Every target sets up .venv on its own the first time, and starts at once after that.
VENV   ?= .venv
PYTHON ?= python3
TORCH  ?=
VERSIONS ?=
MATRIX ?=
DEMO   := demo-run
REPLAY := .replay
FAULT  := demo-diagnosis
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.graphprobe-setup
FAST   := $(addprefix tests/,store numerics compare reduce analysis report export dump_plan test_select.py test_settings.py)
CHECK  := $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder
NATIVE := $(wildcard native/*.cpp native/*.h native/CMakeLists.txt)

.DEFAULT_GOAL := help
.PHONY: FORCE help setup wheel browser msprobe demo test test-slow test-fast test-all durations test-matrix replay-record replay-compare release-check docs sizes check format bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with torch (CPU), the dependencies and graphprobe

# A torch named on the command line is installed even if the environment is complete.
$(STAMP): pyproject.toml constraints.txt scripts/setup_env.sh $(NATIVE) $(if $(TORCH),FORCE)
	@PYTHON="$(PYTHON)" TORCH="$(TORCH)" bash scripts/setup_env.sh "$(VENV)"
	@touch $@

wheel: $(STAMP) ## build a wheel in dist, with the native core if there is a compiler
	$(BIN)/python -m pip wheel --no-deps --wheel-dir dist .

browser: ## install Chromium, with which the tests open the HTML report (Debian, as root)
	@bash scripts/setup_browser.sh install

msprobe: $(STAMP) ## create .venv-msprobe with mindstudio-probe, to hold graphprobe against it
	@bash scripts/setup_msprobe.sh $(VENV)

demo: $(STAMP) ## find a fault planted in the compiler, then collect what a small GPT-2 training step compiles
	@rm -rf $(DEMO) $(FAULT)
	$(BIN)/graphprobe demo --out $(FAULT)
	$(BIN)/graphprobe run --out $(DEMO) examples/gpt2_train.py
	$(BIN)/graphprobe ls $(DEMO)
	@echo && echo "next: . $(BIN)/activate && graphprobe diagnose examples/gpt2_train.py"

test: $(STAMP) ## the quick tests, with the checks beside them
	@bash scripts/setup_browser.sh
	@mkdir -p build; { $(CHECK); } >build/check.log 2>&1 & checks=$$!; \
	$(PYTEST) -m "not slow and not heavy and not cuda"; tests=$$?; \
	wait $$checks && echo "make check: passed" || { tests=1; cat build/check.log; }; exit $$tests

test-slow: $(STAMP) ## the tests of more than 3 seconds, which `make test` leaves out
	$(PYTEST) -m "slow and not heavy and not cuda"

test-fast: $(STAMP) ## the tests of the rooms that need no torch, and no checks
	$(PYTEST) -m "not slow and not heavy and not cuda" --without-torch $(FAST)

test-all: check msprobe ## all tests, with random examples; those that need a GPU skip where there is none
	@bash scripts/setup_browser.sh
	$(PYTEST) --hypothesis-profile=random

durations: $(STAMP) ## take the times of the last runs into tests/durations.json, which the marks `slow` and `heavy` follow
	$(BIN)/python tests/durations.py

test-matrix: $(STAMP) ## check each torch and Python, VERSIONS="2.11 2.13-py3.13" some; MATRIX=--help lists options
	$(BIN)/python scripts/matrix.py $(VERSIONS) $(MATRIX)

replay-record: $(STAMP) ## record in .replay what graphprobe makes of a fixed set of programs
	$(BIN)/python scripts/replay.py record $(REPLAY)

replay-compare: $(STAMP) ## record again, and print what is not the same; for changes that are to change nothing
	$(BIN)/python scripts/replay.py compare $(REPLAY)

release-check: check ## what a release needs: changelog, tag, written files, the wheel; lists what is left to do by hand
	$(BIN)/python scripts/release_check.py
	$(BIN)/python -m pytest tests/test_wheel.py

docs: $(STAMP) ## build the docs site in build/site, and check its links; it loads nothing from elsewhere
	$(BIN)/python -m pip install --quiet --constraint constraints.txt 'mkdocs>=1.6'
	$(BIN)/python scripts/docs_site.py
	$(BIN)/python -m mkdocs build --strict

sizes: $(STAMP) ## how large the sources are, and what in them exceeds the budgets
	$(BIN)/python scripts/sizes.py

check: $(STAMP) ## lint, formatting, types
	$(CHECK)

format: $(STAMP) ## rewrite the sources the way `make check` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## run the benchmarks; see bench/README.md
	@set -e; for file in bench/compile_overhead.py bench/criterion.py bench/stats_kernel.py; do echo "== $$file"; $(BIN)/python "$$file"; done

clean: ## remove what the other targets made, the environment included
	rm -rf $(VENV) $(VENV)-msprobe .matrix $(REPLAY) $(DEMO) $(FAULT) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf native/.cmake native/.ninja_* native/.skbuild-info.json native/CMakeCache.txt native/CMakeFiles \
		native/CMakeInit.txt native/build.ninja native/cmake_install.cmake src/graphprobe/numerics/_native*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
