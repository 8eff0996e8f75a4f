# make demo and make test set everything up by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test torture coverage lint lint-js format bench results arm oldest clean

# The stamp holds until the files that say what is installed, or the kernel, change.
$(VENV)/installed: pyproject.toml setup.py constraints.txt $(wildcard src/mpelu/kernels/*.cpp src/mpelu/kernels/*.h)
	@echo "Setting up $(VENV): a minute, and longer where torch has to be downloaded"
	@$(PYTHON) -c "import sys; assert sys.version_info >= (3, 10), 'mpelu needs Python >= 3.10, got ' + sys.version"
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch -c constraints.txt
	$(PIP) -e ".[dev]" -c constraints.txt
	@touch $@

demo: $(VENV)/installed
	$(BIN)/python tools/demo.py out/demo

test: $(VENV)/installed
	$(BIN)/python -m pytest

# Every attack in full: at most half an hour on two cores.
torture: $(VENV)/installed
	OMP_NUM_THREADS=1 PYTHONPATH=tools $(BIN)/python -m torture

coverage: $(VENV)/installed
	$(BIN)/python -m pytest --cov=mpelu --cov-report=term:skip-covered --cov-report=html:out/coverage

lint: $(VENV)/installed lint-js
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The scripts of the report; skipped, with a message, where node isn't installed.
lint-js: $(VENV)/installed
	$(BIN)/python tools/lint_js.py

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Takes about an hour on two cores; nothing else should run.
bench: $(VENV)/installed
	$(PIP) -e ".[bench]" -c constraints.txt
	$(BIN)/python benchmarks/activation.py
	$(BIN)/python benchmarks/network.py
	$(BIN)/python benchmarks/network.py --compiled --threads 2
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/roofline.py --inductor
	$(BIN)/python benchmarks/initialization.py
	$(BIN)/python benchmarks/initialization_speed.py
	$(BIN)/python benchmarks/loader.py
	$(BIN)/python benchmarks/report.py

# The page of results, its figures and tables, from the runs kept in docs/results.
results: $(VENV)/installed
	$(BIN)/python tools/results.py

# The kernel on 64-bit ARM, under emulation.
arm: $(VENV)/installed
	$(BIN)/python tools/check_arm.py

# The operator's tests with the oldest torch that is supported; downloads some GB.
oldest: $(VENV)/installed
	$(BIN)/python tools/check_oldest_torch.py

clean:
	rm -rf $(VENV) build out src/*.egg-info src/mpelu/kernels/_native*
