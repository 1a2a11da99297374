# Each target makes its own environment when it is missing. Everything runs through .venv/bin/python -m, since the
# scripts of an environment do not survive a path with spaces on every system.
PYTHON ?= python3
PY := .venv/bin/python
READY := .venv/.ready

.PHONY: run test slow lint bench clean

run: $(READY)
	$(PY) -m xdnas.cli search burgers

test: $(READY)
	$(PY) -m pytest

slow: $(READY)
	$(PY) -m pytest -m slow

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: .venv/.bench
	$(PY) benchmarks/operation.py --write

# --no-deps: neuraloperator asks for tools of its trainer, of which its layers need none
.venv/.bench: $(READY)
	$(PY) -m pip install --quiet -c constraints.txt -e '.[bench]'
	$(PY) -m pip install --quiet --no-deps -c constraints.txt neuraloperator
	touch .venv/.bench

clean:
	rm -rf .venv build *.egg-info

$(READY): setup.py pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "xdnas needs Python 3.11 or newer; this is %s. Try: make PYTHON=python3.11" % sys.version.split()[0])'
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --upgrade -c constraints.txt pip
	$(PY) -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(READY)
