VENV := .venv

.PHONY: help setup check test format site

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

setup:  ## the environment CI uses, in .venv
	bash .ci/setup $(VENV)

check:  ## everything CI checks
	bash .ci/check $(VENV)

test:  ## the tests only
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -q -n 2 --dist loadfile -m "not slow and not cuda"

site:  ## the documentation, on http://127.0.0.1:8000
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs serve --dev-addr 127.0.0.1:8000

format:  ## format and mend what ruff can mend
	$(VENV)/bin/ruff check --fix . ; $(VENV)/bin/ruff format .
