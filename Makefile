# Two commands do everything from a fresh clone: `make demo` and `make test`. Both share one virtual environment.
# `make quick` runs before each commit: the linter and the tests that are not marked slow.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo quick test lint suite docs browser clean

demo: $(STAMP)
	$(BIN)/itta demo

PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal  # rewritten tests are cached
quick suite: export OMP_NUM_THREADS = 1  # two workers share two cores
quick suite: export MKL_NUM_THREADS = 1

quick: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(PYTEST) --quiet -m "not slow"

# Some tests wait for other processes; the linter and the type checker use that time.
test: $(STAMP) browser
	$(MAKE) --no-print-directory --jobs 2 lint suite

suite: $(STAMP)
	$(PYTEST) --durations=25

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The tests of pages open them in Chromium. Without one they are skipped; that must not fail a build.
browser:
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null 2>&1 \
	|| { [ "$$(id -u)" = 0 ] && export DEBIAN_FRONTEND=noninteractive \
	&& { timeout 120 apt-get update -qq; timeout 300 apt-get install -y -qq chromium; }; } >/dev/null 2>&1 \
	|| echo "No Chromium found: the tests in a browser will be skipped (apt-get install chromium)."

# The site is built into site/; site/index.html opens from disk.
docs: $(STAMP)
	$(BIN)/python -m tools.build_docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open site/index.html"

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) demo-output site
