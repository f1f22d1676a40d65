PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= passive

.PHONY: demo test lint bench clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(VENV)/.installed  ## the main job on the bundled model
	$(BIN)/mathneuro-export demo demo-output --overwrite

test: $(VENV)/.installed  ## the tests, without those marked slow or real
	$(BIN)/python -m pytest

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed  ## ratios of time and memory; takes minutes
	for script in startup select_speed rewrite_speed scale_speed diff_speed; do echo "== $$script"; $(BIN)/python benchmarks/$$script.py || exit 1; done

clean:
	rm -rf $(VENV) demo-output
