#!/usr/bin/env bash
# fake-cuda.sh COMMAND...: runs the command on the fake CUDA of build/release instead of GPUs, and prints the cost of
# its workers' steps, kernel by kernel. The resulting pictures are meaningless.
#   scripts/fake-cuda.sh build/release/bin/tessera generate "a cat" --device cuda --dtype bf16
# The cards: FAKE_CUDA_DEVICES, FAKE_CUDA_MEMORY_MIB and others, see tests/support/fake_cuda/machine.h.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
built=$root/build/release/tests/support/fake_cuda
if [[ $# == 0 || ! -x $built/fake-cuda-steps ]]; then
  echo "usage: scripts/fake-cuda.sh COMMAND..., after cmake --build --preset release --target fake-cuda-steps tessera_fake_cuda" >&2
  exit 2
fi
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
status=0
LD_PRELOAD=$built/libtessera_fake_cuda.so FAKE_CUDA_LOG=$logs/log "$@" || status=$?
"$built/fake-cuda-steps" "$logs/log"
exit "$status"
