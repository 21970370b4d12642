#!/usr/bin/env bash
# spills_test.sh NVCC FOLDER OPTION…: with the options that the kernels are compiled with, one that needs more registers
# than it may have does not compile, and the message names it; one that fits does.
set -euo pipefail
nvcc=$1
folder=$2
shift 2
fail() {
  echo "FAILED: $1" >&2
  exit 1
}
place=$(mktemp -d "$folder/spills.XXXXXX")
trap 'rm -rf "$place"' EXIT
kernel() {
  cat <<END
__global__ void __launch_bounds__(1024) Hold(const float* x, float* y) {
  float held[$1];
#pragma unroll
  for (int i = 0; i < $1; ++i) held[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < $1; ++i) y[i * 1024 + threadIdx.x] = held[i] * held[(i * 7 + 3) % $1];
}
END
}
kernel 8 >"$place/fits.cu"
kernel 96 >"$place/spills.cu"
"$nvcc" "$@" -arch=sm_90a -c "$place/fits.cu" -o "$place/fits.o" || fail "a kernel of 8 numbers a thread does not compile"
if message=$("$nvcc" "$@" -arch=sm_90a -c "$place/spills.cu" -o "$place/spills.o" 2>&1); then
  fail "a kernel that spills its registers compiles"
fi
[[ $message == *"Registers are spilled"*Hold*"bytes spill stores"* ]] || fail "the message is another: $message"
