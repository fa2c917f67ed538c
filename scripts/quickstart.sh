#!/usr/bin/env bash
# Sets up .venv, builds the DeepSeek-V3 kernels, shows the report and checks them: on a GPU, or one on the emulator.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

make_environment .venv '.[compile]'
export PATH="$PWD/.venv/bin:$PATH"
mlagen build --preset deepseek-v3

make_environment .venv '.[compile,torch]'
if ! python -c 'from mlagen import driver, heuristics; heuristics.arch_of(driver.gpu(0))' 2>/dev/null; then
  echo
  echo "There is no Hopper GPU on this machine: one of the kernels runs on the emulator, which takes a minute or two."
  mlagen verify mla_decode_sm90_wgmma_bf16_bf16_h128_p64_s128_2sm --emulate
  echo "Where there is one, this script goes on with: mlagen verify --preset deepseek-v3"
  exit 0
fi
mlagen verify --preset deepseek-v3
