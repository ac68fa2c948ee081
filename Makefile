# The environment is .venv, made once from constraints.txt: first what a run needs, then developers' tools. A warm target
# costs nothing.
# PYTHON=python3.12 chooses the interpreter; pip's own settings choose where packages come from.

PYTHON ?= python3
BIN := .venv/bin
LIGHT := .venv-light/bin
RUNS := .venv/.runs
READY := .venv/.ready
LIGHT_READY := .venv-light/.ready
# A file's tests stay together: some share what takes long to make.
WORKERS ?= 2
SPREAD := -m pytest --dist loadfile --no-loadscope-reorder --durations=20
CARRY := .carry
THERE = $(if $(wildcard $(READY)),$(BIN)/python,$(PYTHON))
# Pure wheels are the same for every Python; numpy comes with torch.
CARRIED := click rich markdown-it-py mdurl pygments pytest pytest-timeout pluggy iniconfig packaging sortedcontainers \
  nvidia-ml-py tomli-w
COMPILED := msgspec hypothesis
PACK = -q --no-deps --no-compile --only-binary :all: -c constraints.txt

# Without its cache of compiled modules, each of the hundreds of processes of the tests compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help env engines demo demo-trace native test test-light test-nightly coverage lint lint-page docs examples site parity chaos validate validate-history bench bench-peers bench-history fuzz device-evidence carry clean

help:  ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

env: $(READY)  ## make .venv: base, torch, tools

engines:  ## install the browser, the database server and the other engines of the tests (Debian's packages)
	@bash .ci/engines

demo demo-trace: export TRAINYARD_STORE := $(CURDIR)/out/store

demo: $(RUNS)  ## train with two ranks, print the ledger, write out/demo.html
	@mkdir -p out
	$(BIN)/trainyard run examples/tiny.toml --tag demo
	$(BIN)/trainyard report demo --out out/demo.html
	@echo "The page is out/demo.html, and the run is in out/store:"
	@echo "  TRAINYARD_STORE=out/store $(BIN)/trainyard runs show demo --full"

