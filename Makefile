# The front door: `make train` and `make test` set everything up by themselves. `make help` lists the rest.
# CUDA=1 builds for GPUs, in a folder of its own.
cuda := $(filter 1,$(CUDA))
BUILD ?= $(if $(cuda),build-cuda,build)
PREFIX ?= /usr/local
# KERNELS=aten replaces the CPU's kernels with ATen's operators, to test those. IN_ORDER=1 makes every group of ranks
# carry out its operations in the order posted, as NCCL does, to find orders that deadlock.
export ORTHANT_KERNELS = $(or $(KERNELS),simd)
export ORTHANT_IN_ORDER = $(or $(IN_ORDER),0)
export ORTHANT_SETUP_LOG = $(BUILD)/setup/log
setup := tools/setup.sh

# Set-up leaves two stamps in $(BUILD)/setup: packages (younger than packages.txt) and torch (holds the wheel's folder).
torch_stamp := $(BUILD)/setup/torch
torch_dir = $(shell cat $(torch_stamp) 2>/dev/null)
ifeq ($(wildcard $(torch_dir)/lib/libtorch_$(if $(cuda),cuda,cpu).so),)
$(shell rm -f $(torch_stamp))
endif

.DEFAULT_GOAL := help
.PHONY: help setup build train test test-full fuzz cuda-check wheel install clean

help: ## this list
	@echo 'Orthant trains transformers across many devices.'
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | \
	  while IFS='|' read -r name text; do printf '%-16s %s\n' "$$name" "$$text"; done
	@echo
	@echo '  BUILD=$(BUILD)  build folder     JOBS=N  compile jobs (default: as cores and memory allow)'
	@echo '  CUDA=1       with every command: for NVIDIA GPUs, in build-cuda'

setup: $(BUILD)/build.ninja ## Debian packages, libtorch, configure (each only if missing)

build: setup ## build/orthant and the tests' programs
	@ninja -C $(BUILD) -j $(or $(JOBS),$$($(setup) jobs))

train: setup ## train examples/jargon.toml; DATA=FILE for a text of your own, RUN=run.toml for another run, ARGS='...'
	@$(setup) quietly 'Building $(BUILD)/orthant' ninja -C $(BUILD) -j $(or $(JOBS),$$($(setup) jobs)) orthant
	@$(BUILD)/orthant train $(or $(RUN),examples/jargon.toml) $(if $(DATA),--data.path '$(DATA)' --job.dump_folder 'runs/$(notdir $(basename $(DATA)))') $(ARGS)

# Runs three entries at a time on two cores: many wait for messages or processes, and each rank uses one thread.
run_tests = ctest --test-dir $(BUILD) --parallel 3 --output-on-failure --no-tests=error

test: build $(BUILD)/setup/test_python ## what every change needs; TESTS='plan|numerics|e2e|process' for these labels, ARGS='-R name' for ctest, KERNELS=aten, IN_ORDER=1
	@$(run_tests) $(if $(TESTS),-L '$(TESTS)') -LE full $(ARGS); status=$$?; tools/slowest_tests.py $(BUILD); exit $$status

test-full: build $(BUILD)/setup/test_python $(BUILD)/setup/test_packages ## the long tests that `make test` leaves out: sweeps, fault loops, fuzzers
	@ninja -C $(BUILD) -j $(or $(JOBS),$$($(setup) jobs)) benchmarks
	@$(run_tests) -L full $(ARGS); status=$$?; tools/slowest_tests.py $(BUILD); exit $$status

# Needs no torch. FUZZ_CXX must be clang 16 or later.
FUZZ_CXX ?= $(firstword $(foreach name,clang++-19 clang++-18 clang++-17 clang++-16,$(shell command -v $(name))) clang++)
fuzz: $(BUILD)/setup/packages ## read hostile files made by libFuzzer (needs clang-16); INPUTS=1000000 for each target, TARGETS='jsonl hardware' for these
	@$(setup) quietly 'Configuring $(BUILD)-fuzz' cmake -G Ninja -S . -B $(BUILD)-fuzz -DORTHANT_FUZZ=ON -DCMAKE_CXX_COMPILER='$(FUZZ_CXX)'
	@$(setup) quietly 'Building $(BUILD)-fuzz' ninja -C $(BUILD)-fuzz -j $(or $(JOBS),$$($(setup) jobs)) fuzz_targets
	@tests/fuzz/run.sh $(BUILD)-fuzz $(or $(INPUTS),1000000) $(TARGETS)

cuda-check: ## compile and link everything that runs on GPUs; needs nvcc, but no GPU
	@$(MAKE) setup CUDA=1 BUILD=build-cuda
	@ninja -C build-cuda -j $(or $(JOBS),$$($(setup) jobs)) orthant model_tests comm_tests
	@build-cuda/orthant --version

wheel: setup ## the Python package as a wheel in $(BUILD): plans, searches and schedules without torch
	@ninja -C $(BUILD) -j $(or $(JOBS),$$($(setup) jobs)) orthant_python
	@python3 python/make_wheel.py $(BUILD)/python/orthant $(BUILD)

install: build ## program, manual page, completions and library below PREFIX (default /usr/local)
	@cmake --install $(BUILD) --prefix '$(PREFIX)'

clean: ## remove the build folder (the virtual environment stays)
	rm -rf $(BUILD)

$(BUILD)/setup/packages: packages.txt
	@mkdir -p $(@D)
	@$(setup) packages
	@touch $@

$(torch_stamp): $(BUILD)/setup/packages
	@$(setup) torch $@ $(if $(cuda),cuda)

$(BUILD)/setup/test_python: tests/python-packages.txt $(torch_stamp)
	@$(setup) test_python $@

$(BUILD)/setup/test_packages: tests/packages.txt $(BUILD)/setup/packages
	@$(setup) test_packages $@

$(BUILD)/build.ninja: $(torch_stamp)
	@$(setup) quietly Configuring cmake -G Ninja -S . -B $(BUILD) -DORTHANT_TORCH_DIR="$(torch_dir)" $(if $(cuda),-DORTHANT_CUDA=ON)
	@touch $@
