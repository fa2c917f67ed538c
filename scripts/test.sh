#!/usr/bin/env bash
# Sets up .venv-test and runs all tests; arguments go to pytest. Tests that need a GPU skip themselves without one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

make_environment .venv-test -e '.[test]'
export PATH="$PWD/.venv-test/bin:$PATH"
export MLAGEN_CACHE_DIR="${MLAGEN_CACHE_DIR:-$PWD/.venv-test/kernels}"
# One file stays in one process: the kernels of a file are built once.
exec python -m pytest -n "$(nproc)" --dist loadfile "$@"
