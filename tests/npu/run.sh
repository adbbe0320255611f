#!/usr/bin/env bash
# Tests on the stub CANN runtime, in a virtual environment of their own: with torch_npu installed
# and no CANN, a plain `import torch` fails, so it must not stand beside the other tests.
#
#   tests/npu/run.sh VENV [pytest's arguments]
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$1
shift

skip() {
    echo "test-npu skipped: $1"
    exit 0
}

command -v g++ >/dev/null || skip "no g++ to build the stub runtime with"
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt)
if ! cmp -s constraints.txt "$venv/.installed"; then
    "${pip[@]}" "$(grep '^torch==' constraints.txt)"
    if ! said=$("${pip[@]}" --only-binary :all: torch-npu 2>&1); then
        case $said in
        *"No matching distribution"*) skip "there is no wheel of torch-npu for this platform" ;;
        *) echo "$said" >&2 && exit 1 ;;
        esac
    fi
    "${pip[@]}" -e ".[npu]" protobuf packaging pytest pytest-rerunfailures pytest-timeout pytest-xdist
    cp constraints.txt "$venv/.installed"
fi
"$venv/bin/python" tests/stub_cann/build.py "$venv/stub_cann"
export LD_LIBRARY_PATH=$PWD/$venv/stub_cann PYTHONPATH=$PWD/tests/stub_cann/python:$PWD
export STUB_CANN_MATH=1 TORCH_DEVICE_BACKEND_AUTOLOAD=0 OMP_NUM_THREADS=1
[ $# -gt 0 ] || set -- -n 2 --dist loadfile --reruns 1 tests/npu
exec "$venv/bin/python" -m pytest -p no:cacheprovider "$@"
