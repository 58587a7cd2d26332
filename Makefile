# Short names for the usual steps; `make help` lists them. The build itself is CMake's (CMakePresets.json).
PRESET ?= release
BUILD := build/$(PRESET)
PROGRAM := $(BUILD)/bin/tensorcache
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)

# ON: warnings are errors, as in continuous integration. Not in the builds with sanitizers, where g++ warns of what it is not sure.
WERROR ?= OFF
# How long `make fuzz` runs each target.
SECONDS ?= 60

SETUP := scripts/setup.sh $(if $(filter runtime-only asan tsan,$(PRESET)),--no-torch)
CONFIGURE := scripts/configure.sh $(PRESET) -DTENSORCACHE_WERROR=$(WERROR)

.PHONY: help demo test test-asan test-oracle test-python test-races test-server test-slow fuzz build bench format tidy clean distclean program

help:
	@echo 'make demo        build the program; four small models learn to remember, one reads a million tokens (4 minutes)'
	@echo 'make test        build everything and run the tests, all but those labelled slow, oracle or server'
	@echo 'make test-asan   run the tests of the run half under the address and undefined-behaviour sanitizers'
	@echo 'make test-oracle compare models, tokenizers and files with the pip packages transformers, tokenizers, safetensors'
	@echo 'make test-python build the Python package and run its tests'
	@echo 'make test-races  run the tests of threads under the thread sanitizer'
	@echo 'make test-server ask the server with the pip package openai; chat templates against jinja2'
	@echo 'make test-slow   run the tests labelled slow: training to a goal, ten million tokens'
	@echo 'make fuzz        feed made-up files to every reader, each for SECONDS=60; $(BUILD)/fuzz keeps what is new'
	@echo 'make build       build everything'
	@echo 'make bench       measure the kernels; the figures also go to $(BUILD)/bench.json'
	@echo 'make format      format the sources with clang-format-19'
	@echo 'make tidy        lint the sources with clang-tidy; CHANGED=1: those that changed; ANALYZE=1: and the analyzer'
	@echo 'make clean       remove $(BUILD), keep what was fetched'
	@echo 'make distclean   remove build/'
	@echo
	@echo 'PRESET=release (default), debug, asan, tsan or runtime-only picks the build. Packages that are missing are'
	@echo 'installed first; that needs root or sudo.'

demo: program
	@echo
	@$(PROGRAM) demo --out build/demo
	@echo 'The program is $(PROGRAM).'

test:
	@$(SETUP) --tests
	@$(CONFIGURE)
	cmake --build --preset $(PRESET)
	ctest --preset $(PRESET) -j $(CMAKE_BUILD_PARALLEL_LEVEL)

test-asan:
	@scripts/setup.sh --no-torch --tests
	@scripts/configure.sh asan
	cmake --build --preset asan
	ctest --preset asan -j $(CMAKE_BUILD_PARALLEL_LEVEL)

test-oracle:
	@$(SETUP) --oracle
	@$(CONFIGURE)
	cmake --build --preset $(PRESET) --target oracle_probe tensorcache_program
	ctest --test-dir $(BUILD) -L oracle --output-on-failure --no-tests=error -j $(CMAKE_BUILD_PARALLEL_LEVEL)

# WERROR goes to CMake through the environment (pyproject.toml).
test-python: export WERROR := $(WERROR)
test-python:
	@scripts/setup.sh --no-torch --python-tests
	@scripts/install_python.sh
	build/deps/python/bin/python -m pytest

test-races:
	@scripts/setup.sh --no-torch --tests
	@scripts/configure.sh tsan
	cmake --build --preset tsan --target core_thread_pool_test runtime_race_test
	ctest --preset tsan -R '^(core_thread_pool_test|runtime_race_test)$$'

test-server:
	@$(SETUP) --server
	@$(CONFIGURE)
	cmake --build --preset $(PRESET) --target tensorcache_program
	ctest --test-dir $(BUILD) -L server --output-on-failure --no-tests=error -j $(CMAKE_BUILD_PARALLEL_LEVEL)

test-slow:
	@$(SETUP) --tests
	@$(CONFIGURE)
	cmake --build --preset $(PRESET)
	ctest --test-dir $(BUILD) -L slow --output-on-failure

fuzz:
	@$(SETUP) --tests
	@$(CONFIGURE)
	cmake --build --preset $(PRESET) --target fuzz
	scripts/fuzz.sh $(BUILD) $(SECONDS)

build:
	@$(SETUP)
	@$(CONFIGURE)
	cmake --build --preset $(PRESET)

program:
	@$(SETUP)
	@$(CONFIGURE)
	cmake --build --preset $(PRESET) --target tensorcache_program

bench: program
	$(PROGRAM) bench kernels --json $(BUILD)/bench.json

format:
	@scripts/setup.sh --no-torch --checks
	@scripts/format.sh

tidy:
	@$(SETUP) --tests --checks
	@scripts/configure.sh tidy
	@cmake --build build/tidy --target tensorcache_commit >/dev/null
	@ANALYZE=$(ANALYZE) scripts/tidy.sh build/tidy $(if $(CHANGED),--changed)

clean:
	rm -rf $(BUILD)

distclean:
	rm -rf build
