# make demo and make test do everything on a machine with Python >= 3.11, git and make.

# The first of these that is Python 3.11 or newer.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
DEMO := fixtures/demo/train.py
PROBED := fixtures/demo/probe_train.py
# Has a build for machines without a GPU; both as in the dev dependencies, and torch warns where numpy is missing.
TORCH := torch==2.13.0 'numpy>=1.26'

.DEFAULT_GOAL := help
.PHONY: help demo test check browser bless ecosystem bench bench-probe bench-dryrun bench-record bench-verify bench-page plotly readme clean

help:
	@echo 'make demo       lint a script with planted mistakes, and probe one that float16 would break'
	@echo 'make test       ruff, mypy, and every test'
	@echo 'make browser    install chromium for the tests, where there is none'
	@echo 'make bless      rewrite the generated parts of rules/README.md'
	@echo 'make ecosystem  lint sixteen published packages and compare with fixtures/ecosystem.toml'
	@echo 'make bench      how fast it is, against ruff and libcst'
	@echo 'make bench-dryrun  what a dry run costs, against float32'
	@echo 'make bench-probe  what the probe costs, against the unprobed step'
	@echo 'make bench-record  what recording a step costs, against that step'
	@echo 'make bench-verify  what a proof costs, against a plain run of the script'
	@echo 'make bench-page   how long a browser takes over the page of 2,000 layers'
	@echo 'make plotly     bring the newest plotly.js for the HTML report, with npm'
	@echo 'make readme     draw the pictures in docs/ anew'

demo: $(VENV)/installed-probe
	@echo '$$ amp-doctor lint $(DEMO)'
	@$(BIN)/amp-doctor lint --isolated --no-cache --exit-zero $(DEMO)
	@echo
	@echo '$$ amp-doctor probe --steps 30 $(PROBED)'
	@$(BIN)/amp-doctor probe --steps 30 --fail-on never $(PROBED)

test: check browser
	$(BIN)/python -m pytest --no-skips -n $${PYTEST_WORKERS:-auto} -q

check: $(VENV)/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python -m mypy

# The tests open the HTML report in chromium. Where there is none, root gets Debian's; others are told to install one.
browser:
	@for name in chromium chromium-browser google-chrome chrome; do \
		command -v $$name >/dev/null && exit 0; done; test -z "$$CHROMIUM" || exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
		apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; \
	else echo 'make test needs chromium: install it, or set CHROMIUM=/path/to/chromium' >&2; exit 1; fi

bless: $(VENV)/installed-dev
	$(BIN)/python -m pytest -q tests/test_rule_pages.py -k readme --bless

ecosystem: $(VENV)/installed-dev
	$(BIN)/python -m tests.benchmarks.ecosystem $(ARGS)

bench: $(VENV)/installed-dev
	$(BIN)/python -m tests.benchmarks.lint_speed $(ARGS)

bench-dryrun: $(VENV)/installed-dev
	$(BIN)/python -m tests.benchmarks.dryrun_cost $(ARGS)

bench-probe: $(VENV)/installed-dev
	$(BIN)/python -m tests.benchmarks.probe_cost $(ARGS)

bench-record: $(VENV)/installed-dev
	$(BIN)/python -m tests.benchmarks.record_cost $(ARGS)

bench-verify: $(VENV)/installed-dev
	$(BIN)/python -m tests.benchmarks.verify_cost $(ARGS)

bench-page: $(VENV)/installed-dev browser
	$(BIN)/python -m tests.benchmarks.page_cost $(ARGS)

# The bundle for charts on plain axes, as its makers publish it.
PAGE := amp_doctor/report/page
plotly:
	folder=$$(mktemp -d) && npm pack --silent --pack-destination $$folder plotly.js-cartesian-dist-min && \
	tar -xzf $$folder/*.tgz -C $$folder && cp $$folder/package/plotly-cartesian.min.js $(PAGE)/ && \
	cp $$folder/package/LICENSE $(PAGE)/plotly-cartesian.LICENSE && rm -r $$folder

readme: $(VENV)/installed-dev browser
	$(BIN)/python docs/draw_report.py docs/report.svg lint --isolated --no-cache --exit-zero $(DEMO)
	$(BIN)/python docs/draw_report.py docs/probe.svg report --fail-on never fixtures/profiles/tones.json
	$(BIN)/python docs/draw_page.py docs/page.png fixtures/profiles/t5-feed-forward.json
	$(BIN)/python -m pytest -q tests/test_packaging.py -k readme

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .amp_doctor_cache

$(VENV)/bin/python:
	@test -n '$(PYTHON)' || { echo 'amp-doctor needs Python 3.11 or newer; set PYTHON=/path/to/python' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Stamps, so that a second run installs nothing; they are made anew when the dependencies change.
$(VENV)/installed: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@$(BIN)/python -m compileall -q amp_doctor
	@touch $@

$(VENV)/installed-probe: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[probe]' $(TORCH)
	@touch $@

$(VENV)/installed-dev: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@$(BIN)/python -m compileall -q amp_doctor
	@touch $(VENV)/installed $(VENV)/installed-probe $@
