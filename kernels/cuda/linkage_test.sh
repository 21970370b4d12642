#!/usr/bin/env bash
# linkage_test.sh worker|plug-in FILE: checks which libraries the worker and the CUDA plug-in need.
set -euo pipefail
kind=$1
file=$2
fail() {
  echo "FAILED: $1" >&2
  exit 1
}
needed=$(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
names() { grep -qxE "$1" <<<"$needed"; }
names 'libtorch_cpu\.so' || fail "$file does not name libtorch_cpu.so: is it the right file?"

case $kind in
  worker)
    # libtorch_cpu itself brings libcudart and libcupti.
    if names 'lib(torch_cuda|c10_cuda|cuda|cublas.*|cudnn.*|nccl.*|nvrtc.*|tessera_cuda)\.so(\..*)?'; then
      fail "the worker names a CUDA library and would not start without it: ${needed//$'\n'/ }"
    fi
    ;;
  plug-in)
    names 'libtorch_cuda\.so' || fail "the linker dropped libtorch_cuda.so: its kernels would not be registered"
    names 'libcudart\.so\.[0-9]+' || fail "the CUDA runtime is linked in, in addition to the one that LibTorch uses"
    if names 'libcuda\.so(\..*)?'; then fail "the plug-in names the driver's library and could not say that it is missing"; fi
    exported=$(nm -D --defined-only "$file" | awk '$2 != "A" { print $3 }' | sort | tr '\n' ' ')
    [[ $exported == "TesseraCudaRuntime " ]] || fail "the plug-in exports other than its function: $exported"
    ;;
  *) fail "unknown kind $kind" ;;
esac
