# Every target goes from a bare machine (python3 with venv and pip) to done; the second call finds .venv ready.

PYTHON ?= python3
TEST_OPTIONS ?= -n 2 --dist loadfile --no-loadscope-reorder

VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_RETRIES=10 $(PY) -m pip
INSTALL := $(PIP) install -qq --progress-bar off --constraint constraints.txt
pinned = $(shell sed -n 's/^\($(1)==[^ ;]*\).*/\1/p' constraints.txt)

.PHONY: help demo test test-all check lint types imports generated changes generate dist clean distclean
.NOTPARALLEL:

help:
	@echo 'make demo       plan a model for two GPUs and this machine, run attention here, explain the choice'
	@echo 'make test       run the tests (TEST_OPTIONS="$(TEST_OPTIONS)")'
	@echo 'make test-all   the same with the whole of every table (half an hour on two cores)'
	@echo 'make check      the gate: lint, types, imports, generated files, change notes, tests'
	@echo 'make generate   rewrite the files that derive from the one table'
	@echo 'make dist       build wheel and sdist into dist/'
	@echo 'make clean      remove caches and build outputs; make distclean removes .venv too'

demo: $(READY)
	@$(PY) -m attn_backends.cli.demo

test: $(READY)
	@$(PY) -m pytest $(TEST_OPTIONS)

test-all: $(READY)
	@$(PY) -m pytest $(TEST_OPTIONS) -m ""

check: lint types imports generated changes test

lint: $(READY)
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check

types: $(READY)
	@$(PY) -m mypy --strict attn_backends

imports: $(READY)
	@$(VENV)/bin/lint-imports --no-logo

generated: $(READY)
	@$(PY) -m attn_backends.cli.generate --check

# A change note is changes/<name>.<kind>.md, so that a release can put it under its heading.
changes:
	@for note in changes/*; do \
	  case $$note in \
	    changes/README.md|changes/?*.added.md|changes/?*.changed.md|changes/?*.fixed.md|changes/?*.removed.md) \
	      test -s "$$note" || { echo "$$note: is empty"; exit 1; } ;; \
	    *) echo "$$note: call it <name>.added.md, .changed.md, .fixed.md or .removed.md"; exit 1 ;; \
	  esac; \
	done; echo "change notes: ok"

generate: $(READY)
	@$(PY) -m attn_backends.cli.generate

dist: $(READY)
	@$(PY) -m build --no-isolation

# torch first and by its exact version: a range would fetch the newest build, and that is gigabytes.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "attn-backends needs Python 3.11 or newer")'
	@$(PY) -m pip --version >/dev/null 2>&1 || { echo 'creating $(VENV)'; $(PYTHON) -m venv --clear $(VENV); }
	@echo 'installing $(call pinned,torch) and $(call pinned,triton) (minutes, the first time)'
	@$(INSTALL) $(call pinned,torch)
	@echo 'installing attn-backends and what its gate needs'
	@$(INSTALL) --editable '.[dev]'
	@touch $@

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