demo-trace: $(RUNS)  ## record anew the trace that `trainyard demo` shows
	$(BIN)/trainyard run examples/tiny-fsdp.toml --tag demo-trace
	@rm -f src/trainyard/data/demo/*
	@folder=$$($(BIN)/trainyard runs show demo-trace --json | $(BIN)/python -c 'import json, sys; print(json.load(sys.stdin)["folder"])'); \
	for rank in 0 1; do \
	  gunzip -c "$$folder/traces/rank$$rank.json.gz" | sed 's|"traceName": *"[^"]*"|"traceName": "rank'$$rank'.json"|' \
	    | gzip -9 -n > src/trainyard/data/demo/rank$$rank.json.gz; \
	done

native:  ## compile the C code, where a C compiler is there
	@$(PYTHON) src/trainyard/formats/native_build.py

# Both environments are made at once, and the linters, which use one core, run at the same time as the tests. Ray's two nodes
# with their ranks need both cores, so their tests run alone. The last call has one more worker, since many of its tests wait
# for a lease or a dead rank without using a core.
PASSED := .passed-light.json
test: native  ## lint, the tests that pass without torch, then all others except the nightly ones
	@$(MAKE) --no-print-directory -j2 lint test-light
	$(BIN)/python $(SPREAD) -n 1 -m "ray and not nightly" --not-those-of=$(PASSED)
	$(BIN)/python $(SPREAD) -n $$(($(WORKERS) + 1)) -m "not nightly and not ray" --not-those-of=$(PASSED) --skip-table

test-nightly: native $(READY)  ## the tests that take too long for every change
	$(BIN)/python $(SPREAD) -n $$(($(WORKERS) + 1)) -m nightly

test-light: $(LIGHT_READY)  ## the quick tests in an environment without torch
	$(LIGHT)/python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") and "torch is in .venv-light")'
	$(LIGHT)/python $(SPREAD) -n $(WORKERS) -m "not torch and not device and not slow" --passed-to=$(PASSED)

# Not part of `test`: it is slower, and runs the nightly tests too.
coverage: native $(READY)  ## all tests, with the lines and branches that they reach
	$(BIN)/python $(SPREAD) -n $(WORKERS) --cov --cov-report=term:skip-covered

lint: $(READY) lint-page  ## ruff, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo

NODE_READY := node_modules/.ready
$(NODE_READY): package-lock.json
	npm ci --silent --no-audit --no-fund
	@touch $@

lint-page:  ## types of the pages' JavaScript, which are in its comments
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory $(NODE_READY) && node_modules/.bin/tsc -p jsconfig.json; \
	else echo "npm is not installed: the types of the pages' JavaScript are not checked"; fi

docs: $(READY)  ## write docs/reference.md, docs/reference/python.md and docs/schemas from the code
	$(BIN)/python docs/reference.py
	$(BIN)/python docs/python_api.py
	$(BIN)/python docs/schemas.py

examples: $(READY)  ## run the examples of the documents and of the README's pictures, write their output; PAGES="docs/tutorial.md"
	$(BIN)/python docs/examples.py $(PAGES)

site:  ## build the documentation's site in site/; a broken link fails
	@test -x out/site-env/bin/mkdocs || { $(PYTHON) -m venv out/site-env \
	  && out/site-env/bin/pip install -q -c constraints.txt -e '.[docs]'; }
	NO_MKDOCS_2_WARNING=1 out/site-env/bin/mkdocs build --strict

parity: $(READY)  ## train every mix against one process, write docs/parity.md
	$(BIN)/python docs/parity.py

chaos: $(READY)  ## make every fault in small jobs, 240 runs in all, gone on with where it was interrupted; docs/chaos.md
	$(BIN)/python -m validation.chaos
	$(BIN)/python -m validation.chaos --write

validate: $(READY)  ## a planner's step times and memory against published ones; ROWS=FILE for others in those columns
	$(BIN)/python -m validation.plan $(if $(ROWS),--rows "$(ROWS)")

SERIES ?= ../shared/data/changepoints
validate-history: $(READY)  ## change points against annotated series in SERIES=FOLDER
	$(BIN)/python -m validation.history "$(SERIES)"

bench: $(READY)  ## measure trainyard itself
	$(BIN)/python -m benchmarks

bench-peers: $(READY)  ## measure trace reading against Holistic Trace Analysis, installed in out/peers
	@test -x out/peers/bin/python || { $(PYTHON) -m venv out/peers \
	  && out/peers/bin/pip install -q -r benchmarks/peers-requirements.txt; }
	$(BIN)/python -m benchmarks.peers

bench-history: $(READY)  ## change points against other tools, installed in out/history-peers
	@test -x out/history-peers/bin/python || { $(PYTHON) -m venv out/history-peers \
	  && out/history-peers/bin/pip install -q -r benchmarks/history-peers-requirements.txt \
	  && out/history-peers/bin/pip install -q --no-deps apache-otava==0.8.0 signal-processing-algorithms==2.1.6; }
	$(BIN)/python -m benchmarks.history_peers

# A Python of atheris's own; clang and llvm-cov are needed in addition for the compiled scanner.
FUZZ := out/fuzz-env/bin
fuzz: native  ## every reader on INPUTS=1000000 mutated inputs each, installed in out/fuzz-env; READERS="kineto nsys" chooses
	@test -x $(FUZZ)/python || { $(PYTHON) -m venv out/fuzz-env \
	  && $(FUZZ)/pip install -q -c constraints.txt -r validation/fuzz/requirements.txt; }
	PYTHONPATH=src $(FUZZ)/python -m validation.fuzz $(READERS) $(if $(INPUTS),--inputs $(INPUTS))

# In .venv where there is one, else in PYTHON's own environment with what 'make carry' packed beside its torch.
device-evidence:  ## on an accelerator: six parts of at most 8 minutes, or PART=1 to 6; small records under evidence/
	@PYTHONPATH="$(CURDIR)/src:$(CURDIR)/$(CARRY)/$$($(THERE) -c 'import sys; print("%d.%d" % sys.version_info[:2])'):$(CURDIR)/$(CARRY)/any$${PYTHONPATH:+:$$PYTHONPATH}" \
	  $(THERE) -m benchmarks.evidence $(PART)

carry:  ## pack .carry: all that device-evidence needs, for machines that can install nothing
	@rm -rf $(CARRY)
	@$(PYTHON) -m pip wheel -q --no-deps -w $(CARRY) .
	@$(PYTHON) -m pip install $(PACK) --python-version 3.11 --target $(CARRY)/any $(CARRY)/*.whl $(CARRIED)
	@for version in 3.11 3.12 3.13; do \
	  $(PYTHON) -m pip install $(PACK) --python-version $$version --target $(CARRY)/$$version $(COMPILED) || exit 1; \
	done
	@rm -rf $(CARRY)/*.whl $(CARRY)/*/bin
	@echo "$(CARRY) is packed: $$(du -sh $(CARRY) | cut -f1)."

clean:  ## remove both environments and everything a tool left
	rm -rf .venv .venv-light $(CARRY) .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage .coverage.* $(PASSED) node_modules out

# What a run needs; then, in the same environment, optional libraries and developers' tools, whose modules are compiled
# when they are first imported: a test imports a tenth of them.
$(RUNS): pyproject.toml constraints.txt
	@$(call venv,.venv)
	@$(BIN)/python .ci/install_torch.py constraints.txt
	@$(BIN)/pip install -q -c constraints.txt -e '.[train]'
	@touch $@

$(READY): $(RUNS)
	@$(BIN)/pip install -q --no-compile -c constraints.txt -e '.[train,float8,safetensors,data,fast,sql,xlsx,ray,dev]'
	@touch $@

$(LIGHT_READY): pyproject.toml constraints.txt
	@$(call venv,.venv-light)
	@$(LIGHT)/pip install -q --no-compile -c constraints.txt -e '.[test]'
	@touch $@

# A Python outside 3.11 to 3.13 is refused here, before pip says it at length.
define venv
$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else f"Python {v[0]}.{v[1]} found, 3.11 to 3.13 needed: make PYTHON=python3.12")' \
  && $(PYTHON) -m venv --clear $(1)
endef
