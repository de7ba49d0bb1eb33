# What a person or CI types. `make help` lists it. Only Python 3.11, gcc and make are assumed.

PYTHON  ?= python3
VENV    ?= .venv
# what to install: everything for development by default, one extra in the container images
INSTALL ?= --editable '.[plot,service,up,client,kubernetes]' --group dev
# the part of it that `make test-fast` needs
INSTALL_FAST := --editable '.[plot,service,client]' --group test
BIN     := $(VENV)/bin
stamp    = $(VENV)/.installed-$(shell echo "$(1)" | cksum | cut -d' ' -f1)
STAMP   := $(call stamp,$(INSTALL))
STAMP_FAST := $(call stamp,$(INSTALL_FAST))
# checks the types of the dashboard's JavaScript
TYPESCRIPT_VERSION := 7.0.2
TYPESCRIPT := build/typescript-$(TYPESCRIPT_VERSION)
# library versions that jobs are run with; `memgate runtimes` lists them
RUNTIME ?= torch-2.14
# CUDNN=1: with the real cuDNN, which knows the workspaces of convolutions
CUDNN   ?=
# figures for `make breadth`; what must be in the file is in tests/bench/breadth.py
TIMM    ?= timm_a100.csv
# of `make evaluation`: what predicts, formulas first
ENGINES ?= phantom
# measured runs for `make rules` and `make evaluation`, with models.json next to them
PEAKS   ?= tests/data/peaks_sample.csv
CAPPED  ?=
# models for `make extrapolation`: names, and what each means
MODELS  ?= tests/data/models.json
# a trace for `make bench-traces`; if empty, some are made
TRACE   ?=

# one more than there are cores: tests wait for programs, too
PROCESSES ?= $(shell expr $$(nproc) + 1)
# what fails beside other tests, which keep the machine busy, has to pass alone; both runs are shown
ALONE   = $(BIN)/python -m pytest --cov --cov-append --cov-report= --last-failed --last-failed-no-failures=none

# how long `make soak` takes
MINUTES ?= 60

# a folder with measured runs for `make public-rows`
PUBLIC  ?=

# 1: the newest versions, for `make constraints`
UPGRADE ?=

# for each target of `make fuzz`
SECONDS ?= 60
KEEP    ?=

.DEFAULT_GOAL := help
# what has a line of help is a name, not a file
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*\#\# .*/\1/p' Makefile)

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

install: $(STAMP) ## create .venv with everything in it (quick if nothing changed)

# Every file that is installed, or builds memgate, has a hash in constraints.txt, or pip refuses it. Not
# --require-hashes: that would ask for a hash of memgate's own folder.
PINNED := --no-require-hashes --constraint constraints.txt --build-constraint constraints.txt

define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "memgate needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	@sed -n '/^pip==/,/[^\\]$$/p' constraints.txt > $(VENV)/pip.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $(VENV)/pip.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PINNED) $(1)
	@cd $(VENV) && bin/python -P -c 'from memgate.allocator.native_core import load_core; print(end="" if load_core() else "notice: the native core was not built (no C++ compiler? see docs/allocator.md): replays run on the Python core\n")'
endef

