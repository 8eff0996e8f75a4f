# make demo and make test set up what they need: demo torch and the lab, test also the tools of
# development.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LAB := $(VENV)/lab-installed
DEV := $(VENV)/dev-installed

.PHONY: demo test torture coverage lint lint-js format bench results arm oldest clean

# The stamps hold until the files that say what is installed, or the kernel, change.
$(LAB): pyproject.toml setup.py constraints.txt $(wildcard src/mpelu/kernels/*.cpp src/mpelu/kernels/*.h)
	@echo "Setting up $(VENV): a minute, and longer where torch has to be downloaded"
	@$(PYTHON) -c "import sys; assert sys.version_info >= (3, 10), 'mpelu needs Python >= 3.10, got ' + sys.version"
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch -c constraints.txt
	$(PIP) -e ".[lab]" -c constraints.txt
	@touch $@

# mpelu is installed by now; this adds what its extra dev names.
$(DEV): $(LAB)
	@echo "Adding the tools of development: a minute or more"
	$(PIP) "mpelu[dev]" -c constraints.txt
	@touch $@

demo: $(LAB)
	$(BIN)/python tools/demo.py out/demo

# In two processes, which take whole files, so that fixtures are made once. A single test needs no
# more than pytest and its path.
test: $(DEV)
	$(BIN)/python -m pytest -n 2 --dist loadfile

# Every attack in full: at most half an hour on two cores.
torture: $(DEV)
	OMP_NUM_THREADS=1 PYTHONPATH=tools $(BIN)/python -m torture

coverage: $(DEV)
	$(BIN)/python -m pytest --cov=mpelu --cov-report=term:skip-covered --cov-report=html:out/coverage

lint: $(DEV) lint-js
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The scripts of the report; skipped, with a message, where node isn't installed.
lint-js: $(LAB)
	$(BIN)/python tools/lint_js.py

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Takes about an hour on two cores; nothing else should run.
bench: $(LAB)
	$(PIP) "mpelu[bench]" -c constraints.txt
	$(BIN)/python benchmarks/activation.py
	$(BIN)/python benchmarks/network.py
	$(BIN)/python benchmarks/network.py --compiled --threads 2
	$(BIN)/python benchmarks/coordinates.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/roofline.py --inductor
	$(BIN)/python benchmarks/initialization.py
	$(BIN)/python benchmarks/initialization_speed.py
	$(BIN)/python benchmarks/loader.py
	$(BIN)/python benchmarks/report.py

# The page of results, its figures and tables, from the runs kept in docs/results.
results: $(LAB)
	$(BIN)/python -m research.results

# The kernel on 64-bit ARM, under emulation.
arm: $(DEV)
	$(BIN)/python tools/check_arm.py

# The operator's tests with the oldest torch that is supported; downloads some GB.
oldest: $(DEV)
	$(BIN)/python tools/check_oldest_torch.py

clean:
	rm -rf $(VENV) build out src/*.egg-info src/mpelu/kernels/_native*
