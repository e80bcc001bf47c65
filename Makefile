# make course and make test are the two to know; `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
PY = $(VENV)/bin/python
READY = $(VENV)/.ready
ASSIGNMENT ?= *
# One more than there are processors: there is always a test that waits, for a server, a browser or a time limit.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PARALLEL = -n $(JOBS) --maxprocesses 8 --dist
# Hundreds of processes import the package and the tests: what the first one compiles the others read.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: help env course test quick lint drift nbval lab notebooks import collect grade merge export feedback report similarity selftest autograder bench predict figures publish newest site clean

help:  ## this list
	@awk -F ':.*  ## ' '/^[a-z]+:.*  ## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

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
	$(PY) -m pytest $(PARALLEL) worksteal --durations=40 --durations-min=5 -m 'not alone' tests
	$(PY) -m pytest -m alone $$(grep -rl --include='test_*.py' 'mark\.alone' tests)
quick: $(READY)  ## lint, drift, and the tests of the rooms that differ from main
	$(PY) -m tools.quick
lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
drift: $(READY)
	$(PY) -m tools.build --check
nbval: $(READY)
	$(PY) -m pytest $(PARALLEL) loadfile --no-loadscope-reorder --nbval-lax -p tests.building.kernels --timeout=900 -p no:cacheprovider solutions
lab: $(READY)  ## JupyterLab on notebooks/; the formgrader is in its Nbgrader menu
	$(PY) -m jupyter lab --LabApp.default_url=/lab/tree/notebooks
notebooks: $(READY)  ## lessons/ -> solutions/ -> notebooks/; REPLACE=1 drops edits, UNCHECKED=1 runs no check
	$(PY) -m tools.build $(if $(REPLACE),--replace) $(if $(UNCHECKED),--unchecked)
import: $(READY)  ## NOTEBOOK=solutions/...: an edit in JupyterLab back into lessons/
	$(PY) -m tools.import_notebook $(NOTEBOOK)
collect: $(READY)  ## ZIPS="...": an LMS's downloads into submitted/; class.csv tells who is missing
	$(PY) -m hw_grader collect $(ZIPS) $(if $(CLASS),--class-list $(CLASS)) \
		$(if $(filter-out *,$(ASSIGNMENT)),--assignment $(ASSIGNMENT))
grade: $(READY)  ## grades submitted/ over all cores; ASSIGNMENT=01_hello_ranks for one, CHECK=hello for one check
	$(PY) -m hw_grader.grade $(if $(filter-out *,$(ASSIGNMENT)),$(ASSIGNMENT)) $(if $(CHECK),--check $(CHECK))
export: $(READY)  ## LMS=canvas, moodle, brightspace, gradescope or csv: marks of every lesson, in build/export/
	$(PY) -m hw_grader export $(or $(LMS),csv) $(if $(filter-out *,$(ASSIGNMENT)),$(ASSIGNMENT))
feedback: $(READY)  ## a page a student, and one zip an LMS to give them back; ASSIGNMENT=01_hello_ranks for one
	$(PY) -m hw_grader feedback $(if $(filter-out *,$(ASSIGNMENT)),$(ASSIGNMENT))
merge: $(READY)  ## MARKS="anna.db ben.db": what assistants gave by hand in their copies
	$(PY) -m hw_grader merge $(MARKS)
report: $(READY)  ## the HTML class report of gradebook.db, in build/report.html
	$(PY) -m hw_grader.report build/report.html
similarity: $(READY)  ## ASSIGNMENT=01_hello_ranks: pairs whose own code is alike
	$(PY) -m hw_grader similarity $(ASSIGNMENT)
selftest: $(READY)  ## which walls of the grading sandbox hold on this machine
	$(PY) -m hw_grader selftest
autograder: $(READY)  ## ASSIGNMENT=01_hello_ranks: Gradescope's autograder zip, in build/
	$(PY) -m hw_grader autograder $(ASSIGNMENT)
predict: $(READY)  ## predicted beside measured iteration times of GPT on 64 A100
	$(PY) -m tools.bench.predict
bench: $(READY)  ## every benchmark in turn
	set -e; for program in grade launch lesson_02 lesson_03 simulate fold; do echo "== $$program"; $(PY) -m tools.bench.$$program; done
newest: $(READY)  ## engines and doctor on the oldest and newest torch of pip; 6 GB each, kept in ~/.cache
	$(PY) -m tests.newest
figures: $(READY)  ## the pictures of README.md, in docs/
	$(PY) -m tools.site.figures
site: $(READY)  ## build/site: the course as a web site; the first time it runs every solution
	$(PY) -m tools.site $(if $(REPOSITORY),--repository $(REPOSITORY))
publish: notebooks  ## DIR=..., REPOSITORY=... (or set it in pyproject.toml): what students get, scanned for leaks
	$(PY) -m tools.publish $(DIR) $(if $(REPOSITORY),--repository $(REPOSITORY))
clean:  ## what was made and can be made again; neither .venv nor anybody's work
	rm -rf build .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