# what an installation is made of: when it changes, memgate is installed again
BUILT_FROM := pyproject.toml constraints.txt hatch_build.py $(wildcard memgate/allocator/native/*.cpp memgate/allocator/native/*.h)

# the development install includes what the fast tests need
$(STAMP): $(BUILT_FROM)
	$(call install,$(INSTALL))
	@touch $@ $(if $(filter file,$(origin INSTALL)),$(STAMP_FAST))

$(STAMP_FAST): $(BUILT_FROM)
	$(call install,$(INSTALL_FAST))
	@touch $@

runtime: install ## install what runs jobs: torch without a GPU, 2.1 GB (RUNTIME=torch-2.14)
ifeq ($(shell uname -sm),Linux x86_64)
	@$(BIN)/memgate runtimes install $(RUNTIME) $(if $(CUDNN),--with-cudnn)
else
	@echo "no runtime: jobs run on Linux on x86_64 only; tests that need one are skipped"
endif

parts: install ## get the programs that tests need: Slurm, Chromium, Prometheus, helm, wrk (Debian only)
	@$(BIN)/python -m tests.parts

kube-apiserver: install parts ## build a Kubernetes API server from Debian's source package (10 min, 3 GB for a while)
	@$(BIN)/python -m tests.kube_apiserver

run: install runtime ## start everything on this machine: queue, workers, HTTP service; Ctrl-C ends it
	@$(BIN)/memgate up

test-fast: $(STAMP_FAST) ## run the tests that need no torch, no server and no other program (1 min)
	$(BIN)/python -m pytest --numprocesses=auto --dist=loadfile tests/unit tests/contract

test: install runtime parts ## run the tests
	@$(BIN)/memgate runtimes install $(RUNTIME) --with trl
	@$(BIN)/python -m tests.cudnn_runtime
	$(BIN)/python -m pytest --cov --cov-report= --numprocesses=$(PROCESSES) --dist=loadfile --no-loadscope-reorder || $(ALONE)
	$(BIN)/coverage report --include='memgate/*' --fail-under=100
	$(BIN)/coverage report --include='service/*' --fail-under=89
	$(BIN)/coverage report --include='worker/*' --fail-under=66

test-slow: install runtime parts ## run the exhaustive tests as well
	@$(BIN)/memgate runtimes install $(RUNTIME) --with trl --with triton --with liger --with torchao
	@$(BIN)/python -m tests.cudnn_runtime
	$(BIN)/python -m pytest -m '' --hypothesis-profile=thorough

test-kubernetes: install kube-apiserver ## run the tests that need a real Kubernetes API server
	$(BIN)/python -m pytest -m 'kubernetes and not slow' tests/integration

acceptance-kubernetes: install kube-apiserver runtime ## submit 20 new jobs that do not fit to a real API server, with the chart's timeouts, on a quiet machine (1 min)
	$(BIN)/python -m pytest -m 'kubernetes and slow' -s tests/integration

test-environments: install runtime ## run jobs in plain environments: torch 2.4 to 2.14 from PyPI with NVIDIA's packages (25 GB)
	$(BIN)/python -m tests.make_environments
	$(BIN)/python -m pytest -m environments tests/integration

test-recipes: install runtime ## run the recipes with the real Ray and SkyPilot, which it installs (5 min, 0.8 GB)
	$(PYTHON) -m venv build/recipes
	build/recipes/bin/python -m pip install --quiet --disable-pip-version-check 'ray[default]==2.60.0' 'skypilot==0.14.1' --editable '.[client]'
	$(BIN)/python -m pytest -m '' tests/integration/test_recipes.py

acceptance-slurm: install runtime parts ## run Slurm's acceptance on a lab Slurm with slurmdbd: 20 new jobs, 60 at once, 200 mixed ones in warn and audit, the sampler, ten rehearsals (12 min)
	$(BIN)/python -m pytest -m slow -s tests/integration/slurm

faults: install runtime ## kill processes while 2,000 jobs run: nothing may be lost (20 min)
	$(BIN)/python -m pytest -m slow -s tests/integration/test_faults.py

failover: install ## lose the queue's primary 20 times under load, and as often with partitions: nothing may be lost (5 min)
	$(BIN)/python -m pytest -m slow -s tests/integration/test_failover.py

chaos: install runtime ## 24 rounds of a minute: kills, stops, a full store, hostile traffic (40 min)
	$(BIN)/python -m pytest -m slow -s tests/integration/test_chaos.py

hostile: install ## send 10,000 hostile requests: no 500, no broken connection, at most 150 MB (5 min)
	$(BIN)/python -m pytest -m slow -s tests/integration/test_hostile_many.py

soak: install runtime ## ask for MINUTES whether anything grows: memory, open files, keys, temporary files; fails if so
	$(BIN)/python -m tests.bench.soak --minutes $(MINUTES) --plot build/soak.png --csv build/soak.csv

# node and npm come with `make install`, so nothing else is needed
$(TYPESCRIPT)/bin/tsc: | $(STAMP)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/npm install --silent --no-fund --no-audit --global --prefix $(abspath $(TYPESCRIPT)) typescript@$(TYPESCRIPT_VERSION)

fuzz: install ## look for input that breaks a reader, SECONDS=60 of processor time for each (KEEP=1: keep what is worth it)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PINNED) --group fuzz
	$(BIN)/python -m tests.fuzz.run --seconds $(SECONDS) $(if $(KEEP),--keep)

lint: install $(TYPESCRIPT)/bin/tsc ## check style, docstrings, types (Python's and JavaScript's), spelling, containers, the docs' links
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/node $(TYPESCRIPT)/bin/tsc --project service/memgate_service/dashboard/static/jsconfig.json
	$(BIN)/codespell
	$(BIN)/hadolint Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(MAKE) --no-print-directory docs

docs: install ## build the site of the docs into build/docs, and check its links; it is read without a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --config-file deploy/docs/mkdocs.yml

wheel: install ## build the wheel and install it in a clean environment, where its tests run
	$(BIN)/python -m pytest tests/packaging/test_wheel.py

AUDIT = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PINNED) --group audit

sbom: install ## write what an installation consists of: build/sbom.json, CycloneDX
	@$(AUDIT)
	@mkdir -p build
	$(PYTHON) -m venv build/sbom
	@sed -n '/^pip==/,/[^\\]$$/p' constraints.txt > build/sbom/pip.txt
	build/sbom/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement build/sbom/pip.txt
	build/sbom/bin/python -m pip install --quiet --disable-pip-version-check $(PINNED) '.[plot,service,up,client,kubernetes]'
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-format JSON --output-file build/sbom.json build/sbom/bin/python

audit: install ## look for known holes in what is installed (needs the internet), and for holes in the workflows
	@$(AUDIT)
	$(BIN)/zizmor --offline --quiet .github
	$(BIN)/pip-audit --strict --requirement constraints.txt --require-hashes --disable-pip

format: install ## rewrite the code in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install ## measure the simulator: events per second, and how the cost grows
	$(BIN)/python -m tests.bench.allocator

bench-all: install runtime parts ## measure ratios (native / Python, known / new, cached / constant...) into build/bench.json; fails if one is a quarter larger than in tests/data/bench_ratios.json (5 min; RENEW=1 makes them the new ones)
	$(BIN)/python -m tests.bench.ratios $(if $(RENEW),--renew)

trace-styles: install runtime ## hold traces in ten styles against the phantom (10 min; RUNTIME=torch-2.14)
	$(BIN)/python -m tests.bench.trace_styles --runtime $(RUNTIME)

bench-traces: install ## measure reading and analysing traces: time, memory (TRACE=your.json)
	$(BIN)/python -m tests.bench.traces $(if $(TRACE),'$(TRACE)')

bench-timeline: install ## measure a question about a timeline file of 200,000 events; fails if it is too slow (TIMELINE=your.memgate)
	$(BIN)/python -m tests.bench.timeline_files $(if $(TIMELINE),'$(TIMELINE)')

bench-ranks: install runtime ## measure Llamas of 8B to 405B on 8 to 512 GPUs: time, memory; fails if they take too much
	$(BIN)/python -m tests.bench.ranks

bench-webhooks: install ## measure what the gate adds to a Kubernetes object; fails if it is too slow
	$(BIN)/python -m tests.bench.webhooks

load: install parts ## measure the service under load against a constant FastAPI route; fails if it is too slow
	$(BIN)/python -m tests.bench.load

bench-throughput: install runtime ## measure cached, replayed and new answers a second, and the processor time of each: 1, 2 and 4 workers, 2 services (5 min)
	$(BIN)/python -m tests.bench.throughput

flood: install runtime ## measure what others notice of a key that asks on 64 connections as fast as it can; fails if it is too much (3 min)
	$(BIN)/python -m tests.bench.flood

sizing: install runtime ## measure memory, jobs per second, bytes in the store: the figures of docs/operations.md
	$(BIN)/python -m tests.bench.sizing

bench-dashboard: install runtime parts ## measure pages in a browser: first paint, a curve of 200,000 events; fails above a second
	$(BIN)/python -m tests.bench.dashboard

screenshots: install runtime parts ## take the pictures of the dashboard, light and dark (PEAKS=measured runs)
	$(BIN)/python -m tests.bench.screenshots '$(PEAKS)'

breadth: install runtime ## trace hundreds of timm models and compare with a real A100 (TIMM=your figures, not shipped)
	$(BIN)/python -m tests.bench.breadth '$(TIMM)'

breadth-tasks: install runtime ## ask about every model of transformers, torchvision and timm, made small (40 min; it resumes)
	$(BIN)/python -m tests.bench.breadth_tasks --runtime $(RUNTIME)

compare: install runtime ## measure the phantom against PyTorch's own MemTracker
	$(BIN)/python -m tests.bench.compare

extrapolation: install runtime ## compare what small batches predict with real runs (MODELS=models.json)
	$(BIN)/python -m tests.bench.extrapolation '$(MODELS)'

public-rows: install ## hold answers against fine-tuning jobs that others measured (PUBLIC=DIR, their runtimes installed)
	$(BIN)/python -m tests.bench.public_rows '$(PUBLIC)'

rules: install runtime ## measure what each rule of the profile engine changes (PEAKS=, CAPPED=)
	$(BIN)/python -m tests.bench.rules '$(PEAKS)' $(if $(CAPPED),--capped '$(CAPPED)')

evaluation: install runtime ## renew the paper's evaluation in docs/accuracy.md (PEAKS=, CAPPED=, RUNTIME=; 10 min)
	$(BIN)/python -m tests.bench.evaluation -- '$(PEAKS)' $(if $(CAPPED),--capped '$(CAPPED)') --runtime $(RUNTIME) $(ENGINES:%=--engine %)

monte-carlo: install runtime ## ask engines about 1,680 random jobs, and hold them against each other (it resumes; MODELS=, RUNTIME=)
	$(BIN)/python -m tests.bench.monte_carlo '$(MODELS)' --runtime $(RUNTIME)

schedtune: install runtime ## train the regressor of --engine schedtune (PEAKS=, RUNTIME=)
	$(BIN)/python -m tests.bench.schedtune '$(PEAKS)' --runtime $(RUNTIME)

manifests: install parts ## render the plain Kubernetes manifests from the Helm chart
	@$(BIN)/python -m tests.chart

constraints: ## lock what pyproject.toml asks for, with hashes, for every platform and Python (UPGRADE=1: newest versions)
	$(PYTHON) -m venv build/constraints
	@sed -n '/^uv==/,/[^\\]$$/p' constraints.txt > build/constraints/uv.txt
	build/constraints/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement build/constraints/uv.txt
	build/constraints/bin/uv pip compile --quiet $(if $(UPGRADE),--upgrade) pyproject.toml --all-extras --group dev --group fuzz --group audit --universal --python-version 3.11 \
		--generate-hashes --no-annotate --no-header --output-file constraints.txt > /dev/null

clean: ## remove what make made
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
