# make course and make test are the two to know; `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
PY = $(VENV)/bin/python
READY = $(VENV)/.ready
ASSIGNMENT ?= *
# One more than there are processors: there is always a test that waits, for a server, a browser or a time limit.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PARALLEL = -n $(JOBS) --maxprocesses 8 --dist
.DEFAULT_GOAL := help
.PHONY: help env course test lint drift nbval lab notebooks import grade report bench figures publish clean

help:  ## this list
	@grep -hE '^[a-z]+:.*  ## ' Makefile | sed -E 's/^([a-z]+):.*  ## /  make \1|/' | column -t -s '|' 2>/dev/null \
		|| grep -hE '^[a-z]+:.*  ## ' Makefile

# The pins are for Python 3.11 and later; 3.10 gets the ranges of pyproject.toml.
$(READY): requirements-cpu.txt pyproject.toml
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	if $(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; \
		then $(PY) -m pip install --disable-pip-version-check -r requirements-cpu.txt; \
		else $(PY) -m pip install --disable-pip-version-check -e '.[course,test,bench]'; fi
	$(PY) -m pip install --disable-pip-version-check --no-deps -e .
	touch $(READY)

env: $(READY)  ## the environment in .venv, from the pinned requirements
course: notebooks  ## builds all, grades a sample class, prints the gradebook, writes build/course/report.html
	$(PY) -m tools.course
test: lint drift nbval  ## everything that CI runs; JOBS=0 one after the other
	$(PY) -m pytest $(PARALLEL) worksteal -m 'not alone' tests
	$(PY) -m pytest -m alone tests
lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
drift: $(READY)
	$(PY) -m tools.build --check
nbval: $(READY)
	$(PY) -m pytest $(PARALLEL) loadfile --no-loadscope-reorder --nbval-lax --timeout=900 -p no:cacheprovider solutions
lab: $(READY)  ## JupyterLab on notebooks/; the formgrader is in its Nbgrader menu
	$(PY) -m jupyter lab --LabApp.default_url=/lab/tree/notebooks
notebooks: $(READY)  ## lessons/ -> solutions/ -> notebooks/; REPLACE=1 drops edits
	$(PY) -m tools.build $(if $(REPLACE),--replace)
import: $(READY)  ## NOTEBOOK=solutions/...: an edit in JupyterLab back into lessons/
	$(PY) -m tools.import_notebook $(NOTEBOOK)
grade: $(READY)  ## grades submitted/ over all cores; ASSIGNMENT=01_hello_ranks for one
	$(PY) -m hw_grader.grade $(if $(filter-out *,$(ASSIGNMENT)),$(ASSIGNMENT))
report: $(READY)  ## the HTML class report of gradebook.db, in build/report.html
	$(PY) -m hw_grader.report build/report.html
bench: $(READY)  ## every benchmark in turn
	set -e; for program in $(notdir $(basename $(wildcard tools/bench_*.py))); do echo "== $$program"; $(PY) -m tools.$$program; done
figures: $(READY)  ## the pictures of README.md, in docs/
	$(PY) -m tools.figures
publish: notebooks  ## DIR=...: what students get, scanned for leaks
	$(PY) -m tools.publish $(DIR)
clean:  ## what was made and can be made again; neither .venv nor anybody's work
	rm -rf build .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
