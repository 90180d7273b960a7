# Every target does its own set-up; a machine needs only Python.
PYTHON ?= python3
BIN := .venv/bin

# A test opens the report in a real browser; without one it is skipped with a message.
.PHONY: browser
browser:
	@command -v chromium chromium-browser google-chrome >/dev/null || \
		(apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium) >/dev/null 2>&1 || \
		echo 'chromium could not be installed: the browser test of the report page is skipped'

.PHONY: setup demo test test-all test-base test-docs test-real docs dist interop interop-sample interop-results sanitize bench results format clean

setup: .venv/ready

# torch is installed first and pinned: for a version range pip would fetch a build with several GB of CUDA libraries. The C++ kernels
# are built against it, in about 40 s; without a compiler the package is installed without them.
.venv/ready: pyproject.toml constraints.txt setup.py $(wildcard csrc/*)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools ninja
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[lab,video,export,cluster,hf,tensorboard,docs,dev]'
	touch $@

demo: setup
	$(BIN)/anynorm compare --runs runs/demo

PYTEST := $(BIN)/pytest -n 2 --dist worksteal

.PHONY: lint
lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run -Werror csrc/*
	$(BIN)/mypy
	$(BIN)/deptry anynorm

test: lint browser
	$(PYTEST) -m 'not (docs or real or thorough)'

# All of the tests but those of `make test-real`: every norm is compiled and exported, every recipe trained, every task killed.
test-all: lint browser
	$(PYTEST) -m 'not real'

# torch's own tools, and all of its own cases of norms, with our layers; `make test` runs a part of these cases.
.PHONY: peers
peers: setup
	$(PYTEST) tests/peers

# The tests of the library in an environment with its base dependencies only: torch, numpy, rich, safetensors, typer.
BASE := .venv-base/bin
test-base: .venv-base/ready
	$(BASE)/python -m pytest -n 2 --dist worksteal --doctest-ignore-import-errors -m 'not (docs or real or thorough)' \
		tests/test_base.py tests/test_registry.py tests/cli tests/core tests/diagnostics tests/draw tests/integrations tests/io \
		tests/kernels tests/layers tests/selftest tests/surgery anynorm --ignore anynorm/lab --ignore anynorm/draw

.venv-base/ready: pyproject.toml constraints.txt setup.py $(wildcard csrc/*)
	test -x $(BASE)/python || $(PYTHON) -m venv .venv-base
	$(BASE)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(BASE)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools ninja pytest pytest-xdist hypothesis
	$(BASE)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e .
	touch $@

# The site is built, and the code of all pages and examples runs.
test-docs: setup browser
	$(PYTEST) -m 'docs and not real'

# Tests and guides with pretrained networks and real images; skipped if the shared data folder is not next to the clone.
test-real: setup
	$(PYTEST) -m real

# The documentation site, in build/docs/html; part of `make test-docs`. It needs no network and no server.
docs: setup
	$(BIN)/python -m docs.build

# Surgery on models of other packages, in an environment of its own: torchvision without operators for the CPU breaks the import of
# packages that look for it.
INTEROP := .venv-interop/bin
interop: .venv-interop/ready
	ANYNORM_INTEROP=1 $(INTEROP)/python -m pytest tests/interop

# A few models of each package; CI runs it.
interop-sample: .venv-interop/ready
	ANYNORM_INTEROP=1 $(INTEROP)/python -m pytest -n 2 tests/interop/test_models.py tests/interop/test_fx.py -m sample

# Measure the models that have no results in docs/interop.json, and generate docs/interop.md.
interop-results: setup .venv-interop/ready
	$(INTEROP)/python -W ignore -m tests.interop.run
	$(BIN)/python -m tools.interop

.venv-interop/ready: pyproject.toml constraints.txt constraints-interop.txt setup.py $(wildcard csrc/*)
	test -x $(INTEROP)/python || $(PYTHON) -m venv .venv-interop
	$(INTEROP)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(INTEROP)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		setuptools ninja pytest pytest-xdist hypothesis platformdirs huggingface_hub numpy pillow pyyaml safetensors tqdm \
		lightning-utilities matplotlib scipy
	$(INTEROP)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt torchmetrics -r constraints-interop.txt
	$(INTEROP)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e .
	touch $@

# Build the sdist and the wheel in dist/, install the wheel in an empty environment outside the clone, and test it there.
dist: setup
	$(BIN)/python -m tools.dist

# The tests of the C++ kernels with AddressSanitizer and UndefinedBehaviorSanitizer, in a build of its own.
sanitize: setup
	rm -rf build/sanitize
	ANYNORM_SANITIZE=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --target build/sanitize .
	cp -r tests build/sanitize/
	cd build/sanitize && LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
		../../$(BIN)/python -m pytest -c ../../pyproject.toml --rootdir . -p no:cacheprovider \
		tests/kernels/test_cpu.py tests/kernels/test_activation.py

# Measure for about half an hour, generate benchmarks/README.md from the results, and print one line per target and per aim.
BENCHMARKS := layers fused model startup reference baselines stream conditional deployment
bench: setup
	for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py --json benchmarks/results/$$name.json || exit 1; done
	$(BIN)/python benchmarks/report.py

# Compare random passes of all kernels with the float64 definition; a run with the same seed goes on where the last one stopped.
# The kills and the memory: $(BIN)/python -m tests.soak.kill, $(BIN)/python -m tests.soak.steady.
.PHONY: soak
MINUTES ?= 30
soak: setup
	$(BIN)/python -m tests.soak --minutes $(MINUTES) --json benchmarks/results/soak.json

# Generate records/README.md and the results in README.md, docs/papers/README.md and docs/guide/robustness.md from the records.
results: setup
	$(BIN)/python -m tools.results

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i csrc/*

clean:
	rm -rf .venv .venv-base .venv-interop build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
