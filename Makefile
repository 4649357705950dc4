# Every target does its own set-up, which is quick after the first time.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help up demo doctor test unit check format docs lock bench soak setup python engines database tools borrow clean

VENV := .venv/bin
# Arguments for the command behind a target, e.g.  make up ARGS='--port 8391'  or  make test ARGS='-k placement -x'
ARGS ?=

help:  ## show this list
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

up: python engines  ## start everything on this machine; Ctrl-C shuts it down cleanly; ARGS='--port 8391' for another port
	@exec $(VENV)/sandboxes up $(ARGS)

demo: python engines  ## run the README's example in a real gVisor sandbox, then take everything down
	@$(VENV)/sandboxes demo $(ARGS)

doctor: python  ## report what this machine has, what it lacks, and how to fix it
	@$(VENV)/sandboxes doctor $(ARGS)

test: python engines database borrow  ## run all tests except the long ones (root; real engines)
	@$(VENV)/python -m pytest -q -m 'not soak' -n 4 --dist loadfile --no-loadscope-reorder $(ARGS)

unit: python borrow  ## run the tests that need neither root nor engines
	@$(VENV)/python -m pytest -q -m 'not soak and not engine' -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

check: python tools  ## check format, lint, types, import rules, shell scripts
	@$(VENV)/ruff format --check --quiet . || { echo 'run: make format' >&2; exit 1; }
	@$(VENV)/ruff check --quiet .
	@$(VENV)/mypy
	@out=$$($(VENV)/lint-imports --no-logo 2>&1) || { echo "$$out"; exit 1; }
	@shellcheck setup/*.sh .ci/run
	@echo 'check: format, lint, types, import rules and shell scripts are clean'

format: python  ## format the sources and apply lint fixes
	@$(VENV)/ruff format --quiet .
	@$(VENV)/ruff check --quiet --fix .

docs: python  ## regenerate the tables in the documents from the code
	@$(VENV)/python docs/settings.py
	@$(VENV)/python docs/api.py

lock: python  ## write the lock files anew, keeping what still fits; ARGS=--upgrade takes the newest versions
	@$(VENV)/python setup/lock.py $(ARGS)

bench: python engines  ## measure against the raw engines on this machine
	@$(VENV)/python -m tests.bench $(ARGS)

soak: python engines database borrow  ## run all long tests (root; real engines); CONTRIBUTING.md says what they cover and how to shorten them
	@$(VENV)/python -m pytest -q -rP --show-capture=stdout -m soak $(ARGS)

setup: python engines tools  ## do only the set-up

python:
	@bash setup/python.sh

engines:
	@bash setup/packages.sh engines

database:
	@bash setup/packages.sh tests

tools:
	@bash setup/packages.sh check

borrow:
	@bash setup/borrow.sh

clean:  ## remove the virtual environment and all caches of this checkout
	rm -rf .venv .borrowed .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist sdk/dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
