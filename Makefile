# Two commands set everything up on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Known-good versions: the same everywhere, and a CPU build of torch where one is to be had.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: run test test-npu lint types check install install-dev wheel clean

run: install
	$(BIN)/autotune run --space online.yaml

# Three files of tests at a time: most of them wait for processes. What needs real processes may meet
# a machine that stalls for a second, and gets a second chance, which the summary tells.
test: install-dev test-npu
	$(BIN)/python -m pytest -n 3 --dist loadfile --reruns 1 --durations 20

# torch_npu on a stand-in for its runtime; says why where it cannot run.
test-npu:
	PYTHON=$(PYTHON) tests/npu/run.sh $(VENV)-npu

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install-dev
	$(BIN)/mypy --strict autotune objectives

check: lint types test

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch first and by its exact version, since a range may bring gigabytes of accelerator libraries.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) "$$(grep '^torch==' constraints.txt)"
	$(PIP_INSTALL) -e ".[cpu]"
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP_INSTALL) -e ".[cpu,onnx,openvino,server,postgres,dashboard,dask,dev]"
	$(PIP_INSTALL) --no-deps tritonclient
	touch $@

wheel: install-dev
	$(BIN)/python -m pip wheel --quiet --no-deps -w dist .

clean:
	rm -rf $(VENV) $(VENV)-npu build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
