#!/usr/bin/env bash
# Sets up .venv, builds the DeepSeek-V3 kernels, shows the report and checks them where a GPU is present.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

make_environment .venv '.[compile]'
export PATH="$PWD/.venv/bin:$PATH"
mlagen build --preset deepseek-v3

if ! python -c 'from mlagen import driver, heuristics; heuristics.arch_of(driver.gpu(0))' 2>/dev/null; then
  echo
  echo "NOT VERIFIED: there is no Hopper GPU on this machine, so the kernels were built but not run."
  echo "Where there is one, this script goes on with: mlagen verify --preset deepseek-v3"
  exit 0
fi
make_environment .venv '.[compile,torch]'
mlagen verify --preset deepseek-v3
