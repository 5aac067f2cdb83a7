# make setup   an environment in .venv with the pinned versions
# make train   hide-and-seek from scratch; EXPERIMENT=cartpole picks another, ARGS="stop.seconds=60" changes it
# make test    everything CI checks, fast first
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
EXPERIMENT ?= hide_and_seek
ARGS ?=

.PHONY: setup train test lint format docs clean unit behaviour fault learning

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test,dev,notebook]"
	touch $@

train: setup
	$(BIN)/python -m srl_ray.train +experiment=$(EXPERIMENT) $(ARGS)

test: lint unit behaviour fault learning

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit behaviour fault learning: setup
	$(BIN)/python -m pytest tests/$@ || test $$? -eq 5  # 5: the group has no tests

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup
	$(BIN)/python scripts/config_reference.py

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find srl_ray scripts tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
